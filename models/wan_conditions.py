"""What Wan's VAE makes of given frames, videos, masks and references: channels beside the latents.

diffusers' own helpers do it, on pipelines that hold nothing but the VAE.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKLWan, WanImageToVideoPipeline, WanVACEPipeline
from numpy.typing import NDArray
from PIL import Image

from raydiance.models.inputs import Accepts, Inputs
from raydiance.models.spec import Spec

_NOTHING = dict.fromkeys(("tokenizer", "text_encoder", "scheduler"))
GREY = 0.5
"""Where VACE is given no frame; it becomes 0 in the VAE's [-1, 1]."""


def check_roles(spec: Spec, accepts: tuple[Accepts, ...], inputs: Inputs) -> None:
    """Raises ValueError where an input is of no use to the task, missing, or one too many."""
    roles = [a.role for a in accepts]
    if extra := [role for role in inputs.roles if role not in roles]:
        raise ValueError(f"{spec.task} takes {', '.join(roles) or 'no input'}, not {', '.join(sorted(extra))}")
    for a in accepts:
        if a.required and a.role not in inputs.roles:
            raise ValueError(f"{spec.task} needs an input of role '{a.role}'")
        if a.role == "reference" and (count := len(inputs.images.get("reference", ()))) > a.max_count:
            raise ValueError(f"{count} inputs of role 'reference'; the limit is {a.max_count}")


def frame_condition(vae: AutoencoderKLWan, spec: Spec, inputs: Inputs) -> torch.Tensor:
    """The first frame, and the last one if it is given, as channels beside the latents: their mask, then latents of
    the frames with zeros between. [temporal factor + C, T, H, W], fp32.

    Raises:
        ValueError: a last frame of a video of one frame.
    """
    pipeline = WanImageToVideoPipeline(vae=vae, **_NOTHING)
    size = {"height": spec.height, "width": spec.width}

    def pixels(image: Image.Image) -> torch.Tensor:
        fitted: torch.Tensor = pipeline.video_processor.preprocess(image, **size)
        return fitted.to(vae.device, torch.float32)

    last = pixels(inputs.image("last_frame")) if "last_frame" in inputs.roles else None
    if last is not None and spec.num_frames == 1:
        raise ValueError("num_frames=1 has no last frame beside its first")
    _, condition = pipeline.prepare_latents(
        pixels(inputs.image("first_frame")),
        batch_size=1,
        num_channels_latents=vae.config.z_dim,
        **size,
        num_frames=spec.num_frames,
        dtype=torch.float32,
        device=vae.device,
        latents=torch.empty(0, device=vae.device),  # not the noise: that is drawn where it is denoised
        last_image=last,
    )
    result: torch.Tensor = condition[0]
    return result


def vace_condition(vae: AutoencoderKLWan, spec: Spec, inputs: Inputs, patch: tuple[int, int, int]) -> torch.Tensor:
    """What VACE is given: latents of what is kept and of what is painted over, then the mask, 64 pixels a channel.
    References come first, a latent frame each, R in all. [2C + 64, R + T, H, W], in the VAE's dtype.
    """
    pipeline = WanVACEPipeline(vae=vae, **_NOTHING)
    pipeline.transformer = SimpleNamespace(config=SimpleNamespace(patch_size=patch))  # all that is asked of it here
    given, given_mask = _video_and_mask(spec, inputs)
    references = inputs.images.get("reference", [])
    video, mask, fitted = pipeline.preprocess_conditions(
        given, given_mask, references or None, 1, spec.height, spec.width, spec.num_frames, torch.float32, vae.device
    )
    latents: torch.Tensor = pipeline.prepare_video_latents(video, mask, fitted, None, vae.device)[0]
    masks: torch.Tensor = pipeline.prepare_masks(mask, [[]])[0]
    # zeros for the references, which diffusers cuts to the video's length where they are more than its latent frames
    masks = torch.cat([masks.new_zeros(len(masks), len(references), *masks.shape[2:]), masks], dim=1)
    return torch.cat([latents, masks.to(latents)])


def _video_and_mask(spec: Spec, inputs: Inputs) -> tuple[NDArray[Any] | None, NDArray[Any] | None]:
    """[1, T, H, W, 3] and [1, T, H, W, 1] in [0, 1]; None where diffusers has a default of its own.

    Source: `prepare_video_and_mask` in the docs of diffusers' WanVACEPipeline, for first and last frames.
    """
    size = spec.num_frames, spec.height, spec.width
    if inputs.video is not None:
        video = (inputs.video.astype(np.float32) / 255)[None]
        if inputs.mask is None:
            return video, None
        return video, np.broadcast_to(inputs.mask.astype(np.float32) / 255, size)[None, ..., None]
    if "first_frame" not in inputs.roles:
        return None, None
    video, mask = np.full((1, *size, 3), GREY, np.float32), np.ones((1, *size, 1), np.float32)
    places = {"first_frame": 0, "last_frame": -1}
    if spec.num_frames == 1 and "last_frame" in inputs.roles:
        raise ValueError("num_frames=1 has no last frame beside its first")
    for role, place in places.items():
        if role in inputs.roles:
            video[:, place] = np.asarray(inputs.image(role), np.float32) / 255  # type: ignore[arg-type]
            mask[:, place] = 0.0
    return video, mask
