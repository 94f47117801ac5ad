"""What a checkpoint's folder may say to us alone: `raydiance.json`, beside `model_index.json`. No torch.

`defaults` (of `card.Defaults`) and `max_sequence_length` (tokens) are for every family; families add their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from raydiance.models.card import Defaults
from raydiance.models.resolve import CheckpointError, read_json

OWN_FILE = "raydiance.json"


def read_own(folder: Path) -> dict[str, Any]:
    """Its content, or nothing where there is no such file; raises CheckpointError where it is no JSON object."""
    return read_json(folder, OWN_FILE) if (folder / OWN_FILE).is_file() else {}


def own_defaults(folder: Path, own: Mapping[str, Any], base: Defaults | None) -> Defaults:
    """The base with what `defaults` says instead; without a base it must say all. Raises CheckpointError."""
    values = own.get("defaults", {})
    try:
        defaults = Defaults(**values) if base is None else replace(base, **values)
        if not all(type(v) in (int, float) for v in asdict(defaults).values()):
            raise TypeError(f"all of {values} must be numbers")
        return defaults
    except TypeError as error:
        raise CheckpointError(f"{folder / OWN_FILE}: defaults: {error}") from error


def own_length(folder: Path, own: Mapping[str, Any], longest: int) -> int:
    """`max_sequence_length`, the longest where it says nothing; raises CheckpointError for one that is none."""
    value = own.get("max_sequence_length", longest)
    if type(value) is not int or not 1 <= value <= longest:
        raise CheckpointError(
            f"{folder / OWN_FILE}: max_sequence_length={value!r} must be a whole number from 1 to {longest}"
        )
    return value
