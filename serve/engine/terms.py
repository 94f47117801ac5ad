"""On what terms a trajectory is denoised. No torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from raydiance.models.tier import Tier


@dataclass(frozen=True, slots=True)
class Terms:
    """Args:
    deadline: when its last step should have ended, in Unix seconds; inf without one.
    weight: of its tenant, in sharing.
    """

    deadline: float = math.inf
    tier: Tier = "standard"
    tenant: str = ""
    weight: float = 1.0


NO_TERMS = Terms()
"""No deadline, nobody's."""
