"""Write and read the checkpoint folder: diffusers' layout, safetensors, and `raydiance.json` for the engine."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import torch
from diffusers import AutoencoderKLWan, UniPCMultistepScheduler, WanPipeline, WanTransformer3DModel
from transformers import PreTrainedTokenizerFast, UMT5EncoderModel

from raydiance.models.tiny import tokenizer as tokenizers
from raydiance.models.tiny import world
from raydiance.models.tiny.tokenizer import MAX_SEQUENCE_LENGTH

FLOW_SHIFT = 2.0
FPS = 8
NUM_INFERENCE_STEPS = 20
GUIDANCE_SCALE = 2.0


def pipeline(
    tokenizer: PreTrainedTokenizerFast,
    text_encoder: UMT5EncoderModel,
    vae: AutoencoderKLWan,
    transformer: WanTransformer3DModel,
) -> WanPipeline:
    """The parts as one text-to-video pipeline.

    `expand_timesteps` gives each token its own timestep, as Wan 2.2 TI2V does: the same folder then also loads as a
    `WanImageToVideoPipeline` that keeps the first frame, and both expect the patch size of 2 that the model has.
    """
    scheduler = UniPCMultistepScheduler(
        num_train_timesteps=1000, prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=FLOW_SHIFT
    )
    pipe = WanPipeline(
        tokenizer=tokenizer,
        text_encoder=text_encoder,
        vae=vae,
        scheduler=scheduler,
        transformer=transformer,
        expand_timesteps=True,
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def defaults() -> dict[str, object]:
    """What the engine needs to know beyond diffusers' own files."""
    return {
        "max_sequence_length": MAX_SEQUENCE_LENGTH,
        "defaults": {
            "height": world.SIZE_PX,
            "width": world.SIZE_PX,
            "num_frames": world.NUM_FRAMES,
            "fps": FPS,
            "num_inference_steps": NUM_INFERENCE_STEPS,
            "guidance_scale": GUIDANCE_SCALE,
        },
    }


def save(pipe: WanPipeline, out: Path) -> None:
    """Write the folder beside `out`, then move each file into place, so that a reader never sees half a file."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as temporary:
        staging = Path(temporary)
        pipe.save_pretrained(staging, safe_serialization=True)
        tokenizers.save(pipe.tokenizer, staging / "tokenizer")
        index = json.loads((staging / "model_index.json").read_text())
        index["tokenizer"] = ["transformers", "PreTrainedTokenizerFast"]
        (staging / "model_index.json").write_text(json.dumps(index, indent=2) + "\n")
        (staging / "raydiance.json").write_text(json.dumps(defaults(), indent=2) + "\n")
        for config in staging.rglob("config.json"):
            _forget_origin(config)
        for path in sorted(staging.rglob("*")):
            target = out / path.relative_to(staging)
            if path.is_dir():
                target.mkdir(exist_ok=True)
            else:
                path.chmod(0o644)
                shutil.move(path, target)


def _forget_origin(path: Path) -> None:
    """Drop the path the weights were read from, which means nothing elsewhere."""
    config = json.loads(path.read_text())
    config.pop("_name_or_path", None)
    path.write_text(json.dumps(config, indent=2) + "\n")


def load(folder: Path) -> WanPipeline:
    """The text-to-video pipeline of a checkpoint folder, in float32 on the CPU, without a progress bar."""
    pipe = WanPipeline.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    pipe.set_progress_bar_config(disable=True)
    return pipe
