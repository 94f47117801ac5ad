"""Fixtures that more than one folder of tests needs."""

from __future__ import annotations

from collections.abc import Iterator

import hypothesis
import pytest
from tests.servers import SETTINGS, Server

hypothesis.settings.register_profile("no-clock", deadline=None)  # machines are busy
hypothesis.settings.load_profile("no-clock")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One real server for all tests that only talk to it."""
    folder = tmp_path_factory.mktemp("server")
    started = Server(folder, SETTINGS)
    try:
        yield started.wait_ready()
    finally:
        started.stop()
