"""What Wan's VAE makes of given frames, videos, masks and references: channels beside the latents.

diffusers' own helpers do it, on pipelines that hold nothing but the VAE.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import transformers
from diffusers import AutoencoderKLWan, WanImageToVideoPipeline, WanVACEPipeline
from numpy.typing import NDArray

from raydiance.models.inputs import Accepts, ImageRole, Inputs
from raydiance.models.options import LoadOptions
from raydiance.models.resolve import read_json
from raydiance.models.spec import Spec
from raydiance.models.wan_config import WanConfig
from raydiance.models.weights import load_component, load_tokenizer

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


@dataclass(frozen=True)
class FrameEncoder:
    """What becomes of given frames that are channels beside the latents.

    Args:
        pipeline: with the VAE, and the image encoder and its processor where there is one.
        device: where they compute; weights that are offloaded wait elsewhere.
    """

    pipeline: WanImageToVideoPipeline
    embedded_frames: int
    device: torch.device

    @classmethod
    def load(cls, vae: AutoencoderKLWan, folder: Path, config: WanConfig, options: LoadOptions) -> FrameEncoder:
        """Raises CheckpointError: see `load_component`."""
        parts: dict[str, Any] = {}
        if config.embedded_frames:
            kind = read_json(folder, "model_index.json")["image_encoder"][1]
            parts["image_encoder"] = load_component(getattr(transformers, kind), folder, "image_encoder", options)
            parts["image_processor"] = load_tokenizer(
                folder, "image_processor", options, transformers.CLIPImageProcessor
            )
        return cls(
            WanImageToVideoPipeline(vae=vae, **_NOTHING, **parts), config.embedded_frames, torch.device(options.device)
        )

    def encode(self, spec: Spec, inputs: Inputs) -> dict[str, torch.Tensor]:
        """`condition`, fp32: the mask of the frames given, then the latents of a video that is 0 between them,
        [temporal factor + C, T, H, W]. `image_embeds` [N, S, D] where there is an image encoder.

        Raises:
            ValueError: a last frame of a video of one frame.
        """
        frames = [inputs.image(role) for role in _frame_roles(spec, inputs)]
        size = {"height": spec.height, "width": spec.width}
        pixels = [self.pipeline.video_processor.preprocess(f, **size).to(self.device, torch.float32) for f in frames]
        _, condition = self.pipeline.prepare_latents(
            pixels[0],
            batch_size=1,
            num_channels_latents=self.pipeline.vae.config.z_dim,
            **size,
            num_frames=spec.num_frames,
            dtype=torch.float32,
            device=self.device,
            latents=torch.empty(0, device=self.device),  # not the noise: that is drawn where it is denoised
            last_image=pixels[1] if len(pixels) == 2 else None,
        )
        encoded = {"condition": condition[0]}
        if self.embedded_frames:
            encoded["image_embeds"] = self.pipeline.encode_image(frames, self.device)
        return encoded


def _frame_roles(spec: Spec, inputs: Inputs) -> list[ImageRole]:
    """Those given, in order."""
    if "last_frame" not in inputs.roles:
        return ["first_frame"]
    if spec.num_frames == 1:
        raise ValueError("num_frames=1 has no last frame beside its first")
    return ["first_frame", "last_frame"]


def vace_condition(
    vae: AutoencoderKLWan, spec: Spec, inputs: Inputs, patch: tuple[int, int, int], device: torch.device
) -> torch.Tensor:
    """What VACE is given: latents of what is kept and of what is painted over, then the mask, 64 pixels a channel.
    References come first, a latent frame each, R in all. [2C + 64, R + T, H, W], in the VAE's dtype.
    """
    pipeline = WanVACEPipeline(vae=vae, **_NOTHING)
    pipeline.transformer = SimpleNamespace(config=SimpleNamespace(patch_size=patch))  # all that is asked of it here
    given, given_mask = _video_and_mask(spec, inputs)
    references = inputs.images.get("reference", [])
    video, mask, fitted = pipeline.preprocess_conditions(
        given, given_mask, references or None, 1, spec.height, spec.width, spec.num_frames, torch.float32, device
    )
    latents: torch.Tensor = pipeline.prepare_video_latents(video, mask, fitted, None, device)[0]
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
    for role, place in zip(_frame_roles(spec, inputs), (0, -1), strict=False):
        video[:, place] = np.asarray(inputs.image(role), np.float32) / 255
        mask[:, place] = 0.0
    return video, mask
