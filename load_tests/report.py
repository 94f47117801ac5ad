"""What every benchmark has in common: `--quick`, `--json FILE`, and metrics that say their machine and versions."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PACKAGES = ("raydiance", "torch", "diffusers", "transformers", "ray", "av")


def parser(description: str | None) -> argparse.ArgumentParser:
    """With the two options that every benchmark takes."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--quick", action="store_true", help="fewer pairs, at most 60 s; says nothing about the goal")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the metrics there")
    return made


def metric(value: float, unit: str, goal: str) -> dict[str, Any]:
    return {"value": round(value, 4), "unit": unit, "goal": goal}


def machine() -> dict[str, Any]:
    model = next(
        (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor(),
    )
    return {"cpu": model, "cores": os.cpu_count(), "python": platform.python_version(), "system": platform.system()}


def _lines(path: str) -> list[str]:
    file = Path(path)
    return file.read_text().splitlines() if file.exists() else []


def publish(metrics: dict[str, dict[str, Any]], file: Path | None) -> None:
    """Prints a table, and writes the JSON where it is asked for."""
    for name, m in metrics.items():
        print(f"{name:32} {m['value']:>12} {m['unit']:6} goal {m['goal']}")
    if file is not None:
        versions = {p: importlib.metadata.version(p) for p in PACKAGES}
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"metrics": metrics, "machine": machine(), "versions": versions}, indent=1))


def median(values: Sequence[float]) -> float:
    return statistics.median(values)
