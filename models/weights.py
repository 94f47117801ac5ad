"""Components of a checkpoint, from their folders onto a device. safetensors or GGUF only, memory-mapped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers
from diffusers.hooks import apply_group_offloading

from raydiance.models.options import LoadOptions
from raydiance.models.resolve import CheckpointError, check_component, component_folder, read_json
from raydiance.models.solver import STATE, Solver
from raydiance.models.weights_check import check_weights
from raydiance.models.weights_files import gguf_file
from raydiance.models.weights_quant import load_gguf, quantization_config

DTYPES: dict[str, torch.dtype] = {t: getattr(torch, t) for t in ("float32", "bfloat16", "float16")}
HOST = torch.device("cpu")


def dtype_of(options: LoadOptions) -> torch.dtype:
    """Raises CheckpointError for one that is not served."""
    if options.dtype not in DTYPES:
        raise CheckpointError(f"dtype {options.dtype} is not supported; supported are {', '.join(DTYPES)}")
    return DTYPES[options.dtype]


def load_component(kind: Any, folder: Path, name: str, options: LoadOptions) -> Any:
    """A model of class `kind` (diffusers' or transformers'), in evaluation mode, where the options want it.

    Its weights are compared with its class before they are read (see `check_weights`). Pages of a file are read when
    their weights are first moved or used, and belong to all processes that have it open.

    Raises:
        CheckpointError: names the component's folder and the weights that are missing, unexpected or misshapen, or an
            option that cannot be honoured.
    """
    _check_placement(options)
    dtype = dtype_of(options)
    if (file := gguf_file(name, options.components)) is not None:
        return _place(load_gguf(kind, file, folder / name, dtype), name, options)
    source = component_folder(folder, name, options.components)
    check_component(source.parent, source.name, weights=True)
    files = check_weights(source, kind)
    arguments: dict[str, Any] = {"dtype": dtype, "use_safetensors": True, "local_files_only": True}
    if files.variant is not None:
        arguments["variant"] = files.variant
    if options.device_map is not None:
        arguments["device_map"] = options.device_map
    if name in options.quantization:
        arguments["quantization_config"] = quantization_config(kind, name, options.quantization[name])
    try:
        module, info = kind.from_pretrained(source, output_loading_info=True, **arguments)
    except (ImportError, RuntimeError) as error:  # a quantiser that lacks its package, or its GPU; too little memory
        raise CheckpointError(f"{source} cannot be loaded here: {error}") from error
    if info["missing_keys"]:
        raise CheckpointError(f"{source} lacks weights: {', '.join(sorted(info['missing_keys'])[:3])}, …")
    return _place(module, name, options)


def _check_placement(options: LoadOptions) -> None:
    """Raises CheckpointError where two options contradict each other, or the device."""
    on_host = torch.device(options.device).type == HOST.type
    if options.offload == "group" and on_host:
        raise CheckpointError("offload=group brings weights from host memory to a GPU; the device is cpu")
    if options.device_map is not None and on_host:
        raise CheckpointError(f"device_map={options.device_map} spreads weights over GPUs; the device is cpu")
    if options.device_map is not None and options.offload == "group":
        raise CheckpointError(f"offload=group and device_map={options.device_map} both say where weights are")


def _place(module: Any, name: str, options: LoadOptions) -> Any:
    if options.offload == "group":
        # a stream looks ahead by the order of one `forward`; VAEs and text encoders are called by parts
        offload_groups(module, torch.device(options.device), ahead=name.startswith("transformer"))
    elif options.device_map is None and not _is_placed(module):
        module.to(torch.device(options.device))
    return module.eval()


def _is_placed(module: Any) -> bool:
    """Whether the quantiser has put it on its device, and keeps it there."""
    return bool(getattr(module, "is_loaded_in_4bit", False) or getattr(module, "is_loaded_in_8bit", False))


def offload_groups(module: torch.nn.Module, device: torch.device, *, ahead: bool) -> None:
    """Keeps weights in host memory and brings each layer's to the device for its forward. Not yet run on a GPU.

    Args:
        ahead: the next layer's come while one computes (CUDA streams).
    """
    apply_group_offloading(module, device, HOST, offload_type="leaf_level", use_stream=ahead)


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
