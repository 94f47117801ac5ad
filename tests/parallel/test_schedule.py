"""What is under way while what is computed, and what is refused; on links that only write down what they are asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.parallel.cases import naive

from raydiance.parallel.hybrid import Whole, strategy
from raydiance.parallel.mesh import Layout, Mesh, Subgroup
from raydiance.parallel.ring import Ring
from raydiance.parallel.ulysses import Ulysses

QKV = torch.randn(3, 1, 4, 4, 8)


def given(*tensors: torch.Tensor) -> list[Callable[[], torch.Tensor]]:
    return [lambda x=x: x for x in tensors]  # type: ignore[misc]


GIVEN = given(*QKV)


class Recorder:
    """A communicator of two ranks whose other one sends zeros."""

    size, index = 2, 0

    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self.log = log
        self.number = 0

    def all_to_all(self, sends: Sequence[torch.Tensor], receives: Sequence[torch.Tensor]) -> Any:
        receives[0].copy_(sends[0])
        return self.ring(sends[1], receives[1])

    def ring(self, send: torch.Tensor, receive: torch.Tensor) -> Any:
        receive.zero_()
        self.number += 1
        label = f"{self.name} {self.number}"
        self.log.append(f"post {label}")
        return SimpleNamespace(wait=lambda pause=True: self.log.append(f"wait {label}"))


def record() -> tuple[list[str], Any, Any]:
    log: list[str] = []

    def local(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        log.append("attend")
        return naive(q, k, v)

    return log, SimpleNamespace(incoming=Recorder("in", log), outgoing=Recorder("out", log)), local


def test_one_head_group_is_synchronous() -> None:
    log, link, local = record()
    Ulysses(link, local, (4, 4))(*GIVEN)
    assert log == ["post in 1", "wait in 1", "attend", "post out 1", "wait out 1"]


def test_the_next_head_group_is_under_way_while_one_is_attended_to() -> None:
    log, link, local = record()
    Ulysses(link, local, (4, 4), head_groups=2)(*GIVEN)
    assert log == [
        *("post in 1", "post in 2"),
        *("wait in 1", "attend", "post out 1"),
        *("wait in 2", "attend", "post out 2"),
        *("wait out 1", "wait out 2"),
    ]


def test_what_is_projected_first_is_under_way_while_the_rest_is_projected() -> None:
    log, link, local = record()

    def projection(name: str, x: torch.Tensor) -> Callable[[], torch.Tensor]:
        def project() -> torch.Tensor:
            log.append(f"project {name}")
            return x

        return project

    Ulysses(link, local, (4, 4), early=True)(*map(projection, "qkv", QKV))
    assert log == [
        *("project v", "post in 1", "project k", "post in 2", "project q", "post in 3"),
        *("wait in 1", "wait in 2", "wait in 3", "attend", "post out 1", "wait out 1"),
    ]


def test_the_next_keys_are_under_way_while_some_are_attended_to() -> None:
    log, link, local = record()
    Ring(link, local, (4, 4))(*GIVEN)
    assert log == ["post in 1", "attend", "wait in 1", "attend"]


def test_one_rank_only_attends() -> None:
    attention = strategy(None, Mesh(Subgroup(0, 1), Layout()), 0, naive, (4,))
    assert isinstance(attention, Whole)
    assert torch.equal(attention(*GIVEN), naive(*QKV)[0])


def test_a_ring_needs_the_log_sum_exp() -> None:
    _, link, _ = record()
    with pytest.raises(ValueError, match="needs a local attention that returns the log-sum-exp"):
        Ring(link, lambda q, k, v: (v, None), (4, 4))(*GIVEN)


@pytest.mark.parametrize("kind", [Ulysses, Ring])
def test_what_does_not_fit_is_refused(kind: Any) -> None:
    _, link, local = record()
    with pytest.raises(ValueError, match="3 lengths for 2 ranks"):
        kind(link, local, (4, 4, 4))
    attention, (q, k, v) = kind(link, local, (4, 4)), QKV
    with pytest.raises(ValueError, match=r"this rank's q must be \[B, 4, H, D\], not \[1, 3, 4, 8\]"):
        attention(*given(*QKV[:, :, :3]))
    with pytest.raises(ValueError, match=r"same heads and type, not torch.float32 \[1, 4, 4, 8\], .*\[1, 4, 2, 8\]"):
        attention(*given(q, k[:, :, :2], v[:, :, :2]))
    with pytest.raises(ValueError, match=r"same heads and type, not .*torch.float16"):
        attention(*given(q, k, v.half()))


def test_impossible_strategies_are_refused() -> None:
    _, link, local = record()
    with pytest.raises(ValueError, match="head_groups must be 1 or more, not 0"):
        Ulysses(link, local, (4, 4), head_groups=0)
    mesh = Mesh(Subgroup(2, 2), Layout(ulysses=2))
    with pytest.raises(ValueError, match="1 lengths for the 2 ranks of cfg 1 x ring 1 x ulysses 2"):
        strategy(None, mesh, 2, naive, (4,))
    with pytest.raises(ValueError, match=r"rank 0 is not among ranks \[2, 3\]"):
        strategy(None, mesh, 0, naive, (4, 4))
    with pytest.raises(ValueError, match="needs process groups"):
        strategy(None, mesh, 2, naive, (4, 4))
