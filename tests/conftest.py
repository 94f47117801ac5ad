"""Fixtures that more than one folder of tests needs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from servers import Server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One real server for all tests that only talk to it."""
    folder = tmp_path_factory.mktemp("server")
    started = Server(folder, SETTINGS)
    try:
        yield started.wait_ready()
    finally:
        started.stop()


SETTINGS = {
    "network.allow_hosts": "127.0.0.1",
    "webhooks.secret": "whsec_dGVzdC1zZWNyZXQtb2YtcmF5ZGlhbmNl",
    "webhooks.first_retry_s": 0.1,
    "denoiser.progress_interval_s": 0.05,
    "denoiser.checkpoint_interval_s": 0.2,
}
