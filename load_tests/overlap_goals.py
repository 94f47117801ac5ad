"""The overlap benchmark's metrics and their goals, of what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from overlap_table import CACHE_DIT, CHOSEN, DIFFUSERS, LANES, OVERLAPPED, SHARDED, SYNCHRONOUS, Figures
from report import metric

Metrics = dict[str, dict[str, Any]]

SLOW, FAST = "200mbit", "1gbit"
SPEEDUP_VS_DIFFUSERS = {"wan-free": 1.35, "wan-pair": 1.6, "flux": 1.35}


def metrics(measured: Sequence[Figures]) -> Metrics:
    """Only those whose arms, rows and rates were measured."""
    found: Metrics = {}
    for figures in measured:
        if figures.rate == SLOW:
            found |= slow_link(figures)
    found |= fast_link([f for f in measured if f.rate == FAST and f.row.startswith("wan")])
    return found | chosen(measured)


def slow_link(figures: Figures) -> Metrics:
    found: Metrics = {}
    name = "wan" if figures.row == "wan-free" else figures.row.replace("-", "_")
    if figures.row in SPEEDUP_VS_DIFFUSERS and figures.has(SHARDED):
        over = figures.over_floor(SHARDED)
        if over is not None:
            found[f"{name}_200mbit_over_floor"] = metric(over, "ratio", "<= 1.20")
        speedup = figures.ratio(DIFFUSERS, SHARDED)
        goal = f">= {SPEEDUP_VS_DIFFUSERS[figures.row]:g}"
        found[f"{name}_200mbit_speedup_vs_diffusers"] = metric(speedup, "x", goal)
    if figures.has(SHARDED, CACHE_DIT):
        speedup = figures.ratio(CACHE_DIT, SHARDED)
        found[f"{name}_200mbit_speedup_vs_cachedit"] = metric(speedup, "x", ">= 1.15")
    if figures.row == "wan-two" and figures.has(LANES, OVERLAPPED):
        one_by_one = min((SYNCHRONOUS, OVERLAPPED), key=lambda other: figures.ratio(other, LANES))
        throughput = figures.ratio(one_by_one, LANES)
        found["wan_two_200mbit_lanes_throughput"] = metric(throughput, "x", ">= 1.25")
    return found


def fast_link(measured: Sequence[Figures]) -> Metrics:
    """The worst row: never slower than diffusers or than our own synchronous schedule."""
    ratios = [
        figures.ratio(SHARDED, other)
        for figures in measured
        if figures.has(SHARDED, SYNCHRONOUS)
        for other in (DIFFUSERS, SYNCHRONOUS)
    ]
    return {"wan_1gbit_vs_best_other": metric(max(ratios), "ratio", "<= 1.02")} if ratios else {}


def chosen(measured: Sequence[Figures]) -> Metrics:
    """The worst row and rate: what is chosen beside the best of the table that does one work a step, as it does."""
    ratios = [figures.ratio(CHOSEN, figures.best(works=1)) for figures in measured if figures.has(CHOSEN)]
    return {"auto_vs_best_layout": metric(max(ratios), "ratio", "<= 1.03")} if ratios else {}
