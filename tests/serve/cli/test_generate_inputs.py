"""`raydiance generate` with videos, masks, further pictures and the parameters that only some models take."""

from __future__ import annotations

import base64
from pathlib import Path

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray
from tests.serve.cli.command import UNREACHABLE, png, run
from tests.servers import Server

from raydiance.serve.attachments import attach
from raydiance.serve.cli.generate import build_request
from raydiance.serve.media import decode_video
from raydiance.serve.request import GenerationRequest


@pytest.mark.parametrize(
    ("wanted", "image", "others", "output", "task", "roles"),
    [
        ({}, False, {"video": b"v"}, "a.mp4", None, ["video"]),
        ({"strength": 0.5}, False, {"video": b"v", "mask": b"m"}, None, None, ["video", "mask"]),
        ({}, True, {"last_frame": b"l"}, "a.mp4", None, ["first_frame", "last_frame"]),
        ({}, False, {"references": [b"a", b"b"]}, "a.png", None, ["reference", "reference"]),
        ({}, True, {"references": [b"a"]}, "a.png", None, [None, "reference"]),
        ({}, True, {"mask": b"m"}, "a.png", None, ["init", "mask"]),
        ({"task": "reference-to-video"}, True, {}, None, "reference-to-video", [None]),
    ],
)
def test_roles_of_what_is_given(
    wanted: dict[str, object],
    image: bool,
    others: dict[str, object],
    output: str | None,
    task: str | None,
    roles: list[str | None],
    tmp_path: Path,
) -> None:
    file = tmp_path / "in.png"
    file.write_bytes(png())
    path = None if output is None else Path(output)
    request = build_request({"prompt": "x", **wanted}, file if image else None, path, attach(**others))  # type: ignore[arg-type]
    assert request.get("task") == task
    parsed = GenerationRequest.model_validate(request)
    assert [getattr(i, "role", i.type) for i in parsed.inputs] == roles
    if image:
        assert base64.b64decode(request["inputs"][0]["source"]["b64"]) == png()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--video", "no.mp4"], "cannot read --video no.mp4: No such file"),
        (["--mask", "no.png"], "cannot read --mask no.png: No such file"),
        (["--last-frame", "no.png"], "cannot read --last-frame no.png: No such file"),
        (["--reference", "no.png"], "cannot read --reference no.png: No such file"),
        (["--param", "true_cfg_scale"], "write NAME=VALUE"),
        (["--param", "true_cfg_scale=x"], "'x' is no number"),
        (["--param", "true_cfg_scale=nan"], "true_cfg_scale=nan must be a finite number"),
        (["--param", "true_cfg=4"], "did you mean 'true_cfg_scale'?"),
    ],
)
def test_wrong_values(options: list[str], says: str, tmp_path: Path) -> None:
    assert says in run("generate", "x", *options, "--url", UNREACHABLE, code=2, cwd=tmp_path)[1]


def test_from_a_video(server: Server, tmp_path: Path) -> None:
    common = ("--steps", "4", "--seed", "3", "--no-audio", "--url", server.url)
    run("generate", "a large red circle", "-o", "clip.mp4", "--frames", "5", *common, cwd=tmp_path)
    edit = ("generate", "a small blue square", "--video", "clip.mp4", *common)
    run(*edit, "--strength", "0.5", "-o", "half.mp4", cwd=tmp_path)
    job = httpx.get(f"{server.url}/v1/jobs", params={"limit": 1}).json()["data"][0]
    assert (job["task"], job["parameters"]["strength"]) == ("video-to-video", 0.5)
    run(*edit, "--strength", "1", "-o", "whole.mp4", cwd=tmp_path)
    clip, half, whole = (decode_video((tmp_path / f"{n}.mp4").read_bytes())[0] for n in ("clip", "half", "whole"))
    assert clip.shape == half.shape == whole.shape
    assert _difference(clip, clip) < _difference(clip, half) < _difference(clip, whole)


def _difference(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> float:
    return float(np.abs(a.astype(float) - b).mean())


def test_what_the_model_does_not_take(server: Server, tmp_path: Path) -> None:
    (tmp_path / "in.png").write_bytes(png())
    for options, says in (
        (["--param", "true_cfg_scale=4"], "true_cfg_scale is nothing that model 'tiny'"),
        (["--audio"], "makes no sound"),
        (["--last-frame", "in.png"], "last_frame"),
        (["--reference", "in.png", "--reference", "in.png"], "cannot do"),
        (["--mask", "in.png"], "takes no mask"),
        (["--video", "in.png"], "none of MP4"),
    ):
        assert says in run("generate", "x", *options, "--url", server.url, code=2, cwd=tmp_path)[1]
