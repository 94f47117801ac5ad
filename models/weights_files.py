"""The files of a component's weights: which are opened, what their headers say, whether two are equal. No torch.

safetensors: 8 bytes for the length of a JSON header, little-endian, the header, the data; see
https://huggingface.co/docs/safetensors. Shards are listed by an index, `weight_map` from weight to file.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from raydiance.models.resolve import CheckpointError, read_json

DIFFUSERS, TRANSFORMERS = "diffusion_pytorch_model", "model"
"""What the files of each library are called."""
MAX_HEADER_BYTES = 100_000_000
GGUF = ".gguf"


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """Args:
    variant: of the files' names, such as `fp16`; None where there are files without one.
    """

    paths: tuple[Path, ...]
    variant: str | None = None
    is_sharded: bool = False

    @classmethod
    def find(cls, component: Path) -> WeightFiles:
        """Those that diffusers or transformers open; files without a variant go before those of one.

        Raises:
            CheckpointError: names a shard that is missing, or several variants to choose from.
        """
        is_diffusers = (component / f"{DIFFUSERS}.safetensors").exists() or any(component.glob(f"{DIFFUSERS}*"))
        stem = DIFFUSERS if is_diffusers else TRANSFORMERS
        found = {_variant(path, stem): path for path in sorted(component.glob(f"{stem}*safetensors*"))}
        names = {name for name in found if name is not False}
        if None not in names and len(names) != 1:
            there = ", ".join(sorted(path.name for path in component.glob("*.safetensors")))
            raise CheckpointError(f"{component} has no {stem}.safetensors and no index of its shards; it has {there}")
        variant = None if None in names else str(names.pop())
        dotted = "" if variant is None else f".{variant}"
        single, index = component / f"{stem}{dotted}.safetensors", component / f"{stem}.safetensors.index{dotted}.json"
        if index.is_file() and (is_diffusers or not single.is_file()):
            return cls(_shards(index), variant, is_sharded=True)
        return cls((single,), variant)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of every weight, by its name; raises CheckpointError where a header cannot be read."""
        return {name: shape for path in self.paths for name, shape in read_header(path).items()}


def _variant(path: Path, stem: str) -> str | bool | None:
    """The variant in a file's name, None where it has none; False for a shard."""
    name = path.name.removeprefix(stem)
    if name in (".safetensors", ".safetensors.index.json"):
        return None
    if name.startswith(".safetensors.index."):
        return name.removeprefix(".safetensors.index.").removesuffix(".json")
    inner = name.removesuffix(".safetensors")
    return inner[1:] if inner.startswith(".") and "-of-" not in inner else False


def _shards(index: Path) -> tuple[Path, ...]:
    listed = read_json(index.parent, index.name).get("weight_map")
    if not isinstance(listed, dict):
        raise CheckpointError(f"{index} has no weight_map")
    for name in listed.values():
        if not isinstance(name, str) or Path(name).name != name:
            raise CheckpointError(f"{index} lists {name!r}, which is no file beside it")
    paths = tuple(index.parent / name for name in sorted(set(listed.values())))
    for path in paths:
        if not path.is_file():
            raise CheckpointError(f"{path.parent} lacks the shard {path.name}, which {index.name} lists")
    return paths


def read_header(path: Path) -> dict[str, tuple[int, ...]]:
    """Shapes by name; raises CheckpointError where the file is no safetensors, or cut short."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else MAX_HEADER_BYTES
        if length >= MAX_HEADER_BYTES or 8 + length > size:
            raise CheckpointError(f"{path} is no safetensors: its header does not fit into its {size} bytes")
        try:
            header = json.loads(file.read(length))
            entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
            end = 8 + length + max((entry["data_offsets"][1] for entry in entries.values()), default=0)
            shapes = {name: tuple(entry["shape"]) for name, entry in entries.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path} is no safetensors: its header is damaged ({error!r})") from error
    if end != size:
        raise CheckpointError(f"{path} is cut short or damaged: it has {size} bytes, its header says {end}")
    return shapes


def gguf_file(name: str, components: Mapping[str, str]) -> Path | None:
    """The GGUF file that a component comes from, if it does; raises CheckpointError where that is no file."""
    source = components.get(name)
    if source is None or not source.endswith(GGUF):
        return None
    path = Path(source).expanduser()
    if not path.is_file():
        raise CheckpointError(f"components.{name}: {source} is no file")
    return path


def digest(folder: Path) -> str:
    """SHA-256 over the names and contents of a folder's files."""
    whole = hashlib.sha256()
    for name, path in _files(folder):
        whole.update(json.dumps([name, _digest(path)]).encode())
    return whole.hexdigest()


def sizes(folder: Path) -> tuple[tuple[str, int], ...]:
    """Names and bytes of a folder's files: where they differ, so do the contents."""
    return tuple((name, path.stat().st_size) for name, path in _files(folder))


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """A folder's files, or the one file; not those whose path has a part that starts with a dot."""
    if folder.is_file():
        yield folder.name, folder
        return
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if path.is_file() and not any(part.startswith(".") for part in relative.parts):
            yield relative.as_posix(), path


def _digest(path: Path) -> str:
    status = path.stat()
    return _digest_of(path.resolve(), status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=4096)
def _digest_of(path: Path, size_bytes: int, mtime_ns: int) -> str:  # noqa: ARG001 - a changed file is another one
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
