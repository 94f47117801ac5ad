"""Which code serves which checkpoint: diffusers' pipeline class to a family, imported when it is needed. No torch."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from raydiance.models.card import ModelCard
from raydiance.models.resolve import CheckpointError, read_json

if TYPE_CHECKING:
    from raydiance.models.family import Family, Stage


class Entry(NamedTuple):
    """`module:name` of the family; of what reads its card from a folder, and of what checks that a folder is whole,
    both without importing torch."""

    family: str
    card: str
    check: str


_WAN = Entry(
    "raydiance.models.wan:Wan", "raydiance.models.wan_config:read_card", "raydiance.models.wan_config:check_folder"
)
FAMILIES: dict[str, Entry] = {"WanPipeline": _WAN, "WanImageToVideoPipeline": _WAN}


def family_class(folder: Path) -> type[Family]:
    """The class that serves this folder; raises CheckpointError if none does."""
    family: type[Family] = _named(_entry(folder).family)
    return family


def load(folder: Path, stage: Stage, model_id: str, device: str = "cpu", dtype: str = "float32") -> Family:
    """The family with the components of one stage, on one device.

    Args:
        folder: a local folder in diffusers' format (see `raydiance.models.resolve`).
        model_id: the name it is served under.
        dtype: `float32`, `bfloat16` or `float16`, of the weights; latents are fp32 always.

    Raises:
        CheckpointError: names the folder and what is missing or not supported.
    """
    family: Family = _named(_entry(folder).family)(folder, stage, model_id, device=device, dtype=dtype)
    return family


def card(folder: Path, model_id: str) -> ModelCard:
    """What a folder can do, from its JSON files alone; raises CheckpointError."""
    read: ModelCard = _named(_entry(folder).card)(folder, model_id)
    return read


def check(folder: Path) -> None:
    """Raises CheckpointError if a folder lacks something that its stages would open; opens no weights."""
    _named(_entry(folder).check)(folder)


def _entry(folder: Path) -> Entry:
    name = read_json(folder, "model_index.json").get("_class_name")
    if name not in FAMILIES:
        raise CheckpointError(f"{folder} is for {name}, which is not supported; supported are {', '.join(FAMILIES)}")
    return FAMILIES[name]


def _named(path: str) -> Any:
    module, name = path.split(":")
    return getattr(import_module(module), name)
