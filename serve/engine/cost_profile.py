"""A cost model as a file: what it was measured of and on, what came out, and how far it is off. No torch."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_args

from raydiance.models import registry
from raydiance.models.family import Stage
from raydiance.models.options import LoadOptions
from raydiance.models.resolve import CheckpointError
from raydiance.serve.engine.cost_fit import ErrorStats, errors
from raydiance.serve.engine.cost_model import CostModel, Sample

FORMAT, VERSION = "raydiance.cost-profile", 1
PACKAGES = ("raydiance", "torch", "diffusers")
MAX_BYTES = 4 << 20


class ProfileError(ValueError):
    """A file that is no cost profile, or one of something else; the message names the file, and says what to do."""


Identity = Mapping[str, str]
"""What a profile holds for and no other: each of these by name."""


def identity_of(folder: Path, options: Callable[[Stage], LoadOptions], num_threads: int) -> Identity:
    """Of a checkpoint as it is loaded here. Weights count by their names and sizes, configurations by their content.

    Args:
        options: how each stage is loaded; `ModelConfig.load_options` on its device.
        num_threads: torch's, of a denoiser on the CPU; 0 for the machine's cores.

    Raises:
        CheckpointError: it is no checkpoint, or a guest, whose steps are not ours to time.
    """
    if registry.is_guest(folder):
        raise CheckpointError(f"{folder} runs as a guest: diffusers runs it whole, so its steps have no price")
    identity = {"family": registry.card(folder, "").family}
    for stage in get_args(Stage):
        made = options(stage)
        key = registry.share_key(folder, stage, made, contents=False)
        identity[f"{stage}.device"], identity[f"{stage}.dtype"] = made.device, made.dtype
        identity[f"{stage}.files"] = hashlib.sha256(repr(key).encode()).hexdigest()[:16]
    if options("denoise").device == "cpu":
        identity["num_threads"] = str(num_threads or os.cpu_count() or 1)
    return identity | {name: importlib.metadata.version(name) for name in PACKAGES}


@dataclass(frozen=True, slots=True)
class Profile:
    """Args:
    model: what came out.
    identity: what it holds for.
    machine: where it was measured; for people.
    samples: what was measured.
    """

    model: CostModel
    identity: Identity
    machine: Mapping[str, Any]
    samples: tuple[Sample, ...] = field(repr=False)

    def errors(self) -> dict[str, ErrorStats]:
        """Of the model against what it was fitted to, by part."""
        return {part: stats for part, stats in errors(self.model, self.samples).items() if part != "tokens"}

    def save(self, path: Path) -> None:
        """Whole or not at all. Raises OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(json.dumps(self.to_dict(), indent=1) + "\n", encoding="utf-8")
        temporary.replace(path)

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "identity": dict(self.identity),
            "machine": dict(self.machine),
            "model": self.model.to_dict(),
            "errors": {part: asdict(stats) for part, stats in self.errors().items()},
            "samples": [{"part": s.part, "work": dict(s.work), "seconds": s.seconds} for s in self.samples],
        }


def load_profile(path: Path, identity: Identity) -> Profile:
    """Raises ProfileError where it is not there, none, of another version, or not of this identity."""
    profile = read_profile(path)
    for name in sorted(identity.keys() | profile.identity.keys()):
        here, there = identity.get(name, "none"), profile.identity.get(name, "none")
        if here != there:
            raise ProfileError(
                f"{path} was measured with {name} {there}, and here it is {here}: "
                f"measure again with `raydiance calibrate`"
            )
    return profile


def read_profile(path: Path) -> Profile:
    """Whatever it is of; raises ProfileError."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ProfileError(f"cannot read {path}: {error.strerror}; `raydiance calibrate` makes one") from error
    try:
        values = json.loads(data) if len(data) <= MAX_BYTES else None
    except (ValueError, RecursionError) as error:
        raise ProfileError(f"{path} is no JSON: {error}") from error
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise ProfileError(f"{path} is no cost profile; `raydiance calibrate` makes one")
    if values.get("version") != VERSION:
        raise ProfileError(
            f"{path} is of version {values.get('version')!r}, and this reads {VERSION}: "
            f"measure again with `raydiance calibrate`"
        )
    try:
        return _profile(values)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProfileError(f"{path} is damaged: {error}; measure again with `raydiance calibrate`") from error


def _profile(values: Mapping[str, Any]) -> Profile:
    samples = tuple(Sample(s["part"], dict(s["work"]), float(s["seconds"])) for s in values["samples"])
    identity = {str(name): str(value) for name, value in values["identity"].items()}
    return Profile(CostModel.from_dict(values["model"]), identity, dict(values["machine"]), samples)


def machine() -> dict[str, Any]:
    """This one, for people."""
    return {"system": platform.system(), "processor": _processor(), "cores": os.cpu_count()}


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
