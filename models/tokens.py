"""What is done with a transformer's tokens, handed in from outside, so that a family knows one device and no ranks.

A forward has *streams* of tokens, named by its family: `video`, or `text` and `image`. What is outside may hold a part
of each only. The family says where streams enter its blocks (`cut`), where they leave them (`join`), and what attends
to what (`attend`); and it says which forwards of a step are independent (`run`). `Whole` keeps everything where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

Streams = tuple[str, ...]
"""In the order in which their tokens lie one after the other."""
Projection = Callable[[], torch.Tensor]
"""Makes q, k or v, [B, L, H, D], of the tokens that are here. It is called once."""
WHOLE: Streams = ()
"""Of keys that are no stream but whole wherever they are attended to, such as a prompt's in cross-attention."""


@dataclass(frozen=True, slots=True)
class Forward:
    """One of a step's independent forwards.

    Args:
        call: runs it.
        shape: of what it returns, known before it has run.
    """

    call: Callable[[], torch.Tensor]
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


class Tokens(Protocol):
    @property
    def concurrency(self) -> int:
        """How many independent forwards can be under way at once: with more than one, branches are kept apart."""
        ...

    def begin(self, **lengths: int) -> None:
        """A forward begins. Args: how many tokens each stream has in all."""
        ...

    def cut(self, x: torch.Tensor, dim: int, *streams: str) -> torch.Tensor:
        """Those that are held here, of all tokens of the streams along `dim`."""
        ...

    def join(self, x: torch.Tensor, dim: int, *streams: str) -> torch.Tensor:
        """The opposite of `cut`: all tokens of the streams."""
        ...

    def attend(
        self, q: Projection, k: Projection, v: Projection, queries: Streams, keys: Streams | None = None
    ) -> torch.Tensor:
        """What the tokens here find in all of the keys', [B, L, H, D]. v is made first, then k, then q.

        Args:
            keys: `queries` where None; `WHOLE`.
        """
        ...

    def run(self, forwards: Sequence[Forward]) -> list[torch.Tensor]:
        """What each returns, in their order."""
        ...


class Whole:
    """All tokens are here, and forwards run one after the other.

    Args:
        attention: q, k, v of [B, L, H, D] -> [B, L, H, D].
    """

    concurrency = 1

    def __init__(self, attention: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        self.attention = attention

    def begin(self, **lengths: int) -> None:
        pass

    def cut(self, x: torch.Tensor, dim: int, *streams: str) -> torch.Tensor:  # noqa: ARG002
        return x

    def join(self, x: torch.Tensor, dim: int, *streams: str) -> torch.Tensor:  # noqa: ARG002
        return x

    def attend(
        self,
        q: Projection,
        k: Projection,
        v: Projection,
        queries: Streams,  # noqa: ARG002
        keys: Streams | None = None,  # noqa: ARG002
    ) -> torch.Tensor:
        value, key = v(), k()
        return self.attention(q(), key, value)

    def run(self, forwards: Sequence[Forward]) -> list[torch.Tensor]:
        return run_in_turn(forwards)


def run_in_turn(forwards: Sequence[Forward]) -> list[torch.Tensor]:
    return [forward.call() for forward in forwards]
