"""What is read of a FLUX.1 folder's JSON files, and what is refused."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.families.flux import MAX_SEQUENCE_LENGTH
from tests.families.flux_diffusers import MODEL

from raydiance.models import registry
from raydiance.models.card import Defaults
from raydiance.models.flux import Flux
from raydiance.models.resolve import CheckpointError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(MODEL["dev"].folder, tmp_path / "flux"))


def edit(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_a_card_is_read_without_torch_and_without_weights(folder):
    for weights in folder.rglob("*.safetensors"):
        weights.unlink()
    code = "import sys; from pathlib import Path; from raydiance.models import registry\n"
    code += f"card = registry.card(Path({str(folder)!r}), 'flux')\n"
    code += "assert 'torch' not in sys.modules and 'diffusers' not in sys.modules\nprint(card)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(registry.card(folder, "flux"))


@pytest.mark.parametrize(
    ("kind", "tasks", "strength_tasks", "has_guidance", "multiple"),
    [
        ("dev", ("text-to-image", "image-to-image"), ("image-to-image",), True, 16),
        ("schnell", ("text-to-image", "image-to-image"), ("image-to-image",), False, 16),
        ("kontext", ("image-edit", "text-to-image"), (), True, 64),
    ],
)
def test_a_card_says_what_the_checkpoint_can_do(kind, tasks, strength_tasks, has_guidance, multiple):
    card = registry.card(MODEL[kind].folder, "flux")
    assert (card.family, card.tasks, card.strength_tasks, card.strength_rounds_up) == (
        "flux",
        tasks,
        strength_tasks,
        True,
    )
    assert (card.has_guidance, card.cfg_parameters) == (has_guidance, ("true_cfg_scale",))
    assert card.fill({}, 3.5) == {"true_cfg_scale": 1.0}
    assert (card.size_multiple, card.frame_stride, card.temporal_factor, card.patch) == (multiple, 1, 1, (1, 2, 2))
    assert card.max_text_tokens == MAX_SEQUENCE_LENGTH
    assert card.num_tokens(multiple * 3, multiple * 5, 1) == 15
    assert type(card).from_dict(json.loads(json.dumps(card.to_dict()))) == card


@pytest.mark.parametrize(("guided", "steps", "guidance"), [(True, 28, 3.5), (False, 4, 0.0)])
def test_a_card_without_own_file_has_the_defaults_of_diffusers(folder, guided, steps, guidance):
    (folder / "raydiance.json").unlink()
    edit(folder / "transformer/config.json", guidance_embeds=guided)
    card = registry.card(folder, "flux")
    assert card.defaults == Defaults(1024, 1024, 1, 1, steps, guidance, strength=0.6)
    assert card.max_text_tokens == 512


def test_own_defaults_may_be_a_few(folder):
    (folder / "raydiance.json").write_text(json.dumps({"max_sequence_length": 256, "defaults": {"height": 512}}))
    card = registry.card(folder, "flux")
    assert (card.defaults.height, card.defaults.width, card.max_text_tokens) == (512, 1024, 256)


def test_the_components_of_real_checkpoints_fit(folder):
    """FLUX.1's own numbers."""
    edit(folder / "transformer/config.json", in_channels=64, out_channels=None)
    edit(folder / "vae/config.json", latent_channels=16, scaling_factor=0.3611, shift_factor=0.1159)
    card = registry.card(folder, "flux")
    assert card.num_tokens(1024, 1024, 1) == 4096
    assert card.max_side == 4096


@pytest.mark.parametrize("name", ["FluxPipeline", "FluxImg2ImgPipeline", "FluxKontextPipeline"])
def test_the_family_of_a_folder(folder, name):
    edit(folder / "model_index.json", _class_name=name)
    assert registry.family_class(folder) is Flux
    registry.check(folder)
    shutil.rmtree(folder / "text_encoder_2")
    with pytest.raises(CheckpointError, match="text_encoder_2"):
        registry.check(folder)


@pytest.mark.parametrize("name", ["FluxFillPipeline", "FluxControlPipeline"])
def test_pipelines_of_other_kinds_are_not_served(folder, name):
    edit(folder / "model_index.json", _class_name=name)
    with pytest.raises(CheckpointError, match=f"{name}, which is not supported"):
        registry.card(folder, "flux")


@pytest.mark.parametrize(
    ("file", "values", "message"),
    [
        ("transformer/config.json", {"in_channels": 96}, r"in_channels=96 .*latent_channels=4.*Fill, Canny, Depth"),
        ("transformer/config.json", {"in_channels": 32}, r"in_channels=32 .*Fill, Canny, Depth"),
        ("transformer/config.json", {"out_channels": 8}, r"out_channels=8 must be in_channels=16"),
        ("transformer/config.json", {"patch_size": 2}, "patch_size=2 is not supported"),
        ("transformer/config.json", {"_class_name": "ChromaTransformer2DModel"}, "ChromaTransformer2DModel"),
        ("vae/config.json", {"latent_channels": "4"}, "latent_channels='4' must be"),
        ("vae/config.json", {"_class_name": "AutoencoderKLQwenImage"}, "only AutoencoderKL"),
        ("vae/config.json", {"block_out_channels": []}, r"block_out_channels=\[\]"),
        ("vae/config.json", {"shift_factor": None}, "shift_factor=None must be a number"),
        ("raydiance.json", {"defaults": {"heigth": 32}}, "defaults: .*heigth"),
        ("raydiance.json", {"defaults": {"height": "32"}}, "must be numbers"),
        ("raydiance.json", {"defaults": 3}, "defaults: "),
        ("raydiance.json", {"max_sequence_length": 513}, "max_sequence_length=513 must be .* from 1 to 512"),
        ("raydiance.json", {"max_sequence_length": 0}, "max_sequence_length=0"),
    ],
)
def test_a_variant_that_is_not_served_is_refused(folder, file, values, message):
    edit(folder / file, **values)
    with pytest.raises(CheckpointError, match=message) as error:
        registry.card(folder, "flux")
    assert str(folder) in str(error.value)
