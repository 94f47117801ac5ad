"""What is read of an LTX-2 folder's JSON files, and what is refused."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.families.ltx import DEFAULTS, MODELS, OLD, SCALES, SIGMAS, spec

from raydiance.models import registry
from raydiance.models.card import Defaults
from raydiance.models.ltx import LTX
from raydiance.models.ltx_config import LTXConfig
from raydiance.models.resolve import CheckpointError

FULL, DISTILLED = MODELS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FULL.folder, tmp_path / "ltx"))


def edit(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_a_card_is_read_without_torch_and_without_weights(folder):
    for weights in folder.rglob("*.safetensors"):
        weights.unlink()
    code = "import sys; from pathlib import Path; from raydiance.models import registry\n"
    code += f"card = registry.card(Path({str(folder)!r}), 'ltx')\n"
    code += "assert 'torch' not in sys.modules and 'diffusers' not in sys.modules\nprint(card)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(registry.card(folder, "ltx"))


def test_a_card_says_what_the_checkpoint_can_do():
    card = registry.card(FULL.folder, "ltx")
    assert (card.family, card.tasks) == ("ltx", ("text-to-video", "image-to-video"))
    assert (card.has_guidance, card.has_negative, card.has_audio) == (True, True, True)
    assert card.cfg_parameters == ("guidance_scale", "audio_guidance_scale")
    assert {p.name for p in card.parameters} == set(SCALES)
    assert (card.size_multiple, card.spatial_factor, card.frame_stride, card.temporal_factor) == (32, 32, 8, 8)
    assert (card.min_steps, card.max_steps) == (2, 200)
    assert card.num_tokens(64, 96, 17) == 3 * 2 * 3
    assert type(card).from_dict(json.loads(json.dumps(card.to_dict()))) == card


def test_either_guidance_needs_the_negative_prompt():
    card = registry.card(FULL.folder, "ltx")
    off = dict.fromkeys(SCALES, 1.0)
    assert not card.uses_negative(spec(extra=off, guidance_scale=1.0))
    assert card.uses_negative(spec(extra=off, guidance_scale=1.5))
    assert card.uses_negative(spec(extra={**off, "audio_guidance_scale": 1.5}, guidance_scale=1.0))


def test_a_distilled_checkpoint_takes_its_own_steps_and_no_guidance():
    card = registry.card(DISTILLED.folder, "ltx")
    assert (card.has_guidance, card.has_negative, card.parameters, card.cfg_parameters) == (False, False, (), ())
    assert card.min_steps == card.max_steps == card.defaults.num_inference_steps == len(SIGMAS)
    assert card.defaults.guidance_scale == 1.0


def test_a_checkpoint_that_cannot_skip_attention_has_no_spatio_temporal_guidance():
    names = {p.name for p in registry.card(OLD.folder, "ltx").parameters}
    assert names == set(SCALES) - {"stg_scale", "audio_stg_scale"}
    assert LTXConfig.read(OLD.folder).pads_text


def test_a_card_without_own_file_has_the_defaults_of_diffusers(folder):
    (folder / "raydiance.json").unlink()
    edit(folder / "transformer/config.json", num_layers=48)
    card, config = registry.card(folder, "ltx"), LTXConfig.read(folder)
    assert card.defaults == Defaults(512, 768, 121, 24, 30, 3.0)
    assert card.fill({}, 3.0) == {
        "audio_guidance_scale": 7.0,
        **{"stg_scale": 1.0, "audio_stg_scale": 1.0, "modality_scale": 3.0, "audio_modality_scale": 3.0},
        **{"guidance_rescale": 0.7, "audio_guidance_rescale": 0.7},
    }
    assert (config.stg_blocks, config.max_sequence_length, config.sigmas) == ((28,), 1024, ())


def test_own_defaults_may_be_a_few(folder):
    (folder / "raydiance.json").write_text(
        json.dumps({"spatio_temporal_guidance_blocks": [], "defaults": {"height": 320}})
    )
    card = registry.card(folder, "ltx")
    assert (card.defaults.height, card.defaults.width) == (320, 768)
    assert "stg_scale" not in card.fill({}, 3.0)


@pytest.mark.parametrize(
    ("num_frames", "fps", "frames", "length"), [(9, 8, 2, 28), (121, 24, 16, 126), (17, 12, 3, 35), (1, 60, 1, 1)]
)
def test_lengths_of_picture_and_sound(num_frames, fps, frames, length):
    """25 latents of sound a second, and one at least."""
    config, asked = LTXConfig.read(FULL.folder), spec(num_frames=num_frames, fps=fps)
    assert config.latent_shape(asked) == (4, frames, DEFAULTS["height"] // 32, DEFAULTS["width"] // 32)
    assert config.audio_shape(asked) == (2, length, 4)


@pytest.mark.parametrize("name", ["LTX2Pipeline", "LTX2ImageToVideoPipeline"])
def test_the_family_of_a_folder(folder, name):
    edit(folder / "model_index.json", _class_name=name)
    assert registry.family_class(folder) is LTX
    registry.check(folder)
    shutil.rmtree(folder / "connectors")
    with pytest.raises(CheckpointError, match="connectors"):
        registry.check(folder)


@pytest.mark.parametrize(
    ("file", "values", "message"),
    [
        (
            "model_index.json",
            {"text_encoder": ["transformers", "Gemma4ForConditionalGeneration"]},
            "text_encoder is Gem",
        ),
        ("model_index.json", {"vocoder": [None, None]}, "vocoder is None; supported are LTX2Vocoder, "),
        ("model_index.json", {"audio_scheduler": ["diffusers", "X"]}, "has an audio_scheduler"),
        ("transformer/config.json", {"patch_size": 2}, "patch_size=2 of the transformer must be 1"),
        ("transformer/config.json", {"audio_patch_size_t": 2}, "audio_patch_size_t=2 of the transformer must be 1"),
        ("vae/config.json", {"decoder_inject_noise": [False, True]}, "decoder_inject_noise of the VAE"),
        ("vae/config.json", {"decoder_inject_noise": True}, "decoder_inject_noise of the VAE"),
        (
            "raydiance.json",
            {"spatio_temporal_guidance_blocks": [2]},
            r"blocks=\[2\]: the transformer has blocks 0 to 1",
        ),
        ("raydiance.json", {"spatio_temporal_guidance_blocks": [0.5]}, r"blocks=\[0.5\]"),
        ("raydiance.json", {"spatio_temporal_guidance_blocks": 1}, "=1 must be a list of numbers"),
        ("raydiance.json", {"max_sequence_length": 12}, "max_sequence_length=12 must be a multiple of 8"),
        ("raydiance.json", {"max_sequence_length": 0}, "max_sequence_length=0 must be"),
        ("raydiance.json", {"max_sequence_length": "16"}, "max_sequence_length='16' must be"),
        ("connectors/config.json", {"audio_connector_num_learnable_registers": 3}, "must be a multiple of 24"),
        ("raydiance.json", {"sigmas": [0.5, 0.7]}, r"sigmas=\[0.5, 0.7\] must descend"),
        ("raydiance.json", {"sigmas": [1.1, 0.7]}, r"sigmas=\[1.1, 0.7\] must descend from 1"),
        ("raydiance.json", {"sigmas": [1.0, 0.0]}, r"sigmas=\[1.0, 0.0\] must descend from 1 at most to above 0"),
        ("raydiance.json", {"sigmas": [1.0]}, r"sigmas=\[1.0\]: shift_terminal needs 2 or more"),
        ("raydiance.json", {"sigmas": ["1.0"]}, "must be a list of numbers"),
        ("raydiance.json", {"defaults": {"heigth": 32}}, "defaults: .*heigth"),
        ("raydiance.json", {"defaults": {"height": "32"}}, "must be numbers"),
        ("raydiance.json", {"defaults": 3}, "defaults: "),
    ],
    ids=str,
)
def test_a_variant_that_is_not_served_is_refused(folder, file, values, message):
    edit(folder / file, **values)
    with pytest.raises(CheckpointError, match=message) as error:
        registry.card(folder, "ltx")
    assert str(folder) in str(error.value)
