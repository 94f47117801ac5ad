"""A trajectory as bytes: safetensors with a JSON header, so nothing in them can run.

Layout: a safetensors file whose metadata holds `format`, `version`, `header` (JSON) and `digest`, the sha256 of the
header and of all tensors. The half that never changes may be left out; it is then joined again by its id.
"""

from __future__ import annotations

import json
from typing import Any

import safetensors
import safetensors.torch
import torch

from raydiance.models.solver import SolverState
from raydiance.models.spec import Spec
from raydiance.serve.engine.pack_error import PackError as PackError
from raydiance.serve.engine.trajectory import Fixed, Trajectory, content_hash

FORMAT = "raydiance.trajectory"
VERSION = "1"
_CONDITIONING, _SOLVER = "conditioning.", "solver."


def pack(trajectory: Trajectory, with_fixed: bool = True) -> bytes:
    """Args:
    with_fixed: False leaves out the spec and the conditioning; `unpack` must then be given them.
    """
    solver_tensors, solver = trajectory.solver.to_parts()
    tensors = {"latents": trajectory.latents, "generator_state": trajectory.generator_state}
    tensors |= {_SOLVER + name: tensor for name, tensor in solver_tensors.items()}
    if trajectory.denoised is not None:
        tensors["denoised"] = trajectory.denoised
    fixed = trajectory.fixed
    header = {
        "step_index": trajectory.step_index,
        "solver": solver,
        "fixed_id": fixed.id,
        "conditioning_id": fixed.conditioning_id,
        "spec": fixed.spec.to_dict() if with_fixed else None,
    }
    if with_fixed:
        tensors |= {_CONDITIONING + name: tensor for name, tensor in fixed.conditioning.items()}
    # safetensors refuses tensors that share memory, such as views of one schedule
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    text = json.dumps(header)
    metadata = {"format": FORMAT, "version": VERSION, "header": text, "digest": content_hash(tensors, text)}
    return safetensors.torch.save(tensors, metadata)


def unpack(data: bytes, fixed: Fixed | None = None) -> Trajectory:
    """The trajectory, on the CPU.

    Args:
        fixed: the half that never changes, where `data` lacks it.

    Raises:
        PackError: the bytes are cut, changed or of another format or version; `fixed` is missing or another one.
    """
    header, tensors = _read(data)
    try:
        return _joined(header, tensors, fixed)
    except (KeyError, TypeError, AttributeError) as error:
        raise PackError(f"the content is no trajectory: {error!r}") from error


def _joined(header: dict[str, Any], tensors: dict[str, torch.Tensor], fixed: Fixed | None) -> Trajectory:
    if header["spec"] is not None:
        conditioning = _with_prefix(tensors, _CONDITIONING)
        fixed = Fixed(Spec.from_dict(header["spec"]), conditioning)
    if fixed is None:
        raise PackError("only the mutable half was packed; give the fixed half to join it with")
    if fixed.conditioning_id != header["conditioning_id"]:
        raise PackError(f"packed with conditioning {header['conditioning_id']}, joined with {fixed.conditioning_id}")
    if fixed.id != header["fixed_id"]:
        raise PackError(f"packed with another spec than the one it is joined with: {fixed.spec}")
    step, num_steps = header["step_index"], fixed.spec.num_inference_steps
    if type(step) is not int or not 0 <= step <= num_steps:
        raise PackError(f"step_index={step!r} is not one of 0 to {num_steps}")
    return Trajectory(
        fixed=fixed,
        step_index=step,
        latents=tensors["latents"],
        solver=SolverState.from_parts(_with_prefix(tensors, _SOLVER), header["solver"]),
        generator_state=tensors["generator_state"],
        denoised=tensors.get("denoised"),
    )


def _read(data: bytes) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Header and tensors, whose digest was checked: what is read from them after this is what was written."""
    metadata = _metadata(data)
    if metadata.get("format") != FORMAT:
        raise PackError(f"format is {metadata.get('format')!r}, not {FORMAT!r}")
    if metadata.get("version") != VERSION:
        raise PackError(f"version {metadata.get('version')!r} cannot be read; this reads {VERSION!r}")
    try:
        tensors = safetensors.torch.load(data)
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise PackError(f"the tensors cannot be read: {error}") from error
    text = metadata.get("header")
    if not isinstance(text, str) or metadata.get("digest") != content_hash(tensors, text):
        raise PackError("the content does not match its digest")
    try:
        header: dict[str, Any] = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PackError(f"the header cannot be read: {error}") from error
    return header, tensors


def _metadata(data: bytes) -> dict[str, Any]:
    """What stands in front of safetensors' tensors: 8 bytes of length, then JSON (https://huggingface.co/docs/safetensors)."""
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > len(data) - 8:
        raise PackError(f"{len(data)} bytes are too few for the header they announce")
    try:
        metadata = json.loads(data[8 : 8 + size])["__metadata__"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise PackError(f"the header cannot be read: {error}") from error
    if not isinstance(metadata, dict):
        raise PackError("the header holds no metadata")
    return metadata


def _with_prefix(tensors: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
