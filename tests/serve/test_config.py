"""One configuration for the command line, the Serve config file and the chart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raydiance.serve.config import Config, load_config
from raydiance.serve.errors import ConfigError


def test_a_model_in_short_and_strings_as_serve_run_gives_them() -> None:
    config = load_config({"model": "tiny", "denoiser.num_threads": "3", "network.allow_hosts": "a, b"})
    assert (config.models[0].id, config.denoiser.num_threads, config.network.allow_hosts) == ("tiny", 3, ["a", "b"])


def test_values_overlay_the_file(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("model: tiny\ndenoiser: {num_threads: 1, max_batch_size: 2}\n")
    config = load_config({"denoiser.num_threads": 4}, file)
    assert (config.denoiser.num_threads, config.denoiser.max_batch_size) == (4, 2)


def test_relative_places_are_taken_from_here() -> None:
    storage = Config().storage
    assert storage.database == f"sqlite:///{Path('raydiance-data/jobs.db').absolute()}"
    assert storage.artifacts == str(Path("raydiance-data/artifacts").absolute())


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"denoisr": {}}, "denoisr"),
        ({"denoiser.threads": 1}, "denoiser.threads"),
        ({"denoiser.max_batch_size": 0}, "denoiser.max_batch_size"),
        ({"model": "tiny", "models": [{"path": "tiny"}]}, "not both"),
        ({"models": [{"path": "a/x"}, {"path": "b/x"}]}, "distinct"),
        ({"models": []}, "models"),
        ({"models": [{"path": "x", "name": "a b"}]}, "models.0.name"),
        ({"http.api_key_sha256": "abc"}, "64 hex"),
        ({"model.path": "x", "http": 3}, "http"),
    ],
)
def test_what_is_wrong_is_refused_by_its_name(values: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_config(values)


@pytest.mark.parametrize("text", ["- 1", "a: [", "model: tiny\nx: 1"])
def test_a_broken_file_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError):
        load_config({}, file)


@pytest.mark.parametrize(
    ("values", "needs_keys"),
    [
        ({}, False),
        ({"http.host": "::1"}, False),
        ({"http.api_key_sha256": "0" * 64}, True),
        ({"http.host": "0.0.0.0"}, True),
        ({"http.host": "0.0.0.0", "http.api_key_sha256": "0" * 64, "auth.allow_anonymous": True}, True),
        ({"http.host": "0.0.0.0", "auth.allow_anonymous": "true"}, False),
        ({"http.host": "0.0.0.0", "auth.allow_anonymous": True, "auth.mode": "off"}, False),
        ({"auth.mode": "keys"}, True),
        ({"auth.mode": "off"}, False),
        ({"auth": {"mode": False}}, False),
    ],
)
def test_who_needs_a_key(values: dict[str, Any], needs_keys: bool) -> None:
    assert load_config(values).needs_keys is needs_keys


def test_off_as_yaml_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("auth: {mode: off}\nhttp: {host: 0.0.0.0}\n")
    with pytest.raises(ConfigError, match=r"auth\.allow_anonymous"):
        load_config({}, file)


def test_an_open_server_listens_on_loopback_only() -> None:
    with pytest.raises(ConfigError, match=r"auth\.mode=off with http\.host=0\.0\.0\.0.*auth\.allow_anonymous=true"):
        load_config({"http.host": "0.0.0.0", "auth.mode": "off"})
    with pytest.raises(ConfigError, match=r"http\.api_key_sha256 names keys"):
        load_config({"http.api_key_sha256": "0" * 64, "auth.mode": "off"})


def test_secrets_do_not_show() -> None:
    config = load_config({"webhooks.secret": "whsec_c2VjcmV0"})
    assert "c2VjcmV0" not in repr(config)
    assert "c2VjcmV0" not in config.model_dump_json()


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"denoisr": {}}, "unknown option 'denoisr'; did you mean 'denoiser'?"),
        ({"modell": "tiny"}, "unknown option 'modell'; did you mean 'model'?"),
        ({"denoiser.threads": 1}, "unknown option 'denoiser.threads'; did you mean 'num_threads'?"),
        ({"network.hosts": 1}, "unknown option 'network.hosts'; did you mean 'allow_hosts'?"),
        ({"denoiser.max_batch_size": 0}, "denoiser.max_batch_size must be at least 1 (got 0)"),
        ({"http.port": "http"}, "http.port must be an integer (got 'http')"),
        ({"http": 3}, "http must be a mapping of names to values (got a number)"),
        ({"http.host": "0.0.0.0", "auth.mode": "off"}, "auth.mode=off with http.host=0.0.0.0, which is reached"),
        ({"auth.mode": "maybe"}, "auth.mode must be auto, off or keys (got 'maybe')"),
        (
            {"http.port": "x", "denoiser.num_gpus": -1},
            "denoiser.num_gpus must be at least 0 (got -1); http.port must be",
        ),
    ],
)
def test_options(values: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(values)
    assert str(caught.value).startswith(says)
    assert caught.value.__cause__ is None


SECRET = "hunter2hunter2"


@pytest.mark.parametrize(
    "values",
    [
        {"webhooks.secret": [SECRET]},
        {"webhooks.secret": f"whsec_{SECRET}!"},
        {"webhooks.secrt": SECRET},
        {"webhooks": SECRET},
        {"webhooks": [SECRET]},
        {"http.api_key_sha256": SECRET},
        {"http.api_key_sha256": {SECRET: SECRET}},
        {"http": {"api_key_sha256": SECRET, "port": 1}},
        {"http.port": f"whsec_{SECRET}"},
        {"storage.database": f"mysql://user:{SECRET}@host/db"},
        {"storage.database": f"mysql://host/db?password={SECRET}"},
        {"storage.database": {"url": SECRET}},
        {"storage.artifacts": f"gs://{SECRET}@bucket"},
        {"models": [{"path": {"token": SECRET}}]},
        {f"x{SECRET}" * 9: SECRET, "webhooks.secret": 5},
    ],
)
def test_secrets_are_not_repeated(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(values)
    assert SECRET not in str(caught.value).replace(f"x{SECRET}", "")


@pytest.mark.parametrize("option", ["http.body_timeout_s", "storage.artifact_ttl_s", "denoiser.checkpoint_interval_s"])
def test_no_duration_is_without_end(option: str) -> None:
    with pytest.raises(ConfigError, match=option):
        load_config({option: float("inf")})
