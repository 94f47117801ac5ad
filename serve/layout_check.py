"""Whether the layouts that are configured are possible for a model. Needs neither torch nor Ray."""

from __future__ import annotations

from dataclasses import replace

from raydiance.models.card import ModelCard
from raydiance.models.options import Offload
from raydiance.parallel.mesh import powers_of_two
from raydiance.serve.engine.ways import Limits, Shape
from raydiance.serve.errors import ConfigError
from raydiance.serve.parallel_config import ParallelConfig


def limits_of(parallel: ParallelConfig, card: ModelCard, offload: Offload = "none") -> Limits:
    """Args:
        offload: of the model's weights.

    Raises ConfigError as `check_layout` does."""
    check_layout(parallel, card)
    return replace(_limits(parallel, card), pairs=offload != "idle_expert", turns=offload != "group")


def check_layout(parallel: ParallelConfig, card: ModelCard) -> None:
    """Whether all ranks of a replica can work on one request of this model's default size.

    Raises ConfigError, with the numbers, where no layout takes all of them.
    """
    gpus = parallel.gpus
    if gpus == 1:
        return
    if card.is_guest:
        raise ConfigError(f"parallel.gpus={gpus}: model '{card.id}' is run by diffusers' own pipeline, on one GPU")
    if parallel.ring != "auto" and parallel.ring > gpus:
        raise ConfigError(f"parallel.ring={parallel.ring} is more than parallel.gpus={gpus}")
    if parallel.max_ulysses is not None and parallel.max_ulysses > card.num_heads:
        raise ConfigError(
            f"parallel.max_ulysses={parallel.max_ulysses} is more than the {card.num_heads} heads of model '{card.id}'"
        )
    branches = 2 if is_guided(card) else 1
    if parallel.cfg == 2 and branches == 1:
        raise ConfigError(f"parallel.cfg=2: requests of model '{card.id}' have no second branch by default")
    limits, d = _limits(parallel, card), card.defaults
    if not limits.layouts(gpus, branches):
        degrees = (
            f"cfg {parallel.cfg if branches == 2 else 1}, ring {parallel.ring}, "
            f"ulysses up to {min(limits.max_ulysses, limits.ranks_per_node)}"
        )
        about = f"{card.num_heads} heads, {gpus // parallel.nodes} ranks a node"
        raise ConfigError(
            f"parallel.gpus={gpus}: no layout of model '{card.id}' takes {gpus} ranks: {degrees} ({about})"
        )
    shape = Shape(card.num_tokens(d.height, d.width, d.num_frames), num_branches=branches)
    if not limits.ways(gpus, shape):
        size = f"{d.width}x{d.height} with {d.num_frames} frames"
        raise ConfigError(f"parallel.gpus={gpus}: {size} is {shape.num_tokens} tokens, too few for so many ranks")


def is_guided(card: ModelCard) -> bool:
    """Whether a request that says nothing has a second, unconditional branch."""
    return card.has_negative and any(_default(card, name) > 1 for name in card.cfg_parameters)


def _limits(parallel: ParallelConfig, card: ModelCard) -> Limits:
    return Limits(
        max_ulysses=parallel.max_ulysses or powers_of_two(card.num_heads)[-1],
        ring=None if parallel.ring == "auto" else parallel.ring,
        cfg=None if parallel.cfg == "auto" else parallel.cfg,
        schedule=None if parallel.schedule == "auto" else parallel.schedule,
        ranks_per_node=parallel.gpus // parallel.nodes,
    )


def _default(card: ModelCard, name: str) -> float:
    found = None if name == "guidance_scale" else next(p.default for p in card.parameters if p.name == name)
    return card.defaults.guidance_scale if found is None else found
