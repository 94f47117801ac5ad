"""Measure a checkpoint on prompts that training never saw.

    python -m raydiance.models.tiny.evaluate [--prompts 240] [--json FILE] [--sheet FILE.png] [--checkpoint DIR]

Everything runs through diffusers' own pipelines; `reader` judges the decoded pixels.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from diffusers import WanImageToVideoPipeline, WanPipeline
from PIL import Image, ImageDraw
from rich.progress import track

from raydiance.models.tiny import CHECKPOINT, export, reader, world
from raydiance.models.tiny.tokenizer import MAX_SEQUENCE_LENGTH

BATCH = 20
COLUMNS = (*reader.FIELDS, "all")


class Prompt(NamedTuple):
    """A caption, what it asks for and the seed of its noise."""

    text: str
    spec: world.Spec
    seed: int


class Split(NamedTuple):
    """Which specs and phrasings a row of the table draws from."""

    name: str
    specs: list[world.Spec]
    templates: tuple[str, ...]


def splits() -> list[Split]:
    seen, held_out = world.training_specs(), world.held_out_specs()
    return [
        Split("held-out combinations", held_out, world.TRAINING_TEMPLATES),
        Split("held-out phrasings", seen, world.HELD_OUT_TEMPLATES),
        Split("both held out", held_out, world.HELD_OUT_TEMPLATES),
    ]


def draw_prompts(split: Split, count: int, seed: int) -> list[Prompt]:
    rng = np.random.default_rng(seed)
    specs = world.sample_specs(rng, count, split.specs)
    return [Prompt(world.caption(spec, rng, split.templates), spec, seed * 100_003 + i) for i, spec in enumerate(specs)]


def to_uint8(frames: world.Float) -> world.Clip:
    """Pixels in 0..1 to 0..255."""
    clip: world.Clip = (frames * 255 + 0.5).clip(0, 255).astype(np.uint8)
    return clip


def generate(
    pipe: WanPipeline,
    prompts: list[Prompt],
    guidance_scale: float = export.GUIDANCE_SCALE,
    num_inference_steps: int = export.NUM_INFERENCE_STEPS,
    num_frames: int = world.NUM_FRAMES,
) -> world.Clip:
    """Clips for one batch of prompts, uint8 [B, T, H, W, 3]."""
    output = pipe(
        prompt=[prompt.text for prompt in prompts],
        height=world.SIZE_PX,
        width=world.SIZE_PX,
        num_frames=num_frames,
        num_inference_steps=num_inference_steps,
        guidance_scale=guidance_scale,
        generator=[torch.Generator().manual_seed(prompt.seed) for prompt in prompts],
        max_sequence_length=MAX_SEQUENCE_LENGTH,
        output_type="np",
    )
    return to_uint8(output.frames)


def score(prompts: Iterable[Prompt], clips: Iterable[world.Clip], still_image: bool = False) -> dict[str, float]:
    """Share of clips with each column right, and the mean fit of their outlines (`iou`)."""
    readings = [(prompt, reader.read(clip)) for prompt, clip in zip(prompts, clips, strict=True)]
    verdicts = [reader.judge(prompt.spec, reading, still_image) for prompt, reading in readings]
    shares = {column: float(np.mean([verdict[column] for verdict in verdicts])) for column in COLUMNS}
    return shares | {"iou": float(np.mean([reading.iou for _, reading in readings]))}


def image_to_video(pipe: WanPipeline, count: int, seed: int) -> tuple[dict[str, float], float]:
    """Continue a given first frame: the shares of the clips that follow, and the PSNR in dB of the frame kept."""
    i2v = WanImageToVideoPipeline(**pipe.components, image_encoder=None, image_processor=None, expand_timesteps=True)
    i2v.set_progress_bar_config(disable=True)
    prompts = draw_prompts(Split("image to video", world.held_out_specs(), world.TRAINING_TEMPLATES), count, seed)
    clips, errors = [], []
    for prompt in track(prompts, "image to video"):
        first = world.render(prompt.spec, np.random.default_rng(prompt.seed))[0]
        frames = i2v(
            image=Image.fromarray(first),
            prompt=prompt.text,
            height=world.SIZE_PX,
            width=world.SIZE_PX,
            num_frames=world.NUM_FRAMES,
            num_inference_steps=export.NUM_INFERENCE_STEPS,
            guidance_scale=export.GUIDANCE_SCALE,
            generator=torch.Generator().manual_seed(prompt.seed),
            max_sequence_length=MAX_SEQUENCE_LENGTH,
            output_type="np",
        ).frames[0]
        clips.append(to_uint8(frames))
        errors.append(float(np.square(clips[-1][0].astype(float) - first).mean()))
    psnr = float(np.mean([10 * np.log10(255**2 / max(error, 1e-9)) for error in errors]))
    return score(prompts, clips), psnr


def evaluate(pipe: WanPipeline, count: int, seed: int) -> tuple[dict[str, object], list[tuple[Prompt, world.Clip]]]:
    """All figures over `count` prompts, a third to each split, and the clips they were read from."""
    figures: dict[str, object] = {
        "date": datetime.now(UTC).date().isoformat(),
        "versions": {name: version(name) for name in ("diffusers", "torch", "transformers")},
        "prompts": count,
        "prompt_seed": seed,
        "num_inference_steps": export.NUM_INFERENCE_STEPS,
        "guidance_scale": export.GUIDANCE_SCALE,
        "threads": torch.get_num_threads(),
    }
    shown: list[tuple[Prompt, world.Clip]] = []
    for offset, split in enumerate(splits()):
        prompts = draw_prompts(split, count // 3, seed + offset)
        starts = range(0, len(prompts), BATCH)
        clips = [generate(pipe, prompts[start : start + BATCH]) for start in track(starts, split.name)]
        shown += zip(prompts, np.concatenate(clips), strict=True)
        figures[split.name] = score(prompts, np.concatenate(clips))
    figures["every held-out prompt"] = score([prompt for prompt, _ in shown], [clip for _, clip in shown])
    stills = draw_prompts(
        Split("text to image", world.held_out_specs(), world.IMAGE_TEMPLATES), max(1, count // 4), seed + 5
    )
    images = [generate(pipe, stills[i : i + BATCH], num_frames=1) for i in range(0, len(stills), BATCH)]
    figures["text to image"] = score(stills, np.concatenate(images), still_image=True)
    figures["image to video"], figures["first_frame_psnr_db"] = image_to_video(pipe, max(1, count // 10), seed + 7)
    figures["seconds_per_clip"] = min(_seconds(pipe, shown[0][0]) for _ in range(3))
    return figures, shown


def _seconds(pipe: WanPipeline, prompt: Prompt) -> float:
    start = time.perf_counter()
    generate(pipe, [prompt])
    return time.perf_counter() - start


def table(figures: dict[str, object]) -> str:
    """The figures as a markdown table, one row a split."""
    lines = ["| prompts | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    for name, row in figures.items():
        if isinstance(row, dict) and "all" in row:
            cells = ["" if (name, c) == ("text to image", "motion") else f"{row[c]:.1%}" for c in COLUMNS]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def contact_sheet(shown: list[tuple[Prompt, world.Clip]], path: Path, scale: int = 2, columns: int = 2) -> None:
    """A picture with a row of frames for each clip, its caption above it."""
    num_frames, cell, label = shown[0][1].shape[0], world.SIZE_PX * scale + 2, 14
    rows = -(-len(shown) // columns)
    sheet = Image.new("RGB", (columns * (num_frames * cell + 10), rows * (cell + label)), (60, 60, 60))
    draw = ImageDraw.Draw(sheet)
    for i, (prompt, clip) in enumerate(shown):
        x, y = (i % columns) * (num_frames * cell + 10), (i // columns) * (cell + label)
        draw.text((x + 2, y + 1), prompt.text, fill=(255, 255, 255))
        for t, frame in enumerate(clip):
            tile = Image.fromarray(frame).resize((world.SIZE_PX * scale,) * 2, Image.Resampling.NEAREST)
            sheet.paste(tile, (x + t * cell, y + label))
    sheet.save(path)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, default=CHECKPOINT, help="diffusers folder, default the shipped one")
    parser.add_argument("--prompts", type=int, default=240, help="prompts in all, a third to each split")
    parser.add_argument("--seed", type=int, default=1000, help="of the prompts and of their noise")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument(
        "--training", type=Path, help="what the training left in training.json, to put in --json's file"
    )
    parser.add_argument("--sheet", type=Path, help="write a contact sheet of 40 clips here (PNG)")
    args = parser.parse_args(argv)
    if args.prompts < 3:
        parser.error(f"--prompts {args.prompts}: at least 3, one for each split")
    training = {"training": json.loads(args.training.read_text())} if args.training else {}
    figures, shown = evaluate(export.load(args.checkpoint), args.prompts, args.seed)
    print(table(figures))
    print(f"\nfirst frame kept: {figures['first_frame_psnr_db']:.1f} dB, {figures['seconds_per_clip']:.2f} s a clip")
    if args.json:
        args.json.write_text(json.dumps(training | figures, indent=2) + "\n")
    if args.sheet:
        contact_sheet(shown[:: max(1, len(shown) // 40)][:40], args.sheet)


if __name__ == "__main__":
    main()
