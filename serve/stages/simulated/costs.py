"""What the parts of a generation would take on a GPU: from its data sheet and the FLOPs of the real modules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from raydiance.models import registry, resolve
from raydiance.models.card import ModelCard
from raydiance.models.spec import FieldError, Spec
from raydiance.serve.config import ModelConfig
from raydiance.serve.engine import cost_model
from raydiance.serve.engine.cost_fit import fit
from raydiance.serve.engine.cost_model import CostModel, Part, Sample, Work
from raydiance.serve.engine.cost_profile import ProfileError, read_profile
from raydiance.serve.engine.ways import Shape
from raydiance.serve.errors import ConfigError
from raydiance.serve.gpus import GPUS, Gpu
from raydiance.serve.samples import default_spec
from raydiance.serve.simulate_config import SimulateConfig

INPUTS_SHARE = 0.5
"""Of what decoding takes, for encoding as many pixels. Assumed."""
VIDEO_FILE_S, IMAGE_FILE_S = 1.6e-8, 6e-8
"""Seconds a pixel for writing a file, on the CPU: H.264 with `veryfast` and PNG, as measured on two cores."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """What a simulated stage goes by. Crosses to its process.

    Args:
        speed: times as fast as the costs say.
        startup_s: until a replica serves; not yet divided by the speed.
    """

    costs: CostModel
    speed: float
    startup_s: float

    def seconds(self, part: Part, work: Work) -> float:
        """0 where nothing is known of a part."""
        return self.costs.predict(part, work) / self.speed if self.costs.knows(part) else 0.0

    def step_s(self, shape: Shape, num_ranks: int) -> float:
        return self.costs.seconds(shape, num_ranks) / self.speed


def simulated(model: ModelConfig, config: SimulateConfig) -> Simulated:
    """Of `models[].cost_profile` where it is given, whatever machine it is of; else of the GPU. Imports torch then.

    Raises:
        ConfigError: no model of ours, or no cost profile.
    """
    if config.gpu is None:
        raise ConfigError("simulate.gpu is not set")
    try:
        folder = resolve.resolve(model.path, model.revision)
        if registry.is_guest(folder):
            raise ConfigError(f"simulate.gpu={config.gpu}: model '{model.id}' is a guest, whose steps have no price")
        if model.cost_profile is not None:
            costs = read_profile(Path(model.cost_profile)).model
        else:
            costs = costs_on(GPUS[config.gpu], folder, model)
    except (ProfileError, resolve.CheckpointError, FieldError) as e:
        raise ConfigError(f"simulate.gpu={config.gpu}: model '{model.id}': {e}") from e
    return Simulated(costs, config.speed, config.startup_s)


def costs_on(gpu: Gpu, folder: Path, model: ModelConfig) -> CostModel:
    """Arithmetic at the GPU's achieved FLOP/s, and every forward reads its weights once besides.

    Raises CheckpointError, FieldError.
    """
    card = registry.card(folder, model.id).with_defaults(model.defaults)
    return fit([sample for spec in _sizes(card) for sample in _samples(gpu, folder, model, card, spec)])


def _sizes(card: ModelCard) -> Iterator[Spec]:
    """The default size and half of it, as far as the card takes them."""
    whole = card.check(default_spec(card, card.defaults.num_inference_steps))
    yield whole
    multiple = card.size_multiple
    height, width = (max(multiple, side // 2 // multiple * multiple) for side in (whole.height, whole.width))
    try:
        yield card.check(replace(whole, height=height, width=width))
    except FieldError:
        return


def _samples(gpu: Gpu, folder: Path, model: ModelConfig, card: ModelCard, spec: Spec) -> Iterator[Sample]:
    from raydiance.models.checkup import examine

    checkup = examine(folder, spec, card, dtype=model.dtype, vae_dtype=model.vae_dtype, components=model.components)
    text, denoise, decode = (checkup.needs(stage) for stage in ("encode", "denoise", "decode"))
    branches = 2 if card.uses_negative(spec) else 1
    num_experts = sum(component.stage == "denoise" for component in checkup.components)
    weights_s = gpu.read_s(denoise.weight_bytes / num_experts)
    row_s = gpu.compute_s(denoise.flops / (spec.num_inference_steps - spec.first_step))
    tokens = card.num_tokens(spec.height, spec.width, spec.num_frames) + card.max_text_tokens
    for rows in (1, 2):
        work = cost_model.step_work(Shape(tokens, rows, branches))
        yield Sample("step", work, rows * row_s + branches * weights_s)
        texts_s = gpu.compute_s(text.flops / branches) * rows + gpu.read_s(text.weight_bytes)
        yield Sample("text", cost_model.text_work(rows), texts_s)
    decode_s = gpu.compute_s(decode.flops) + gpu.read_s(decode.weight_bytes)
    yield Sample("decode", cost_model.decode_work(spec, card), decode_s)
    yield Sample("inputs", cost_model.inputs_work(spec), INPUTS_SHARE * decode_s)
    pixels = spec.height * spec.width
    video = cost_model.file_work(spec)
    yield Sample("video_file", video, VIDEO_FILE_S * pixels * spec.num_frames)
    yield Sample("image_file", cost_model.file_work(replace(spec, num_frames=1)), IMAGE_FILE_S * pixels)
