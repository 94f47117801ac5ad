"""The world the tiny model knows: one coloured shape in motion on a plain background.

A `Spec` names a clip, `render` draws it, `caption` describes it. Two things are kept out of training, so that
they can be tested: some (colour, shape, motion) triples (`is_held_out`) and some phrasings (`HELD_OUT_TEMPLATES`).
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float32]
Clip = npt.NDArray[np.uint8]

SIZE_PX = 32
NUM_FRAMES = 9

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (225, 45, 45),
    "green": (45, 185, 75),
    "blue": (55, 95, 240),
    "yellow": (240, 215, 50),
    "purple": (170, 60, 205),
}
SHAPES = ("circle", "square", "triangle")
SIZES = ("small", "large")
MOTIONS = ("still", "left", "right", "up", "down")
BACKGROUNDS: dict[str, tuple[int, int, int]] = {
    "black": (16, 16, 16),
    "gray": (122, 122, 122),
    "white": (236, 236, 236),
}
RADII: dict[str, tuple[float, float]] = {"small": (6.2, 6.6), "large": (9.6, 10.0)}
TRAVEL_PX = (9.0, 12.0)
MARGIN_PX = 0.8


class Spec(NamedTuple):
    """What a clip shows, in words."""

    colour: str
    shape: str
    size: str
    motion: str
    background: str


def all_specs() -> list[Spec]:
    """Every combination of the world, in a fixed order."""
    return [Spec(*words) for words in itertools.product(COLOURS, SHAPES, SIZES, MOTIONS, BACKGROUNDS)]


def is_held_out(spec: Spec) -> bool:
    """True for the triples training never sees: each (colour, shape) pair misses exactly one of the five motions."""
    colour, shape, motion = list(COLOURS).index(spec.colour), SHAPES.index(spec.shape), MOTIONS.index(spec.motion)
    return (colour + 2 * shape + motion) % len(MOTIONS) == 0


def training_specs() -> list[Spec]:
    return [spec for spec in all_specs() if not is_held_out(spec)]


def held_out_specs() -> list[Spec]:
    return [spec for spec in all_specs() if is_held_out(spec)]


def sample_specs(rng: np.random.Generator, count: int, pool: list[Spec]) -> list[Spec]:
    """`count` specs drawn from `pool` without repeats until the pool is exhausted, then again."""
    order = np.concatenate([rng.permutation(len(pool)) for _ in range(-(-count // len(pool)))])[:count]
    return [pool[i] for i in order]


# Drawing ------------------------------------------------------------------------------------------------------------

PIXEL_Y, PIXEL_X = (grid + 0.5 for grid in np.mgrid[0:SIZE_PX, 0:SIZE_PX].astype(np.float32))


def coverage(shape: str, centre_x: Float, centre_y: Float, radius: Float) -> Float:
    """How much of each pixel the shape covers, 0..1, anti-aliased.

    Args:
        shape: one of `SHAPES`.
        centre_x, centre_y, radius: in pixels, each [N].

    Returns:
        [N, SIZE_PX, SIZE_PX]
    """
    r = radius.reshape(-1, 1, 1)
    x, y = PIXEL_X[None] - centre_x.reshape(-1, 1, 1), PIXEL_Y[None] - centre_y.reshape(-1, 1, 1)
    if shape == "circle":
        distance = np.hypot(x, y) - r
    elif shape == "square":
        distance = np.maximum(np.abs(x), np.abs(y)) - 0.86 * r
    elif shape == "triangle":  # apex up at -r, base at 0.8 r
        distance = np.maximum(y - 0.8 * r, (1.8 * np.abs(x) - (y + r)) / np.hypot(1.8, 1.0))
    else:
        raise ValueError(f"shape {shape!r} is not one of {SHAPES}")
    covered: Float = np.clip(0.5 - distance, 0.0, 1.0).astype(np.float32)
    return covered


def track(spec: Spec, rng: np.random.Generator, num_frames: int = NUM_FRAMES) -> tuple[Float, Float, Float]:
    """Centre x, centre y and radius in pixels, each [num_frames]; the object stays inside the picture.

    Clips shorter than `NUM_FRAMES` are a prefix of the motion, longer ones spread it over all frames.
    """
    radius = rng.uniform(*RADII[spec.size])
    low, high = radius + MARGIN_PX, SIZE_PX - radius - MARGIN_PX
    steps = np.arange(num_frames, dtype=np.float32) / (max(num_frames, NUM_FRAMES) - 1)
    x, y = (np.full(num_frames, rng.uniform(low, high), np.float32) for _ in range(2))
    if spec.motion != "still":
        travel = min(rng.uniform(*TRAVEL_PX), high - low)
        start = rng.uniform(low, high - travel)
        moving = start + travel * (1 - steps if spec.motion in ("left", "up") else steps)
        if spec.motion in ("left", "right"):
            x = moving.astype(np.float32)
        else:
            y = moving.astype(np.float32)
    return x, y, np.full(num_frames, radius, np.float32)


def render(spec: Spec, rng: np.random.Generator, num_frames: int = NUM_FRAMES) -> Clip:
    """Draw a clip, uint8 [num_frames, SIZE_PX, SIZE_PX, 3]."""
    alpha = coverage(spec.shape, *track(spec, rng, num_frames))[..., None]
    colour, background = (np.array(c, np.float32) for c in (COLOURS[spec.colour], BACKGROUNDS[spec.background]))
    return (background * (1 - alpha) + colour * alpha + 0.5).astype(np.uint8)


# Captions -----------------------------------------------------------------------------------------------------------

_FINITE: dict[str, tuple[str, ...]] = {
    "still": ("stays still", "does not move"),
    "left": ("moves left", "slides left", "goes left"),
    "right": ("moves right", "slides right", "goes right"),
    "up": ("moves up", "slides up", "goes up", "rises up"),
    "down": ("moves down", "slides down", "goes down", "falls down"),
}
_GERUND: dict[str, tuple[str, ...]] = {
    "still": ("staying still", "not moving"),
    "left": ("moving left", "sliding left", "going left"),
    "right": ("moving right", "sliding right", "going right"),
    "up": ("moving up", "sliding up", "going up", "rising up"),
    "down": ("moving down", "sliding down", "going down", "falling down"),
}
_SIZE_WORDS: dict[str, tuple[str, ...]] = {
    "small": ("small", "small", "little", "tiny"),
    "large": ("large", "large", "big", "huge"),
}
_BACKGROUND_WORDS: dict[str, tuple[str, ...]] = {
    "black": ("black",),
    "gray": ("gray", "gray", "grey"),
    "white": ("white",),
}

CANONICAL_TEMPLATE = "a {size} {colour} {shape} {finite} on a {background} background"
TRAINING_TEMPLATES: tuple[str, ...] = (
    CANONICAL_TEMPLATE,
    "the {size} {colour} {shape} {finite} over a {background} background",
    "{size} {colour} {shape} {gerund}, {background} background",
    "{background} background, a {size} {colour} {shape} {gerund}",
    "on a {background} background a {size} {colour} {shape} {finite}",
    "a clip of a {size} {colour} {shape} {gerund} on {background}",
    "a video of a {size} {colour} {shape} {gerund} on a {background} background",
    "a {colour} {shape} {finite}, it is {size}, the background is {background}",
    "{gerund}: a {size} {colour} {shape} on a {background} background",
    "a {shape} that is {size} and {colour} {finite} on {background}",
    "{colour} {shape}, {size}, {gerund}, {background}",
)
HELD_OUT_TEMPLATES: tuple[str, ...] = (
    "over a {background} background the {size} {colour} {shape} {finite}",
    "a video of the {colour} {shape} {gerund}, {size}, on a {background} background",
    "the background is {background} and a {size} {shape} that is {colour} {finite}",
    "{size} and {colour}: the {shape} {gerund} over {background}",
    "{gerund} on {background}, a {colour} and {size} {shape}",
)
IMAGE_TEMPLATES: tuple[str, ...] = (
    "a {size} {colour} {shape} on a {background} background",
    "a picture of a {size} {colour} {shape} on a {background} background",
    "an image of the {size} {colour} {shape} over {background}",
    "{size} {colour} {shape}, {background} background",
    "{background} background, a {size} {colour} {shape}",
    "a {shape} that is {size} and {colour} on {background}",
)


def canonical(spec: Spec) -> str:
    """The plainest caption of a clip."""
    return CANONICAL_TEMPLATE.format(finite=_FINITE[spec.motion][0], **spec._asdict())


def caption(spec: Spec, rng: np.random.Generator, templates: tuple[str, ...] = TRAINING_TEMPLATES) -> str:
    """One of many ways to say what the clip shows, in one of `templates`."""

    def pick(words: tuple[str, ...]) -> str:
        return words[int(rng.integers(len(words)))]

    return pick(templates).format(
        colour=spec.colour,
        shape=spec.shape,
        size=pick(_SIZE_WORDS[spec.size]),
        background=pick(_BACKGROUND_WORDS[spec.background]),
        finite=pick(_FINITE[spec.motion]),
        gerund=pick(_GERUND[spec.motion]),
    )


def vocabulary() -> list[str]:
    """Every word and mark a caption can hold, sorted."""
    phrases = [*TRAINING_TEMPLATES, *HELD_OUT_TEMPLATES, *IMAGE_TEMPLATES, *COLOURS, *SHAPES]
    for words in (_FINITE, _GERUND, _SIZE_WORDS, _BACKGROUND_WORDS):
        phrases += itertools.chain.from_iterable(words.values())
    text = " ".join(phrases)
    for slot in ("size", "colour", "shape", "background", "finite", "gerund"):
        text = text.replace("{" + slot + "}", " ")
    return sorted(set(text.replace(",", " , ").replace(":", " : ").split()))
