"""Guests: pipelines of diffusers that no family here serves, run whole by diffusers' own call.

No step is shared between requests, and there are no previews and no checkpoints; progress and cancellation there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from raydiance.models.family import Family, Stage, Tensors
from raydiance.models.guest_card import FRAME_RATES, call_of, component_classes, pipeline_class, read_card
from raydiance.models.inputs import Inputs
from raydiance.models.options import LoadOptions
from raydiance.models.resolve import CheckpointError
from raydiance.models.spec import Spec
from raydiance.models.weights import load_component

OnStep = Callable[[int, int], None]
"""Told after each step: steps done, steps in all. What it raises ends the generation."""


class Guest(Family):
    """Stage "denoise" holds the whole pipeline and has `generate` alone; "decode" holds nothing and passes frames on.

    What stands for latents are the frames themselves, uint8 [T, H, W, 3]; what stands for conditioning is the given
    picture, `image` uint8 [H, W, 3].

    Raises:
        CheckpointError: names what is missing, or an option that cannot be honoured.
    """

    def __init__(self, folder: Path, stage: Stage, model_id: str, options: LoadOptions) -> None:
        self.card = read_card(folder, model_id)
        self.device = torch.device(options.device)
        if stage == "encode":
            raise CheckpointError(f"{folder} is a guest, whose pipeline encodes its texts itself")
        if stage == "denoise":
            self.pipeline = _load_pipeline(folder, options)

    # -- stage "decode"

    def encode_inputs(self, spec: Spec, inputs: Inputs) -> Tensors:
        """`image`, uint8 [H, W, 3]: the one picture that the task takes. Raises ValueError for other roles."""
        accepts = self.card.accepts(spec.task)
        if inputs.roles != {a.role for a in accepts}:
            raise ValueError(f"{spec.task} takes {', '.join(a.role for a in accepts) or 'no input'}")
        [[image]] = inputs.images.values()
        return {"image": torch.from_numpy(np.array(image.convert("RGB")))}

    def decode(self, latents: torch.Tensor, spec: Spec) -> Iterator[NDArray[np.uint8]]:  # noqa: ARG002 - frames already
        """Frames, uint8 [T, H, W, 3], in one chunk."""
        yield latents.numpy()

    # -- stage "denoise"

    def generate(self, spec: Spec, inputs: Tensors | None, on_step: OnStep) -> torch.Tensor:
        """The frames of one sample, uint8 [T, H, W, 3].

        Raises:
            RuntimeError: the pipeline made frames of another size or number.
            Exception: whatever `on_step` raised.
        """

        def step_ended(pipeline: Any, step: int, timestep: Any, values: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG001
            on_step(step + 1, max(step + 1, getattr(pipeline, "num_timesteps", spec.num_inference_steps)))
            return values

        image = None if inputs is None else Image.fromarray(inputs["image"].numpy())
        made = self.pipeline(**self.arguments(spec, image), callback_on_step_end=step_ended)
        frames = made.frames[0] if spec.is_video else made.images
        pixels = torch.from_numpy((np.asarray(frames) * 255).round().astype(np.uint8))
        wanted = (spec.num_frames, spec.height, spec.width, 3)
        if pixels.shape != wanted:
            raise RuntimeError(f"the pipeline made frames of {list(pixels.shape)}; {list(wanted)} were asked for")
        return pixels

    def arguments(self, spec: Spec, image: Image.Image | None) -> dict[str, Any]:
        """What diffusers' call is given for a spec: nothing that its signature does not have."""
        call = call_of(type(self.pipeline))
        given: dict[str, Any] = {
            "prompt": spec.prompt,
            "num_inference_steps": spec.num_inference_steps,
            "generator": torch.Generator("cpu").manual_seed(spec.seed),
            "output_type": "np",
            **spec.extra,
        }
        sized = {"height": spec.height, "width": spec.width, "num_frames": spec.num_frames}
        given |= {name: value for name, value in sized.items() if name in call}
        given |= {name: spec.fps for name in FRAME_RATES if name in call}
        if self.card.has_guidance:
            given["guidance_scale"] = spec.guidance_scale
        if self.card.uses_negative(spec):
            given["negative_prompt"] = spec.negative_prompt
        if spec.task in self.card.strength_tasks:
            given["strength"] = spec.strength
        if image is not None:
            given["image"] = image
        return given

    def encode_prompts(self, texts: Sequence[str]) -> list[Tensors]:
        raise ValueError(f"a guest encodes its texts itself; {len(texts)} were given")


def _load_pipeline(folder: Path, options: LoadOptions) -> Any:
    """Components with weights as every family loads them, the rest by the pipeline's class."""
    if options.offload == "idle_expert":
        raise CheckpointError(f"offload=idle_expert is for experts of a family; {folder} is a guest")
    classes = component_classes(folder)
    modules = {
        name: load_component(kind, folder, name, options)
        for name, kind in classes.items()
        if issubclass(kind, torch.nn.Module)
    }
    elsewhere = [name for name in options.components if name not in modules]
    if elsewhere:
        raise CheckpointError(f"components.{elsewhere[0]}: of a guest only {', '.join(modules)} come from elsewhere")
    kind = pipeline_class(folder)
    pipeline = kind.from_pretrained(
        folder, local_files_only=True, use_safetensors=True, trust_remote_code=False, **modules
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline
