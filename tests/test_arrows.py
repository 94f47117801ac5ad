"""Who may know whom: the dependency arrows of the design, read from every import in the code.

An import inside a function counts as one at the top: what is known is known. That is why a second test asks, in a fresh
interpreter, which modules can be imported without torch and Ray.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("models", "kernels", "parallel", "serve", "deploy")
WEB = ("fastapi", "starlette", "uvicorn", "httpx")
TENSORS = ("torch", "diffusers", "transformers")


class Arrow(NamedTuple):
    """Modules under `who` import nothing under `never`, but for what is under `but`."""

    who: str
    never: tuple[str, ...]
    but: tuple[str, ...] = ()


ARROWS = (
    Arrow("raydiance.kernels", ("raydiance", "ray", *WEB), but=("raydiance.kernels",)),
    Arrow("raydiance.parallel", ("raydiance", "ray", *WEB), but=("raydiance.parallel", "raydiance.kernels")),
    Arrow("raydiance.models", ("raydiance.parallel", "raydiance.serve", "raydiance.deploy", "ray", *WEB)),
    *(Arrow(f"raydiance.models.{name}", TENSORS) for name in ("card", "inputs", "options", "registry", "spec")),
    Arrow("raydiance.serve", ("raydiance.deploy",), but=()),
    Arrow(
        "raydiance.serve.engine",
        ("raydiance", "ray", *WEB),
        but=("raydiance.serve.engine", "raydiance.models", "raydiance.parallel", "raydiance.kernels"),
    ),
    Arrow("raydiance.serve.api", ("ray", "raydiance.serve.engine", "raydiance.serve.stages", *TENSORS)),
    Arrow("raydiance.serve.storage", ("ray", "raydiance.serve.engine", "raydiance.serve.stages", *WEB, *TENSORS)),
    *(
        Arrow(f"raydiance.serve.{name}", ("ray", "raydiance.serve.engine", "raydiance.serve.stages", *TENSORS))
        for name in ("config", "errors", "events", "inputs", "request", "samples", "imaging", "media")
    ),
    *(
        Arrow(f"raydiance.serve.{name}", ("raydiance.serve.engine", "raydiance.serve.stages", *TENSORS))
        for name in ("service", "client", "cli", "gateway")
    ),
    Arrow("raydiance.serve.stages", WEB),
    Arrow("raydiance.serve.dispatcher", (*WEB, *TENSORS)),
    Arrow("raydiance.deploy", ("raydiance.serve",), but=("raydiance.serve.config", "raydiance.serve.engine")),
)
CLI_MAY_KNOW = "raydiance.deploy"  # nothing imports deploy but the command line


class Import(NamedTuple):
    line: int
    name: str
    level: int

    def is_under(self, prefix: str) -> bool:
        return self.name == prefix or self.name.startswith(prefix + ".")


def imports(source: str) -> Iterator[Import]:
    """Every import, as the full names it may bind: `from a import b` is `a.b`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(node.lineno, alias.name, 0)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield Import(node.lineno, f"{node.module}.{alias.name}" if node.module else alias.name, node.level)


def violations(module: str, source: str) -> list[str]:
    """What a module of ours imports and must not."""
    found = []
    for name in imports(source):
        if name.level:
            found.append(f"{module}:{name.line} imports {'.' * name.level}{name.name} relatively")
            continue
        if name.name.split(".")[0] in FOLDERS:
            found.append(f"{module}:{name.line} imports {name.name}: write raydiance.{name.name}")
        for arrow in ARROWS:
            if not Import(0, module, 0).is_under(arrow.who):
                continue
            if module.startswith("raydiance.serve.cli") and name.is_under(CLI_MAY_KNOW):
                continue
            if any(map(name.is_under, arrow.never)) and not any(map(name.is_under, arrow.but)):
                found.append(f"{module}:{name.line} imports {name.name}, and {arrow.who} may not")
    return found


def modules() -> dict[str, Path]:
    found = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(("raydiance", *(p for p in parts if p != "__init__")))] = path
    return found


def test_arrows() -> None:
    found = [v for module, path in modules().items() for v in violations(module, path.read_text())]
    assert not found, "\n".join(found)


def test_load_tests_use_public_names() -> None:
    found = [
        f"{path.name}:{name.line} imports {name.name}"
        for path in sorted((ROOT / "load_tests").rglob("*.py"))
        for name in imports(path.read_text())
        if name.is_under("raydiance") and any(part.startswith("_") for part in name.name.split("."))
    ]
    assert not found, "\n".join(found)


def test_the_folders_are_seen() -> None:
    assert {"raydiance.models.card", "raydiance.serve.config", "raydiance.serve.engine"} <= set(modules())


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("raydiance.models.wan", "import raydiance.serve.config"),
        ("raydiance.models.wan", "from raydiance import parallel"),
        ("raydiance.models.card", "import torch"),
        ("raydiance.serve.engine.loop", "import ray"),
        ("raydiance.serve.engine.loop", "def f():\n    from fastapi import FastAPI"),
        ("raydiance.serve.engine.loop", "from raydiance.serve.events import Event"),
        ("raydiance.serve.api.jobs", "from ray import serve"),
        ("raydiance.serve.api.jobs", "import torch.nn"),
        ("raydiance.serve.service", "from raydiance.serve.stages.walk import Walk"),
        ("raydiance.serve.dispatcher", "import raydiance.deploy.planner"),
        ("raydiance.serve.app", "from . import config"),
        ("raydiance.serve.app", "import serve.config"),
        ("raydiance.serve.app", "from models.card import ModelCard"),
        ("raydiance.kernels.attention", "from raydiance.models.card import ModelCard"),
        ("raydiance.parallel.mesh", "from raydiance.models.card import ModelCard"),
        ("raydiance.deploy.planner", "from raydiance.serve.app import build_app"),
    ],
)
def test_a_violation_is_noticed(module: str, source: str) -> None:
    assert violations(module, source)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("raydiance.models.wan", "import torch\nfrom raydiance.models.card import ModelCard"),
        ("raydiance.serve.engine.loop", "import torch\nfrom raydiance.models.spec import Spec"),
        ("raydiance.serve.app", "from ray import serve"),
        ("raydiance.serve.cli.plan", "from raydiance.deploy.planner import plan"),
        ("raydiance.parallel.mesh", "from raydiance.kernels.attention import attend"),
        ("raydiance.deploy.planner", "from raydiance.serve.config import Config"),
    ],
)
def test_what_is_allowed_passes(module: str, source: str) -> None:
    assert not violations(module, source)


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("raydiance", ("torch", "ray", "pydantic")),
        ("raydiance.serve.cli", ("torch", "ray", "httpx", "diffusers")),
        ("raydiance.serve.local", ("torch", "ray")),
        ("raydiance.serve.request", ("torch", "ray")),
        ("raydiance.serve.events", ("torch", "ray")),
        ("raydiance.serve.config", ("torch", "ray")),
        ("raydiance.serve.storage.jobs", ("torch", "ray")),
        ("raydiance.serve.api.app", ("torch", "ray")),
        ("raydiance.serve.gateway", ("torch",)),
        ("raydiance.serve.dispatcher", ("torch",)),
        ("raydiance.serve.client", ("torch",)),
        ("raydiance.models.registry", ("torch",)),
    ],
)
def test_light_modules_stay_light(module: str, absent: tuple[str, ...]) -> None:
    """Nothing that they import brings in what they must not know, however far away."""
    code = f"import sys, {module}; print(sorted(set({absent!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
