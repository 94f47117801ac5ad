"""Sines, and what is heard of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from raydiance.models.family import Audio


def tones(*hertz: float, seconds: float = 2.0, rate: int = 24_000, level: float = 0.5) -> Audio:
    """One sine a channel."""
    t = np.arange(round(seconds * rate)) / rate
    return Audio((level * np.sin(2 * np.pi * np.array(hertz)[:, None] * t)).astype(np.float32), rate)


def pitch(samples: NDArray[np.float32], rate: int) -> float:
    """Of the loudest tone, in hertz."""
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples)), 1 << 18))
    return float(np.argmax(spectrum) * rate / (1 << 18))


def loudness(samples: NDArray[np.float32]) -> float:
    return float(np.sqrt(np.square(samples).mean()))


def seconds(audio: Audio) -> float:
    return audio.samples.shape[1] / audio.sample_rate
