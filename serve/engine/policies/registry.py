"""Policies by name, imported when they are asked for."""

from __future__ import annotations

import importlib

from raydiance.serve.engine.policies.base import Policy

DEFAULT = "slack"
_WHERE = {
    "fifo": ("fifo", "Fifo"),
    "edf": ("edf", "EarliestDeadlineFirst"),
    "sjf": ("sjf", "ShortestJobFirst"),
    "tetriserve": ("tetriserve", "TetriServe"),
    "slack": ("slack", "Slack"),
}
NAMES = tuple(_WHERE)


def policy(name: str = DEFAULT) -> Policy:
    """Raises ValueError for a name that is none of `NAMES`."""
    if name not in _WHERE:
        raise ValueError(f"policy={name!r} is not one of {', '.join(NAMES)}")
    module, its_class = _WHERE[name]
    found: Policy = getattr(importlib.import_module(f"raydiance.serve.engine.policies.{module}"), its_class)()
    return found
