"""What is asked for: sizes, steps, the share of videos, tiers and how long each may take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from types import MappingProxyType

from trace_arrival import Arrival, Kind

SLO_SCALES: Mapping[str, float] = MappingProxyType({"interactive": 5.0, "standard": 5.0, "batch": 50.0})
"""Times the isolated latency. 5 is about what one rank alone takes where eight take a request fastest at 17% more
GPU-seconds a doubling (8 / 1.17^3): a request on one rank may not wait."""
NUM_TENANTS = 4


@dataclass(frozen=True, slots=True)
class Ask:
    size: str
    steps: int
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Mix:
    """Images are asked for interactively, videos as `standard`, and a share of either as `batch`.

    Args:
        video_share: of requests, where a trace has both; videos may be empty where it is 0.
        batch_share: of sessions, or of requests that have none.
        round_s: how long an agent is taken to wait for a round of requests before it thinks about them. A trace is
            fixed beforehand, so it cannot be how long that round really took.
    """

    images: tuple[Ask, ...]
    videos: tuple[Ask, ...] = ()
    video_share: float = 0.0
    batch_share: float = 0.1
    round_s: float = 0.0
    slo_scales: Mapping[str, float] = field(default_factory=lambda: SLO_SCALES)

    def arrival(
        self, rng: Random, at_s: float, session: str, tenant: str, batch: bool, num: int = 1, images_only: bool = False
    ) -> Arrival:
        """Draws equally often whatever comes out, so that one arrival does not change the next ones."""
        is_video, which = rng.random() < self.video_share and not images_only, rng.random()
        ask = _pick(self.videos if is_video else self.images, which)
        kind: Kind = "video" if is_video else "image"
        tier = "batch" if batch else "standard" if is_video else "interactive"
        return Arrival(at_s, session, tenant, tier, kind, ask.size, ask.steps, num, self.slo_scales[tier])

    def is_batch(self, rng: Random) -> bool:
        return rng.random() < self.batch_share


def tenant(rng: Random) -> str:
    return f"tenant-{rng.randrange(NUM_TENANTS)}"


def _pick(asks: tuple[Ask, ...], which: float) -> Ask:
    """Args:
    which: from 0 to below 1.
    """
    left = which * sum(ask.weight for ask in asks)
    for ask in asks[:-1]:
        if left < ask.weight:
            return ask
        left -= ask.weight
    return asks[-1]


MIXES: Mapping[str, Mix] = MappingProxyType(
    {
        # Wan 2.2 A14B: pictures of one frame, short videos at 480p, a few at 720p
        "wan": Mix(
            images=(Ask("1280x720", 40, 3), Ask("832x480", 40, 1)),
            videos=(Ask("832x480x33", 40, 2), Ask("832x480x81", 40, 2), Ask("1280x720x33", 40, 1)),
            video_share=0.15,
            round_s=30,
        ),
        # FLUX.1 dev at the four sizes that TetriServe is evaluated with (arXiv:2510.01565)
        "flux": Mix(images=tuple(Ask(f"{side}x{side}", 28) for side in (256, 512, 1024, 2048)), round_s=8),
        # the embedded model
        "tiny": Mix(
            images=(Ask("64x64", 16, 3), Ask("96x96", 16, 1)),
            videos=(Ask("64x64x17", 20, 3), Ask("96x96x25", 20, 1)),
            video_share=0.25,
            round_s=1,
        ),
    }
)
