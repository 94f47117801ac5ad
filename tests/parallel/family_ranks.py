"""Worlds of gloo ranks that step every family: `python -m tests.parallel.family_ranks FOLDER` runs them in turn.

Weights, conditioning and what one rank finds are made before the ranks are forked. Each rank is the `Rank` that a
replica runs; one process group runs all cases of a world.
"""

from __future__ import annotations

import faulthandler
import functools
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist
from tests.parallel import rank as ranks
from tests.parallel.family_replica import Deaf, Known, Replica, known, stepped
from tests.parallel.family_runs import LAYOUTS, RUNS
from tests.parallel.family_subjects import SUBJECTS, WANDERERS

from raydiance.kernels.attention import attention
from raydiance.parallel.groups import open_groups
from raydiance.parallel.tokens import ShardedTokens

DEADLINE_S = 60.0
LONGEST_S = 330.0
"""For all worlds; machines are busy."""
END_S = time.monotonic() + LONGEST_S
KNOWN: dict[str, Known] = {}
"""By subject; known before ranks are forked."""


def families(rank: int, world: int, folder: Path) -> dict[str, Any]:
    """By run: what `stepped` says. Where a rank is by the deadline, it says in a file."""
    with (folder / f"{rank}.hangs").open("w") as where:
        faulthandler.dump_traceback_later(max(END_S - time.monotonic() - 5, 1), file=where)
        seen = _families(rank, world)
        faulthandler.cancel_dump_traceback_later()
    return seen


def _families(rank: int, world: int) -> dict[str, Any]:
    groups = open_groups(DEADLINE_S)
    dist.new_group = ranks.refuse  # type: ignore[assignment]
    local = functools.partial(attention, backend="auto")
    hears, deaf = ShardedTokens(groups, rank, local), Deaf(groups, rank, local)
    seen: dict[str, Any] = {}
    for run in RUNS:
        if run.world == world:
            family = run.batches[0][0].model.studio.denoiser
            replica = Replica(groups, rank, deaf if run.deaf else hears, family)
            seen[run.id] = stepped(replica, run.ways, [[KNOWN[s.id] for s in batch] for batch in run.batches])
    groups.close()
    return seen


ranks.WHAT["families"] = families


def run(world: int, folder: Path) -> None:
    """Writes how each rank ended; null where it was killed at the deadline."""
    fork = multiprocessing.get_context("fork")
    alive = [fork.Process(target=ranks.main, args=("families", world, i, folder), daemon=True) for i in range(world)]
    for rank in alive:
        rank.start()
    for rank in alive:
        rank.join(max(END_S - time.monotonic(), 0))
    ended = [rank.exitcode for rank in alive]
    for rank in alive:
        rank.kill()
    (folder / "ended.json").write_text(json.dumps(ended))


def main(root: Path) -> None:
    KNOWN.update({subject.id: known(subject) for subject in (*SUBJECTS, *WANDERERS)})
    (root / "lengths.json").write_text(json.dumps({name: each.lengths for name, each in KNOWN.items()}))
    assert len(os.listdir("/proc/self/task")) == 1, "forked with threads running"
    for world in LAYOUTS:
        (folder := root / str(world)).mkdir()
        run(world, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
