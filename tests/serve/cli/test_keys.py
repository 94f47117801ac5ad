"""`raydiance keys`, as a person types it; and that a server lets in whom it made a key for."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.serve.cli.command import run

from raydiance.serve.storage.jobs import JobStore
from raydiance.serve.storage.keys import digest_of

KEY = re.compile(r"rd-[A-Za-z0-9_-]{43}\n")


def test_a_key_from_making_to_revoking(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/data/jobs.db"
    options = (
        "--concurrency",
        "4",
        "--gpu-seconds-per-minute",
        "90",
        "--model",
        "tiny",
        "--model",
        "wan",
        "--weight",
        "2",
    )
    secret, said = run("keys", "create", "--tenant", "acme", *options, "--label", "studio", "--database", database)
    assert KEY.fullmatch(secret)
    key = secret.strip()
    assert key not in said
    assert "not shown again" in said
    store = JobStore(database)
    assert store.find_key(digest_of(key.encode())) == "acme"
    limits = store.tenant("acme").limits
    assert (limits.concurrency, limits.gpu_seconds_per_minute, limits.weight) == (4, 90, 2)
    assert limits.allowed_models == ("tiny", "wan")

    config = tmp_path / "raydiance.yaml"
    config.write_text(f"storage: {{database: '{database}'}}\n")
    listed, _ = run("keys", "list", "--config", config)
    [row] = listed.splitlines()
    key_id, tenant, shown, _, revoked, label = row.split("\t")
    assert (tenant, shown, revoked, label) == ("acme", f"rd-…{key[-4:]}", "", "studio")
    as_json, _ = run("keys", "list", "--json", "--tenant", "acme", "--database", database)
    assert json.loads(as_json)[0]["id"] == key_id
    assert "revoked" in run("keys", "revoke", key_id, "--database", database)[1]
    assert store.find_key(digest_of(key.encode())) is None
    after, _ = run("keys", "list", "--database", database)
    assert after.split("\t")[4] != ""
    for text in (listed, as_json, after):
        assert key not in text
    store.close()


def test_limits_of_a_tenant(tmp_path: Path) -> None:
    at = ("--database", f"sqlite:///{tmp_path}/jobs.db")
    run("keys", "tenant", "acme", "--concurrency", "4", "--tier", "batch", *at)
    out, _ = run("keys", "tenant", "acme", "--monthly-budget", "12.5", "--unlimited", "concurrency", *at)
    assert out.strip().split("\t")[2:] == ["1", "monthly-budget=12.5, tier=batch"]
    run("keys", "tenant", "globex", "--gpu-seconds-per-day", "100", *at)
    tenants = json.loads(run("keys", "tenant", "--json", *at)[0])
    assert [(t["name"], t["limits"]["gpu_seconds_per_day"]) for t in tenants] == [("acme", None), ("globex", 100)]


def test_in_the_folder_of_a_server(tmp_path: Path) -> None:
    """Where nothing is said, it is the database that `raydiance serve` would use there."""
    run("keys", "create", "--tenant", "acme", cwd=tmp_path)
    assert run("keys", "list", cwd=tmp_path, RAYDIANCE_DATA=str(tmp_path / "raydiance-data"))[0].count("acme") == 1


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["create"], "--tenant"),
        (["create", "--tenant", "a b"], "tenant 'a b'"),
        (["create", "--tenant", "acme", "--concurrency", "0"], "concurrency=0 must be a number above 0"),
        (["create", "--tenant", "acme", "--database", "mysql://u:hunter2@h/d"], "storage.database"),
        (["create", "--tenant", "acme", "--database", "sqlite:///x.db", "--config", "c.yaml"], "not both"),
        (["list", "--database", "sqlite:///none.db"], "none.db"),
        (["list", "--config", "none.yaml"], "none.yaml"),
        (["tenant", "--concurrency", "4"], "name the tenant"),
        (["tenant", "acme", "--unlimited", "all"], "--unlimited all is none of concurrency"),
        (["tenant", "acme", "--unlimited", "tier", "--tier", "batch"], "contradict"),
    ],
)
def test_wrong_usage(args: list[str], says: str, tmp_path: Path) -> None:
    _, err = run("keys", *args, code=2, cwd=tmp_path)
    assert says in err
    assert "hunter2" not in err
    assert not (tmp_path / "none.db").exists()


def test_what_is_not_there(tmp_path: Path) -> None:
    at = ("--database", f"sqlite:///{tmp_path}/jobs.db")
    run("keys", "create", "--tenant", "acme", *at)
    assert "key_0" in run("keys", "revoke", "key_0", *at, code=1)[1]
    assert "globex" in run("keys", "tenant", "globex", *at, code=1)[1]


def test_help_teaches() -> None:
    out, _ = run("keys", "--help")
    assert "Examples" in out
    assert "raydiance keys create --tenant acme" in out
