"""Guests: diffusers' own call, asked for what its signature takes, and stopped between two steps."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DiffusionPipeline
from tests.families.kit import picture
from tests.guests import save_ltx_video, save_qwen_image, save_sana

from raydiance.models import registry
from raydiance.models.guest import Guest
from raydiance.models.inputs import Inputs
from raydiance.models.options import LoadOptions
from raydiance.models.resolve import CheckpointError
from raydiance.models.spec import Spec

torch.set_num_threads(1)
SAVED = {"sana": save_sana, "qwen-image": save_qwen_image, "ltx-video": save_ltx_video}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: save(tmp_path_factory.mktemp(name)) for name, save in SAVED.items()}


@pytest.fixture
def copied(folders: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(folders["qwen-image"], tmp_path / "guest"))


def edit(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def spec_of(folder: Path, **values: Any) -> Spec:
    card = registry.card(folder, "g")
    task, d = card.tasks[0], card.defaults
    given: dict[str, Any] = {
        "height": d.height,
        "width": d.width,
        "num_frames": d.num_frames,
        "num_inference_steps": 3,
        "guidance_scale": d.guidance_scale,
        "seed": 7,
        "negative_prompt": "a black square",
        "extra": card.fill({}, d.guidance_scale),
        **values,
    }
    return card.check(Spec(model="g", task=task, prompt=given.pop("prompt", "a red circle"), **given))


def given_to(folder: Path, spec: Spec) -> dict[str, torch.Tensor] | None:
    if spec.task != "image-to-video":
        return None
    decoder = registry.load(folder, "decode", "g")
    return dict(decoder.encode_inputs(spec, Inputs({"first_frame": [picture(spec.width, spec.height)]})))


def run(guest: Guest, folder: Path, spec: Spec) -> torch.Tensor:
    return guest.generate(spec, given_to(folder, spec), lambda step, num_steps: None)


def guest_of(folder: Path, **options: Any) -> Guest:
    guest = registry.load(folder, "denoise", "g", LoadOptions(**options))
    assert isinstance(guest, Guest)
    return guest


def directly(folder: Path, spec: Spec) -> np.ndarray:
    """What a user of diffusers would write for each of them."""
    pipeline = DiffusionPipeline.from_pretrained(folder)
    pipeline.set_progress_bar_config(disable=True)
    call = {
        "SanaPipeline": {"guidance_scale": spec.guidance_scale},
        "QwenImagePipeline": {"true_cfg_scale": spec.extra.get("true_cfg_scale")},
        "LTXImageToVideoPipeline": {
            "guidance_scale": spec.guidance_scale,
            "num_frames": spec.num_frames,
            "frame_rate": spec.fps,
            "image": picture(spec.width, spec.height),
        },
    }[type(pipeline).__name__]
    made = pipeline(
        prompt=spec.prompt,
        negative_prompt=spec.negative_prompt,
        height=spec.height,
        width=spec.width,
        num_inference_steps=spec.num_inference_steps,
        generator=torch.Generator("cpu").manual_seed(spec.seed),
        output_type="pil",
        **call,
    )
    return np.stack([np.asarray(f) for f in (made.frames[0] if spec.is_video else made.images)])


@pytest.mark.parametrize("name", SAVED)
def test_its_pixels_are_diffusers_own(folders, name):
    folder = folders[name]
    registry.check(folder)
    spec, guest = spec_of(folder), guest_of(folder)
    frames = run(guest, folder, spec)
    assert frames.dtype is torch.uint8
    assert torch.equal(frames, torch.from_numpy(directly(folder, spec)))
    for change in ({"prompt": "the blue square"}, {"negative_prompt": ""}, {"seed": 8}, {"num_inference_steps": 4}):
        assert not torch.equal(run(guest, folder, replace(spec, **change)), frames), change
    [chunk] = registry.load(folder, "decode", "g").decode(frames, spec)
    assert np.array_equal(chunk, frames.numpy())


@pytest.mark.parametrize("name", SAVED)
def test_each_step_is_told(folders, name):
    folder = folders[name]
    told = []
    spec = spec_of(folder, num_inference_steps=4)
    guest_of(folder).generate(spec, given_to(folder, spec), lambda *step: told.append(step))
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]


@pytest.mark.parametrize("name", SAVED)
def test_what_is_told_of_a_step_may_end_it(folders, name):
    folder, told = folders[name], []

    def stop(step: int, num_steps: int) -> None:
        told.append(step)
        if step == 2:
            raise KeyboardInterrupt

    guest, spec = guest_of(folder), spec_of(folder, num_inference_steps=20)
    with pytest.raises(KeyboardInterrupt):
        guest.generate(spec, given_to(folder, spec), stop)
    assert told == [1, 2]
    again = replace(spec, num_inference_steps=3)
    assert torch.equal(run(guest, folder, again), run(guest_of(folder), folder, again))  # nothing is left behind


def test_a_card_says_what_the_signature_does(folders):
    sana, qwen, ltx = (registry.card(folders[name], "g") for name in SAVED)
    assert all(card.is_guest and card.family == "guest" for card in (sana, qwen, ltx))
    assert (sana.tasks, qwen.tasks, ltx.tasks) == (("text-to-image",), ("text-to-image",), ("image-to-video",))
    assert (sana.has_guidance, qwen.has_guidance) == (True, False)
    assert [p.name for p in qwen.parameters] == ["true_cfg_scale"]
    assert qwen.parameters[0].default == 4.0
    spec = spec_of(folders["qwen-image"])
    assert qwen.uses_negative(spec)
    assert not qwen.uses_negative(replace(spec, extra={"true_cfg_scale": 1.0}))
    assert (ltx.frame_stride, sana.frame_stride) == (4, 1)


def test_defaults_without_an_own_file_are_the_signatures(folders, tmp_path):
    def defaults(name: str) -> Any:
        folder = Path(shutil.copytree(folders[name], tmp_path / name))
        (folder / "raydiance.json").unlink()
        return registry.card(folder, "g").defaults

    sana, qwen, ltx = defaults("sana"), defaults("qwen-image"), defaults("ltx-video")
    assert (sana.height, sana.width, sana.num_inference_steps, sana.guidance_scale) == (1024, 1024, 20, 4.5)
    assert (qwen.height, qwen.num_inference_steps, qwen.num_frames) == (1024, 50, 1)
    assert (ltx.height, ltx.width, ltx.num_frames, ltx.fps) == (512, 704, 161, 25)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("FluxFillPipeline", "its call takes mask_image"),
        ("StableVideoDiffusionPipeline", "takes no prompt"),
        ("PixArtAlphaPipeline", "takes no callback_on_step_end"),
        ("StableDiffusionControlNetInpaintPipeline", "its call takes mask_image, control_image"),
        ("StableAudioPipeline", "takes no callback_on_step_end"),
        ("StableDiffusionInstructPix2PixPipeline", "takes no height and width"),
        ("CogVideoXVideoToVideoPipeline", "its call takes video"),
        ("NoSuchPipeline", "which is not supported: no family here, no pipeline of diffusers"),
    ],
)
def test_what_a_request_could_not_ask_for_is_refused(copied, name, message):
    edit(copied / "model_index.json", _class_name=name)
    with pytest.raises(CheckpointError, match=message):
        registry.card(copied, "g")


@pytest.mark.parametrize(
    ("name", "tasks"),
    [
        ("StableDiffusion3Img2ImgPipeline", ("image-to-image",)),
        ("StableDiffusionImg2ImgPipeline", ("image-to-image",)),
        ("QwenImageEditPipeline", ("image-edit",)),
        ("CogVideoXPipeline", ("text-to-video",)),
        ("CogVideoXImageToVideoPipeline", ("image-to-video",)),
        ("Lumina2Pipeline", ("text-to-image",)),
    ],
)
def test_tasks_follow_from_the_signature(copied, name, tasks):
    edit(copied / "model_index.json", _class_name=name)
    card = registry.card(copied, "g")
    assert card.tasks == tasks
    assert card.strength_tasks == tuple(t for t in tasks if t == "image-to-image")


def test_no_code_of_the_checkpoint_is_run(copied):
    edit(copied / "model_index.json", _class_name=["pipeline", "Own"])
    with pytest.raises(CheckpointError, match="own is not run"):
        registry.card(copied, "g")
    edit(copied / "model_index.json", _class_name="QwenImagePipeline", transformer=["own_code", "Own"])
    with pytest.raises(CheckpointError, match=r"transformer is own_code\.Own, of neither"):
        registry.check(copied)


def test_pickled_weights_are_not_loaded(copied):
    [file] = (copied / "transformer").glob("*.safetensors")
    file.rename(file.with_suffix(".bin"))
    for attempt in (registry.check, guest_of):
        with pytest.raises(CheckpointError, match=r"transformer has no \*\.safetensors.*may run code"):
            attempt(copied)


def test_options_are_honoured_or_refused(folders, copied):
    folder = folders["qwen-image"]
    assert guest_of(folder, dtype="bfloat16").pipeline.transformer.dtype is torch.bfloat16
    (copied / "vae").rename(copied / "elsewhere")
    guest = guest_of(copied, components={"vae": str(copied / "elsewhere")})
    spec = spec_of(folder)
    assert torch.equal(run(guest, folder, spec), run(guest_of(folder), folder, spec))
    for options, message in (
        ({"offload": "idle_expert"}, "idle_expert is for two experts"),
        ({"offload": "group"}, "the device is cpu"),
        ({"device_map": "balanced"}, "the device is cpu"),
        ({"components": {"unet": "x"}}, r"components\.unet"),
        ({"components": {"scheduler": "x"}}, r"components\.scheduler: of a guest only text_encoder, transformer, vae"),
        ({"quantization": {"unet": {}}}, r"quantization\.unet"),
    ):
        with pytest.raises(CheckpointError, match=message):
            guest_of(folder, **options)


def test_a_guests_experts_are_not_told_apart(copied):
    edit(copied / "model_index.json", transformer_2=["diffusers", "QwenImageTransformer2DModel"])
    shutil.copytree(copied / "transformer", copied / "transformer_2")
    with pytest.raises(CheckpointError, match="is a guest"):
        guest_of(copied, offload="idle_expert")


def test_inputs_are_those_of_the_task(folders):
    ltx, qwen = folders["ltx-video"], folders["qwen-image"]
    image = picture(64, 32)
    decoder = registry.load(ltx, "decode", "g")
    assert torch.equal(
        decoder.encode_inputs(spec_of(ltx), Inputs({"first_frame": [image]}))["image"],
        torch.from_numpy(np.array(image)),
    )
    for inputs in (Inputs(), Inputs({"reference": [image]})):
        with pytest.raises(ValueError, match="image-to-video takes first_frame"):
            decoder.encode_inputs(spec_of(ltx), inputs)
    with pytest.raises(ValueError, match="text-to-image takes no input"):
        registry.load(qwen, "decode", "g").encode_inputs(spec_of(qwen), Inputs({"init": [image]}))


def test_frames_of_another_number_are_not_passed_off(folders, monkeypatch):
    folder = folders["ltx-video"]
    spec = replace(spec_of(folder), num_frames=10)  # which the card refuses: the pipeline makes 9
    with pytest.raises(RuntimeError, match=r"made frames of \[9, 32, 64, 3\]; \[10, 32, 64, 3\] were asked for"):
        run(guest_of(folder), folder, spec)


def test_there_is_no_stage_for_its_texts(folders):
    with pytest.raises(CheckpointError, match="encodes its texts itself"):
        registry.load(folders["sana"], "encode", "g")
