"""A VAE decoder over two ranks for real: Ray, gloo between the ranks, HTTP, and the loss of a rank."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import numpy as np
import pytest
import torch
from tests import in_process
from tests.fake_gpus import fake_gpus
from tests.serve.test_nothing_lost import submit, wait_for

from raydiance.models import registry
from raydiance.models.tiles import TileRunner
from raydiance.models.tokens import Forward, run_in_turn
from raydiance.serve import media
from raydiance.serve.config import load_config

VIDEO: dict[str, Any] = {"height": 272, "width": 288, "num_frames": 5, "num_inference_steps": 2, "seed": 5}
"""Tiles of the embedded model's VAE are of 256 x 256 pixels, 192 apart."""
NUM_TILES = 4
GREY_LEVEL = 1
TIMEOUT_S = 120
SETTINGS = {
    "denoiser.num_gpus": 0,
    "denoiser.num_threads": 1,
    "vae_decoder.gpus": 2,
    "vae_decoder.small_tiles": True,
    "vae_decoder.deadline_s": TIMEOUT_S,
}


class InTurn:
    """Two ranks, as a decoder sees them, that are one."""

    concurrency = 2

    def run(self, forwards: Sequence[Forward]) -> list[torch.Tensor]:
        return run_in_turn(forwards)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """What one rank makes that is told to decode in tiles, in this process and without Ray."""
    folder, load = tmp_path_factory.mktemp("one"), registry.load
    stores = {"storage.database": f"sqlite:///{folder}/jobs.db", "storage.artifacts": f"{folder}/artifacts"}

    def tiled(folder: Path, stage: Any, *args: Any) -> Any:
        family = load(folder, stage, *args)
        if stage == "decode":
            family.set_tokens(TileRunner(InTurn(), small=True))
        return family

    with (
        mock.patch.object(registry, "load", tiled),
        in_process.serving(load_config({"model": "tiny", "denoiser.num_threads": 1, **stores})) as url,
        httpx.Client(base_url=url, timeout=TIMEOUT_S) as client,
    ):
        return frames(client, submit(client, **VIDEO))


def frames(client: httpx.Client, job_id: str) -> np.ndarray:
    wait_for(client, job_id, "completed")
    data = client.get(f"/v1/jobs/{job_id}/content").raise_for_status().content
    return media.decode_video(data)[0].astype(int)


def assert_same(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= GREY_LEVEL


@pytest.mark.slow
def test_two_ranks_decode_the_pixels_of_one(tmp_path: Path, expected: np.ndarray) -> None:
    with fake_gpus(tmp_path, 0, **SETTINGS) as program, httpx.Client(base_url=program.started["url"]) as client:
        before = program.ask("stats", stage="VAEDecoder")
        assert before["pid"] == before["ranks"][0] != before["ranks"][1]
        assert before["tiles"] == [0, 0]  # the warm-up is of one tile
        assert_same(frames(client, submit(client, **VIDEO)), expected)
        small = submit(client, **VIDEO | {"height": 64, "width": 64})
        assert frames(client, small).shape == (5, 64, 64, 3)
        assert program.ask("stats", stage="VAEDecoder")["tiles"] == [NUM_TILES / 2, NUM_TILES / 2]


@pytest.mark.drill
@pytest.mark.parametrize("is_killed", [True, False], ids=["SIGKILL", "deadline"])
def test_a_job_outlives_the_rank_that_is_lost_under_it(tmp_path: Path, expected: np.ndarray, is_killed: bool) -> None:
    settings = SETTINGS if is_killed else SETTINGS | {"vae_decoder.deadline_s": 10}
    with fake_gpus(tmp_path, 0, **settings) as program, httpx.Client(base_url=program.started["url"]) as client:
        lost = program.ask("stats", stage="VAEDecoder")
        os.kill(lost["ranks"][1], signal.SIGSTOP)  # so that the first waits for its tiles
        job_id = submit(client, **VIDEO)
        wait_for(client, job_id, "in_progress", progress=95)
        time.sleep(2)
        assert client.get(f"/v1/jobs/{job_id}").json()["status"] == "in_progress"
        began = time.monotonic()
        if is_killed:
            os.kill(lost["ranks"][1], signal.SIGKILL)
        assert_same(frames(client, job_id), expected)
        print(f"completed {time.monotonic() - began:.1f} s later")
        found = program.ask("stats", stage="VAEDecoder")
        assert not set(found["ranks"]) & set(lost["ranks"])
        assert found["tiles"] == [NUM_TILES / 2, NUM_TILES / 2]
        assert_same(frames(client, submit(client, **VIDEO)), expected)
        assert all(is_gone(pid) for pid in lost["ranks"])
        assert program.ask("left")["groups"] == ["CREATED"]


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True
