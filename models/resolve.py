"""From the name of a model to a local folder, and what is read from such a folder before any weights. No torch."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raydiance.models.tiny import CHECKPOINT

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_HUB_FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")
INDEX = "model_index.json"
_COMPONENTS = ("transformer", "unet", "vae", "text_encoder", "tokenizer", "scheduler", "connectors", "vocoder")
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")


class CheckpointError(ValueError):
    """A folder that cannot be served: says which, and what is missing or expected."""


def resolve(path: str | Path, revision: str | None = None) -> Path:
    """The local folder of a model.

    Args:
        path: `tiny` for the embedded checkpoint, a folder, or a Hugging Face hub id (`org/name`), which is downloaded
            to the hub's cache: configuration, tokenizers and safetensors only, never pickled weights.
        revision: branch, tag or commit of the hub's repository.

    Raises:
        CheckpointError: it is none of these, or the hub does not give it.
    """
    if str(path) == "tiny":
        return CHECKPOINT
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder.resolve()
    if folder.exists():
        raise CheckpointError(f"{folder} is a file; a model is a folder in diffusers' format")
    if not _HUB_ID.fullmatch(str(path)):
        raise CheckpointError(f"{path} is neither a folder nor a Hugging Face id (org/name) nor 'tiny'")
    return _download(str(path), revision)


def _download(hub_id: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(hub_id, revision=revision, allow_patterns=list(_HUB_FILES)))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        at = "" if revision is None else f" at revision {revision}"
        raise CheckpointError(f"{hub_id}{at} is no local folder, and the hub does not give it: {error}") from error


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """A JSON object of a checkpoint; raises CheckpointError where it is missing or no object."""
    path = folder / name
    if not path.is_file():
        raise CheckpointError(f"{folder} has no {name}; a model is a folder in diffusers' format")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds a {type(value).__name__}, not an object")
    if name == INDEX:
        _check_index(path, value)
    return value


def _check_index(path: Path, index: Mapping[str, Any]) -> None:
    """Components are `[library, class]`, or `[null, null]` where there is none; settings are no lists."""
    for name, value in index.items():
        is_component = isinstance(value, list | dict) or name.startswith(_COMPONENTS)
        is_pair = isinstance(value, list) and len(value) == 2 and all(isinstance(v, str | None) for v in value)
        if is_component and value is not None and not is_pair and not name.startswith("_"):
            raise CheckpointError(f"{path}: {name} must be [library, class], not {json.dumps(value)[:80]}")


def component_folder(folder: Path, name: str, components: Mapping[str, str]) -> Path:
    """Where a component is: of the model itself, or of another checkpoint where the configuration says so.

    Args:
        components: see `LoadOptions.components`. `FOLDER` is the component itself, or a checkpoint that has a folder of
            its name; a hub id is downloaded.
    """
    other = components.get(name)
    if other is None:
        return folder / name
    source = resolve(other)
    return source / name if (source / name).is_dir() else source


def check_component(folder: Path, name: str, *, weights: bool) -> None:
    """Raises CheckpointError if a component's folder is missing or empty, or holds pickled weights only."""
    component = folder / name
    if not component.is_dir():
        raise CheckpointError(f"{folder} has no folder {name}/")
    if not any(component.iterdir()):
        raise CheckpointError(f"{component} is empty")
    if weights and not any(component.glob("*.safetensors")):
        pickled = sorted(p.name for pattern in _PICKLED for p in component.glob(pattern))
        found = f"found {', '.join(pickled)}, which may run code when loaded" if pickled else "found no weights"
        raise CheckpointError(f"{component} has no *.safetensors: {found}")
