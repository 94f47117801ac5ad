"""Keywords of the Python client's calls, for type checkers and editors. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict

from raydiance.models.inputs import ImageRole
from raydiance.models.spec import Task
from raydiance.models.tier import Tier
from raydiance.serve.request import ImageFormat, VideoFormat

if TYPE_CHECKING:
    from raydiance.serve.attachments import FileLike, ImageLike


class Fields(TypedDict, total=False):
    """What `generate` takes beside the prompt; what is left out takes the model's default.

    The last ones are of some families alone: `ModelCard.parameters`.
    """

    model: str
    task: Task
    negative_prompt: str
    height: int
    width: int
    num_frames: int
    seconds: float
    fps: int
    num_inference_steps: int
    guidance_scale: float
    seed: int
    strength: float
    audio: bool
    n: int
    previews: int
    webhook: str
    metadata: dict[str, str]
    service_tier: Tier
    slo_s: float
    deadline_s: float
    group: str
    guidance_scale_2: float
    true_cfg_scale: float
    image_guidance_scale: float
    conditioning_scale: float
    guidance_rescale: float
    stg_scale: float
    modality_scale: float
    audio_guidance_scale: float
    audio_stg_scale: float
    audio_modality_scale: float
    audio_guidance_rescale: float


class Asked(Fields, total=False):
    """The same, and what is given along: see `Client.generate`."""

    image: ImageLike | None
    image_role: ImageRole | None
    last_frame: ImageLike | None
    references: Sequence[ImageLike]
    video: FileLike | None
    mask: ImageLike | None
    output_format: ImageFormat | VideoFormat | None


class GroupTerms(TypedDict, total=False):
    """What `create_group` takes beside the requests.

    `atomic`: all are accepted or none. `service_tier` and `slo_s` are of requests that give none; `deadline_s` counts
    from now, for all of them; `max_gpu_seconds` is what they may use together.
    """

    id: str
    atomic: bool
    service_tier: Tier
    slo_s: float
    deadline_s: float
    max_gpu_seconds: float
