"""Routing rules by hand, and what is not reported."""

from __future__ import annotations

from bench_routing import ByWork, LeastRequests, Request, RoundRobin, Served, mistake, requests, serve

LONG, SHORT = Request(0.0, 10.0, 10.0), Request(0.0, 1.0, 1.0)


def test_by_work_a_long_one_has_a_replica_for_itself() -> None:
    load = [LONG, SHORT, SHORT, SHORT]
    assert serve(load, ByWork, 2).makespan_s == 10.0
    assert serve(load, RoundRobin, 2).makespan_s == 11.0
    assert serve(load, LeastRequests, 2).makespan_s == 11.0


def test_what_is_done_is_not_held_any_more() -> None:
    load = [LONG, Request(20.0, 1.0, 1.0), Request(20.0, 1.0, 1.0)]
    served = serve(load, ByWork, 2)
    assert served.latencies == (10.0, 1.0, 1.0)
    assert mistake(load, served, 2) is None


def test_what_cannot_be_is_noticed() -> None:
    load = [LONG, SHORT]
    assert mistake(load, Served((10.0,), (10.0,)), 2) is not None
    assert mistake(load, Served((5.0, 1.0), (5.0, 1.0)), 2) is not None


def test_requests_are_the_same_for_the_same_seed_and_prices_are_off_by_no_more_than_said() -> None:
    found = requests("wan", 3, 0.2, 50)
    assert found == requests("wan", 3, 0.2, 50)
    assert len(found) == 50
    assert all(abs(r.price_s / r.seconds - 1) <= 0.2 for r in found)
