"""What is told of each stage's work: all of it, by deadline and tier, in few numbers; the other side understands it."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from raydiance.deploy import steering
from raydiance.deploy.scaling import Work
from raydiance.models.tier import TIERS, Tier
from raydiance.serve.admission import Supply
from raydiance.serve.backlog import Backlog, Sample
from raydiance.serve.desk import Desk, Expected
from raydiance.serve.engine.price import Price
from raydiance.serve.engine.terms import Terms
from raydiance.serve.scheduling_config import SchedulingConfig
from raydiance.serve.signals import MAX_ENTRIES, read

NOW = 1000.0
PRICE = Price(0.5, 0.0, 8.0, 2.0, 1.0, 0.4, 20, 11.5)


def sample(name: str, seconds: float = 8.0, deadline: float = 1060.0, tier: Tier = "standard") -> Sample:
    return Sample(name, 0, Terms(deadline, tier), seconds, NOW)


class Told:
    """A backlog and a desk that hold what a test says."""

    def __init__(self, expected: list[Expected]) -> None:
        self.desk: Any = Desk(SchedulingConfig(), lambda: Supply(1, 1))
        self.desk.expected = lambda: iter(expected)
        here = [each.sample for each in expected if each.is_here]
        self.backlog: Any = SimpleNamespace(waiting=here[1:], active=here[:1])

    def read(self, *, is_waking: bool = False) -> dict[str, Any]:
        backlog: Backlog = self.backlog
        return dict(json.loads(json.dumps(read(self.desk, backlog, NOW, is_waking=is_waking))))


def test_each_stage_has_its_own_work_and_deadlines() -> None:
    begun, waits = sample("begun", 4.0), sample("waits", tier="interactive", deadline=1020.0)
    promised = sample("promised", tier="batch", deadline=math.inf)
    told = Told(
        [
            Expected(begun, PRICE, is_here=True, is_begun=True),
            Expected(waits, PRICE, is_here=True, is_begun=False),
            Expected(promised, PRICE, is_here=False, is_begun=False),
        ]
    ).read()
    assert told["denoiser"]["work"] == [
        [20.0, 8.0, 1, "interactive"],
        [60.0, 4.0, 1, "standard"],
        [None, 8.0, 1, "batch"],
    ]
    assert told["text_encoder"]["work"] == [[12.0, 0.5, 1, "interactive"], [None, 0.5, 1, "batch"]]
    assert told["vae_decoder"]["work"][0] == [23.0, 3.0, 1, "interactive"]
    assert len(told["vae_decoder"]["work"]) == 3


@given(
    st.lists(
        st.tuples(st.sampled_from(TIERS), st.floats(0, 99), st.sampled_from([990.0, 1010.5, math.inf])), max_size=150
    )
)
def test_nothing_is_lost_in_few_numbers(samples: list[tuple[Tier, float, float]]) -> None:
    made = [sample(str(i), seconds, deadline, tier) for i, (tier, seconds, deadline) in enumerate(samples)]
    work = Told([Expected(each, PRICE, True, False) for each in made]).read()["denoiser"]["work"]
    for tier in TIERS:
        ours = [each for each in made if each.terms.tier == tier]
        told = [entry for entry in work if entry[3] == tier]
        assert len(told) <= MAX_ENTRIES
        assert sum(count for _, _, count, _ in told) == len(ours)
        assert math.isclose(sum(s for _, s, _, _ in told), sum(s.seconds for s in ours), abs_tol=0.01)
        earliest = min((s.terms.deadline for s in ours), default=math.inf)
        slacks = [slack for slack, _, _, _ in told if slack is not None]
        assert min(slacks, default=math.inf) == (earliest - NOW if math.isfinite(earliest) else math.inf)


def test_the_other_side_understands_it(monkeypatch: Any) -> None:
    class Mailbox:
        starts: dict[str, float]

        def __init__(self, *_: Any) -> None: ...

        def read(self) -> tuple[list[dict[str, Any]], float]:
            one, two = sample("one", 200.0), sample("two", 300.0, math.inf, "batch")
            return [Told([Expected(each, PRICE, True, False)]).read() for each in (one, two)], 0.3

        def tell(self, starts: dict[str, float]) -> None:
            self.starts = starts

    monkeypatch.setattr(steering, "Mailbox", Mailbox)
    rules = {
        "max_replicas": 4,
        "schedule": [{"days": ["mon"], "start": 0, "end": 60, "spares": 1}],
        "cost_per_hour": 2.0,
    }
    made = steering.Steering("app", "Denoiser-m", "denoiser", ["m"], rules, reserved=1.0)
    signals = made._signals(1, 1)
    assert list(signals.work) == [Work(60.0, 200.0), Work(math.inf, 300.0, 1, "batch")]
    assert (signals.age_s, signals.spent_elsewhere) == (0.3, 1.0)
    assert made.replicas(1, 1) == 1
    assert made._mailbox.starts == {"start_s": 60.0, "waiting_s": 0, "target": 1}  # type: ignore[attr-defined]
    other = steering.Steering("app", "VAEDecoder-m", "vae_decoder", ["m"], {}, reserved=1.0)
    assert other._signals(1, 1).spent_elsewhere == 2.0


def test_what_comes_is_counted_once_and_not_what_came_before() -> None:
    desk = Desk(SchedulingConfig(), lambda: Supply(1, 1))
    assert (desk.come.denoiser, list(desk.expected())) == (0.0, [])
    desk.come.add(sample("a", 7.0), replace(PRICE, inputs_s=0.25))
    assert (desk.come.text_encoder, desk.come.denoiser, desk.come.vae_decoder) == (0.5, 7.0, 3.25)
    assert time.time() >= desk._since
