"""A rank in a process of its own: a plain Ray actor that loads its copy of the weights and does what it is told.

Orders are done one by one, in one thread, in the order in which the coordinator gave them; all ranks are given theirs
in one order, so that exchanges meet.
"""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path

import torch

from raydiance.kernels import attention
from raydiance.models import registry
from raydiance.models.card import ModelCard
from raydiance.parallel.groups import open_groups
from raydiance.parallel.tokens import ShardedTokens
from raydiance.serve.config import DenoiserConfig, ModelConfig
from raydiance.serve.engine.engine import Engine
from raydiance.serve.engine.orders import Move, Outcome, Report, Standing, Start, Turn
from raydiance.serve.engine.rank import Rank
from raydiance.serve.stages.processes import RankProcess, device_of_rank, meet


class RankActor(RankProcess):
    """Made by `rank_group.RankGroup`. `load` comes first."""

    def load(
        self,
        rank: int,
        world: int,
        meeting: str,
        folder: Path,
        model: ModelConfig,
        config: DenoiserConfig,
        device: str,
        deadline_s: float,
        start_deadline_s: float,
    ) -> tuple[ModelCard, float]:
        """Loads the weights, then meets the others. The model's card, and the seconds that loading took.

        Args:
            meeting: `tcp://HOST:PORT`.
        """
        began = time.monotonic()
        torch.set_num_threads(config.num_threads or max(1, (os.cpu_count() or 1) // world))
        family = registry.load(folder, "denoise", model.id, model.load_options("denoise", device))
        loaded_s = time.monotonic() - began
        meet(rank, world, meeting, device_of_rank(device), start_deadline_s)
        groups = open_groups(deadline_s, start_deadline_s)
        tokens = ShardedTokens(groups, rank, partial(attention.attention, backend=config.attention))
        family.set_tokens(tokens)
        self._rank = Rank(Engine(family), rank, groups, tokens)
        return family.card, loaded_s

    def begin(self, start: Start) -> tuple[Standing, Outcome]:
        return self._rank.begin(start)

    def drop(self, ids: list[str]) -> None:
        self._rank.drop(ids)

    def turn(self, turn: Turn) -> Report | None:
        return self._rank.turn(turn)

    def move(self, move: Move) -> None:
        self._rank.move(move)
