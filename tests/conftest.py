"""Fixtures that more than one folder of tests needs, and which tests are run alone."""

from __future__ import annotations

from collections.abc import Iterator

import hypothesis
import pytest
from tests.servers import SETTINGS, Server

hypothesis.settings.register_profile("no-clock", deadline=None)  # machines are busy
hypothesis.settings.load_profile("no-clock")

STARTS = {"Server", "fake_gpus", "FakeGPUs"}
"""Names in a module of tests that start clusters."""
ALONE = (
    "tests/load_tests/test_overlap_net",
    "tests/parallel/",
    "tests/serve/cli/",
    "tests/serve/stages/test_decoder_ranks",
    "tests/serve/test_client",
    "tests/serve/test_cluster",
    "tests/serve/test_guest",
    "tests/serve/test_local",
    "tests/serve/test_session",
    "tests/serve/test_shared",
    "tests/test_packaging",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what starts clusters and ranks: two of those at once would disturb each other."""
    for item in items:
        starts = STARTS & set(vars(getattr(item, "module", None) or object))
        uses = "server" in getattr(item, "fixturenames", ()) and not item.nodeid.startswith("tests/serve/api/")
        if starts or uses or item.nodeid.startswith(ALONE):
            item.add_marker(pytest.mark.alone)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One real server for all tests that only talk to it."""
    folder = tmp_path_factory.mktemp("server")
    started = Server(folder, SETTINGS)
    try:
        yield started.wait_ready()
    finally:
        started.stop()
