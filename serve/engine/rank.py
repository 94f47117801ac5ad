"""One rank of a replica: the trajectories that it holds, and its part of each step. Knows neither Ray nor HTTP.

A replica of one rank is one of these, in its own process, without process groups.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import torch

from raydiance.models.family import Family
from raydiance.parallel.comm import Communicator
from raydiance.parallel.groups import Groups
from raydiance.parallel.mesh import enclosing
from raydiance.parallel.tokens import ShardedTokens
from raydiance.serve.engine.engine import Engine
from raydiance.serve.engine.orders import Move, Outcome, Report, Standing, Start, Turn, Wish
from raydiance.serve.engine.pack import pack, unpack
from raydiance.serve.engine.trajectory import Fixed, Trajectory


class Rank:
    """All of its methods belong in one thread.

    Args:
        engine: of a family built for the stage `denoise`; with groups, its tokens are `tokens`.
        groups: of the ranks of this replica; None where there is one.
    """

    def __init__(
        self, engine: Engine, rank: int = 0, groups: Groups | None = None, tokens: ShardedTokens | None = None
    ) -> None:
        self.engine = engine
        self.rank = rank
        self._groups = groups
        self._tokens = tokens
        self._held: dict[str, Trajectory] = {}
        self._was_full = False

    @property
    def family(self) -> Family:
        return self.engine.family

    def begin(self, start: Start) -> tuple[Standing, Outcome]:
        """Holds a trajectory from now on; one that is done already, such as a checkpoint's, is held too.

        Raises PackError where the checkpoint belongs to other conditioning, ValueError where something is missing.
        """
        negative = start.embeddings[1] if len(start.embeddings) > 1 else None
        conditioning = self.family.conditioning(start.spec, start.embeddings[0], negative, start.inputs)
        if start.checkpoint is None:
            trajectory = self.engine.start(start.spec, conditioning)
        else:
            trajectory = unpack(start.checkpoint, Fixed(start.spec, conditioning))
        self._held[start.id] = trajectory
        item = self.engine.plan_item(trajectory)
        guided = self.family.card.uses_negative(start.spec)
        standing = Standing(trajectory.step_index, trajectory.num_steps, item.key, item.num_tokens, 2 if guided else 1)
        return standing, self._outcome(trajectory, Wish())

    def drop(self, ids: Sequence[str]) -> None:
        """Holds them no more; one that is not here is none."""
        for each in ids:
            self._held.pop(each, None)

    def turn(self, turn: Turn) -> Report | None:
        """This rank's part of a step: a report from the first rank of the mesh, None from the others.

        What it raises, the trajectories are where they were before. The next order to its ranks may be given when all
        of them have raised alike: they have begun the same exchanges, and wait for them then.

        Raises PeerLost where another rank is gone.
        """
        self._settle()
        try:
            return self._turn(turn)
        except torch.OutOfMemoryError:
            self._was_full = True
            raise

    def _turn(self, turn: Turn) -> Report | None:
        if self._tokens is not None:
            self._tokens.use(turn.mesh, turn.schedule)
        began, forwards, rows = time.perf_counter(), self.engine.num_forwards, self.engine.num_rows
        calls = [partial(self.engine.step, [self._held[i] for i in batch]) for batch in turn.batches]
        stepped = dict(zip([i for batch in turn.batches for i in batch], self._run(calls), strict=True))
        _finish_device(self.family.device)
        seconds = time.perf_counter() - began
        if self._groups is not None:
            self._groups.check_idle()
        leads, outcomes = self._leads(turn), {}
        if turn.keeps:
            if leads:
                outcomes = {i: self._outcome(t, turn.wishes.get(i, Wish())) for i, t in stepped.items()}
            self._held |= stepped  # last: what is raised before it has moved nobody
        if not leads:
            return None
        return Report(outcomes, seconds, self.engine.num_forwards - forwards, self.engine.num_rows - rows)

    def move(self, move: Move) -> None:
        """This rank's part of handing a trajectory's state over; it must hold the trajectory, however old."""
        if self._groups is None:
            raise ValueError("a state is moved between ranks, and there is one")
        self._settle()
        everybody = (move.sender, *move.receivers)
        comm = self._groups[enclosing(everybody).ranks].outgoing
        if self.rank == move.sender:
            data = torch.frombuffer(bytearray(pack(self._held[move.id], with_fixed=False)), dtype=torch.uint8)
            for receiver in move.receivers:
                self._send(comm, data, receiver)
        elif self.rank in move.receivers:
            fixed = self._held[move.id].fixed
            self._held[move.id] = unpack(self._receive(comm, move.sender), fixed)

    def _send(self, comm: Communicator, data: torch.Tensor, receiver: int) -> None:
        size = torch.tensor([data.numel()], dtype=torch.int64)
        for tensor in (size, data):
            comm.send(tensor.to(self.family.device), receiver).wait()

    def _receive(self, comm: Communicator, sender: int) -> bytes:
        size = torch.zeros(1, dtype=torch.int64, device=self.family.device)
        comm.receive(size, sender).wait()
        data = torch.empty(int(size.item()), dtype=torch.uint8, device=self.family.device)
        comm.receive(data, sender).wait()
        return data.cpu().numpy().tobytes()

    def _settle(self) -> None:
        """Ends what a step that failed has left: memory is given back now, when nothing holds its frames any more."""
        if self._was_full:
            self._was_full = False
            torch.cuda.empty_cache()
        if self._groups is not None:
            self._groups.settle()

    def _run(self, calls: Sequence[Callable[[], list[Trajectory]]]) -> list[Trajectory]:
        if self._tokens is None or len(calls) == 1:
            return [trajectory for call in calls for trajectory in call()]
        return [trajectory for stepped in self._tokens.lanes.run(calls) for trajectory in stepped]

    def _leads(self, turn: Turn) -> bool:
        return self.rank == turn.mesh.subgroup.start

    def _outcome(self, trajectory: Trajectory, wish: Wish) -> Outcome:
        if trajectory.is_done:
            return Outcome(trajectory.step_index, result=self.engine.finish(trajectory).cpu())
        preview = self.engine.preview(trajectory).cpu() if wish.preview else None
        started = time.perf_counter()
        checkpoint = pack(trajectory, with_fixed=False) if wish.checkpoint else None
        return Outcome(
            trajectory.step_index,
            preview=preview,
            checkpoint=checkpoint,
            is_paused=wish.pause,
            checkpoint_s=time.perf_counter() - started,
        )


def _finish_device(device: torch.device) -> None:
    """A GPU's work is asynchronous: a step has taken as long as that takes. Not yet run on a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
