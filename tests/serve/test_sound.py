"""Sound beside frames, in and out: its codec, its length, its pitch, its place in time."""

from __future__ import annotations

import io
from collections import Counter
from fractions import Fraction
from itertools import pairwise
from typing import Any, cast

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.tones import loudness, pitch, seconds, tones

from raydiance.models.family import Audio
from raydiance.serve import imaging, media, sound

FORMATS = ["mp4", "webm"]
FRAME = {"mp4": 1024, "webm": 960}  # samples of a packet
FPS = 16
NO_FRAMES = b"\xff\x00"  # a packet of Opus that counts no frames: RFC 6716, 3.2.5


def frames(num_frames: int) -> NDArray[np.uint8]:
    """Black; white from the middle on."""
    column = np.where(np.arange(num_frames) < num_frames // 2, 0, 255).astype(np.uint8)
    return np.broadcast_to(column[:, None, None, None], (num_frames, 32, 32, 3))


def encode(audio: Audio | None, format: Any = "mp4", num_frames: int = 33, fps: float = FPS) -> bytes:
    return media.encode_video([frames(num_frames)], fps, format, threads=1, audio=audio)


def decode(data: bytes, **limits: Any) -> Audio:
    audio = media.decode_sound(data, **limits)
    assert audio is not None
    sound.check_audio(audio)
    return audio


@pytest.mark.parametrize(
    ("format", "codec", "rate", "written"),
    [
        ("mp4", "aac", 24_000, 24_000),
        ("mp4", "aac", 48_000, 48_000),
        ("mp4", "aac", 8_000, 8_000),
        ("mp4", "aac", 37_000, 48_000),
        ("webm", "opus", 24_000, 48_000),
        ("webm", "opus", 44_100, 48_000),
    ],
)
@pytest.mark.parametrize("hertz", [(440.0,), (440.0, 1250.0)], ids=["mono", "stereo"])
def test_tones_come_back(format: Any, codec: str, rate: int, written: int, hertz: tuple[float, ...]) -> None:
    data = encode(tones(*hertz, rate=rate, seconds=33 / FPS), format)
    with av.open(io.BytesIO(data), "r") as file:
        [stream] = file.streams.audio
        context = stream.codec_context
        assert (context.name, context.sample_rate, context.layout.nb_channels) == (codec, written, len(hertz))
    audio = decode(data)
    assert (len(audio.samples), audio.sample_rate) == (len(hertz), written)
    for samples, tone in zip(audio.samples, hertz, strict=True):
        assert pitch(samples, written) == pytest.approx(tone, abs=1)
        assert loudness(samples[: 2 * written]) == pytest.approx(0.5 / np.sqrt(2), rel=0.05)


@pytest.mark.parametrize("format", FORMATS)
def test_the_picture_is_the_same_with_sound_and_without(format: Any) -> None:
    silent, heard = encode(None, format), encode(tones(440), format)
    assert media.decode_sound(silent) is None
    assert np.array_equal(media.decode_video(silent)[0], media.decode_video(heard)[0])
    assert media.decode_video(heard)[1] == FPS


@pytest.mark.parametrize("format", FORMATS)
@settings(max_examples=40, deadline=None)
@given(
    num_samples=st.integers(1, 60_000),
    num_frames=st.integers(1, 40),
    fps=st.sampled_from([1, 8, 24, 25, 29.97, 60]),
    rate=st.sampled_from([8_000, 16_000, 22_050, 24_000, 44_100, 48_000, 12_345]),
    channels=st.integers(1, 2),
)
def test_the_track_is_as_long_as_the_video(
    format: Any, num_samples: int, num_frames: int, fps: float, rate: int, channels: int
) -> None:
    data = encode(Audio(np.full((channels, num_samples), 0.25, np.float32), rate), format, num_frames, fps)
    audio = decode(data)
    assert abs(audio.samples.shape[1] - num_frames / fps * audio.sample_rate) <= FRAME[format]
    assert len(audio.samples) == channels
    assert len(media.decode_video(data)[0]) == num_frames
    with av.open(io.BytesIO(data), "r") as file:
        longest = max(1 / fps, FRAME[format] / audio.sample_rate)
        assert file.duration == pytest.approx(1e6 * num_frames / fps, abs=1e6 * longest)


@pytest.mark.parametrize("format", FORMATS)
def test_longer_sound_is_cut_and_shorter_has_silence_after_it(format: Any) -> None:
    long, short = (decode(encode(tones(440, seconds=s), format, 32)) for s in (5, 0.5))
    assert seconds(long) == pytest.approx(2, abs=0.05)
    assert seconds(short) == pytest.approx(2, abs=0.05)
    half = short.sample_rate // 2
    assert loudness(long.samples[0, 3 * half : 4 * half]) > 0.3
    assert loudness(short.samples[0, :half]) > 0.3
    assert loudness(short.samples[0, half + 2048 :]) < 1e-3


@pytest.mark.parametrize("format", FORMATS)
def test_what_a_codec_makes_louder_is_cut(format: Any) -> None:
    square = Audio(np.sign(tones(440).samples), 24_000)
    audio = decode(encode(square, format))
    assert np.abs(audio.samples).max() == 1


@pytest.mark.parametrize("format", FORMATS)
def test_sound_and_picture_change_at_once(format: Any) -> None:
    """A tone begins where the picture turns white, after two seconds."""
    silence, tone = np.zeros((1, 48_000), np.float32), tones(440, seconds=2).samples
    data = encode(Audio(np.concatenate([silence, tone], axis=1), 24_000), format, 64)
    with av.open(io.BytesIO(data), "r") as file:
        white_at = next(f.time for f in file.decode(video=0) if f.to_ndarray(format="gray").mean() > 128)
    with av.open(io.BytesIO(data), "r") as file:
        heard = [(f.time or 0.0, f.sample_rate, f.to_ndarray()[0]) for f in file.decode(audio=0)]
    heard_at = next(t + np.argmax(np.abs(s) > 0.25) / rate for t, rate, s in heard if np.abs(s).max() > 0.25)
    assert white_at == 2
    assert abs(heard_at - white_at) < 0.005
    assert abs(heard[0][0]) < 0.05, "both begin at once"


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("fps", [1, 24])
def test_packets_lie_in_order_of_time(format: Any, fps: int) -> None:
    """A player that reads the file from its start never waits for one of the two, whatever the encoder holds back."""
    data = encode(tones(440, seconds=120 / fps), format, 120, fps)
    with av.open(io.BytesIO(data), "r") as file:
        packets = [(p.pos, float(p.dts * p.time_base), p.stream.type) for p in file.demux() if p.dts is not None]
    packets.sort()
    times = [at for _, at, _ in packets]
    assert Counter(kind for _, _, kind in packets)["video"] == 120
    assert all(later > earlier - 1.5 / fps - 0.1 for earlier, later in pairwise(times))
    assert format != "mp4" or data.index(b"moov") < data.index(b"mdat")


@pytest.mark.parametrize("format", FORMATS)
def test_equal_sound_gives_equal_bytes(format: Any) -> None:
    audio = tones(440, 660, rate=22_050)
    whole = encode(audio, format)
    clip = frames(33)
    again = [media.encode_video([clip[:5], clip[5:]], FPS, format, threads=1, audio=audio) for _ in range(4)]
    assert all(data == whole for data in again)
    assert encode(tones(440, 661, rate=22_050), format) != whole
    for name in (b"Lavc6", b"libopus"):
        assert whole.count(name) == encode(None, format).count(name), "the codec's version is not in the file"


WRONG: dict[str, tuple[Any, int, str]] = {
    "no samples": (np.zeros((2, 0), np.float32), 8000, r"\(2, 0\)"),
    "no channels": (np.zeros((0, 9), np.float32), 8000, r"\(0, 9\)"),
    "three channels": (np.zeros((3, 9), np.float32), 8000, "1 or 2 channels"),
    "samples first": (np.zeros((9, 2), np.float32), 8000, "1 or 2 channels"),
    "one axis": (np.zeros(9, np.float32), 8000, r"\(9,\)"),
    "float64": (np.zeros((1, 9)), 8000, "float64"),
    "int16": (np.zeros((1, 9), np.int16), 8000, "int16"),
    "nan": (np.full((1, 9), np.nan, np.float32), 8000, "nan"),
    "infinite": (np.full((1, 9), -np.inf, np.float32), 8000, "-inf"),
    "too loud": (np.full((1, 9), 1.5, np.float32), 8000, "1.5"),
    "no rate": (np.zeros((1, 9), np.float32), 0, "sample_rate is 0"),
}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_sound_is_refused(name: str, format: Any) -> None:
    samples, rate, word = WRONG[name]
    with pytest.raises(ValueError, match=word):
        encode(Audio(samples, rate), format)


@pytest.mark.parametrize("data", [b"", b"no video", imaging.encode_image(frames(1)[0])], ids=["empty", "text", "png"])
def test_what_is_no_video(data: bytes) -> None:
    with pytest.raises(ValueError, match="none of MP4, MOV, WebM"):
        media.decode_sound(data)


@pytest.mark.parametrize("format", FORMATS)
def test_damaged_sound(format: Any) -> None:
    data = encode(tones(440, 550), format)
    with pytest.raises(ValueError, match="damaged"):
        media.decode_sound(data[: len(data) * 2 // 3])
    damaged = with_packets_of(data, {"mp4": b"\xff\x07\xf0\x55", "webm": NO_FRAMES}[format])
    for read in (media.decode_sound, sound.check_sound):
        with pytest.raises(ValueError, match="damaged"):
            read(damaged)


def with_packets_of(data: bytes, junk: bytes) -> bytes:
    """The file with the beginning of each of its packets of sound written over."""
    with av.open(io.BytesIO(data), "r") as file:
        packets = [bytes(p) for p in file.demux(audio=0) if p.size > len(junk)]
    assert packets
    for packet in packets:
        data = data.replace(packet, junk + packet[len(junk) :])
    return data


@pytest.mark.parametrize(
    ("codec", "layout"), [("pcm_s16le", "5.1"), ("pcm_f32le", "mono"), ("aac", "5.1"), ("libmp3lame", "stereo")]
)
def test_sound_of_other_files(codec: str, layout: str) -> None:
    """A MOV whose sound begins half a second late."""
    audio = decode(mov(codec, layout, late_s=0.5))
    assert len(audio.samples) == (1 if layout == "mono" else 2)
    rate = audio.sample_rate
    assert loudness(audio.samples[0, : int(0.45 * rate)]) == 0
    assert loudness(audio.samples[0, int(0.55 * rate) : int(1.4 * rate)]) > 0.05
    assert seconds(audio) == pytest.approx(1.5, abs=0.06)


def test_numbers_that_are_none_are_damage() -> None:
    with pytest.raises(ValueError, match="no numbers"):
        media.decode_sound(mov("pcm_f32le", "mono", level=np.nan))


def test_what_is_heard_before_the_first_frame_is_left_out() -> None:
    audio = decode(mov("pcm_s16le", "mono", late_s=0, picture_late_s=0.25))
    assert seconds(audio) == pytest.approx(0.75, abs=0.01)


def mov(
    codec: str, layout: str, late_s: float = 0.0, picture_late_s: float = 0.0, level: float = 0.25, rate: int = 24_000
) -> bytes:
    """One second of a tone in each channel."""
    file = io.BytesIO()
    with av.open(file, "w", format="mov") as container:
        picture = container.add_stream("mpeg4", rate=FPS)
        picture.width = picture.height = 32
        picture.pix_fmt = "yuv420p"
        stream = cast(av.AudioStream, container.add_stream(codec, rate=rate, layout=layout))
        channels = stream.codec_context.layout.nb_channels
        for i, pixels in enumerate(frames(24)):
            shown = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), "rgb24")
            shown.pts, shown.time_base = i + round(picture_late_s * FPS), Fraction(1, FPS)
            container.mux(picture.encode(shown))
        samples = tones(*[440.0] * channels, seconds=1, rate=rate, level=level).samples
        frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout=layout)
        frame.sample_rate, frame.pts, frame.time_base = rate, round(late_s * rate), Fraction(1, rate)
        container.mux(stream.encode(frame))
        container.mux(picture.encode(None))
        container.mux(stream.encode(None))
    return file.getvalue()


def test_decoding_ends_where_it_is_told() -> None:
    audio = decode(encode(tones(440, 880)), max_samples=3000, sample_rate=12_000)
    assert (audio.samples.shape, audio.sample_rate) == ((2, 3000), 12_000)
    assert pitch(audio.samples[1], 12_000) == pytest.approx(880, abs=3)
    assert decode(mov("aac", "stereo", late_s=0.5), max_samples=10).samples.shape == (2, 10)
