"""What came with a job, as a family takes it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image

from raydiance.models.inputs import Accepts
from raydiance.models.spec import Spec
from raydiance.serve import imaging, media
from raydiance.serve.stages.given import blank_inputs, joined, read_inputs
from raydiance.serve.stages.messages import Given

Frames = np.ndarray[Any, np.dtype[np.uint8]]


def spec(num_frames: int = 5) -> Spec:
    return Spec(
        model="m",
        task="video-to-video",
        prompt="a cat",
        height=32,
        width=48,
        num_frames=num_frames,
        num_inference_steps=2,
        guidance_scale=1.0,
        seed=0,
    )


def greys(*levels: int, height: int = 32, width: int = 48) -> Frames:
    column = np.array(levels, np.uint8)[:, None, None, None]
    return np.broadcast_to(column, (len(levels), height, width, 3)).copy()


def mp4(*levels: int, **size: int) -> bytes:
    return media.encode_video([greys(*levels, **size)], 8)


def png(size: tuple[int, int], colour: str | int = "red", mode: str = "RGB") -> bytes:
    return imaging.encode_picture(Image.new(mode, size, colour))


def levels_of(frames: Frames) -> list[float]:
    return [float(f) for f in frames.reshape(len(frames), -1).mean(axis=1)]


def test_a_video_is_cut_or_held_to_the_specs_length() -> None:
    given = Given("video", "k")
    cut = read_inputs([(given, mp4(10, 60, 110, 160, 210, 250))], spec(3)).video
    held = read_inputs([(given, mp4(10, 60))], spec(4)).video
    assert cut is not None
    assert held is not None
    assert levels_of(cut) == pytest.approx([10, 60, 110], abs=4)
    assert levels_of(held) == pytest.approx([10, 60, 60, 60], abs=4)


def test_a_video_and_its_mask_take_the_specs_size() -> None:
    files = [
        (Given("video", "k"), mp4(50, 50, height=128, width=96)),
        (Given("mask", "k"), png((96, 128), 200, "L")),
    ]
    inputs = read_inputs(files, spec(2))
    assert inputs.video is not None
    assert inputs.mask is not None
    assert inputs.video.shape == (2, 32, 48, 3)
    assert inputs.mask.shape == (1, 32, 48)
    assert set(np.unique(inputs.mask)) == {255}
    assert inputs.roles == {"video", "mask"}


def test_a_mask_of_frames_is_black_or_white() -> None:
    mask = read_inputs([(Given("mask", "k"), mp4(0, 100, 160, 255))], spec(5)).mask
    assert mask is not None
    assert [int(m.max()) for m in mask] == [int(m.min()) for m in mask] == [0, 0, 255, 255, 255]


def test_a_picture_that_is_a_video_is_its_last_frame() -> None:
    image = read_inputs([(Given("first_frame", "k"), mp4(10, 60, 200, height=64, width=96))], spec()).image(
        "first_frame"
    )
    assert image.size == (48, 32)
    assert np.asarray(image).mean() == pytest.approx(200, abs=4)


def test_references_stay_as_they_came() -> None:
    files = [(Given("reference", "k"), png(size)) for size in ((20, 30), (7, 5))]
    files.append((Given("first_frame", "k"), png((100, 20))))
    inputs = read_inputs(files, spec())
    assert [i.size for i in inputs.images["reference"]] == [(20, 30), (7, 5)]
    assert inputs.image("first_frame").size == (48, 32)
    with pytest.raises(ValueError, match="2 are given"):
        inputs.image("reference")


def test_nothing_in_place_of_what_is_needed() -> None:
    inputs = blank_inputs(spec(), [Accepts("video"), Accepts("mask"), Accepts("reference", required=False)])
    assert inputs.roles == {"video", "mask"}


@pytest.mark.parametrize("cuts", [[3], [1, 2], [1, 1, 1]])
def test_the_shared_frame_is_there_once(cuts: list[int]) -> None:
    new = greys(90, 120, 150)
    chunks = np.split(new, np.cumsum(cuts)[:-1])
    frames = np.concatenate(list(joined(mp4(30, 60, 90), chunks, spec())))
    assert levels_of(frames) == pytest.approx([30, 60, 90, 120, 150], abs=4)
    assert np.array_equal(frames[3:], new[1:])


def test_the_video_before_takes_the_size_of_what_is_added() -> None:
    frames = list(joined(mp4(30, 60, height=64, width=64), [greys(60, 90)], spec()))
    assert {f.shape[1:] for f in frames} == {(32, 48, 3)}


def test_damaged_files_raise() -> None:
    with pytest.raises(ValueError, match="damaged"):
        read_inputs([(Given("video", "k"), mp4(10, 20)[:200])], spec())
