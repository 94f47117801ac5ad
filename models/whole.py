"""Whether a checkpoint is whole: every component there, of its class, with all of its weights. Reads only headers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from raydiance.models import registry
from raydiance.models.resolve import CheckpointError, component_folder, read_json
from raydiance.models.weights_check import check_weights, class_of


def check_whole(folder: Path, components: Mapping[str, str]) -> dict[str, int]:
    """Bytes of every component's weights, whose names and shapes are those of its class.

    Args:
        components: those that come from elsewhere, see `LoadOptions.components`.

    Raises:
        CheckpointError: names the component, and what is missing, unexpected or misshapen.
    """
    registry.check(folder, components)
    sizes = {}
    for name, (library, kind) in with_weights(folder, components):
        source = component_folder(folder, name, components)
        if source.is_file():
            sizes[name] = source.stat().st_size  # GGUF: one file, whose names are its own
            continue
        config = read_json(source, "config.json")
        says = config.get("_class_name") or next(iter(config.get("architectures") or [kind]))
        if name not in components and says != kind:
            raise CheckpointError(f"{source} holds a {says}; model_index.json says {kind}")
        check_weights(source, class_named(library, kind))
        sizes[name] = sum(file.stat().st_size for file in source.glob("*.safetensors"))
    return sizes


def class_named(library: str, kind: str) -> Any:
    """A class as `model_index.json` names it: of diffusers, of transformers, or of one of diffusers' pipelines.

    Raises:
        CheckpointError: there is no such class.
    """
    try:
        module = library if library in ("diffusers", "transformers") else f"diffusers.pipelines.{library}"
        return getattr(import_module(module), kind)
    except (ImportError, AttributeError) as error:
        raise CheckpointError(f"model_index.json names a {kind} of {library}, which is not installed") from error


def with_weights(folder: Path, components: Mapping[str, str]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Components of `model_index.json` that have weights: name, library and class.

    Of one that comes from elsewhere and that the index does not describe, its own configuration says the class.
    """
    for name, value in read_json(folder, "model_index.json").items():
        if not isinstance(value, list) or len(value) != 2 or name.startswith(registry.WITHOUT_WEIGHTS):
            continue
        if None not in value:
            yield name, (value[0], value[1])
        elif name in components:
            config = read_json(component_folder(folder, name, components), "config.json")
            found = class_of(component_folder(folder, name, components), config)
            yield name, ("diffusers" if "_class_name" in config else "transformers", found.__name__)
