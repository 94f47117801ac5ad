"""Where the ranks of a replica are put: one placement group a replica, whose own process is in the first bundle."""

from __future__ import annotations

from typing import Any

from raydiance.serve.config import DenoiserConfig, TextEncoderConfig, VAEDecoderConfig
from raydiance.serve.parallel_config import ParallelConfig


def gpus_per_rank(config: DenoiserConfig, parallel: ParallelConfig) -> float:
    """What Ray sets aside for each: a whole GPU, unless it is said otherwise."""
    return config.num_gpus or (0.0 if parallel.device == "cpu" else 1.0)


def placement(config: DenoiserConfig, parallel: ParallelConfig) -> dict[str, Any]:
    """Options of the deployment: for a replica of one rank what its actor takes, else a bundle a rank."""
    if parallel.gpus == 1:
        return {"ray_actor_options": {"num_cpus": config.num_cpus, "num_gpus": config.num_gpus}}
    rank = {"CPU": parallel.num_cpus, "GPU": gpus_per_rank(config, parallel)}
    rank = {name: amount for name, amount in rank.items() if amount}
    return {
        "ray_actor_options": {"num_cpus": config.num_cpus, "num_gpus": 0},
        "placement_group_bundles": [{"CPU": config.num_cpus}, *[rank] * parallel.gpus],
        "placement_group_strategy": "STRICT_PACK" if parallel.nodes == 1 else "PACK",
    }


def decoder_placement(config: VAEDecoderConfig) -> dict[str, Any]:
    """As `placement`, but that the replica's own process is a rank too."""
    options: dict[str, Any] = {"ray_actor_options": {"num_cpus": config.num_cpus, "num_gpus": config.num_gpus}}
    if config.gpus == 1:
        return options
    rank = {name: amount for name, amount in (("CPU", config.num_cpus), ("GPU", config.num_gpus)) if amount}
    return options | {"placement_group_bundles": [rank] * config.gpus, "placement_group_strategy": "STRICT_PACK"}


def simulated_placement(config: TextEncoderConfig | DenoiserConfig | VAEDecoderConfig, ranks: int) -> dict[str, Any]:
    """One process that stands for all ranks of a replica."""
    return {"ray_actor_options": {"num_cpus": config.num_cpus, "num_gpus": config.num_gpus * ranks}}
