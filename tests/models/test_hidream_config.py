"""What HiDream folders are refused for, and the cards that follow from those that are served."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.families import hidream
from tests.families.hidream import MAX_SEQUENCE_LENGTH, llama_elsewhere, llama_of, spec

from raydiance.models import registry
from raydiance.models.card import ModelCard
from raydiance.models.options import LoadOptions
from raydiance.models.resolve import CheckpointError
from raydiance.models.spec import FieldError, Spec

FULL, FAST = hidream.MODELS
"""Their Llama is inside Full's folder, and beside Fast's."""
ASKS_FOR_BOTH = r"components\.text_encoder_4 and components\.tokenizer_4"


def copied(folder: Path, file: str = "", **values: Any) -> Path:
    """The JSON files alone, with a change in one of them; None takes a key away."""
    shutil.copytree(FULL.folder, folder, ignore=shutil.ignore_patterns("*.safetensors", "tokenizer*", "text_encoder*"))
    if file:
        changed = {**json.loads((folder / file).read_text()), **values}
        (folder / file).write_text(json.dumps({k: v for k, v in changed.items() if v is not None}))
    return folder


def published(folder: Path, scheduler: dict[str, Any]) -> ModelCard:
    """The card of a folder with the published models' sizes."""
    copied(folder, "transformer/config.json", in_channels=16, out_channels=16, max_resolution=[128, 128])
    vae = {"latent_channels": 16, "block_out_channels": [128, 256, 512, 512]}
    for file, values in (("vae/config.json", vae), ("scheduler/scheduler_config.json", scheduler)):
        (folder / file).write_text(json.dumps({**json.loads((folder / file).read_text()), **values}))
    (folder / "raydiance.json").unlink()
    return registry.card(folder, "hidream")


@pytest.mark.parametrize(
    ("scheduler", "num_steps", "guidance_scale"),
    [
        ({"_class_name": "UniPCMultistepScheduler", "flow_shift": 3.0}, 50, 5.0),
        ({"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 6.0}, 50, 5.0),
        ({"_class_name": "FlowMatchLCMScheduler", "shift": 6.0}, 28, 0.0),
        ({"_class_name": "FlashFlowMatchEulerDiscreteScheduler", "shift": 6.0}, 28, 0.0),
        ({"_class_name": "FlowMatchLCMScheduler", "shift": 3.0}, 16, 0.0),
    ],
    ids=["full", "full-euler", "dev", "dev-as-first-published", "fast"],
)
def test_the_scheduler_tells_the_variants_apart(tmp_path, scheduler, num_steps, guidance_scale):
    card = published(tmp_path / "it", scheduler)
    assert (card.defaults.num_inference_steps, card.defaults.guidance_scale) == (num_steps, guidance_scale)
    assert (card.defaults.height, card.defaults.width) == (1024, 1024)
    assert (card.size_multiple, card.spatial_factor, card.max_text_tokens) == (16, 8, 384)
    assert card.num_tokens(1024, 1024, 1) == 4096
    assert ModelCard.from_dict(json.loads(json.dumps(card.to_dict()))) == card


@pytest.mark.parametrize(
    ("height", "width", "nearest"),
    [
        (1024, 1024, None),
        (768, 1360, None),
        (1248, 832, None),
        (512, 512, (1024, 1024)),
        (768, 1280, (784, 1312)),
        (2048, 2048, (1024, 1024)),
    ],
)
def test_sizes_have_the_area_that_diffusers_scales_to(tmp_path, height, width, nearest):
    card = published(tmp_path / "it", {})
    wanted = Spec(card.id, "text-to-image", "a", height, width, 1, 50, 5.0, 0)
    if nearest is None:
        assert card.check(wanted) is wanted
        return
    with pytest.raises(FieldError, match=f"nearest size is height={nearest[0]}, width={nearest[1]}"):
        card.check(wanted)


def test_a_card_needs_neither_torch_nor_the_encoders(tmp_path):
    folder = copied(tmp_path / "it")
    code = "import sys; from pathlib import Path; from raydiance.models import registry\n"
    code += f"print(registry.card(Path({str(folder)!r}), 'it').tasks)\n"
    code += "assert 'torch' not in sys.modules and 'diffusers' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "image-to-image" in done.stdout


def test_own_defaults_and_length_of_texts(tmp_path):
    own = {"defaults": {"num_inference_steps": 3}, "max_sequence_length": 7}
    card = registry.card(copied(tmp_path / "it", "raydiance.json", **own), "it")
    assert (card.defaults.num_inference_steps, card.defaults.height, card.max_text_tokens) == (3, 32, 21)


@pytest.mark.parametrize(
    ("file", "values", "named"),
    [
        ("transformer/config.json", {"_class_name": "FluxTransformer2DModel"}, "FluxTransformer2DModel"),
        ("transformer/config.json", {"patch_size": 1}, "patch_size=1"),
        ("transformer/config.json", {"in_channels": 8}, "in_channels=8"),
        ("transformer/config.json", {"out_channels": 8}, "out_channels=8"),
        ("transformer/config.json", {"max_resolution": [96, 192]}, "HiDream-E1"),
        ("transformer/config.json", {"max_resolution": [15, 15]}, "max_resolution"),
        ("vae/config.json", {"_class_name": "AutoencoderKLWan"}, "AutoencoderKLWan"),
        ("vae/config.json", {"block_out_channels": None}, "block_out_channels"),
        ("vae/config.json", {"latent_channels": None}, "latent_channels"),
        ("vae/config.json", {"shift_factor": None}, "shift_factor"),
        ("raydiance.json", {"max_sequence_length": 129}, "max_sequence_length=129"),
        ("raydiance.json", {"defaults": {"heights": 1}}, "heights"),
        ("raydiance.json", {"defaults": {"height": "1"}}, "must be numbers"),
    ],
)
def test_what_is_not_served_is_refused_by_name(tmp_path, file, values, named):
    with pytest.raises(CheckpointError, match=named):
        registry.card(copied(tmp_path / "it", file, **values), "it")


def test_a_scheduler_that_diffusers_lacks_is_refused_where_it_is_loaded(tmp_path):
    folder = tmp_path / "it"
    shutil.copytree(FULL.folder, folder)
    file = folder / "scheduler/scheduler_config.json"
    file.write_text(json.dumps({"_class_name": "FlashFlowMatchEulerDiscreteScheduler", "shift": 6.0}))
    with pytest.raises(CheckpointError, match="FlashFlowMatchEulerDiscreteScheduler"):
        registry.load(folder, "denoise", "it")


def embeds(folder: Path, components: dict[str, str]) -> dict[str, torch.Tensor]:
    encoder = registry.load(folder, "encode", "it", LoadOptions(components=components))
    return dict(encoder.encode_prompts([spec("text-to-image", "full").prompt])[0])


def test_llama_inside_the_folder():
    registry.check(FULL.folder)
    assert embeds(FULL.folder, {})["prompt_embeds_llama3"].shape == (3, MAX_SEQUENCE_LENGTH, 16)


@pytest.mark.parametrize("source", ["repository-of-llama", "another-checkpoint"])
def test_llama_from_elsewhere(source):
    found = FULL.folder if source == "another-checkpoint" else llama_of(FAST.folder)
    components = dict.fromkeys(("text_encoder_4", "tokenizer_4"), str(found))
    registry.check(FAST.folder, components)
    inside, outside = embeds(FULL.folder, {}), embeds(FAST.folder, components)  # their weights are the same
    assert all(torch.equal(inside[name], tensor) for name, tensor in outside.items())


def test_each_half_of_llama_from_its_own_folder():
    components = {name: str(FULL.folder / name) for name in ("text_encoder_4", "tokenizer_4")}
    registry.check(FAST.folder, components)
    assert torch.equal(
        embeds(FAST.folder, components)["prompt_embeds_llama3"], embeds(FULL.folder, {})["prompt_embeds_llama3"]
    )


@pytest.mark.parametrize("given", [(), ("text_encoder_4",), ("tokenizer_4",)])
def test_llama_in_neither_place_says_what_to_set(given):
    components = {name: source for name, source in llama_elsewhere(FAST.folder).items() if name in given}
    with pytest.raises(CheckpointError, match=ASKS_FOR_BOTH):
        registry.check(FAST.folder, components)
    with pytest.raises(CheckpointError, match=ASKS_FOR_BOTH):
        registry.load(FAST.folder, "encode", "it", LoadOptions(components=components))


def test_the_other_stages_need_no_llama():
    for stage in ("denoise", "decode"):
        assert registry.load(FAST.folder, stage, "it").card.family == "hidream"


def test_a_component_that_it_has_not_is_refused():
    with pytest.raises(CheckpointError, match=r"components\.text_encoder_5"):
        registry.check(FULL.folder, {"text_encoder_5": str(FULL.folder)})
