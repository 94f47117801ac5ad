"""The files of a component: which are opened, what their headers say, when two are the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from raydiance.models.resolve import CheckpointError
from raydiance.models.weights_files import WeightFiles, digest, gguf_file, read_header, sizes


def save(path: Path, **weights: torch.Tensor) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(weights or {"a": torch.zeros(2, 3)}, path)
    return path


def index(path: Path, *shards: str) -> None:
    path.write_text(json.dumps({"weight_map": {f"w{i}": shard for i, shard in enumerate(shards)}}))


def test_headers_are_read_without_torch(tmp_path):
    path = save(tmp_path / "model.safetensors", a=torch.zeros(2, 3), b=torch.tensor(1.0))
    code = "import sys; from pathlib import Path; from raydiance.models.weights_files import read_header\n"
    code += f"assert read_header(Path({str(path)!r})) == {{'a': (2, 3), 'b': ()}}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", ["diffusion_pytorch_model", "model"])
def test_plain_files_go_before_variants(tmp_path, name):
    half = save(tmp_path / f"{name}.fp16.safetensors")
    assert WeightFiles.find(tmp_path) == WeightFiles((half,), "fp16")
    plain = save(tmp_path / f"{name}.safetensors")
    assert WeightFiles.find(tmp_path) == WeightFiles((plain,))


@pytest.mark.parametrize("name", ["diffusion_pytorch_model", "model"])
def test_the_shards_of_an_index(tmp_path, name):
    shards = [save(tmp_path / f"{name}-0000{i}-of-00002.safetensors") for i in (1, 2)]
    index(tmp_path / f"{name}.safetensors.index.json", *(s.name for s in shards))
    assert WeightFiles.find(tmp_path) == WeightFiles(tuple(shards), is_sharded=True)
    single = save(tmp_path / f"{name}.safetensors")
    wanted = WeightFiles((single,)) if name == "model" else WeightFiles(tuple(shards), is_sharded=True)
    assert WeightFiles.find(tmp_path) == wanted  # each as its library does


def test_the_shards_of_a_variant(tmp_path):
    shard = save(tmp_path / "model.fp16-00001-of-00001.safetensors")
    index(tmp_path / "model.safetensors.index.fp16.json", shard.name)
    assert WeightFiles.find(tmp_path) == WeightFiles((shard,), "fp16", is_sharded=True)


def test_nothing_to_choose_by_is_refused(tmp_path):
    for variant in ("fp16", "bf16"):
        save(tmp_path / f"model.{variant}.safetensors")
    with pytest.raises(CheckpointError, match=r"no model\.safetensors.*it has model\.bf16.*model\.fp16"):
        WeightFiles.find(tmp_path)
    other = save(tmp_path / "other/weights.safetensors").parent
    with pytest.raises(CheckpointError, match=r"it has weights\.safetensors"):
        WeightFiles.find(other)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:6],
        lambda data: data[:20],
        lambda data: data[:-1],
        lambda data: data + b"x",
        lambda data: b"\xff" * 8 + data[8:],
        lambda data: data[:8] + b"[" + data[9:],
        lambda data: data.replace(b'"shape"', b'"shapf"'),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, damage):
    path = save(tmp_path / "model.safetensors")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CheckpointError, match=r"model\.safetensors is (no safetensors|cut short)"):
        read_header(path)


def test_folders_are_the_same_by_their_contents(tmp_path):
    a, b, c = (tmp_path / name for name in "abc")
    for folder, value in ((a, 1.0), (b, 1.0), (c, 2.0)):
        save(folder / "model.safetensors", w=torch.full((4,), value))
        (folder / "config.json").write_text("{}")
    assert digest(a) == digest(b)
    assert sizes(a) == sizes(c)
    assert digest(a) != digest(c)
    (b / ".cache").mkdir()
    (b / ".cache/x").touch()
    assert digest(a) == digest(b)
    (b / "config.json").write_text("{ }")
    assert sizes(a) != sizes(b)  # which is looked at first: no content need be read
    assert digest(a) != digest(b)


def test_a_digest_follows_a_change_of_the_same_size(tmp_path):
    file = tmp_path / "a"
    file.write_text("one")
    first = digest(tmp_path)
    assert digest(tmp_path) == first
    file.write_text("two")
    os.utime(file, ns=(1, 1))
    assert digest(tmp_path) != first


def test_a_gguf_file_is_told_by_its_name(tmp_path):
    assert gguf_file("transformer", {}) is None
    assert gguf_file("transformer", {"transformer": "org/name"}) is None
    with pytest.raises(CheckpointError, match=r"components\.transformer.*is no file"):
        gguf_file("transformer", {"transformer": str(tmp_path / "x.gguf")})
    (tmp_path / "x.gguf").touch()
    assert gguf_file("transformer", {"transformer": str(tmp_path / "x.gguf")}) == tmp_path / "x.gguf"


@pytest.mark.parametrize("name", ["../other.safetensors", "/etc/hostname", "a/b.safetensors", 7, None])
def test_a_shard_is_a_file_beside_its_index(tmp_path: Path, name: object) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(CheckpointError, match="no file beside it"):
        WeightFiles.find(tmp_path)
