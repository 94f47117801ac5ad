"""The ranks of a VAE decoder after the first: plain Ray actors, each with the whole VAE."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from itertools import combinations
from pathlib import Path
from typing import Any

import ray
import torch
import torch.distributed as dist
from ray.util.placement_group import PlacementGroup

from raydiance.models import registry
from raydiance.models.family import Family
from raydiance.models.spec import Spec
from raydiance.models.tiles import TileRunner
from raydiance.parallel.comm import Communicator
from raydiance.parallel.spread import Spread
from raydiance.serve.config import ModelConfig, VAEDecoderConfig
from raydiance.serve.engine.fleet import RanksLost
from raydiance.serve.errors import ConfigError
from raydiance.serve.stages.decoder_ranks import DecoderRanks
from raydiance.serve.stages.decoder_share import Share, SharedTiles, decode_share
from raydiance.serve.stages.processes import (
    Place,
    Processes,
    RankProcess,
    device_of_rank,
    error_of,
    here,
    meet,
    open_meeting,
)

log = logging.getLogger("ray.serve")


class DecoderActor(RankProcess):
    """Made by `DecoderActors`. `load` comes first, then `join`; orders are done one by one, in one thread."""

    def load(self, folder: Path, model: ModelConfig, num_threads: int, device: str) -> float:
        """The seconds that it took."""
        began = time.monotonic()
        torch.set_num_threads(num_threads)
        self._family = registry.load(folder, "decode", model.id, model.load_options("decode", device))
        return time.monotonic() - began

    def join(self, rank: int, meeting: str, config: VAEDecoderConfig, device: str) -> None:
        self._tiles = SharedTiles(_spread(rank, meeting, config, device))
        self._family.set_tokens(TileRunner(self._tiles, small=config.small_tiles))

    def decode(self, latents: torch.Tensor, spec: Spec) -> Share:
        return decode_share(self._family, self._tiles, latents, spec)


class DecoderActors:
    """Ranks 1 … N-1 of a replica whose own process is rank 0. Its constructor returns when they have begun to load.

    Args:
        group: bundle 0 is the replica's, the others a rank's each.
        start_deadline_s: for loading the weights.
        lost: called, in any thread, when a rank is gone, late or out of step, and all of these have been ended.

    Raises ConfigError where two ranks share a GPU.
    """

    def __init__(
        self,
        folder: Path,
        model: ModelConfig,
        config: VAEDecoderConfig,
        device: str,
        num_threads: int,
        *,
        group: PlacementGroup,
        start_deadline_s: float,
        lost: Callable[[RanksLost], None],
    ) -> None:
        self._config = config
        self._device = device
        self._start_deadline_s = start_deadline_s
        self._lost = lost
        self._answers = ThreadPoolExecutor(1, "vae-ranks")
        self._processes = Processes(
            DecoderActor,
            group,
            config.gpus - 1,
            device=device,
            num_cpus=config.num_cpus,
            num_gpus=config.num_gpus,
            start_deadline_s=start_deadline_s,
            first_rank=1,
        )
        check_apart([here(), *self._processes.places], config)
        self._processes.watch(self._end)
        self._loading = [actor.load.remote(folder, model, num_threads, device) for actor in self._processes.actors]

    @property
    def pids(self) -> list[int]:
        return self._processes.pids

    def join(self, family: Family) -> DecoderRanks:
        """To be called when this process has loaded, and in the thread that decodes. Raises what a rank raised."""
        self._wait_loaded()
        meeting = open_meeting(one_node=True)
        joining = [
            actor.join.remote(rank, meeting, self._config, self._device)
            for rank, actor in enumerate(self._processes.actors, 1)
        ]
        spread = _spread(0, meeting, self._config, self._device)
        ray.get(joining, timeout=self._start_deadline_s)
        c = self._config
        return DecoderRanks(family, spread, self._ask, small=c.small_tiles, deadline_s=c.deadline_s, lost=self._end)

    def _wait_loaded(self) -> None:
        waiting, deadline = self._loading, time.monotonic() + self._start_deadline_s
        while waiting:
            done, waiting = ray.wait(waiting, timeout=max(deadline - time.monotonic(), 0.001))
            if not done:
                raise RanksLost(f"{len(waiting)} ranks did not load the VAE within {self._start_deadline_s:g} s")
            if (error := error_of(done[0])) is not None:
                raise error
            rank = self._loading.index(done[0]) + 1
            log.info("VAE decoder: rank %d of %d loaded in %.1f s", rank, self._config.gpus, ray.get(done[0]))

    def _ask(self, latents: torch.Tensor, spec: Spec) -> Future[list[Share]]:
        shared = ray.put(latents)  # once for all of them
        return self._answers.submit(_shares, [actor.decode.remote(shared, spec) for actor in self._processes.actors])

    def _end(self, error: RanksLost) -> None:
        self._processes.kill()
        self._lost(error)


def check_apart(places: Sequence[Place], config: VAEDecoderConfig) -> None:
    """Raises ConfigError where two ranks share a GPU: NCCL cannot."""
    for (i, one), (j, other) in combinations(enumerate(places), 2):
        if one.node == other.node and set(one.gpus) & set(other.gpus):
            raise ConfigError(
                f"vae_decoder.num_gpus={config.num_gpus:g}: ranks {i} and {j} of vae_decoder.gpus={config.gpus} were "
                "placed on one GPU; more than 0.5 keeps them apart"
            )


def _shares(orders: list[Any]) -> list[Share]:
    """In their order. Raises at the first error, whoever's it is."""
    waiting = orders
    while waiting:
        [done], waiting = ray.wait(waiting)
        if (error := error_of(done)) is not None:
            raise error
    shares: list[Share] = ray.get(orders)
    return shares


def _spread(rank: int, meeting: str, config: VAEDecoderConfig, device: str) -> Spread:
    """Returns when all ranks are there."""
    timeout_s = 2 * config.deadline_s  # NCCL's own watchdog ends the process: what ends it in order comes first
    meet(rank, config.gpus, meeting, device_of_rank(device), timeout_s)
    group = dist.new_group(list(range(config.gpus)), timeout=timedelta(seconds=timeout_s))
    return Spread(Communicator(range(config.gpus), group, config.deadline_s), wanted="first")
