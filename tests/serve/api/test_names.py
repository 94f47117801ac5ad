"""A field that is not known: the one that was probably meant is named."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

Refused = Callable[..., None]
GENERATIONS, EDITS, VIDEOS, JOBS = "/v1/images/generations", "/v1/images/edits", "/v1/videos", "/v1/jobs"


@pytest.mark.parametrize(
    ("path", "field", "meant"),
    [
        (GENERATIONS, "promt", "prompt"),
        (GENERATIONS, "steps", "num_inference_steps"),
        (VIDEOS, "inputreference", "input_reference"),
        (VIDEOS, "num_frame", "num_frames"),
        (JOBS, "firstframe", "first_frame"),
        (JOBS, "hight", "height"),
    ],
)
def test_what_was_meant(http: httpx.Client, refused: Refused, path: str, field: str, meant: str) -> None:
    answer = http.post(path, json={"prompt": "a cat", field: "x"})
    refused(answer, 400, field, f"unknown parameter '{field}'; did you mean '{meant}'?")
    assert answer.json()["error"]["code"] == "unknown_parameter"
