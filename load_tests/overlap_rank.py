"""One rank of the overlap benchmark: bench_overlap.py starts it in its namespace. Commands come as lines of JSON.

{"do": "row", "row": …}                              the arms that take this row
{"do": "step", "row": …, "rate": …, "arm": …}        one step of one arm, between barriers
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import json
import os
import sys
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from overlap_arms import Arm, Setting, Step, all_arms, output_of
from overlap_models import ROWS, Row
from overlap_net import sent_bytes

TIMEOUT = timedelta(seconds=120)
VARIANTS = 2
"""Sets of inputs that follow one another, so that what a late exchange left from the step before is wrong."""
PACKAGES = ("torch", "diffusers", "cache-dit")


class Prepared:
    """A row's weights, and its inputs with the outputs of the whole forward in one process."""

    def __init__(self, row: Row) -> None:
        model = row.model()
        self.row = row
        self.weights = dict(model.state_dict())
        self.inputs = [row.inputs(variant) for variant in range(VARIANTS)]
        self.expected = [[output_of(model, inputs) for inputs in forwards] for forwards in self.inputs]


class Rank:
    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self._arms = all_arms()
        self._rows: dict[str, Prepared] = {}
        self._steps: dict[tuple[str, str, str | None], Step] = {}
        self._count = 0

    def answer(self, command: dict[str, Any]) -> dict[str, Any]:
        if command["do"] == "row":
            return self._row(ROWS[command["row"]])
        return self._step(self._rows[command["row"]], command["rate"], self._arms[command["arm"]])

    def _row(self, row: Row) -> dict[str, Any]:
        self._rows[row.name] = Prepared(row)
        taking = [arm for arm in self._arms.values() if arm.takes(row, self.world)]
        return {
            "arms": [arm.describe(row, self.world) for arm in taking],
            "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        }

    def _step(self, prepared: Prepared, rate: str, arm: Arm) -> dict[str, Any]:
        """Seconds from barrier to the own end, bytes sent until all have ended, the error of each output here."""
        step = self._set_up(prepared, rate, arm)
        self._count += 1
        variant = self._count % VARIANTS
        gc.collect()
        dist.barrier()
        sent = sent_bytes()
        started = time.perf_counter()
        outputs = step(prepared.inputs[variant])
        seconds = time.perf_counter() - started
        dist.barrier()
        sent = sent_bytes() - sent
        errors: list[float | None] = []
        if arm.role == "step":
            errors = [
                None if output is None else (output - expected).abs().max().item()
                for output, expected in zip(outputs, prepared.expected[variant], strict=True)
            ]
        return {"seconds": seconds, "sent_bytes": sent, "errors": errors}

    def _set_up(self, prepared: Prepared, rate: str, arm: Arm) -> Step:
        key = (prepared.row.name, arm.name, rate if arm.per_rate else None)
        if key not in self._steps:
            self._steps[key] = arm.setup(Setting(self.rank, self.world, prepared.row, rate, prepared.weights))
            gc.collect()
            gc.freeze()  # what is here stays: later collections are quick
        return self._steps[key]


def main() -> int:
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("--rank", type=int, required=True)
    args.add_argument("--world", type=int, required=True)
    args.add_argument("--address", required=True, help="host:port of rank 0")
    options = args.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not be taken for an answer
    torch.set_num_threads(1)
    gc.disable()  # collected between steps instead
    with torch.no_grad():
        dist.init_process_group(
            "gloo", f"tcp://{options.address}", rank=options.rank, world_size=options.world, timeout=TIMEOUT
        )
        rank = Rank(options.rank, options.world)
        for line in sys.stdin:
            try:
                answer = rank.answer(json.loads(line))
            except Exception as error:  # told to the one who asked, who ends the run; the traceback goes to the log
                print(json.dumps({"failed": type(error).__name__}), file=answers, flush=True)
                raise
            print(json.dumps(answer), file=answers, flush=True)
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
