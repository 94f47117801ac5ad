"""What a checkpoint is, what it takes and whether it fits: of a folder with weights, or of a profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from raydiance.deploy import profile
from raydiance.deploy.profile import CARDS_GB, GIB, Profile, recommended
from raydiance.models import registry, resolve
from raydiance.models.card import ModelCard
from raydiance.models.checkup import Checkup, examine
from raydiance.models.fit import Fit, fit
from raydiance.models.spec import FieldError, Spec
from raydiance.models.whole import check_whole
from raydiance.serve.config import ModelConfig


@dataclass(frozen=True)
class Report:
    """Args:
    source: the folder, or where the profile's weights are.
    weights: component to the bytes of its files; empty for a profile, whose weights are elsewhere.
    checkup: None for a guest, of which only diffusers knows what it computes.
    fits: gigabytes of a card to how it goes onto such cards, or None.
    """

    source: str
    card: ModelCard
    weights: Mapping[str, int]
    checkup: Checkup | None
    fits: Mapping[int, Fit | None]
    profile: Profile | None


def check(
    target: str,
    *,
    size: tuple[int, int] | None = None,
    num_frames: int | None = None,
    num_inference_steps: int | None = None,
    dtype: str | None = None,
    gpu_gb: int | None = None,
    components: Mapping[str, str] | None = None,
) -> Report:
    """Checks a folder's weights by their headers, then works out what a request takes.

    Args:
        target: `tiny`, a folder, a hub id, or the name of a profile.
        size: width and height in pixels; left out: the model's default.
        dtype: of weights and activations; left out: bfloat16, or the profile's.
        gpu_gb: memory of a card; left out: the sizes of the profiles.
        components: see `LoadOptions.components`.

    Raises:
        CheckpointError: names the component and what is wrong with it.
        FieldError: the request is not one that the model takes.
    """
    known = profile.load(target) if target in profile.names() else None
    folder = known.folder if known else resolve.resolve(target)
    weights = {} if known else check_whole(folder, components or {})
    card = registry.card(folder, known.name if known else ModelConfig(path=target).id)
    if card.is_guest:
        return Report(str(folder), card, weights, None, {}, None)
    spec = _spec(card, size, num_frames, num_inference_steps)
    precision = dtype or (known.precision if known else "bfloat16")
    checkup = examine(folder, spec, card, dtype=precision, vae_dtype=precision, components=components)
    fits = {gb: fit(checkup, gb * GIB) for gb in ([gpu_gb] if gpu_gb else CARDS_GB)}
    return Report(known.hub_id if known else str(folder), card, weights, checkup, fits, known)


def _spec(
    card: ModelCard, size: tuple[int, int] | None, num_frames: int | None, num_inference_steps: int | None
) -> Spec:
    spec = recommended(card)
    if num_frames not in (None, 1) and not spec.is_video:
        raise FieldError("num_frames", f"num_frames={num_frames}: model '{card.id}' does {spec.task}")
    width, height = size or (spec.width, spec.height)
    return card.check(
        replace(
            spec,
            width=width,
            height=height,
            num_frames=num_frames or spec.num_frames,
            num_inference_steps=num_inference_steps or spec.num_inference_steps,
        )
    )
