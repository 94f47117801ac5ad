"""One checkpoint, ready to be run both by Raydiance and by diffusers' own pipelines."""

from __future__ import annotations

import copy
import functools
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import WanImageToVideoPipeline, WanPipeline, WanVideoToVideoPipeline
from PIL import Image
from tests.checkpoints import save_wan

from raydiance.models import registry
from raydiance.models.inputs import Inputs
from raydiance.models.spec import Spec
from raydiance.models.tiny import CHECKPOINT
from raydiance.models.wan import Wan
from raydiance.models.wan_vae import decode_frames
from raydiance.serve.engine.engine import Engine
from raydiance.serve.engine.trajectory import Trajectory

torch.set_num_threads(1)  # sums in the same order everywhere, and the machine's other cores are left alone

RANDOM = ["unipc", "euler"]
TRAINED = pytest.param(
    "trained", marks=pytest.mark.skipif(not (CHECKPOINT / "model_index.json").exists(), reason="none")
)
IMAGE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 56, 3), dtype=np.uint8)).resize((100, 70))
_PIPELINES = {
    "image-to-video": WanImageToVideoPipeline,
    "image-to-image": WanVideoToVideoPipeline,
    "video-to-video": WanVideoToVideoPipeline,
}
_FOLDERS = tempfile.TemporaryDirectory(prefix="raydiance-tests-")


def make_spec(task: str = "text-to-video", prompt: str = "a red circle moves left", **values: Any) -> Spec:
    base = {"height": 32, "width": 48, "num_frames": 5 if "video" in task[5:] else 1, "num_inference_steps": 4}
    base |= {"guidance_scale": 3.0, "seed": 7, "negative_prompt": "a black square"}
    return Spec(model="wan", task=task, prompt=prompt, **{**base, **values})


def _inputs(spec: Spec, image: Image.Image) -> Inputs:
    if spec.task == "video-to-video":
        return Inputs(video=np.stack([np.asarray(f) for f in clip(spec, image)]))
    fitted = image.resize((spec.width, spec.height), Image.Resampling.LANCZOS)
    return Inputs({"init" if spec.task == "image-to-image" else "first_frame": [fitted]})


def clip(spec: Spec, image: Image.Image = IMAGE) -> list[Image.Image]:
    """A picture that turns, of the spec's size and length."""
    fitted = image.resize((spec.width, spec.height), Image.Resampling.LANCZOS)
    return [Image.fromarray(np.roll(np.asarray(fitted), 3 * i, axis=1)) for i in range(spec.num_frames)]


@dataclass(frozen=True)
class Studio:
    folder: Path
    encoder: Wan
    denoiser: Wan
    decoder: Wan

    def conditioning(self, spec: Spec, image: Image.Image = IMAGE) -> dict[str, torch.Tensor]:
        prompt, negative = self.encoder.encode_prompts([spec.prompt, spec.negative_prompt])
        inputs = (
            self.decoder.encode_inputs(spec, _inputs(spec, image)) if self.decoder.card.accepts(spec.task) else None
        )
        return dict(self.denoiser.conditioning(spec, prompt, negative, inputs))

    def engine(self) -> Engine:
        return Engine(self.denoiser)

    def start(self, spec: Spec) -> Trajectory:
        return self.engine().start(spec, self.conditioning(spec))

    def run(self, trajectory: Trajectory, to: int | None = None) -> Trajectory:
        """Alone, up to a step, or to its end."""
        engine = self.engine()
        while trajectory.step_index < (trajectory.num_steps if to is None else to):
            [trajectory] = engine.step([trajectory])
        return trajectory

    def latents(self, spec: Spec) -> torch.Tensor:
        return self.engine().finish(self.run(self.start(spec)))

    def pixels(self, latents: torch.Tensor, exact: bool = False) -> torch.Tensor:
        """[1, 3, t, h, w] in [0, 1], before they are rounded to bytes.

        Args:
            exact: decoded in fp64, so that two latents are compared and not the decoder's own rounding: where random
                weights bring a norm to nearly 0, fp32 makes 5e-4 of what fp64 makes 1e-5 of.
        """
        vae = self.exact_vae if exact else self.decoder.pipeline.vae
        mean, scale = self.decoder._latent_statistics(torch.float32)
        with torch.no_grad():
            chunks = list(decode_frames(vae, latents[None].to(vae.dtype) / scale + mean))
        return torch.cat(chunks, dim=2) * 0.5 + 0.5

    @functools.cached_property
    def exact_vae(self) -> Any:
        return copy.deepcopy(self.decoder.pipeline.vae).double()

    @functools.cached_property
    def reference_components(self) -> dict[str, Any]:
        """Loaded by diffusers, not by us."""
        components = WanPipeline.from_pretrained(self.folder).components
        return {k: v for k, v in components.items() if k != "transformer_2"}

    def reference(self, spec: Spec, output_type: str = "latent", image: Image.Image = IMAGE) -> Any:
        """What diffusers' pipeline for this task makes of it: latents [C, T, H, W], or frames [t, h, w, 3]."""
        kind = _PIPELINES.get(spec.task, WanPipeline)
        own = {} if kind is WanVideoToVideoPipeline else {"expand_timesteps": self.denoiser.config.expand_timesteps}
        pipe = kind(**self.reference_components, **own)
        pipe.set_progress_bar_config(disable=True)
        task: dict[str, Any] = {"num_frames": spec.num_frames}
        if spec.task == "image-to-video":
            task["image"] = image
        if spec.task == "image-to-image":
            task = {"video": [image], "strength": spec.strength}
        if spec.task == "video-to-video":
            task = {"video": clip(spec, image), "strength": spec.strength}
        return pipe(
            prompt=spec.prompt,
            negative_prompt=spec.negative_prompt,
            height=spec.height,
            width=spec.width,
            num_inference_steps=spec.num_inference_steps,
            guidance_scale=spec.guidance_scale,
            generator=torch.Generator("cpu").manual_seed(spec.seed),
            max_sequence_length=self.encoder.config.max_sequence_length,
            output_type=output_type,
            **task,
        ).frames[0]


@functools.cache
def studio_of(name: str) -> Studio:
    """`unipc`, `euler`: random weights; `flat`: without expand_timesteps; `trained`: the embedded checkpoint."""
    folder = CHECKPOINT if name == "trained" else Path(_FOLDERS.name) / name
    if name != "trained":
        save_wan(folder, scheduler="euler" if name == "euler" else "unipc", expand_timesteps=name != "flat")
    families = [registry.load(folder, stage, "wan") for stage in ("encode", "denoise", "decode")]
    return Studio(folder, *families)
