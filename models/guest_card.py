"""What a pipeline of diffusers that no family here serves can do: from its call's signature and its JSON files.

It imports diffusers, and with it torch: the signature is in its code. Only what a signature says for sure is offered.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raydiance.models.card import Defaults, ModelCard, Parameter
from raydiance.models.own import own_defaults, read_own
from raydiance.models.resolve import CheckpointError, read_json
from raydiance.models.spec import Task

if TYPE_CHECKING:
    from raydiance.models.family import Stage

Signature = Mapping[str, inspect.Parameter]
CALLED_WITH = ("prompt", "num_inference_steps", "generator", "output_type", "callback_on_step_end")
NOT_BROUGHT = ("mask_image", "control_image", "control_video", "video", "mask", "conditions", "audio")
"""Inputs of a call that a request does not bring to a guest."""
PARAMETERS = ("true_cfg_scale", "image_guidance_scale", "guidance_scale_2", "guidance_rescale")
FRAME_RATES = ("frame_rate", "fps")
SIZE_MULTIPLE = 32  # of the pipelines there are, none needs more
IMAGE_SIDE, VIDEO_HEIGHT, VIDEO_WIDTH, FPS = 1024, 480, 832, 16


def read_card(folder: Path, model_id: str) -> ModelCard:
    """Raises CheckpointError: the folder's class, or what it is called with, cannot be served."""
    call = call_of(pipeline_class(folder))
    tasks = _tasks(folder, call)
    has_guidance = _number(call, "guidance_scale") is not None
    parameters = tuple(
        Parameter(name, 0.0, 100.0, float(default))
        for name in PARAMETERS
        if (default := _number(call, name)) is not None
    )
    guided_by = ("true_cfg_scale",) if any(p.name == "true_cfg_scale" for p in parameters) else ("guidance_scale",)
    temporal = _temporal_factor(folder) if "num_frames" in call else 1
    return ModelCard(
        id=model_id,
        family="guest",
        tasks=tasks,
        defaults=_defaults(folder, call, temporal),
        size_multiple=SIZE_MULTIPLE,
        frame_stride=temporal,
        spatial_factor=8,
        temporal_factor=temporal,
        patch=(1, 2, 2),
        parameters=parameters,
        cfg_parameters=guided_by,
        has_guidance=has_guidance,
        has_negative="negative_prompt" in call and (has_guidance or guided_by == ("true_cfg_scale",)),
        strength_tasks=tuple(t for t in tasks if t == "image-to-image"),
        is_guest=True,
    )


def read_components(folder: Path) -> Mapping[Stage, tuple[str, ...]]:
    """All of them are the denoiser's: the pipeline runs as a whole."""
    return {"encode": (), "denoise": tuple(component_classes(folder)), "decode": ()}


def pipeline_class(folder: Path) -> Any:
    """diffusers' class of this name; raises CheckpointError if it has none."""
    import diffusers

    name = read_json(folder, "model_index.json").get("_class_name")
    kind = getattr(diffusers, str(name), None)
    if not (isinstance(kind, type) and issubclass(kind, diffusers.DiffusionPipeline)):
        raise CheckpointError(
            f"{folder} is for {name}, which is not supported: no family here, no pipeline of diffusers"
        )
    return kind


def component_classes(folder: Path) -> dict[str, Any]:
    """The class of each component that is there; raises CheckpointError for one of a checkpoint's own code."""
    import diffusers
    import transformers

    found = {}
    for name, value in read_json(folder, "model_index.json").items():
        if name.startswith("_") or not isinstance(value, list) or len(value) != 2 or None in value:
            continue
        library = {"diffusers": diffusers, "transformers": transformers}.get(value[0])
        kind = getattr(library or getattr(diffusers.pipelines, str(value[0]), None), str(value[1]), None)
        if kind is None:
            raise CheckpointError(f"{folder}: {name} is {value[0]}.{value[1]}, of neither diffusers nor transformers")
        found[name] = kind
    return found


def call_of(kind: Any) -> Signature:
    return inspect.signature(kind.__call__).parameters


def _tasks(folder: Path, call: Signature) -> tuple[Task, ...]:
    name = pipeline_class(folder).__name__
    absent = [p for p in CALLED_WITH if p not in call]
    if absent:
        raise CheckpointError(f"{folder} is for {name}, which is not supported: its call takes no {', '.join(absent)}")
    refused = [
        p.name
        for p in call.values()
        if p.name in NOT_BROUGHT
        or (p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD and p.name not in ("self", "prompt", "image"))
    ]
    if refused:
        raise CheckpointError(f"{folder} is for {name}, which is not supported: its call takes {', '.join(refused)}")
    has_size, noises = {"height", "width"} <= set(call), "strength" in call and "image" in call
    if not (has_size or noises):  # else its size is that of the picture
        raise CheckpointError(f"{folder} is for {name}, which is not supported: its call takes no height and width")
    if "num_frames" in call:
        return ("image-to-video",) if "image" in call else ("text-to-video",)
    if "image" in call:
        return ("image-to-image",) if noises else ("image-edit",)
    return ("text-to-image",)


def _number(call: Signature, name: str) -> float | None:
    """The default of a number; None where there is none, or no such parameter."""
    value = call[name].default if name in call else None
    return value if type(value) in (int, float) else None


def _defaults(folder: Path, call: Signature, temporal: int) -> Defaults:
    own = read_own(folder)
    if "defaults" in own:
        return own_defaults(folder, own, None)
    is_video = "num_frames" in call
    height, width = (VIDEO_HEIGHT, VIDEO_WIDTH) if is_video else _image_size(folder)
    rate = next((v for name in FRAME_RATES if (v := _number(call, name)) is not None), FPS)
    frames = int(_number(call, "num_frames") or 3 * FPS)
    return Defaults(
        height=_rounded(_number(call, "height") or height),
        width=_rounded(_number(call, "width") or width),
        num_frames=max(frames - 1, 0) // temporal * temporal + 1 if is_video else 1,
        fps=int(rate),
        num_inference_steps=int(_number(call, "num_inference_steps") or 50),
        guidance_scale=float(_number(call, "guidance_scale") or 1.0),
        strength=float(_number(call, "strength") or 0.8),
    )


def _image_size(folder: Path) -> tuple[int, int]:
    """Height and width in pixels of what the denoiser was trained on, if its config says so."""
    for name in ("transformer", "unet"):
        if (folder / name / "config.json").is_file():
            size = read_json(folder, f"{name}/config.json").get("sample_size")
            if type(size) is int:
                return size * _spatial_factor(folder), size * _spatial_factor(folder)
    return IMAGE_SIDE, IMAGE_SIDE


def _spatial_factor(folder: Path) -> int:
    config = read_json(folder, "vae/config.json") if (folder / "vae/config.json").is_file() else {}
    blocks = config.get("block_out_channels") or config.get("encoder_block_out_channels")
    return 8 if blocks is None else int(2 ** (len(blocks) - 1))


def _temporal_factor(folder: Path) -> int:
    """Frames to a latent frame: the VAE's attribute, as its pipeline reads it, or what its config says."""
    from accelerate import init_empty_weights

    kind = component_classes(folder).get("vae")
    if kind is None or not hasattr(kind, "load_config"):
        return 1
    config = kind.load_config(folder / "vae")
    with init_empty_weights():
        vae = kind.from_config(config)
    found = getattr(vae, "temporal_compression_ratio", None) or config.get("scale_factor_temporal")
    if found is None and (downsample := config.get("temperal_downsample")) is not None:
        found = 2 ** sum(map(bool, downsample))
    return int(found or config.get("temporal_compression_ratio") or 1)


def _rounded(side: float) -> int:
    return max(int(side) // SIZE_MULTIPLE, 1) * SIZE_MULTIPLE
