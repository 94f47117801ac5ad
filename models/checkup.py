"""What serving a checkpoint takes, stage by stage: from its configuration alone, or from a folder with weights.

Numbers are those of the real modules, built without weights (see `footprint`). Activations are counted as torch's eager
mode makes them; kernels that fuse need less.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from raydiance.models.card import ModelCard
from raydiance.models.family import Stage
from raydiance.models.footprint import META, Cost, count_parameters, measure
from raydiance.models.ltx_guidance import Scales
from raydiance.models.own import read_own
from raydiance.models.resolve import CheckpointError, component_folder, read_json
from raydiance.models.shapes import TEXT_TOKENS, Shape, decode_call, denoise_call, encode_call
from raydiance.models.spec import Spec
from raydiance.models.weights import DTYPES
from raydiance.models.whole import class_named, with_weights

STAGES: tuple[Stage, ...] = ("encode", "denoise", "decode")
_STAGE_OF: Mapping[str, Stage] = {"text_encoder": "encode", "connectors": "encode", "transformer": "denoise"}
"""What a component's name begins with, to its stage; every other component with weights is decoded with."""
_BOTH_BRANCHES_AT_ONCE = ("hidream", "ltx")


@dataclass(frozen=True, slots=True)
class Component:
    """Args:
    group_bytes: of weights on the device at once with group off-loading: a block, and the one that comes next.
    cost: of one call: a prompt, a forward, or a sample's decoding.
    """

    name: str
    kind: str
    stage: Stage
    parameters: int
    weight_bytes: int
    group_bytes: int
    cost: Cost


@dataclass(frozen=True, slots=True)
class StageNeeds:
    """Args:
    flops: of one request.
    peak_bytes: of activations, beside the weights.
    """

    parameters: int
    weight_bytes: int
    flops: int
    peak_bytes: int

    @property
    def memory_bytes(self) -> int:
        return self.weight_bytes + self.peak_bytes


@dataclass(frozen=True, slots=True)
class Checkup:
    """Args:
    spec: the request that the numbers are of.
    tokens: of the transformer's sequence, text included where it is part of it.
    rows: of the transformer's forwards in one request: steps times branches of guidance.
    batch: rows in one forward.
    """

    card: ModelCard
    spec: Spec
    components: tuple[Component, ...]
    tokens: int
    rows: int
    batch: int

    def needs(self, stage: Stage) -> StageNeeds:
        parts = [c for c in self.components if c.stage == stage]
        calls = {"encode": 2 if self.card.uses_negative(self.spec) else 1, "denoise": self.rows, "decode": 1}[stage]
        experts = len(parts) if stage == "denoise" else 1  # of two experts one runs in each step
        return StageNeeds(
            parameters=sum(c.parameters for c in parts),
            weight_bytes=sum(c.weight_bytes for c in parts),
            flops=calls * sum(c.cost.flops for c in parts) // (experts * (self.batch if stage == "denoise" else 1)),
            peak_bytes=max(c.cost.peak_bytes for c in parts),
        )


def examine(
    folder: Path,
    spec: Spec,
    card: ModelCard,
    *,
    dtype: str,
    vae_dtype: str,
    components: Mapping[str, str] | None = None,
) -> Checkup:
    """Builds every component on `meta` and calls it there with the tensors of one request.

    Args:
        folder: in diffusers' layout; weights are not needed.
        components: those that come from elsewhere, see `LoadOptions.components`.

    Raises:
        CheckpointError: a configuration is missing, is of no known class, or makes no such module.
    """
    shape = _shape(folder, spec, card, DTYPES[dtype])
    parts = []
    for name, (library, kind) in with_weights(folder, components or {}):
        stage: Stage = next((s for prefix, s in _STAGE_OF.items() if name.startswith(prefix)), "decode")
        module = build(
            component_folder(folder, name, components or {}), library, kind, vae_dtype if stage == "decode" else dtype
        )
        if stage == "denoise":
            call = denoise_call(module, shape)
        elif stage == "encode":
            call = encode_call(module, shape.text_tokens)
        else:
            call = decode_call(module, shape)
        parameters = count_parameters(module)
        parts.append(
            Component(name, kind, stage, parameters, _bytes(module), _group_bytes(module), measure(module, call))
        )
    tokens = card.num_tokens(spec.height, spec.width, spec.num_frames) * (1 + shape.references) + card.max_text_tokens
    rows = (spec.num_inference_steps - spec.first_step) * _branches(spec, card)
    return Checkup(card, spec, tuple(parts), tokens, rows, shape.batch)


def _branches(spec: Spec, card: ModelCard) -> int:
    """Rows of one step: with the prompt, with the negative one, and LTX's two kinds of guidance beside that."""
    branches = 1 + card.uses_negative(spec)
    if card.family == "ltx":
        scales = Scales.of(spec)
        branches += scales.perturbs + scales.isolates
    return branches


def build(folder: Path, library: str, kind: str, dtype: str) -> Any:
    """A module without weights, on `meta`, in evaluation mode; raises CheckpointError naming its folder."""
    config = read_json(folder, "config.json")
    before = torch.get_default_dtype()
    torch.set_default_dtype(DTYPES[dtype])
    try:
        with META:
            found = class_named(library, kind)
            if library == "transformers":
                return found(transformers.AutoConfig.for_model(**config)).eval()
            return found.from_config(config).eval()
    except (AttributeError, TypeError, ValueError, KeyError, RuntimeError) as error:
        raise CheckpointError(f"{folder / 'config.json'} makes no {kind}: {error}") from error
    finally:
        torch.set_default_dtype(before)


def _bytes(module: torch.nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in module.parameters())


def _group_bytes(module: torch.nn.Module) -> int:
    """Twice the largest block; a table of embeddings larger than that is a group of its own."""
    lists = [m for m in module.modules() if isinstance(m, torch.nn.ModuleList)]
    blocks = [_bytes(block) for m in lists for block in m]
    others = [_bytes(m) for m in module.modules() if isinstance(m, torch.nn.Embedding)]
    return max([2 * b for b in blocks] + others, default=_bytes(module))


def _shape(folder: Path, spec: Spec, card: ModelCard, dtype: torch.dtype) -> Shape:
    return Shape(
        rows=spec.height // card.spatial_factor,
        cols=spec.width // card.spatial_factor,
        frames=(spec.num_frames - 1) // card.temporal_factor + 1,
        text_tokens=read_own(folder).get("max_sequence_length", TEXT_TOKENS[card.family]),
        seconds=spec.num_frames / spec.fps,
        references=1 if spec.task == "image-edit" else 0,
        batch=2 if card.family in _BOTH_BRANCHES_AT_ONCE and card.uses_negative(spec) else 1,
        dtype=dtype,
    )
