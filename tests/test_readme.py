"""The README does what it says: its blocks marked `<!-- run -->` are run, in order, against a real server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.servers import Server

from raydiance.deploy import families
from raydiance.serve.config import Config, ModelConfig
from raydiance.serve.section import Section

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
NOT_RUN = ("make demo", "raydiance serve", "serve run")  # these start servers or install; other tests cover them
DOCS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md")))


class Block(NamedTuple):
    is_run: bool
    language: str
    code: str


BLOCKS = [
    Block(mark is not None, language, code)
    for mark, language, code in (
        (m[1], m[2], m[3]) for m in re.finditer(r"(<!-- run -->\n)?```(bash|python)\n(.*?)```", README, re.DOTALL)
    )
]
RUN = [block for block in BLOCKS if block.is_run]
MADE = {"clip.mp4", "square.png", "up.mp4", "triangle.mp4", "circle-0.png", "circle-1.png", "square.mp4", "circle.mp4"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("readme")


def cluster_of(server: Server) -> str:
    deadline = time.monotonic() + 10
    while not (found := re.search(r'raydiance\.connect\("([^"]+)"\)', server.log.read_text())):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found[1]


@pytest.mark.parametrize("block", RUN, ids=[f"{i}-{block.language}" for i, block in enumerate(RUN)])
def test_block(block: Block, server: Server, folder: Path) -> None:
    code = block.code.replace("http://127.0.0.1:8000", server.url)
    command = ["bash", "-euo", "pipefail", "-c", code] if block.language == "bash" else [sys.executable, "-c", code]
    env = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "RAYDIANCE_URL": server.url,
        "RAY_ADDRESS": cluster_of(server),
    }
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"


def test_what_the_blocks_made(folder: Path) -> None:
    """Runs after the blocks; says nothing when they were not selected."""
    made = {path.name for path in folder.iterdir() if path.stat().st_size > 0}
    assert not made or made >= MADE


def test_every_block_is_run_or_known_not_to_be() -> None:
    assert RUN
    for block in BLOCKS:
        assert block.is_run or any(part in block.code for part in NOT_RUN), block.code


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"venv", "demo", "test", "check", "bench", "drill", "clean"} <= targets
    assert set(re.findall(r"`?make ([a-z-]+)", README)) <= targets


def test_the_tree_is_there() -> None:
    tree = README.split("## What is where")[1].split("```")[1]
    top = ROOT
    for line in tree.strip().splitlines():
        names = [name for name in line.split() if re.fullmatch(r"[\w/*]+(/|\.py)", name)]
        if not line.startswith(" "):
            top = ROOT / names[0]
        for name in names:
            assert list((top if line.startswith(" ") else ROOT).glob(name.rstrip("/"))), line


@pytest.mark.parametrize("folder", ["models", "serve", "deploy"])
def test_every_file_is_in_the_tree(folder: str) -> None:
    tree = README.split("## What is where")[1].split("```")[1]
    section = re.split(r"^(?=\S)", tree, flags=re.MULTILINE)
    [own] = [part for part in section if part.startswith(f"{folder}/")]
    patterns = re.findall(r"[\w*]+\.py", own)
    found = {path.name for path in (ROOT / folder).glob("*.py")}
    missing = {name for name in found if not any(fnmatch(name, pattern) for pattern in patterns)}
    assert not missing


@pytest.mark.parametrize("name", DOCS)
def test_links_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / name).read_text()):
        assert (ROOT / name).parent.joinpath(target).exists(), target


def test_the_table_of_families_is_that_of_the_registry() -> None:
    """`python -m raydiance.deploy.families` prints it."""
    shown = README.split("<!-- families: begin -->\n")[1].split("\n<!-- families: end -->")[0]
    assert shown == families.table()


def test_every_option_is_documented() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    shown = re.findall(r"^\| `([\w\[\]]+(?:\.\w+)+)` \| `(.*)` \| \S.* \|$", page, re.MULTILINE)
    of_models = [(f"models[].{name}", json.dumps(field.default)) for name, field in ModelConfig.model_fields.items()]
    assert shown == of_models + [option for name, value in Config() for option in options_of(name, value)]


def options_of(place: str, value: Any) -> list[tuple[str, str]]:
    """Of a section and those in it: where each is, and its default."""
    if not isinstance(value, Section):
        return []
    found = []
    for name, field in type(value).model_fields.items():
        here, inner = f"{place}.{name}", getattr(value, name)
        if isinstance(inner, Section):
            found += options_of(here, inner)
        else:
            found.append((here, json.dumps(inner if field.is_required() else field.default)))
    return found
