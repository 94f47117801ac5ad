"""Whether a component's weights are those of its class: names and shapes, from the files' headers alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers
from accelerate import init_empty_weights

from raydiance.models.resolve import CheckpointError, read_json
from raydiance.models.weights_files import WeightFiles

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]
SHOWN = 3


def check_weights(component: Path, kind: Any = None) -> WeightFiles:
    """Builds the model on `meta` and compares: no weight is read.

    Both libraries' own rules hold for what may differ: tied weights, old names, names to be ignored. Of a checkpoint
    that is quantised already, the quantiser chooses the parts that a weight is stored in: of diffusers' only the names
    before those parts are compared, of transformers' none.

    Args:
        kind: the class, diffusers' or transformers'; None for the one that `config.json` names.

    Returns:
        The files that hold them.

    Raises:
        CheckpointError: names what is missing, unexpected or of another shape, or a file that is not there.
    """
    files = WeightFiles.find(component)
    config = read_json(component, "config.json")
    found = files.shapes()
    kind = kind or class_of(component, config)
    try:
        if issubclass(kind, transformers.PreTrainedModel):
            if "quantization_config" not in config:
                _refuse(component, *_compare_transformers(component, kind, found))
        else:
            quantised = config.get("quantization_config") is not None
            _refuse(component, *_compare_diffusers(component, kind, files, found, quantised))
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{component / 'config.json'} makes no {kind.__name__}: {error}") from error
    return files


def class_of(component: Path, config: Mapping[str, Any]) -> Any:
    """The class that a component's `config.json` names; raises CheckpointError."""
    names = [config["_class_name"]] if "_class_name" in config else config.get("architectures") or []
    library = diffusers if "_class_name" in config else transformers
    if len(names) != 1 or not hasattr(library, str(names[0])):
        raise CheckpointError(f"{component / 'config.json'} names no class of diffusers or transformers")
    return getattr(library, names[0])


Difference = tuple[Iterable[str], Iterable[str], Iterable[tuple[str, Shape, Shape]]]
"""Weights that are missing, unexpected, and of another shape (name, found, expected)."""


def _compare_diffusers(component: Path, kind: Any, files: WeightFiles, found: Shapes, quantised: bool) -> Difference:
    with init_empty_weights():
        model = kind.from_config(kind.load_config(component))
    expected: dict[str, Shape] = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if not files.is_sharded:  # diffusers knows old names in single files only
        renamed = dict(found)
        model._fix_state_dict_keys_on_load(renamed)
        found = renamed
    ignored = kind._keys_to_ignore_on_load_unexpected or []
    if quantised:
        found = {
            name.replace("._", "."): shape for name, shape in found.items()
        }  # torchao: a.weight is a._weight_qdata
        missing = [name for name in expected if not any(part.startswith(name) for part in found)]
        owned = tuple(expected)
        unexpected = [name for name in found if not name.startswith(owned)]
        misshapen: list[tuple[str, Shape, Shape]] = []
    else:
        missing = [name for name in expected if name not in found]
        unexpected = [name for name in found if name not in expected]
        both = [name for name in expected if name in found]
        misshapen = [(name, found[name], expected[name]) for name in both if found[name] != expected[name]]
    return missing, [n for n in unexpected if not any(re.search(i, n) for i in ignored)], misshapen


def _compare_transformers(component: Path, kind: Any, found: Shapes) -> Difference:
    """By the loader itself, which is given weights without data."""
    config = kind.config_class.from_pretrained(component, local_files_only=True)
    empty = {name: torch.empty(shape, device="meta") for name, shape in found.items()}
    with _silent_transformers():
        _, info = kind.from_pretrained(
            None,
            config=config,
            state_dict=empty,
            device_map={"": "meta"},
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    misshapen = [(name, tuple(was), tuple(wanted)) for name, was, wanted in info["mismatched_keys"]]
    return info["missing_keys"], info["unexpected_keys"], misshapen


@contextmanager
def _silent_transformers() -> Iterator[None]:
    """What the loader would say of the difference is ours to say."""
    logs = transformers.utils.logging
    verbosity, bars = logs.get_verbosity(), logs.is_progress_bar_enabled()
    logs.set_verbosity(logs.CRITICAL)
    logs.disable_progress_bar()
    try:
        yield
    finally:
        logs.set_verbosity(verbosity)
        if bars:
            logs.enable_progress_bar()


def _refuse(
    component: Path,
    missing: Iterable[str],
    unexpected: Iterable[str],
    misshapen: Iterable[tuple[str, Shape, Shape]],
) -> None:
    shapes = [f"{name} is {_by(found)} and not {_by(expected)}" for name, found, expected in sorted(misshapen)]
    problems = [
        ("lacks weights", sorted(missing)),
        ("has weights of no use", sorted(unexpected)),
        ("has shapes", shapes),
    ]
    said = [f"{what}: {_listed(names)}" for what, names in problems if names]
    if said:
        raise CheckpointError(f"{component} {'; '.join(said)}")


def _listed(names: list[str]) -> str:
    more = f", and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _by(shape: Shape) -> str:
    return "x".join(map(str, shape)) or "a scalar"
