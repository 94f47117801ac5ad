"""Which Ray cluster `raydiance.connect()` joins, and what it says where it joins none. Every driver is a process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.serve.test_client import address_of
from tests.servers import Server

CLUSTER = """
import sys, ray
context = ray.init(address="local", include_dashboard=False, num_cpus=1, object_store_memory=80 << 20)
print(context.address_info["gcs_address"], flush=True)
sys.stdin.read()
"""

# other clusters of the machine that runs the tests are not found; those of the test are found as always
DRIVER = """
import sys, raydiance
from ray._private import services
from raydiance.serve.errors import Unavailable

mine, found, app = set(sys.argv[1].split()), services.find_gcs_addresses, sys.argv[2]
services.find_gcs_addresses = lambda: found() & mine
services.find_gcs_addresses.cache_clear = found.cache_clear
try:
    print([card.id for card in raydiance.connect(app=app).models()])
except Unavailable as e:
    print(e)
"""


def connect(*clusters: str, app: str = "raydiance", **env: str) -> str:
    """What a driver without an address prints, of which `clusters` are all that this machine has."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    command = [sys.executable, "-W", "ignore", "-c", DRIVER, " ".join(clusters), app]
    began = time.monotonic()
    done = subprocess.run(command, env=clean | env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 15  # nothing was tried for long
    return done.stdout.strip()


@pytest.fixture(scope="module")
def another() -> Iterator[str]:
    """The address of a second cluster on this machine, without Raydiance."""
    loopback = {"RAY_AUTH_MODE": "token", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    command = [sys.executable, "-W", "ignore", "-c", CLUSTER]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, env=os.environ | loopback, text=True, **pipes)  # type: ignore[call-overload]
    yield process.stdout.readline().strip()
    process.communicate(timeout=60)


def test_the_only_cluster_is_found(server: Server) -> None:
    assert connect(address_of(server)) == "['tiny']"


def test_of_several_clusters_none_is_chosen(server: Server, another: str) -> None:
    both = sorted([address_of(server), another])
    assert connect(*both) == (
        f"2 Ray clusters run on this machine, at {both[0]}, {both[1]}: pass address=… or set RAY_ADDRESS"
    )
    assert connect(*both, RAY_ADDRESS=address_of(server)) == "['tiny']"


def test_no_cluster_at_all() -> None:
    assert connect() == (
        "no Ray cluster runs on this machine: start one with `raydiance serve`, pass address=… or set RAY_ADDRESS"
    )


def test_an_application_that_does_not_run(server: Server, another: str) -> None:
    missing = "application 'clips' does not run on this cluster: it runs"
    assert connect(address_of(server), app="clips") == f"{missing} 'raydiance'; pass app=…"
    assert connect(another, app="clips") == f"{missing} none; start one with `serve run`"


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"RAY_AUTH_TOKEN": "wrong"}, "refuses the one of RAY_AUTH_TOKEN"),
        ({"RAY_AUTH_TOKEN": "wrong", "RAY_AUTH_MODE": "token"}, "refuses the one of RAY_AUTH_TOKEN"),
        ({"RAY_AUTH_TOKEN_PATH": "{home}/token"}, "refuses the one of RAY_AUTH_TOKEN_PATH"),
        ({"HOME": "{home}"}, "none was found"),
        ({"HOME": "{home}", "RAY_AUTH_MODE": "token"}, "none was found"),
        ({"RAY_AUTH_MODE": "disabled"}, "RAY_AUTH_MODE=disabled shows none"),
    ],
)
def test_a_token_that_is_wrong_or_missing(server: Server, tmp_path: Path, env: dict[str, str], says: str) -> None:
    (tmp_path / "token").write_text("wrong")
    told = connect(address_of(server), **{name: value.format(home=tmp_path) for name, value in env.items()})
    assert f"asks for a token, and {says}: set RAY_AUTH_MODE=token" in told
    for place in ("RAY_AUTH_TOKEN ", "RAY_AUTH_TOKEN_PATH", "~/.ray/auth_token"):
        assert place in told


def test_what_is_no_ray_cluster(server: Server) -> None:
    told = connect(RAY_ADDRESS=server.url.removeprefix("http://"))
    assert f"what answers at 127.0.0.1:{server.port} is no Ray cluster, or not ready" in told
