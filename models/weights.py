"""Components of a checkpoint, from their folders onto a device. safetensors only, memory-mapped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers

from raydiance.models.options import LoadOptions
from raydiance.models.resolve import CheckpointError, check_component, component_folder, read_json
from raydiance.models.solver import STATE, Solver

DTYPES: dict[str, torch.dtype] = {t: getattr(torch, t) for t in ("float32", "bfloat16", "float16")}


def dtype_of(options: LoadOptions) -> torch.dtype:
    """Raises CheckpointError for one that is not served."""
    if options.dtype not in DTYPES:
        raise CheckpointError(f"dtype {options.dtype} is not supported; supported are {', '.join(DTYPES)}")
    return DTYPES[options.dtype]


def load_component(kind: Any, folder: Path, name: str, options: LoadOptions) -> Any:
    """A model of class `kind` (diffusers' or transformers'), in evaluation mode, on the options' device.

    Raises:
        CheckpointError: names the component's folder, and the weights that are missing.
    """
    source = component_folder(folder, name, options.components)
    check_component(source.parent, source.name, weights=True)
    arguments = {"dtype": dtype_of(options), "use_safetensors": True, "local_files_only": True}
    module, info = kind.from_pretrained(source, output_loading_info=True, **arguments)
    if info["missing_keys"]:
        raise CheckpointError(f"{source} lacks weights: {', '.join(sorted(info['missing_keys'])[:3])}, …")
    return module.to(torch.device(options.device)).eval()


def load_tokenizer(folder: Path, name: str, options: LoadOptions, kind: Any = transformers.AutoTokenizer) -> Any:
    """Raises CheckpointError where its folder is missing or empty."""
    source = component_folder(folder, name, options.components)
    check_component(source.parent, source.name, weights=False)
    return kind.from_pretrained(source, local_files_only=True)


def load_scheduler(folder: Path, options: LoadOptions) -> Any:
    """The folder's scheduler, if it can be stepped as a value; raises CheckpointError or SolverError."""
    source = component_folder(folder, "scheduler", options.components)
    check_component(source.parent, source.name, weights=False)
    config = read_json(source, "scheduler_config.json")
    name = config.get("_class_name")
    if name not in STATE:
        raise CheckpointError(
            f"{source.parent} has scheduler {name}, which is not supported; supported are {', '.join(STATE)}"
        )
    scheduler = getattr(diffusers, name).from_config(config)
    Solver.check(scheduler)  # its options are checked now, not with the first request
    return scheduler
