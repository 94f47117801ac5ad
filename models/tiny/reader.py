"""Read from a clip's pixels what it shows, and judge that against what was asked for.

Rules and templates only, nothing learned, so the figures do not depend on another model.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from raydiance.models.tiny import world

FIELDS = ("colour", "background", "motion", "size", "shape")
OTHER = "other"

_FOREGROUND_LEVELS = 45  # a pixel this far from the background, 0..255, belongs to the object
_BACKGROUND_LEVELS = 35  # the background's median may be this far from its true colour
_MIN_OBJECT_PIXELS = 20
_STILL_PX, _MOVING_PX = 3.0, 5.0  # what moves in this world moves 9 pixels or more in 9 frames
_SIZE_BOUNDARY_PX = 8.1
_RADIUS_FACTORS = np.array([0.86, 0.93, 1.0, 1.07, 1.15], np.float32)
_OFFSETS_PX = np.array([-0.7, 0.0, 0.7], np.float32)


class Reading(NamedTuple):
    """What a clip shows; `OTHER` where it shows nothing of this world."""

    colour: str
    shape: str
    size: str
    motion: str
    background: str
    iou: float
    """How well the object's outline fits the best template, 0..1; drawn clips reach 0.9 and more."""


def read(clip: world.Clip) -> Reading:
    """Read a clip, uint8 [T, SIZE_PX, SIZE_PX, 3]; one frame is a picture and reads as still."""
    pixels = clip.astype(np.float32)
    background = np.median(pixels.reshape(-1, 3), axis=0)
    background_word = _nearest(background, world.BACKGROUNDS, _BACKGROUND_LEVELS)
    distance = np.abs(pixels - background).max(-1)
    mask = distance > _FOREGROUND_LEVELS
    if mask.sum((1, 2)).min() < _MIN_OBJECT_PIXELS:  # an object must be there in every frame
        return Reading(OTHER, OTHER, OTHER, OTHER, background_word, 0.0)
    strong = pixels[mask][distance[mask] >= np.median(distance[mask])]
    colour = np.median(strong, axis=0)
    contrast = colour - background
    alpha = np.clip((pixels - background) @ contrast / max(float(contrast @ contrast), 1.0), 0, 1)
    alpha = np.where(mask | (alpha > 0.15), alpha, 0).astype(np.float32)
    area = alpha.sum((1, 2)) + 1e-6
    centre_x = (alpha * world.PIXEL_X).sum((1, 2)) / area
    centre_y = (alpha * world.PIXEL_Y).sum((1, 2)) / area
    shape, radius, iou = _fit(alpha, area, centre_x, centre_y)
    size = "small" if radius < _SIZE_BOUNDARY_PX else "large"
    colour_word = _nearest(colour, world.COLOURS, 255)
    return Reading(colour_word, shape, size, _motion(centre_x, centre_y), background_word, iou)


def judge(spec: world.Spec, reading: Reading, still_image: bool = False) -> dict[str, bool]:
    """Which fields are right, and `all` of them at once; a still image has no motion to get wrong."""
    right = {field: getattr(reading, field) == getattr(spec, field) for field in FIELDS}
    if still_image:
        right["motion"] = True
    return right | {"all": all(right.values())}


def _nearest(colour: world.Float, palette: dict[str, tuple[int, int, int]], limit: float) -> str:
    errors = {word: float(np.abs(colour - np.array(value)).mean()) for word, value in palette.items()}
    word = min(errors, key=lambda word: errors[word])
    return word if errors[word] <= limit else OTHER


def _motion(centre_x: world.Float, centre_y: world.Float) -> str:
    if np.ptp(centre_x) < _STILL_PX and np.ptp(centre_y) < _STILL_PX:
        return "still"
    dx, dy = float(centre_x[-1] - centre_x[0]), float(centre_y[-1] - centre_y[0])
    along, across = (dx, np.ptp(centre_y)) if abs(dx) > abs(dy) else (dy, np.ptp(centre_x))
    if abs(along) < _MOVING_PX or abs(along) < 2 * across:
        return OTHER
    if abs(dx) > abs(dy):
        return "right" if dx > 0 else "left"
    return "down" if dy > 0 else "up"


def _fit(
    alpha: world.Float, area: world.Float, centre_x: world.Float, centre_y: world.Float
) -> tuple[str, float, float]:
    """Best shape by soft intersection over union with templates, its radius and that score, over up to five frames."""
    frames = np.unique(np.linspace(0, len(alpha) - 1, 5).round().astype(int))
    best = ("", 0.0, -1.0)
    for shape in world.SHAPES:
        unit_area, unit_drop = _unit(shape)
        scores, radii = [], []
        for t in frames:
            radius = np.clip(np.sqrt(area[t] / unit_area) * _RADIUS_FACTORS, 2.0, 16.0)
            r, dx, dy = (grid.ravel() for grid in np.meshgrid(radius, _OFFSETS_PX, _OFFSETS_PX, indexing="ij"))
            template = world.coverage(shape, centre_x[t] + dx, centre_y[t] - unit_drop * r + dy, r)
            overlap = np.minimum(template, alpha[t]).sum((1, 2)) / (np.maximum(template, alpha[t]).sum((1, 2)) + 1e-6)
            scores.append(float(overlap.max()))
            radii.append(float(r[overlap.argmax()]))
        if np.mean(scores) > best[2]:
            best = (shape, float(np.median(radii)), float(np.mean(scores)))
    return best


def _unit(shape: str) -> tuple[float, float]:
    """Area of the shape at radius 1, and how far its centroid lies below its centre."""
    middle, radius = np.array([world.SIZE_PX / 2], np.float32), 10.0
    alpha = world.coverage(shape, middle, middle, np.array([radius], np.float32))[0]
    drop = float((alpha * world.PIXEL_Y).sum() / alpha.sum() - world.SIZE_PX / 2)
    return float(alpha.sum()) / radius**2, drop / radius
