"""The sound of a video (PyAV): the track beside its frames, what a file has, and what two joined files have."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from fractions import Fraction
from itertools import chain
from typing import cast

import av
import numpy as np
from av.codec.context import Flags

from raydiance.models.family import Audio
from raydiance.serve.containers import check_container, container_of
from raydiance.serve.errors import RaydianceError
from raydiance.serve.request import Clip, VideoFormat

LAYOUTS = {1: "mono", 2: "stereo"}
BITS_PER_SECOND = 96_000  # of one channel
_CODECS: dict[VideoFormat, str] = {"mp4": "aac", "webm": "libopus"}
_DEFAULT_RATE = 48_000
# ISO/IEC 14496-3, table 1.18; Opus takes its one rate here
_RATES: dict[VideoFormat, tuple[int, ...]] = {
    "mp4": (7350, 8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000, 64000, 88200, 96000),
    "webm": (_DEFAULT_RATE,),
}
_AAC_BITS = 6  # per sample and channel, at most


class Track:
    """The audio track of a file that is being written: AAC in an MP4, Opus of 48 kHz in a WebM.

    Sound goes in with the frames that it is heard with, so packets of both lie side by side in the file.

    Args:
        fps: the rate of the video.

    Raises:
        ValueError: the sound is not as `Audio` says, of more than two channels, or empty.
    """

    def __init__(self, container: av.container.OutputContainer, audio: Audio, fps: Fraction, format: VideoFormat):
        check_audio(audio)
        self._audio, self._fps, self._num_pushed = audio, fps, 0
        self._layout = LAYOUTS[len(audio.samples)]
        rate = audio.sample_rate if audio.sample_rate in _RATES[format] else _DEFAULT_RATE
        self._stream = cast(av.AudioStream, container.add_stream(_CODECS[format], rate=rate, layout=self._layout))
        self._stream.bit_rate = len(audio.samples) * min(BITS_PER_SECOND, _AAC_BITS * rate)
        self._stream.codec_context.flags |= Flags.bitexact

    def push(self, num_frames: int) -> list[av.Packet[av.AudioStream]]:
        """The sound until the end of the first `num_frames` frames; silence where there is no more of it."""
        start, stop = self._num_pushed, round(num_frames * self._audio.sample_rate / self._fps)
        if start == stop:
            return []
        part = self._audio.samples[:, start:stop]
        part = np.pad(part, ((0, 0), (0, stop - start - part.shape[1])))
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(part), format="fltp", layout=self._layout)
        frame.sample_rate, frame.pts = self._audio.sample_rate, start
        frame.time_base = Fraction(1, self._audio.sample_rate)
        self._num_pushed = stop
        return self._stream.encode(frame)

    def finish(self) -> list[av.Packet[av.AudioStream]]:
        return self._stream.encode(None)


def check_audio(audio: Audio) -> None:
    """Raises ValueError for what is not sound of one or two channels within [-1, 1]."""
    samples = audio.samples
    if samples.dtype != np.float32 or samples.ndim != 2 or len(samples) not in LAYOUTS or not samples.size:
        raise ValueError(
            f"the sound is {samples.dtype} {samples.shape}; float32 [channels, N], of 1 or 2 channels, is needed"
        )
    if not np.abs(samples).max() <= 1:  # so written, NaN is refused too
        raise ValueError(f"the sound has samples of {samples.min()} to {samples.max()}; [-1, 1] is needed")
    if audio.sample_rate < 1:
        raise ValueError(f"the sound's sample_rate is {audio.sample_rate}")


def decode_sound(data: bytes, *, sample_rate: int | None = None, max_samples: int | None = None) -> Audio | None:
    """The sound of an MP4, MOV or WebM file from its first frame on; None where there is no audio track.

    Args:
        sample_rate: of the result; None = the file's own.
        max_samples: decoding ends when there are as many.

    Returns:
        One channel or, of more, two.

    Raises:
        ValueError: it is no such file, or it is damaged.
    """
    parts, rate, left = [], 0, sys.maxsize if max_samples is None else max_samples
    for part in _parts(data, sample_rate, left):
        parts.append(part.samples[:, :left])
        rate, left = part.sample_rate, left - parts[-1].shape[1]
        if not left:
            break
    return Audio(np.concatenate(parts, axis=1), rate) if parts else None


def check_sound(data: bytes) -> None:
    """Decodes all sound of a file and drops it. Raises ValueError where it is damaged."""
    for _ in _parts(data, None, 0):
        pass


def joined_sound(previous: bytes, clip: Clip, audio: Audio, fps: int) -> Audio:
    """The sound of a video, then of what goes on from it; one fades into the other in the frame that both have.

    The video is played at `fps`, its sound with it. Without any it is silent.

    Args:
        clip: what `previous` is.

    Raises:
        ValueError: `previous` is damaged, or the sound not as `Audio` says.
    """
    check_audio(audio)
    rate = audio.sample_rate
    length, shared = round(clip.num_frames * rate / fps), round(rate / fps)
    before = np.zeros((len(audio.samples), length), np.float32)
    found = decode_sound(previous, sample_rate=max(1, round(rate * clip.fps / fps)), max_samples=length)
    if found is not None:
        samples = found.samples if len(before) == 2 else found.samples.mean(axis=0, keepdims=True)
        before[:, : samples.shape[1]] = samples
    after = np.pad(audio.samples, ((0, 0), (0, max(0, shared - audio.samples.shape[1]))))
    fade = np.linspace(0, 1, shared, dtype=np.float32)
    before[:, length - shared :] = before[:, length - shared :] * (1 - fade) + after[:, :shared] * fade
    return Audio(np.concatenate([before, after[:, shared:]], axis=1), rate)


def _parts(data: bytes, sample_rate: int | None, max_silence: int) -> Iterator[Audio]:
    """The sound of a file, piece by piece.

    Args:
        max_silence: of what is put before a track that begins later than the video, at most so many samples.
    """
    try:
        container = container_of(data)
        if container is None:
            raise ValueError("it is none of MP4, MOV, WebM")
        check_container(data, container, sys.maxsize, "video")
        with av.open(io.BytesIO(data), "r", format=container, metadata_errors="ignore") as file:
            if file.streams.audio:
                yield from _decoded(file, file.streams.audio[0], sample_rate, max_silence)
    except (av.FFmpegError, RaydianceError, ValueError, OverflowError) as e:
        raise ValueError(f"this is no video with sound, or a damaged one: {e}") from e


def _decoded(
    file: av.container.InputContainer, stream: av.AudioStream, sample_rate: int | None, max_silence: int
) -> Iterator[Audio]:
    """See `_parts`. What is heard before the first frame is left out; a track that begins later has silence before."""
    frames = file.decode(stream)
    first = next(frames, None)
    if first is None:  # packets that a parser can make nothing of do not even come to the decoder
        raise ValueError("nothing in its audio track can be decoded")
    channels, rate = min(first.layout.nb_channels, 2), sample_rate or first.sample_rate
    resampler = av.AudioResampler("fltp", LAYOUTS[channels], rate)
    late = round(((first.time or 0.0) - _start_s(file)) * rate)
    if late > 0:
        yield Audio(np.zeros((channels, min(late, max_silence)), np.float32), rate)
    skip = max(0, -late)
    for frame in chain([first], frames, [None]):
        if frame is not None and frame.is_corrupt:
            raise ValueError("its sound is damaged")
        for resampled in resampler.resample(frame):
            samples = resampled.to_ndarray()
            if not np.isfinite(samples).all():
                raise ValueError("its sound has samples that are no numbers")
            if skip < samples.shape[1]:
                yield Audio(samples[:, skip:].clip(-1, 1), rate)  # a codec may overshoot a little
            skip = max(0, skip - samples.shape[1])


def _start_s(file: av.container.InputContainer) -> float:
    """Where the video begins."""
    starts = [s.start_time * s.time_base for s in file.streams.video if s.start_time is not None and s.time_base]
    return float(starts[0]) if starts else 0.0
