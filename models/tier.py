"""How soon a request is wanted: what a person waits for, what is wanted soon, what has time."""

from __future__ import annotations

from typing import Literal

Tier = Literal["interactive", "standard", "batch"]
TIERS: tuple[Tier, ...] = ("interactive", "standard", "batch")
"""The most urgent first."""
