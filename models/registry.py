"""Which code serves which checkpoint: diffusers' pipeline class to a family, imported when it is needed. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from raydiance.models.card import ModelCard
from raydiance.models.options import LoadOptions
from raydiance.models.resolve import CheckpointError, check_component, component_folder, read_json
from raydiance.models.weights_files import digest, gguf_file, sizes

if TYPE_CHECKING:
    from raydiance.models.family import Family, Stage


WITHOUT_WEIGHTS = ("tokenizer", "scheduler", "processor", "image_processor", "feature_extractor")
"""What the names of components begin with that have no weights."""
_NO_SETTINGS = ("_name_or_path", "_diffusers_version", "transformers_version", "defaults")


class Entry(NamedTuple):
    """Args:
    family: `module:name` of the family's class.
    card: `module:name` of what reads its card from a folder, without importing torch.
    components: by stage, what it opens of a checkpoint, or `module:name` of what reads that from a folder. A component
        that only some checkpoints have is not listed in a mapping but checked where it is loaded.
    check: `module:name` of what looks at a folder, and at `LoadOptions.components`, before its components are looked
        for, without importing torch; empty where there is nothing to say.
    reads: by stage, the JSON files of the checkpoint that its results depend on, beside its components' own: all of
        them where a stage is not named. See `share_key`.
    """

    family: str
    card: str
    components: Mapping[Stage, tuple[str, ...]] | str
    check: str = ""
    reads: Mapping[Stage, tuple[str, ...]] = {}


_ENCODERS_READ: Mapping[Stage, tuple[str, ...]] = {"encode": ("raydiance.json",)}
"""Of families whose text encoders depend on nothing but themselves and `max_sequence_length`."""
_WAN = Entry(
    "raydiance.models.wan:Wan",
    "raydiance.models.wan_card:read_card",
    "raydiance.models.wan_config:read_components",
    reads=_ENCODERS_READ,
)
_FLUX = Entry(
    "raydiance.models.flux:Flux",
    "raydiance.models.flux_config:read_card",
    {
        "encode": ("tokenizer", "text_encoder", "tokenizer_2", "text_encoder_2"),
        "denoise": ("transformer", "scheduler"),
        "decode": ("vae",),
    },
    reads=_ENCODERS_READ,
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
    reads=_ENCODERS_READ,
)
_LTX = Entry(
    "raydiance.models.ltx:LTX",
    "raydiance.models.ltx_config:read_card",
    {
        "encode": ("tokenizer", "text_encoder", "connectors"),
        "denoise": ("transformer", "scheduler"),
        "decode": ("vae", "audio_vae", "vocoder"),
    },
    reads=_ENCODERS_READ,
)
FAMILIES: dict[str, Entry] = {
    "WanPipeline": _WAN,
    "WanImageToVideoPipeline": _WAN,
    "WanVACEPipeline": _WAN._replace(family="raydiance.models.wan_vace:WanVACE"),
    "FluxPipeline": _FLUX,
    "FluxImg2ImgPipeline": _FLUX,
    "FluxKontextPipeline": _FLUX,
    "HiDreamImagePipeline": _HIDREAM,
    "LTX2Pipeline": _LTX,
    "LTX2ImageToVideoPipeline": _LTX,
}
GUEST = Entry(
    "raydiance.models.guest:Guest",
    "raydiance.models.guest_card:read_card",
    "raydiance.models.guest_card:read_components",
)
"""Any other pipeline of diffusers, run whole. Its card imports diffusers, whose call says what it takes."""
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
    entry = _entry(folder)
    _check_options(folder, entry, options)
    family: Family = _named(entry.family)(folder, stage, model_id, options)
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
    _check_options(folder, entry, LoadOptions(components=components))
    if entry.check:
        _named(entry.check)(folder, components)
    for name in chain.from_iterable(_components(folder, entry).values()):
        if gguf_file(name, components) is not None:
            check_component(folder, name, weights=False)  # its config.json is needed still
            continue
        source = component_folder(folder, name, components)
        check_component(source.parent, source.name, weights=not name.startswith(WITHOUT_WEIGHTS))
    _named(entry.card)(folder, folder.name)


def is_guest(folder: Path) -> bool:
    """Whether no family here serves the folder's pipeline; raises CheckpointError where it names none."""
    return _entry(folder) is GUEST


def share_key(folder: Path, stage: Stage, options: LoadOptions, *, contents: bool) -> tuple[object, ...]:
    """Where two models' keys are equal, one deployment of a stage can serve both.

    It holds the family, what the stage loads and how, and every setting that its results may depend on: those of all
    JSON files of the checkpoint, but where `Entry.reads` says less. Defaults of requests are no such setting.

    Args:
        contents: by the files' contents; else by their names and sizes, which takes no time, and where keys differ, so
            do those by contents.

    Raises:
        CheckpointError: a component is missing.
    """
    entry = _entry(folder)
    names = _components(folder, entry)[stage]
    sources = [gguf_file(n, options.components) or component_folder(folder, n, options.components) for n in names]
    for name, source in zip(names, sources, strict=True):
        if not source.exists():
            raise CheckpointError(f"{folder} has no folder {name}/")
    read = digest if contents else sizes
    placement = (options.device, options.dtype, options.offload == "group", options.device_map)
    quantization = json.dumps({n: dict(o) for n, o in options.quantization.items() if n in names}, sort_keys=True)
    return entry.family, stage, names, placement, quantization, _settings(folder, entry, stage), *map(read, sources)


def _settings(folder: Path, entry: Entry, stage: Stage) -> str:
    """The JSON files that a stage depends on, without what says where they come from."""
    everything = sorted(
        p.relative_to(folder).as_posix() for p in [*folder.glob("*.json"), *folder.glob("*/*config.json")]
    )
    files = [name for name in entry.reads.get(stage, everything) if (folder / name).is_file()]
    kept = {name: {k: v for k, v in read_json(folder, name).items() if k not in _NO_SETTINGS} for name in files}
    return json.dumps(kept, sort_keys=True)


def _components(folder: Path, entry: Entry) -> Mapping[Stage, tuple[str, ...]]:
    found: Mapping[Stage, tuple[str, ...]] = (
        _named(entry.components)(folder) if isinstance(entry.components, str) else entry.components
    )
    return found


def _check_options(folder: Path, entry: Entry, options: LoadOptions) -> None:
    """Raises CheckpointError where options name a component that is not there, or an expert that cannot be idle."""
    by_stage = _components(folder, entry)
    there = list(chain.from_iterable(by_stage.values()))
    for option, named in (("components", options.components), ("quantization", options.quantization)):
        for name in named:
            if name not in there:
                raise CheckpointError(f"{option}.{name}: {folder} has {', '.join(there)}")
    experts = [name for name in by_stage["denoise"] if name.startswith("transformer")]
    if options.offload == "idle_expert" and len(experts) < 2:
        raise CheckpointError(f"offload=idle_expert is for two experts; {folder} has {', '.join(experts)} alone")


def _entry(folder: Path) -> Entry:
    name = read_json(folder, "model_index.json").get("_class_name")
    if not isinstance(name, str):
        raise CheckpointError(
            f"{folder / 'model_index.json'} names the pipeline {name!r}; code of a checkpoint's own is not run"
        )
    return FAMILIES.get(name, GUEST)


def _named(path: str) -> Any:
    module, name = path.split(":")
    return getattr(import_module(module), name)
