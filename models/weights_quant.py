"""Weights in fewer bits: quantised as they load, or stored so in a GGUF file.

Checkpoints that diffusers or transformers saved quantised say so in their own config.json and need nothing of this.
Sources: https://huggingface.co/docs/diffusers/quantization/overview
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers

from raydiance.models.resolve import CheckpointError

BACKENDS = ("torchao", "bitsandbytes")


def quantization_config(kind: Any, name: str, options: Mapping[str, Any]) -> Any:
    """The library's own object for a component of class `kind`.

    Args:
        options: `backend`, and what it takes. torchao: `quant_type`, the name of one of its configurations such as
            `Int8WeightOnlyConfig`, that one's own arguments, and `modules_to_not_convert`. bitsandbytes: the arguments
            of `BitsAndBytesConfig`, such as `load_in_4bit`.

    Raises:
        CheckpointError: names the option, or the package to be installed.
    """
    rest = dict(options)
    backend = rest.pop("backend", None)
    if backend not in BACKENDS:
        raise CheckpointError(f"quantization.{name}: backend={backend!r} is not one of {', '.join(BACKENDS)}")
    require(backend, f"quantization.{name}")
    library = transformers if issubclass(kind, transformers.PreTrainedModel) else diffusers
    try:
        if backend == "bitsandbytes":
            return library.BitsAndBytesConfig(**rest)
        quant_type, kept = rest.pop("quant_type", None), rest.pop("modules_to_not_convert", None)
        chosen = getattr(import_module("torchao.quantization"), str(quant_type), None)
        if chosen is None:
            raise CheckpointError(
                f"quantization.{name}: quant_type={quant_type!r} is no configuration of torchao.quantization, "
                "such as Int8WeightOnlyConfig"
            )
        return library.TorchAoConfig(chosen(**rest), modules_to_not_convert=kept)
    except (TypeError, ValueError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"quantization.{name}: {error}") from error


def load_gguf(kind: Any, file: Path, config: Path, dtype: torch.dtype) -> Any:
    """A diffusers model whose weights stay as a GGUF file has them, and are unpacked in each forward.

    Args:
        config: the folder that has its `config.json`.
        dtype: of the computation.

    Raises:
        CheckpointError: the class cannot be loaded from one file, or the package for it is missing.
    """
    require("gguf", str(file))
    if not hasattr(kind, "from_single_file"):
        raise CheckpointError(f"{file}: {kind.__name__} cannot be loaded from a GGUF file")
    if not (config / "config.json").is_file():
        raise CheckpointError(f"{config} has no config.json, which {file.name} is loaded with")
    how = diffusers.GGUFQuantizationConfig(compute_dtype=dtype)
    return kind.from_single_file(
        str(file), config=str(config), quantization_config=how, dtype=dtype, local_files_only=True
    )


def require(package: str, what: str) -> None:
    """Raises CheckpointError where a package is not installed."""
    if find_spec(package) is None:
        raise CheckpointError(f"{what} needs the package {package}, which is not installed: pip install {package}")
