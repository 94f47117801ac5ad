"""Several ranks of one replica, as a denoising loop sees them: they are told what to do, watched, and replaced whole.

The coordinator sends each rank of a step one order, and the first of them answers; inside a step ranks talk to each
other alone. A rank that dies is noticed by the call that never returns to it, one that hangs by the step's deadline.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup

from raydiance.parallel.errors import ExchangeMisused, LaneLost, PeerLost
from raydiance.serve.config import DenoiserConfig, ModelConfig
from raydiance.serve.engine.fleet import RanksLost
from raydiance.serve.engine.orders import Move, Outcome, Report, Standing, Start, Turn
from raydiance.serve.errors import ConfigError
from raydiance.serve.parallel_config import ParallelConfig
from raydiance.serve.stages.placement import gpus_per_rank
from raydiance.serve.stages.processes import Processes, error_of
from raydiance.serve.stages.rank_actor import RankActor

log = logging.getLogger("ray.serve")
BROKEN = (PeerLost, ExchangeMisused, LaneLost)
GRACE_S = 2.0
"""For the other ranks of a step to fail as the first did: an error that only some meet breaks the replica."""


class RankGroup:
    """A `Fleet`. Its constructor returns when all ranks have loaded their weights and met.

    Args:
        group: bundle 0 is the coordinator's, bundles 1 … N a rank's each.
        lost: called in a thread of its own when a rank's process has died.

    Raises ConfigError where ranks lie on other nodes than configured, or what a rank raises when it loads.
    """

    def __init__(
        self,
        folder: Path,
        model: ModelConfig,
        config: DenoiserConfig,
        parallel: ParallelConfig,
        group: PlacementGroup,
        lost: Callable[[RanksLost], None],
    ) -> None:
        self.size = parallel.gpus
        self._parallel = parallel
        self._holders: dict[str, frozenset[int]] = {}
        device = "cuda" if parallel.device == "auto" else parallel.device
        self._processes = Processes(
            RankActor,
            group,
            self.size,
            device=device,
            num_cpus=parallel.num_cpus,
            num_gpus=gpus_per_rank(config, parallel),
            start_deadline_s=parallel.start_deadline_s,
        )
        self._processes.arrange(in_node_order([place.node for place in self._processes.places], parallel.nodes))
        self._processes.watch(lost)
        self._ranks = self._processes.actors
        meeting = ray.get(self._ranks[0].open_meeting.remote(parallel.nodes == 1), timeout=parallel.start_deadline_s)
        deadlines = parallel.step_deadline_s, parallel.start_deadline_s
        self.card = self._loaded(
            model.id,
            [
                rank.load.remote(i, self.size, meeting, folder, model, config, device, *deadlines)
                for i, rank in enumerate(self._ranks)
            ],
        )

    @property
    def pids(self) -> list[int]:
        """Of the ranks, in their order."""
        return self._processes.pids

    def begin(self, start: Start) -> tuple[Standing, Outcome]:
        shared = ray.put(start)  # once, for all ranks of a node
        refs = [rank.begin.remote(shared) for rank in self._ranks]
        found: tuple[Standing, Outcome] = self._answers([refs])[0]
        self._holders[start.id] = frozenset(range(self.size))
        return found

    def drop(self, ids: Sequence[str]) -> None:
        for each in ids:
            self._holders.pop(each, None)
        for rank in self._ranks:
            rank.drop.remote(list(ids))

    def step(self, turns: Sequence[Turn]) -> list[Report | Exception]:
        moved = [self._bring(each, turn) for turn in turns for batch in turn.batches for each in batch]
        moved = [refs for refs in moved if refs]
        asked = [[self._ranks[i].turn.remote(turn) for i in turn.mesh.subgroup.ranks] for turn in turns]
        answers = self._answers(moved + asked, raises=False)
        for answer in answers[: len(moved)]:
            if isinstance(answer, Exception):
                raise RanksLost(f"a move of a trajectory's state failed: {answer}") from answer
        answers = answers[len(moved) :]
        for turn, answer in zip(turns, answers, strict=True):
            if turn.keeps and isinstance(answer, Report):
                self._holders |= dict.fromkeys(answer.outcomes, frozenset(turn.mesh.subgroup.ranks))
        return answers

    def kill(self) -> None:
        """Ends every rank's process at once."""
        self._processes.kill()

    def _bring(self, trajectory: str, turn: Turn) -> list[Any]:
        """Its state to the ranks of a turn that lack it: they were not among those of its last steps. What it asked."""
        held, ranks = self._holders[trajectory], frozenset(turn.mesh.subgroup.ranks)
        missing = ranks - held
        if not missing:
            return []
        move = Move(trajectory, min(held & ranks or held), tuple(sorted(missing)))
        self._holders[trajectory] = held | missing
        return [self._ranks[i].move.remote(move) for i in (move.sender, *move.receivers)]

    def _answers(self, asked: list[list[Any]], raises: bool = True) -> list[Any]:
        """Of the first rank of each list, when all have answered; what they raised alike, or raised here.

        Raises RanksLost where a rank is gone, hangs, or fails alone.
        """
        errors = self._errors(asked)
        answers: list[Any] = []
        for refs in asked:
            failed = [errors[ref] for ref in refs if ref in errors]
            if not failed:
                answers.append(ray.get(refs[0]))
            elif len(failed) == len(refs) and not any(isinstance(e, (*BROKEN, RayError)) for e in failed):
                if raises:
                    raise failed[0]
                answers.append(failed[0])
            else:
                raise _lost(refs, failed)
        return answers

    def _errors(self, asked: list[list[Any]]) -> dict[Any, Exception]:
        """Of the calls that failed, when all have ended. Those of one list wait for each other alone.

        Raises RanksLost for one that is late: by the step's deadline, or by the grace after another of its list failed.
        """
        which = {ref: i for i, refs in enumerate(asked) for ref in refs}
        longest_s = self._parallel.step_deadline_s
        waiting, deadlines = list(which), [time.monotonic() + longest_s] * len(asked)
        errors: dict[Any, Exception] = {}
        while waiting and (left := min(deadlines[which[ref]] for ref in waiting) - time.monotonic()) > 0:
            done, waiting = ray.wait(waiting, timeout=left)
            for ref in done:
                if (error := error_of(ref)) is not None:
                    errors[ref] = error
                    deadlines[which[ref]] = min(deadlines[which[ref]], time.monotonic() + GRACE_S)
        if waiting:
            late = asked[which[min(waiting, key=lambda ref: deadlines[which[ref]])]]
            if failed := [errors[ref] for ref in late if ref in errors]:
                raise _lost(late, failed)
            raise RanksLost(f"{len(waiting)} of {len(which)} ranks took longer than {longest_s:g} s")
        return errors

    def _loaded(self, model_id: str, loading: list[Any]) -> Any:
        """The model's card, when all have it; a line for each that has."""
        waiting, ranks = list(loading), {ref: i for i, ref in enumerate(loading)}
        deadline = time.monotonic() + self._parallel.start_deadline_s
        card: Any = None
        while waiting:
            done, waiting = ray.wait(waiting, timeout=max(deadline - time.monotonic(), 0.001))
            if not done:
                names = ", ".join(str(ranks[ref]) for ref in waiting)
                raise RanksLost(f"ranks {names} did not load within {self._parallel.start_deadline_s:g} s")
            if (error := error_of(done[0])) is not None:
                raise error
            card, seconds = ray.get(done[0])
            have = len(loading) - len(waiting)
            log.info(
                "model '%s': rank %d loaded in %.1f s (%d of %d)", model_id, ranks[done[0]], seconds, have, len(loading)
            )
        return card


def _lost(asked: Sequence[Any], failed: Sequence[Exception]) -> RanksLost:
    error = RanksLost(f"{len(failed)} of {len(asked)} ranks failed: {failed[0]}")
    error.__cause__ = failed[0]
    return error


def in_node_order(nodes: Sequence[str], num_nodes: int) -> list[int]:
    """Indices such that those of one node are neighbours. Raises ConfigError for nodes with unequal shares."""
    names = list(dict.fromkeys(nodes))
    each = [nodes.count(name) for name in names]
    if len(names) > num_nodes or len(set(each)) > 1:
        raise ConfigError(f"parallel.nodes={num_nodes}: {len(nodes)} ranks lie on nodes with {each} of them")
    return sorted(range(len(nodes)), key=lambda i: names.index(nodes[i]))
