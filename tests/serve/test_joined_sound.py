"""The sound of a video, and that of what goes on from it, as one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.tones import loudness, pitch, seconds, tones

from raydiance.models.family import Audio
from raydiance.serve import media
from raydiance.serve.request import Clip
from raydiance.serve.sound import check_audio, joined_sound

FPS = 16
CLIP = Clip(width=32, height=32, num_frames=33, fps=FPS)


def encode(audio: Audio | None, format: Any = "mp4") -> bytes:
    return media.encode_video([np.zeros((33, 32, 32, 3), np.uint8)], FPS, format, audio=audio)


@pytest.mark.parametrize("format", ["mp4", "webm"])
@pytest.mark.parametrize("before", [(440.0,), (440.0, 550.0)], ids=["mono", "stereo"])
@pytest.mark.parametrize("after", [(880.0,), (880.0, 990.0)], ids=["mono", "stereo"])
def test_the_sound_of_what_is_joined(format: Any, before: tuple[float, ...], after: tuple[float, ...]) -> None:
    """33 frames and 17, one of them shared: 49."""
    previous = encode(tones(*before, seconds=33 / FPS), format)
    joined = joined_sound(previous, CLIP, tones(*after, seconds=17 / FPS, rate=16_000), FPS)
    check_audio(joined)
    assert joined.samples.shape == (len(after), 49 * 16_000 // FPS)
    ends = 32 * 16_000 // FPS
    for i, samples in enumerate(joined.samples):
        first, second = samples[:ends], samples[ends + 1000 :]
        if len(before) == len(after):
            assert pitch(first, 16_000) == pytest.approx(before[i], abs=2)
        assert loudness(first) > 0.2
        assert pitch(second, 16_000) == pytest.approx(after[i], abs=2)


def test_what_is_joined_to_silence() -> None:
    audio = tones(880, seconds=17 / FPS)
    joined = joined_sound(encode(None), CLIP, audio, FPS)
    shared, begins = 24_000 // FPS, 32 * 24_000 // FPS
    assert not joined.samples[:, :begins].any()
    assert np.array_equal(joined.samples[:, begins + shared :], audio.samples[:, shared:])
    fading = np.abs(joined.samples[0, begins : begins + shared])
    assert (fading <= np.abs(audio.samples[0, :shared])).all()
    assert fading.max() > 0


def test_one_fades_into_the_other() -> None:
    """Two loud tones, in step with each other: where both are heard, they are not louder than one."""
    loud = tones(440, seconds=33 / FPS, level=0.9)
    joined = joined_sound(encode(loud), CLIP, loud, FPS)
    check_audio(joined)
    begins = 32 * 24_000 // FPS
    shared = joined.samples[0, begins : begins + 24_000 // FPS]
    assert loudness(shared) == pytest.approx(loudness(loud.samples), rel=0.05)


def test_the_sound_follows_the_speed_at_which_a_video_is_played() -> None:
    """Of 16 frames a second, played at 24: two thirds as long, and higher by a fifth."""
    joined = joined_sound(encode(tones(440, seconds=33 / FPS)), CLIP, tones(880, seconds=17 / 24), 24)
    assert seconds(joined) == pytest.approx(49 / 24, abs=1e-3)
    assert pitch(joined.samples[0, : 32 * 1000], 24_000) == pytest.approx(660, abs=2)


def test_new_sound_that_is_shorter_than_a_frame() -> None:
    joined = joined_sound(encode(None), CLIP, Audio(np.ones((1, 5), np.float32), 24_000), FPS)
    assert joined.samples.shape[1] == 33 * 24_000 // FPS


def test_a_damaged_video_is_joined_to_nothing() -> None:
    data = encode(tones(440))
    with pytest.raises(ValueError, match="damaged"):
        joined_sound(data[:-2000], CLIP, tones(440), FPS)


def test_what_is_no_sound_is_joined_to_nothing() -> None:
    with pytest.raises(ValueError, match="nan"):
        joined_sound(encode(None), CLIP, Audio(np.full((1, 9), np.nan, np.float32), 24_000), FPS)
