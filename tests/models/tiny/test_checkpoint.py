"""The shipped checkpoint: its files, its pipelines, and whether it has learnt anything."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import WanImageToVideoPipeline, WanPipeline
from PIL import Image

from raydiance.models.tiny import CHECKPOINT, evaluate, export, reader, world
from raydiance.models.tiny.tokenizer import MAX_SEQUENCE_LENGTH

MAX_BYTES = 15_000_000
SUFFIXES = {".json", ".safetensors"}


def test_folder_is_small_and_holds_no_pickles() -> None:
    files = [path for path in CHECKPOINT.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == SUFFIXES
    assert sum(path.stat().st_size for path in files) <= MAX_BYTES


def test_folder_names_no_path_it_came_from() -> None:
    for path in CHECKPOINT.rglob("*.json"):
        assert "_name_or_path" not in path.read_text()


def test_engine_settings() -> None:
    settings = json.loads((CHECKPOINT / "raydiance.json").read_text())
    assert settings["max_sequence_length"] == MAX_SEQUENCE_LENGTH
    assert settings["defaults"].keys() == {
        "height",
        "width",
        "num_frames",
        "fps",
        "num_inference_steps",
        "guidance_scale",
    }


def test_parts_are_the_real_classes(pipe: WanPipeline) -> None:
    names = {name: type(part).__name__ for name, part in pipe.components.items() if part is not None}
    assert names == {
        "tokenizer": names["tokenizer"],
        "text_encoder": "UMT5EncoderModel",
        "vae": "AutoencoderKLWan",
        "scheduler": "UniPCMultistepScheduler",
        "transformer": "WanTransformer3DModel",
    }
    assert pipe.config.expand_timesteps
    assert pipe.scheduler.config.use_flow_sigmas
    assert pipe.scheduler.config.prediction_type == "flow_prediction"
    assert pipe.transformer.config.rope_max_seq_len >= 1024


def test_held_out_prompts_are_followed(pipe: WanPipeline) -> None:
    prompts = evaluate.draw_prompts(evaluate.splits()[2], 12, seed=2024)
    shares = evaluate.score(prompts, evaluate.generate(pipe, prompts))
    assert shares["colour"] >= 0.9
    assert shares["background"] >= 0.9
    assert shares["motion"] >= 0.9
    assert shares["shape"] >= 0.8
    assert shares["all"] >= 0.8
    assert shares["iou"] >= 0.85


def test_pictures_are_followed(pipe: WanPipeline) -> None:
    split = evaluate.Split("stills", world.held_out_specs(), world.IMAGE_TEMPLATES)
    prompts = evaluate.draw_prompts(split, 12, seed=7)
    shares = evaluate.score(prompts, evaluate.generate(pipe, prompts, num_frames=1), still_image=True)
    assert shares["colour"] >= 0.9
    assert shares["background"] >= 0.9
    assert shares["shape"] >= 0.8


def test_first_frame_is_kept() -> None:
    i2v = WanImageToVideoPipeline.from_pretrained(
        CHECKPOINT, image_encoder=None, image_processor=None, expand_timesteps=True, local_files_only=True
    )
    i2v.set_progress_bar_config(disable=True)
    spec = world.Spec("red", "square", "large", "right", "white")
    first = world.render(spec, np.random.default_rng(3))[0]
    frames = i2v(
        image=Image.fromarray(first),
        prompt=world.canonical(spec),
        height=world.SIZE_PX,
        width=world.SIZE_PX,
        num_frames=world.NUM_FRAMES,
        num_inference_steps=20,
        guidance_scale=export.GUIDANCE_SCALE,
        generator=torch.Generator().manual_seed(0),
        max_sequence_length=MAX_SEQUENCE_LENGTH,
        output_type="np",
    ).frames[0]
    clip = evaluate.to_uint8(frames)
    error = np.square(clip[0].astype(float) - first).mean()
    assert 10 * np.log10(255**2 / error) >= 25
    reading = reader.read(clip)
    assert (reading.colour, reading.background, reading.motion) == ("red", "white", "right")


def test_evaluation_writes_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    training = tmp_path / "training.json"
    training.write_text('{"seed": 0}')
    out = tmp_path / "figures.json"
    sheet = tmp_path / "sheet.png"
    evaluate.main(["--prompts", "3", "--json", str(out), "--sheet", str(sheet), "--training", str(training)])
    figures = json.loads(out.read_text())
    assert figures["training"] == {"seed": 0}
    assert set(figures["every held-out prompt"]) == {*evaluate.COLUMNS, "iou"}
    assert "| both held out |" in capsys.readouterr().out
    with Image.open(sheet) as image:
        assert image.width > image.height


@pytest.mark.parametrize("prompts", [0, 2])
def test_evaluation_refuses_too_few_prompts(prompts: int) -> None:
    with pytest.raises(SystemExit):
        evaluate.main(["--prompts", str(prompts)])


@pytest.mark.parametrize(("size", "num_frames"), [(64, 9), (96, 17), (256, 5)])
def test_larger_and_longer_clips_are_finite(pipe: WanPipeline, size: int, num_frames: int) -> None:
    frames = pipe(
        prompt="a red circle moves left",
        height=size,
        width=size,
        num_frames=num_frames,
        num_inference_steps=2,
        generator=torch.Generator().manual_seed(0),
        max_sequence_length=MAX_SEQUENCE_LENGTH,
        output_type="np",
    ).frames
    assert frames.shape == (1, num_frames, size, size, 3)
    assert np.isfinite(frames).all()
