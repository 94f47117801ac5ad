"""A tiny text-to-video model, trained from scratch and shipped with the package."""

from pathlib import Path

CHECKPOINT: Path = Path(__file__).resolve().parent / "checkpoint"
"""The trained model: a diffusers folder (`WanPipeline`) with `raydiance.json` beside `model_index.json`."""

__all__ = ["CHECKPOINT"]
