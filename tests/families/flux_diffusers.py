"""FLUX requests, and what diffusers' own pipelines make of them."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from diffusers import FluxImg2ImgPipeline, FluxKontextPipeline, FluxPipeline
from tests.families.flux import MAX_SEQUENCE_LENGTH, given, spec
from tests.families.flux import MODELS as ALL
from tests.families.kit import Case, Model

from raydiance.models.inputs import Inputs

MODEL = {model.name.removeprefix("flux-"): model for model in ALL}


def case_of(task: str, kind: str, inputs: Inputs | None = None, **values: Any) -> Case:
    return Case(f"{kind}-{task}", spec(task, kind, **values), inputs)


def edit(reference_width: int, reference_height: int, **values: Any) -> Case:
    return case_of("image-edit", "kontext", given("reference", reference_width, reference_height), **values)


def image(strength: float, kind: str = "dev", **values: Any) -> Case:
    size = values.get("width", 80), values.get("height", 48)
    return case_of("image-to-image", kind, given("init", *size), strength=strength, **values)


CASES = {
    "dev": case_of("text-to-image", "dev"),
    "dev-square-7-steps": case_of("text-to-image", "dev", height=64, width=64, num_inference_steps=7, seed=2**63 - 1),
    "dev-tall-guided": case_of("text-to-image", "dev", height=80, width=32, guidance_scale=9.0, prompt="the square"),
    "dev-true-cfg": case_of("text-to-image", "dev", true_cfg_scale=4.0),
    "dev-true-cfg-7-steps": case_of("text-to-image", "dev", true_cfg_scale=2.5, height=32, num_inference_steps=7),
    "dev-true-cfg-no-negative": case_of("text-to-image", "dev", true_cfg_scale=2.5, negative_prompt=""),
    "schnell": case_of("text-to-image", "schnell"),
    "schnell-1-step": case_of("text-to-image", "schnell", height=32, width=64, num_inference_steps=1),
    "schnell-true-cfg": case_of("text-to-image", "schnell", height=64, width=64, true_cfg_scale=3.0),
    "image": image(0.6),
    "image-rounds-up": image(0.5, height=32, width=64, num_inference_steps=7),
    "image-whole-schedule": image(1.0, height=64, width=32, true_cfg_scale=3.0),
    "schnell-image": image(0.75, kind="schnell", height=64, width=64),
    "edit": edit(180, 120),
    "edit-wide-7-steps": edit(300, 100, height=64, width=320, num_inference_steps=7, guidance_scale=2.5),
    "edit-tall-true-cfg": edit(100, 154, height=192, width=64, true_cfg_scale=3.0),
    "kontext": case_of("text-to-image", "kontext", height=64, width=192),
    "kontext-true-cfg": case_of("text-to-image", "kontext", true_cfg_scale=3.0, num_inference_steps=7),
}


def model_of(case: Case) -> Model:
    return MODEL[case.spec.model.removeprefix("flux-")]


@functools.cache
def pipeline_of(folder: Path, kind: type) -> Any:
    """Loaded by diffusers itself: nothing of the family's is in it."""
    pipeline = kind.from_pretrained(folder)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def reference(case: Case, output_type: str = "latent", folder: Path | None = None) -> Any:
    s, arguments, kind = case.spec, {}, FluxPipeline
    if "kontext" in s.model:
        kind, arguments = FluxKontextPipeline, {"max_area": s.height * s.width}
    if s.task == "image-edit":
        arguments["image"] = case.inputs.image("reference")
    if s.task == "image-to-image":
        kind, arguments = FluxImg2ImgPipeline, {"image": case.inputs.image("init"), "strength": s.strength}
    return pipeline_of(folder or model_of(case).folder, kind)(
        prompt=s.prompt,
        negative_prompt=s.negative_prompt,
        true_cfg_scale=s.extra["true_cfg_scale"],
        height=s.height,
        width=s.width,
        num_inference_steps=s.num_inference_steps,
        guidance_scale=s.guidance_scale,
        generator=torch.Generator("cpu").manual_seed(s.seed),
        max_sequence_length=MAX_SEQUENCE_LENGTH,
        output_type=output_type,
        **arguments,
    ).images[0]
