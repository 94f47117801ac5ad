"""Whether a checkpoint is whole: every component there, of its class, with all of its weights. Reads only headers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

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
    for name, (_, kind) in with_weights(folder, components):
        source = component_folder(folder, name, components)
        if source.is_file():
            sizes[name] = source.stat().st_size  # GGUF: one file, whose names are its own
            continue
        found = class_of(source, read_json(source, "config.json"))
        if name not in components and found.__name__ != kind:
            raise CheckpointError(f"{source} holds a {found.__name__}; model_index.json says {kind}")
        check_weights(source, found)
        sizes[name] = sum(file.stat().st_size for file in source.glob("*.safetensors"))
    return sizes


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
