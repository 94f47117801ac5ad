"""Which Wan a folder is, by its numbers: what it can do, what it recommends, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.families.wan import MODELS

from raydiance.models import registry
from raydiance.models.card import ModelCard, Parameter
from raydiance.models.resolve import CheckpointError

TI2V, T2V, I2V, VACE, VACE_2, I2V_2_1, FLF2V_2_1 = MODELS


def edit(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def copied(model, tmp_path: Path, **index: object) -> Path:
    """Its JSON files only, and without what it recommends itself."""
    folder = tmp_path / "copy"
    shutil.copytree(model.folder, folder, ignore=shutil.ignore_patterns("*.safetensors", "raydiance.json"))
    edit(folder / "model_index.json", **index)
    return folder


def sizes(card: ModelCard) -> tuple[int, int, int, int, int, float]:
    d = card.defaults
    return d.height, d.width, d.num_frames, d.fps, d.num_inference_steps, d.guidance_scale


def test_ti2v_5b(tmp_path):
    folder = copied(TI2V, tmp_path)
    edit(folder / "vae/config.json", z_dim=48, scale_factor_spatial=16)
    edit(folder / "transformer/config.json", in_channels=48)
    card = registry.card(folder, "wan")
    assert sizes(card) == (704, 1280, 121, 24, 50, 5.0)
    assert card.parameters == ()
    assert "image-to-video" in card.tasks


def test_t2v_a14b(tmp_path):
    card = registry.card(copied(T2V, tmp_path), "wan")
    assert sizes(card) == (720, 1280, 81, 16, 40, 4.0)
    assert card.tasks == ("text-to-video", "text-to-image")  # diffusers' video-to-video has no second expert
    assert card.strength_tasks == ()
    assert card.parameters == (Parameter("guidance_scale_2", 0.0, 100.0, 3.0),)
    assert card.cfg_parameters == ("guidance_scale",)
    assert card.fill({}, 6.0) == {"guidance_scale_2": 3.0}


def test_i2v_a14b(tmp_path):
    card = registry.card(copied(I2V, tmp_path), "wan")
    assert sizes(card) == (720, 1280, 81, 16, 40, 3.5)
    assert card.tasks == ("image-to-video",)
    assert [(a.role, a.required) for a in card.accepts("image-to-video")] == [
        ("first_frame", True),
        ("last_frame", False),
    ]
    assert card.fill({}, 6.0) == {"guidance_scale_2": 6.0}


@pytest.mark.parametrize("model", [VACE, VACE_2], ids=["2.1", "2.2"])
def test_vace(model, tmp_path):
    card = registry.card(copied(model, tmp_path), "wan")
    assert sizes(card) == (480, 832, 81, 16, 30, 5.0)
    assert set(card.tasks) == {
        "text-to-video",
        "text-to-image",
        "image-to-video",
        "reference-to-video",
        "video-to-video",
    }
    assert all(card.accepts(task) for task in card.tasks)  # so that its inputs are encoded, if there are none too
    scales = [p.name for p in card.parameters]
    assert scales == (["guidance_scale_2"] if model is VACE_2 else []) + ["conditioning_scale"]
    assert card.fill({}, 6.0)["conditioning_scale"] == 1.0
    assert card.max_frames == (64 - 8 - 1) * 4 + 1  # references take positions too
    assert ModelCard.from_dict(card.to_dict()) == card


def test_its_own_defaults_come_before_the_recommended():
    card = registry.card(T2V.folder, "wan")
    assert sizes(card) == (32, 48, 5, 8, 4, 3.0)
    assert card.fill({}, card.defaults.guidance_scale) == {"guidance_scale_2": 3.0}
    assert card.fill({}, 5.0) == {"guidance_scale_2": 5.0}


@pytest.mark.parametrize(("model", "roles"), [(I2V_2_1, ["first_frame"]), (FLF2V_2_1, ["first_frame", "last_frame"])])
def test_i2v_2_1_takes_the_frames_that_its_image_encoder_sees(model, roles):
    card = registry.card(model.folder, "wan")
    accepts = card.accepts("image-to-video")
    assert [a.role for a in accepts] == roles
    assert all(a.required for a in accepts)
    assert card.parameters == ()
    registry.check(model.folder)


def test_an_image_encoder_is_checked_before_anything_is_loaded(tmp_path):
    folder = Path(shutil.copytree(I2V_2_1.folder, tmp_path / "wan"))
    [weights] = (folder / "image_encoder").glob("*.safetensors")
    weights.unlink()
    with pytest.raises(CheckpointError, match="image_encoder has no"):
        registry.check(folder)
    shutil.rmtree(folder / "image_processor")
    with pytest.raises(CheckpointError, match="no folder image_"):
        registry.check(folder, {"image_encoder": str(I2V_2_1.folder)})


NONE = [None, None]


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({"boundary_ratio": None}, r"boundary_ratio=None .* transformer and transformer_2;"),
        ({"transformer_2": NONE}, r"boundary_ratio=0\.8 .* transformer;"),
        ({"transformer": NONE}, r"boundary_ratio=0\.8 .* transformer_2;"),
        ({"transformer": NONE, "boundary_ratio": None}, "boundary_ratio=None .* transformer_2;"),
        ({"transformer": NONE, "transformer_2": NONE}, "neither"),
        ({"boundary_ratio": "0.8"}, "boundary_ratio='0.8' must be a number"),
        ({"boundary_ratio": -0.1}, "boundary_ratio=-0.1 must be a number"),
        ({"boundary_ratio": True}, "boundary_ratio=True must be a number"),
        ({"boundary_ratio": float("nan")}, "boundary_ratio=nan must be a number"),
    ],
)
def test_experts_and_boundary_must_go_together(tmp_path, index, message):
    folder = copied(T2V, tmp_path, **index)
    with pytest.raises(CheckpointError, match=message) as error:
        registry.card(folder, "wan")
    assert str(folder) in str(error.value)


@pytest.mark.parametrize(
    ("index", "only"),
    [
        ({"transformer_2": NONE, "boundary_ratio": None}, "transformer"),
        ({"transformer_2": NONE, "boundary_ratio": 0.0}, "transformer"),
        ({"transformer": NONE, "boundary_ratio": 1.0}, "transformer_2"),
    ],
)
def test_one_of_two_experts_may_be_all_there_is(tmp_path, index, only):
    folder = Path(shutil.copytree(T2V.folder, tmp_path / "wan"))
    edit(folder / "model_index.json", **index)
    shutil.rmtree(folder / ("transformer_2" if only == "transformer" else "transformer"))
    registry.check(folder)
    assert registry.card(folder, "wan").parameters == ()
    denoiser = registry.load(folder, "denoise", "wan")
    assert len(list(denoiser.experts)) == 1
    assert getattr(denoiser.pipeline, only) is next(iter(denoiser.experts))
    shutil.rmtree(folder / only)
    with pytest.raises(CheckpointError, match=f"no folder {only}/"):
        registry.check(folder)


def test_both_experts_are_checked_before_anything_is_loaded(tmp_path):
    folder = Path(shutil.copytree(T2V.folder, tmp_path / "wan"))
    registry.check(folder)
    elsewhere = shutil.move(folder / "transformer_2", tmp_path / "low")
    with pytest.raises(CheckpointError, match="no folder transformer_2/"):
        registry.check(folder)
    (folder / "transformer_2").mkdir()
    shutil.copy(Path(elsewhere) / "config.json", folder / "transformer_2")  # the card is read from it
    with pytest.raises(CheckpointError, match="found no weights"):
        registry.check(folder)
    registry.check(folder, {"transformer_2": str(elsewhere)})
    with pytest.raises(CheckpointError, match=r"components\.transformer_2"):
        registry.check(TI2V.folder, {"transformer_2": str(elsewhere)})


@pytest.mark.parametrize(
    ("model", "file", "values", "message"),
    [
        (
            T2V,
            "transformer_2/config.json",
            {"in_channels": 8},
            "in_channels is 4 in transformer and 8 in transformer_2",
        ),
        (T2V, "transformer/config.json", {"rope_max_seq_len": 32}, "rope_max_seq_len is 32 in transformer and 64"),
        (T2V, "vae/config.json", {"z_dim": 8}, "takes 4 channels and the VAE has 8"),
        (I2V, "vae/config.json", {"z_dim": 8}, "takes 12 channels; .* are 20"),
        (I2V, "model_index.json", {"_class_name": "WanPipeline"}, "takes 12 channels and the VAE has 4"),
        (I2V_2_1, "model_index.json", {"image_encoder": NONE}, "has an image encoder"),
        (I2V_2_1, "model_index.json", {"image_encoder": ["x", "Other"]}, "image_encoder is a Other, not one of CLIP"),
        (I2V_2_1, "model_index.json", {"expand_timesteps": True}, "image_dim is for"),
        (VACE, "transformer/config.json", {"vace_in_channels": 96}, "vace_in_channels=96; .* are 72"),
        (VACE, "vae/config.json", {"patch_size": 2}, "patch_size=2 does not go with VACE"),
    ],
)
def test_numbers_that_contradict_each_other_are_refused(tmp_path, model, file, values, message):
    folder = copied(model, tmp_path)
    edit(folder / file, **values)
    with pytest.raises(CheckpointError, match=message):
        registry.card(folder, "wan")


def test_prompts_beside_an_image_encoder_have_512_tokens(tmp_path):
    folder = Path(shutil.copytree(I2V_2_1.folder, tmp_path / "wan"))
    edit(folder / "raydiance.json", max_sequence_length=24)
    with pytest.raises(CheckpointError, match="max_sequence_length=24 must be 512"):
        registry.card(folder, "wan")
