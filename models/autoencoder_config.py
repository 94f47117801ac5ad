"""What the configuration of an image VAE (`AutoencoderKL`) must say. No torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from raydiance.models.resolve import CheckpointError, read_json


def read_autoencoder(folder: Path) -> tuple[int, int]:
    """Channels of the latents, and pixels a latent along height and width; raises CheckpointError."""
    file, vae = folder / "vae/config.json", read_json(folder, "vae/config.json")
    _refuse(file, vae)
    return vae["latent_channels"], 2 ** (len(vae["block_out_channels"]) - 1)


def _refuse(file: Path, vae: dict[str, Any]) -> None:
    if vae.get("_class_name") != "AutoencoderKL":
        raise CheckpointError(f"{file} is of a {vae.get('_class_name')}; only AutoencoderKL is supported")
    blocks, channels = vae.get("block_out_channels"), vae.get("latent_channels")
    if not isinstance(blocks, list) or not blocks:
        raise CheckpointError(f"{file}: block_out_channels={blocks!r} must be a list, one number a level")
    if type(channels) is not int:
        raise CheckpointError(f"{file}: latent_channels={channels!r} must be a whole number")
    for name in ("scaling_factor", "shift_factor"):
        if type(vae.get(name)) not in (int, float):
            raise CheckpointError(f"{file}: {name}={vae.get(name)!r} must be a number")
