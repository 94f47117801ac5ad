"""Which code serves which checkpoint: diffusers' pipeline class to a family, imported when it is needed. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from raydiance.models.card import ModelCard
from raydiance.models.options import LoadOptions
from raydiance.models.resolve import CheckpointError, check_component, component_folder, read_json

if TYPE_CHECKING:
    from raydiance.models.family import Family, Stage


WITHOUT_WEIGHTS = ("tokenizer", "scheduler", "processor", "image_processor", "feature_extractor")
"""What the names of components begin with that have no weights."""


class Entry(NamedTuple):
    """Args:
    family: `module:name` of the family's class.
    card: `module:name` of what reads its card from a folder, without importing torch.
    components: by stage, what it opens of a checkpoint, or `module:name` of what reads that from a folder. A component
        that only some checkpoints have is not listed in a mapping but checked where it is loaded.
    check: `module:name` of what looks at a folder, and at `LoadOptions.components`, before its components are looked
        for, without importing torch; empty where there is nothing to say.
    """

    family: str
    card: str
    components: Mapping[Stage, tuple[str, ...]] | str
    check: str = ""


_WAN = Entry(
    "raydiance.models.wan:Wan",
    "raydiance.models.wan_card:read_card",
    "raydiance.models.wan_config:read_components",
)
_FLUX = Entry(
    "raydiance.models.flux:Flux",
    "raydiance.models.flux_config:read_card",
    {
        "encode": ("tokenizer", "text_encoder", "tokenizer_2", "text_encoder_2"),
        "denoise": ("transformer", "scheduler"),
        "decode": ("vae",),
    },
)
_HIDREAM = Entry(
    "raydiance.models.hidream:HiDream",
    "raydiance.models.hidream_config:read_card",
    {
        "encode": (
            *("tokenizer", "tokenizer_2", "tokenizer_3", "tokenizer_4"),
            *("text_encoder", "text_encoder_2", "text_encoder_3", "text_encoder_4"),
        ),
        "denoise": ("transformer", "scheduler"),
        "decode": ("vae",),
    },
    check="raydiance.models.hidream_config:check_elsewhere",
)
FAMILIES: dict[str, Entry] = {
    "WanPipeline": _WAN,
    "WanImageToVideoPipeline": _WAN,
    "WanVACEPipeline": _WAN._replace(family="raydiance.models.wan_vace:WanVACE"),
    "FluxPipeline": _FLUX,
    "FluxImg2ImgPipeline": _FLUX,
    "FluxKontextPipeline": _FLUX,
    "HiDreamImagePipeline": _HIDREAM,
}
DEFAULT = LoadOptions()


def family_class(folder: Path) -> type[Family]:
    """The class that serves this folder; raises CheckpointError if none does."""
    family: type[Family] = _named(_entry(folder).family)
    return family


def load(folder: Path, stage: Stage, model_id: str, options: LoadOptions = DEFAULT) -> Family:
    """The family with the components of one stage, on one device.

    Args:
        folder: a local folder in diffusers' format (see `raydiance.models.resolve`).
        model_id: the name it is served under.

    Raises:
        CheckpointError: names the folder and what is missing or not supported.
    """
    family: Family = _named(_entry(folder).family)(folder, stage, model_id, options)
    return family


def card(folder: Path, model_id: str) -> ModelCard:
    """What a folder can do, from its JSON files alone; raises CheckpointError."""
    read: ModelCard = _named(_entry(folder).card)(folder, model_id)
    return read


def check(folder: Path, components: Mapping[str, str] = {}) -> None:
    """Raises CheckpointError if a folder lacks something that its stages would open; opens no weights.

    Args:
        components: those that come from elsewhere, see `LoadOptions.components`.
    """
    entry = _entry(folder)
    by_stage = _named(entry.components)(folder) if isinstance(entry.components, str) else entry.components
    entry_components = [name for names in by_stage.values() for name in names]
    for name in components:
        if name not in entry_components:
            raise CheckpointError(f"components.{name}: {folder} has {', '.join(entry_components)}")
    if entry.check:
        _named(entry.check)(folder, components)
    for name in entry_components:
        source = component_folder(folder, name, components)
        check_component(source.parent, source.name, weights=not name.startswith(WITHOUT_WEIGHTS))
    _named(entry.card)(folder, folder.name)


def _entry(folder: Path) -> Entry:
    name = read_json(folder, "model_index.json").get("_class_name")
    if name not in FAMILIES:
        raise CheckpointError(f"{folder} is for {name}, which is not supported; supported are {', '.join(FAMILIES)}")
    return FAMILIES[name]


def _named(path: str) -> Any:
    module, name = path.split(":")
    return getattr(import_module(module), name)
