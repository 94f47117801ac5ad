"""From a name to a folder, a card and a family; and what is said when that cannot be."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError
from tests.studio import studio_of

from raydiance.models import registry
from raydiance.models.resolve import CheckpointError, resolve
from raydiance.models.tiny import CHECKPOINT
from raydiance.models.wan import Wan

DEFAULTS = dict.fromkeys(("height", "width", "num_frames", "fps", "num_inference_steps", "guidance_scale"), 1)
STAGES = {"encode": "text_encoder", "denoise": "transformer", "decode": "vae"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(studio_of("unipc").folder, tmp_path / "wan"))


def edit(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_a_card_is_read_without_torch_and_without_weights(folder):
    for weights in folder.rglob("*.safetensors"):
        weights.unlink()
    code = "import sys; from pathlib import Path; from raydiance.models import registry\n"
    code += f"card = registry.card(Path({str(folder)!r}), 'wan')\n"
    code += "assert 'torch' not in sys.modules and 'diffusers' not in sys.modules\nprint(card)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(registry.card(folder, "wan"))


def test_a_card_says_what_the_checkpoint_can_do(folder):
    card = registry.card(folder, "wan")
    assert (card.id, card.family, card.patch) == ("wan", "wan", (1, 2, 2))
    assert set(card.tasks) == {"text-to-video", "text-to-image", "image-to-video", "image-to-image", "video-to-video"}
    assert (card.size_multiple, card.frame_stride, card.spatial_factor, card.temporal_factor) == (16, 4, 8, 4)
    assert (card.max_side, card.max_frames) == (64 * 16, 63 * 4 + 1)  # as far as its positions reach
    assert card.defaults.width == 48
    edit(folder / "model_index.json", expand_timesteps=False)
    assert "image-to-video" not in registry.card(folder, "wan").tasks


def test_a_card_without_own_file_has_the_defaults_of_wan(folder):
    (folder / "raydiance.json").unlink()
    edit(folder / "vae/config.json", scale_factor_spatial=16)  # as Wan 2.2 TI2V-5B
    card = registry.card(folder, "wan")
    assert (card.defaults.height, card.defaults.width, card.defaults.num_frames) == (480, 832, 81)
    assert (card.defaults.num_inference_steps, card.defaults.guidance_scale, card.defaults.fps) == (50, 5.0, 16)
    assert card.size_multiple == 32


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_opens_its_own_weights_and_no_others(folder, stage):
    for other in {"encode": "text_encoder", "denoise": "transformer", "decode": "vae"}.items():
        if other[0] != stage:
            for weights in (folder / other[1]).glob("*.safetensors"):
                weights.write_bytes(b"not safetensors at all")
    family = registry.load(folder, stage, "wan")
    assert isinstance(family, Wan)
    held = {name for name in STAGES.values() if getattr(family.pipeline, name) is not None}
    assert held == {STAGES[stage]}
    with pytest.raises(Exception, match=r"(?i)header|safetensors"):
        registry.load(folder, next(s for s in STAGES if s != stage), "wan")


@pytest.mark.parametrize("stage", STAGES)
def test_pickled_weights_are_not_loaded(folder, stage):
    [weights] = (folder / STAGES[stage]).glob("*.safetensors")
    torch.save({}, weights.with_suffix(".bin"))
    weights.unlink()
    with pytest.raises(CheckpointError, match=rf"{STAGES[stage]}.*no \*\.safetensors.*{weights.stem}\.bin"):
        registry.load(folder, stage, "wan")


@pytest.mark.parametrize(("stage", "component"), [*STAGES.items(), ("encode", "tokenizer"), ("denoise", "scheduler")])
def test_a_missing_component_is_named(folder, stage, component):
    config = folder / component / "config.json"
    kept = config.read_text() if config.exists() else None
    shutil.rmtree(folder / component)
    with pytest.raises(CheckpointError, match=component):
        registry.load(folder, stage, "wan")
    if kept is not None:
        config.parent.mkdir()
        config.write_text(kept)
        with pytest.raises(CheckpointError, match=f"{component}.*found no weights"):
            registry.load(folder, stage, "wan")


@pytest.mark.parametrize("component", ["tokenizer", "scheduler", "text_encoder", "transformer", "vae"])
def test_a_folder_is_checked_before_anything_is_loaded(folder, component):
    registry.check(folder)
    if component in STAGES.values():
        [weights] = (folder / component).glob("*.safetensors")
        weights.rename(weights.with_suffix(".bin"))
        with pytest.raises(CheckpointError, match=rf"{component}.*may run code"):
            registry.check(folder)
    for file in (folder / component).iterdir():
        file.unlink()
    with pytest.raises(CheckpointError, match=f"{component} is empty"):
        registry.check(folder)


def test_missing_weights_are_not_made_up(folder):
    from safetensors.torch import load_file, save_file

    path = folder / "transformer/diffusion_pytorch_model.safetensors"
    weights = load_file(path)
    del weights["blocks.1.ffn.net.2.bias"]
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"lacks weights: blocks\.1\.ffn"):
        registry.load(folder, "denoise", "wan")


@pytest.mark.parametrize(
    ("file", "values", "message"),
    [
        ("model_index.json", {"_class_name": "NoSuchPipeline"}, "NoSuchPipeline, which is not supported"),
        ("model_index.json", {"_class_name": "WanTransformer3DModel"}, "WanTransformer3DModel, which is not supported"),
        ("model_index.json", {"_class_name": ["pipeline", "Own"]}, "code of a checkpoint's own is not run"),
        ("model_index.json", {"boundary_ratio": 0.9}, "two experts"),
        ("model_index.json", {"transformer_2": ["diffusers", "WanTransformer3DModel"]}, "two experts"),
        (
            "model_index.json",
            {"_class_name": "WanImageToVideoPipeline", "expand_timesteps": False},
            "without expand_timesteps",
        ),
        ("transformer/config.json", {"in_channels": 36}, "36 channels"),
        ("transformer/config.json", {"image_dim": 1280}, "image encoder"),
        ("transformer/config.json", {"patch_size": [1, 4, 4]}, "patches of 2x2"),
        ("transformer/config.json", {"patch_size": [2, 2, 2]}, "first number must be 1"),
        ("raydiance.json", {"defaults": {"height": 32}}, "defaults"),
        ("raydiance.json", {"defaults": {**DEFAULTS, "height": "32"}}, "must be numbers"),
        ("raydiance.json", {"max_sequence_length": 0}, "max_sequence_length=0"),
        ("transformer/config.json", {"patch_size": 2}, "patch_size=2 must be three"),
        ("transformer/config.json", {"patch_size": [1, 2, None]}, "must be three"),
        ("vae/config.json", {"z_dim": "four"}, "z_dim='four' must be"),
        ("vae/config.json", {"scale_factor_spatial": None}, "scale_factor_spatial=None must be"),
    ],
)
def test_a_variant_that_is_not_served_is_refused(folder, file, values, message):
    edit(folder / file, **values)
    with pytest.raises(CheckpointError, match=message) as error:
        registry.card(folder, "wan")
    assert str(folder) in str(error.value)


def test_another_scheduler_is_refused_by_name(folder):
    edit(folder / "scheduler/scheduler_config.json", _class_name="DDIMScheduler")
    with pytest.raises(CheckpointError, match=r"DDIMScheduler.*supported are UniPC"):
        registry.load(folder, "denoise", "wan")


def test_a_folder_that_is_no_model_says_so(tmp_path):
    with pytest.raises(CheckpointError, match=r"no model_index\.json"):
        registry.card(tmp_path, "wan")
    (tmp_path / "model_index.json").write_text("{")
    with pytest.raises(CheckpointError, match="is no JSON"):
        registry.card(tmp_path, "wan")
    (tmp_path / "model_index.json").write_text("[]")
    with pytest.raises(CheckpointError, match="holds a list"):
        registry.card(tmp_path, "wan")


def test_the_family_of_a_folder(folder):
    assert registry.family_class(folder) is Wan
    edit(folder / "model_index.json", _class_name="WanImageToVideoPipeline")
    assert registry.family_class(folder) is Wan


def test_names_are_resolved_to_folders(tmp_path):
    assert resolve("tiny") == CHECKPOINT
    assert resolve(tmp_path) == resolve(str(tmp_path)) == tmp_path.resolve()
    file = tmp_path / "model.safetensors"
    file.touch()
    for path, message in ((file, "is a file"), (tmp_path / "none" / "at" / "all", "neither"), ("Wan", "neither")):
        with pytest.raises(CheckpointError, match=message):
            resolve(path)


def test_a_hub_id_is_downloaded_without_pickles(tmp_path, monkeypatch):
    asked: dict[str, object] = {}

    def download(repo_id, **options):
        asked.update(options, repo_id=repo_id)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert resolve("Wan-AI/Wan2.2-TI2V-5B-Diffusers", revision="main") == tmp_path
    assert (asked["repo_id"], asked["revision"]) == ("Wan-AI/Wan2.2-TI2V-5B-Diffusers", "main")
    patterns = asked["allow_patterns"]
    assert list(huggingface_hub.utils.filter_repo_objects(["a/x.json", "a/x.safetensors"], allow_patterns=patterns))
    pickles = ["pytorch_model.bin", "a/x.pt", "a/x.ckpt", "x.pkl", "modeling.py"]
    assert not list(huggingface_hub.utils.filter_repo_objects(pickles, allow_patterns=patterns))


def test_what_the_hub_does_not_give_is_said(monkeypatch):
    def download(repo_id, **_):
        raise LocalEntryNotFoundError("no connection")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(CheckpointError, match=r"org/name at revision v1 .*no connection"):
        resolve("org/name", revision="v1")


@pytest.mark.parametrize(
    ("index", "says"),
    [
        ({"transformer": 5}, "transformer must be"),
        ({"vae": []}, "vae must be"),
        ({"scheduler": "x"}, "scheduler must be"),
        ({"text_encoder": [1, 2]}, "text_encoder must be"),
        ({"anything": ["one", "two", "three"]}, "anything must be"),
    ],
)
def test_an_index_of_another_form_is_refused_by_name(folder, index, says):
    edit(folder / "model_index.json", **index)
    with pytest.raises(CheckpointError, match=says):
        registry.check(folder)


def test_json_that_is_nested_without_end_is_no_json(folder):
    (folder / "model_index.json").write_text("[" * 100_000)
    with pytest.raises(CheckpointError, match="is no JSON"):
        registry.check(folder)
