"""A wheel and an sdist, built from a copy of the sources and used outside of them. Offline: no package is fetched."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import raydiance

ROOT = Path(__file__).parents[1]
SOURCES = ("models", "kernels", "parallel", "serve", "deploy", "src", "pyproject.toml", "README.md", "LICENSE")
NOT_SOURCES = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", "dist")
CHECKPOINT_FILES = (
    "model_index.json",
    "raydiance.json",
    "scheduler/scheduler_config.json",
    "text_encoder/model.safetensors",
    "tokenizer/tokenizer.json",
    "transformer/diffusion_pytorch_model.safetensors",
    "vae/diffusion_pytorch_model.safetensors",
)


def run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "RAYDIANCE_URL")}
    done = subprocess.run(command, cwd=cwd, env=clean | (env or {}), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy as a clone would have it: the working tree stays clean, and symlinks stay symlinks."""
    copy = tmp_path_factory.mktemp("clone")
    for name in SOURCES:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, copy / name, symlinks=True, ignore=NOT_SOURCES)
        elif path.exists():
            shutil.copy2(path, copy / name)
    return copy


@pytest.fixture(scope="module")
def built(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that is built from it: what is in one is in the other."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, sources, cwd=out)
    return out


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    return next(built.glob("raydiance-*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an empty venv with the wheel in it; its dependencies come from this environment."""
    home = tmp_path_factory.mktemp("elsewhere")
    venv.create(home / "venv", with_pip=False)
    folder = "Scripts" if os.name == "nt" else "bin"
    python = home / "venv" / folder / "python"
    packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=home).strip())
    # a plain .pth adds the folder, and does not run the .pth files in it: the editable install stays unseen
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=home)
    return python.parent


def test_wheel_holds_the_code_and_the_model(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"raydiance/__init__.py", "raydiance/py.typed", "raydiance/serve/cli/__init__.py"} <= names
    assert {f"raydiance/models/tiny/checkpoint/{file}" for file in CHECKPOINT_FILES} <= names
    profiles = {str(p.relative_to(ROOT)) for p in (ROOT / "deploy/profiles").rglob("*") if p.is_file()}
    assert {f"raydiance/{file}" for file in profiles} <= names
    tops = {name.split("/")[0] for name in names}
    assert tops == {"raydiance", f"raydiance-{raydiance.__version__}.dist-info"}
    assert not [name for name in names if "__pycache__" in name]
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_wheel_holds_every_module(wheel: Path, sources: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    folders = [sources / name for name in ("models", "kernels", "parallel", "serve", "deploy")]
    code = {f"raydiance/{path.relative_to(sources)}" for folder in folders for path in folder.rglob("*.py")}
    assert code <= names


def test_sdist_holds_files_and_no_links(built: Path) -> None:
    with tarfile.open(next(built.glob("raydiance-*.tar.gz"))) as archive:
        members = archive.getmembers()
    names = {member.name.partition("/")[2] for member in members}
    assert not [member.name for member in members if member.issym() or member.islnk()]
    assert {"pyproject.toml", "LICENSE", "README.md", "src/raydiance/serve/config.py"} <= names
    assert f"src/raydiance/models/tiny/checkpoint/{CHECKPOINT_FILES[0]}" in names


def test_installed_command(installed: Path) -> None:
    assert run(installed / "raydiance", "--version", cwd=installed).strip() == f"raydiance {raydiance.__version__}"
    about = run(installed / "raydiance", "models", "show", "tiny", cwd=installed)
    assert "text-to-video" in about
    assert str(installed.parent) in about  # the checkpoint that came in the wheel


def test_installed_checkpoint_loads(installed: Path) -> None:
    code = (
        "from raydiance.models import registry, resolve\n"
        "family = registry.load(resolve.resolve('tiny'), 'denoise', 'tiny')\n"
        "print(type(family).__name__)"
    )
    assert run(installed / "python", "-W", "ignore", "-c", code, cwd=installed).strip() == "Wan"


@pytest.mark.parametrize("name", ["serve", "models", "kernels", "parallel", "deploy"])
def test_no_top_level_names(installed: Path, name: str) -> None:
    """A top-level `kernels` would shadow a package that diffusers and transformers probe for."""
    code = f"import importlib.util; print(importlib.util.find_spec({name!r}))"
    found = run(installed / "python", "-c", code, cwd=installed).strip()
    assert found == "None" or str(installed.parent / "lib") not in found
    assert str(ROOT) not in found


def test_import_from_a_clone(sources: Path, tmp_path: Path) -> None:
    code = "import raydiance.serve, raydiance.serve.config as c; print(c.__file__)"
    env = {"PYTHONPATH": str(sources / "src")}
    path = run(sys.executable, "-c", code, cwd=tmp_path, env=env).strip()
    assert Path(path).resolve() == sources / "serve" / "config.py"


def test_version_is_said_once() -> None:
    assert "version" in (ROOT / "pyproject.toml").read_text().split("dynamic = ")[1].splitlines()[0]
    assert raydiance.__version__ in (ROOT / "CHANGELOG.md").read_text()
