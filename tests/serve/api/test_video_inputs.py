"""Edits, extensions and inputs of every kind over HTTP: by the same names in forms and in JSON."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import openai as openai_package
import pytest
from openai import OpenAI
from tests.serve.api.conftest import CARD, Server, running

from raydiance.models.card import Parameter
from raydiance.models.inputs import Accepts
from raydiance.serve import media

pytestmark = pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")
EDITS, EXTENSIONS, VIDEOS = "/v1/videos/edits", "/v1/videos/extensions", "/v1/videos"
IMAGES, JOBS = "/v1/images/edits", "/v1/jobs"
# of a model that takes everything there is
EDITOR = dataclasses.replace(
    CARD,
    tasks=("text-to-video", "image-edit", "image-to-image", "reference-to-video", "video-to-video", "image-to-video"),
    inputs={
        "image-edit": (Accepts("reference", max_count=3), Accepts("mask", required=False)),
        "reference-to-video": (Accepts("reference", max_count=2),),
        "image-to-video": (Accepts("first_frame"), Accepts("last_frame", required=False)),
        "video-to-video": (Accepts("video"), Accepts("mask", required=False), Accepts("reference", False, 2)),
    },
    strength_tasks=("image-to-image", "video-to-video"),
    parameters=(Parameter("true_cfg_scale", 0, 20, 1.0), Parameter("stg_scale", 0, 5, 0.0)),
    has_audio=True,
)
Refused = Callable[..., None]


def mp4(num_frames: int = 6, width: int = 100, height: int = 64, fps: int = 12) -> bytes:
    return media.encode_video([np.full((num_frames, height, width, 3), 90, np.uint8)], fps)


def url(data: bytes, kind: str = "video/mp4") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    limits = {"max_video_frames": 60, "max_video_bytes": 1 << 20, "max_image_bytes": 1 << 16}
    with running(tmp_path_factory.mktemp("inputs"), limits=limits) as made:
        made.dispatcher.card_ = EDITOR
        yield made


@pytest.fixture(scope="module")
def http(server: Server) -> httpx.Client:
    return server.http()


@pytest.fixture(scope="module")
def openai(server: Server) -> Iterator[OpenAI]:
    with server.openai() as client:
        yield client


def roles(server: Server, job_id: str) -> list[tuple[str, str | None, str]]:
    """Type, role, and suffix of the file of each input that was stored."""
    inputs = server.service.jobs.get(job_id).request.inputs
    return [(i.type, getattr(i, "role", None), str(i.source.artifact).rsplit(".", 1)[1]) for i in inputs]  # type: ignore[union-attr]


def spec(server: Server, job_id: str) -> dict[str, Any]:
    return server.service.jobs.get(job_id).specs[0]


def test_a_video_is_edited_at_its_own_size_rate_and_length(server: Server, openai: OpenAI) -> None:
    video = openai.videos.edit(prompt="in blue", video=("a.mp4", mp4(), "video/mp4"))
    assert (video.size, video.seconds, video.remixed_from_video_id) == ("96x64", f"{5 / 12:g}", None)
    made = spec(server, video.id)
    assert (made["task"], made["num_frames"], made["fps"], made["strength"]) == ("video-to-video", 5, 12, 0.8)
    assert roles(server, video.id) == [("video", "video", "mp4")]
    assert openai.videos.poll(video.id).status == "completed"


def test_the_forms_of_a_video(server: Server, http: httpx.Client) -> None:
    b64 = base64.b64encode(mp4()).decode()
    source = http.post(VIDEOS, json={"prompt": "a cat", "num_frames": 5}).json()["id"]
    server.until(source)
    fields = {"prompt": "in blue", "strength": 0.5}
    answers = [
        http.post(EDITS, json={**fields, "video": url(mp4())}),
        http.post(EDITS, json={**fields, "video": {"url": url(mp4())}}),
        http.post(EDITS, json={**fields, "video": {"b64": b64}}),
        http.post(EDITS, json={**fields, "video": {"id": source}}),
        http.post(EDITS, data={**fields, "video[id]": source}),
        http.post(EDITS, data={**fields, "video": url(mp4())}),
        http.post(EDITS, data=fields, files={"video": ("a.mp4", mp4())}),
        http.post(JOBS, data=fields, files={"video": ("a.mp4", mp4())}),
        http.post(JOBS, json={**fields, "video": url(mp4())}),
        http.post(JOBS, json={**fields, "inputs": [{"type": "video", "source": {"b64": b64}}]}),
        http.post(VIDEOS, data=fields, files={"video": ("a.mp4", mp4())}),
    ]
    for answer in answers:
        assert answer.status_code in (200, 201), answer.text
        made = spec(server, answer.json()["id"])
        assert (made["task"], made["num_frames"], made["strength"]) == ("video-to-video", 5, 0.5)


def test_an_edit_takes_mask_and_references(server: Server, http: httpx.Client, picture: bytes) -> None:
    files = [
        ("video", ("a.mp4", mp4())),
        ("mask", ("m.png", picture)),
        ("reference[]", ("r.png", picture)),
        ("reference[]", ("s.png", picture)),
    ]
    form = http.post(EDITS, data={"prompt": "in blue"}, files=files)
    image = url(picture, "image/png")
    fields = {"video": url(mp4()), "mask": url(mp4()), "reference": [image, {"image_url": image}]}
    json = http.post(EDITS, json={"prompt": "in blue", **fields})
    for answer, suffix in ((form, "png"), (json, "mp4")):
        found = roles(server, answer.json()["id"])
        references = [("image", "reference", "png")] * 2
        assert found == [*references, ("mask", None, suffix), ("video", "video", "mp4")]


def test_an_extension_goes_on_from_a_video_and_counts_both(server: Server, openai: OpenAI) -> None:
    extras = {"num_frames": 9, "fps": 4}
    source = openai.videos.create_and_poll(prompt="a cat", size="96x64", extra_body=extras)  # type: ignore[arg-type]
    by_id: Any = {"video": {"id": source.id}}
    longer = openai.videos.extend(prompt="it sits", seconds="2", video=openai_package.omit, extra_body=by_id)  # type: ignore[arg-type]
    assert (longer.remixed_from_video_id, longer.size) == (source.id, "96x64")
    assert longer.seconds == f"{(9 + 8) / 4:g}"  # the frame that both have counts once
    made = spec(server, longer.id)
    assert (made["task"], made["num_frames"], made["fps"]) == ("image-to-video", 9, 4)
    assert roles(server, longer.id) == [("video", "previous", "mp4")]
    openai.videos.delete(source.id)  # takes nothing away
    assert openai.videos.poll(longer.id).status == "completed"
    remix = openai.videos.remix(longer.id, prompt="it runs")
    assert roles(server, remix.id) == [("video", "previous", "mp4")]
    assert remix.seconds == longer.seconds


def test_a_file_is_extended(server: Server, openai: OpenAI) -> None:
    longer = openai.videos.extend(prompt="it sits", seconds="4", video=("a.mp4", mp4(fps=8)))
    assert (longer.remixed_from_video_id, longer.seconds) == (None, f"{(6 + 32) / 8:g}")


def test_another_model_and_another_size_where_they_are_given(server: Server, http: httpx.Client) -> None:
    fields = {"prompt": "a cat", "video": url(mp4()), "size": "32x32", "fps": 4, "num_frames": 5, "model": "tiny"}
    made = spec(server, http.post(EXTENSIONS, json=fields).json()["id"])
    assert (made["width"], made["height"], made["fps"], made["num_frames"]) == (32, 32, 4, 5)


@pytest.mark.parametrize("path", [EDITS, EXTENSIONS])
def test_sources_that_are_not_to_be_had(
    server: Server, http: httpx.Client, refused: Refused, path: str, picture: bytes
) -> None:
    def send(video: Any) -> httpx.Response:
        return http.post(path, json={"prompt": "a cat", "video": video})

    waiting = http.post(VIDEOS, json={"prompt": "hang"}).json()["id"]
    refused(send({"id": waiting}), 409, "video", "its content comes when it completes")
    http.delete(f"/v1/videos/{waiting}")
    failed = http.post(VIDEOS, json={"prompt": "fail"}).json()["id"]
    server.until(failed)
    refused(send("video_nope"), 400, "video", '{"id": ID}')
    refused(send({"id": failed}), 404, "video", "has no content")
    image = http.post(JOBS, json={"prompt": "a cat", "image": url(picture, "image/png"), "num_frames": 1}).json()["id"]
    refused(send({"id": image}), 404, "video", "is an image")
    refused(send({"id": "video_0"}), 404, "video", "video_0")
    refused(send({"id": "../jobs"}), 404, "video")
    refused(send({"id": 5}), 400, "video", "5")
    refused(send({"id": "video_0", "url": "x"}), 400, "video", "give one")
    refused(send(None), 400, "video", "required")


BAD = [
    ("empty", b"", 400, ["empty"]),
    ("text", b"no video", 415, ["MP4, MOV, WebM"]),
    ("truncated", mp4()[:-100], 400, ["truncated"]),
    ("long", mp4(70), 413, ["70 frames", "60"]),
    ("large", mp4() + bytes(2 << 20), 413, ["1048576", "limits.max_video_bytes"]),
]


@pytest.mark.parametrize("path", [EDITS, EXTENSIONS, VIDEOS])
@pytest.mark.parametrize(("data", "status", "words"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_files_that_are_no_video(
    http: httpx.Client, refused: Refused, path: str, data: bytes, status: int, words: list[str]
) -> None:
    answer = http.post(path, data={"prompt": "a cat"}, files={"video": ("a.mp4", data)})
    refused(answer, status, "video", *words)


@pytest.mark.parametrize(
    "address", ["http://127.0.0.1/a.mp4", "http://169.254.169.254/", "file:///etc/passwd", "a.mp4"]
)
@pytest.mark.parametrize("name", ["video", "mask"])
def test_addresses_that_are_not_fetched(http: httpx.Client, refused: Refused, name: str, address: str) -> None:
    refused(http.post(EDITS, json={"prompt": "a cat", "video": url(mp4()), name: address}), 400, name)


def test_what_does_not_go_together(http: httpx.Client, refused: Refused, picture: bytes) -> None:
    image, video = url(picture, "image/png"), url(mp4())
    two = [("video", ("a.mp4", mp4())), ("video", ("b.mp4", mp4()))]
    refused(http.post(EDITS, data={"prompt": "a"}, files=two), 400, "video", "2 files", "the limit is 1")

    def send(path: str, **fields: Any) -> httpx.Response:
        return http.post(path, json={"prompt": "a cat", **fields})

    refused(send(EDITS, video=[video, video]), 400, "video", "2 values", "the limit is 1")
    refused(send(VIDEOS, mask=image), 400, "input_reference", "needs video")
    refused(send(EDITS, video=video, reference=[image] * 3), 400, "reference", "3 inputs", "the limit is 2")
    refused(send(EDITS, video=video, first_frame=image), 400, "first_frame", "takes no image of role 'first_frame'")
    refused(send(EDITS, video=image), 415, "video", "MP4, MOV, WebM")
    refused(send(EXTENSIONS, video=video, mask=image), 400, "mask", "takes no mask")
    refused(send(EXTENSIONS, video=video, first_frame=image), 400, "video", "2 inputs of role 'first_frame'")
    refused(send(EXTENSIONS, video=video, num_frames=1), 400, "num_frames", "the last one of the video")
    refused(send(EXTENSIONS, video=video, seconds=0.01), 400, "seconds", "the last one of the video")
    refused(send(EXTENSIONS, video=video, strength=0.5), 400, "strength", "image-to-video")
    refused(send(EXTENSIONS, video=video, model="other"), 404, "model", "other")
    refused(send(IMAGES, image=[image] * 4), 400, "image", "4 inputs of role 'reference'", "the limit is 3")
    refused(send(IMAGES, image=image, video=video), 400, "video", "takes no video")
    refused(send(IMAGES, mask=image), 400, "image", "required")


def test_images_are_edited_by_the_models_own_editing(
    server: Server, openai: OpenAI, http: httpx.Client, picture: bytes
) -> None:
    answer = openai.images.edit(image=[picture, picture], mask=picture, prompt="blue", extra_body={"true_cfg_scale": 4})
    assert answer.usage is not None
    assert answer.usage.input_tokens_details.image_tokens == 2 * answer.usage.output_tokens
    job = http.get(JOBS, params={"limit": 1}).json()["data"][0]
    assert (job["task"], job["parameters"]["true_cfg_scale"], job["parameters"]["stg_scale"]) == ("image-edit", 4, 0)
    assert [r[:2] for r in roles(server, job["id"])] == [("image", None), ("image", None), ("mask", None)]
    openai.images.edit(image=picture, prompt="blue", extra_body={"strength": 0.5})
    assert http.get(JOBS, params={"limit": 1}).json()["data"][0]["task"] == "image-to-image"


def test_references_make_a_video(server: Server, http: httpx.Client, picture: bytes) -> None:
    image = url(picture, "image/png")
    answers = [
        http.post(VIDEOS, json={"prompt": "a cat", "reference": [image, image]}),
        http.post(VIDEOS, data={"prompt": "a cat"}, files=[("image[]", ("a.png", picture))] * 2),
    ]
    for answer in answers:
        assert spec(server, answer.json()["id"])["task"] == "reference-to-video"
    both = {"first_frame": image, "last_frame": image}
    assert spec(server, http.post(VIDEOS, json={"prompt": "a", **both}).json()["id"])["task"] == "image-to-video"


def test_an_input_reference_is_a_reference_where_there_is_no_first_frame(
    start: Callable[..., Server], picture: bytes
) -> None:
    server = start()
    server.dispatcher.card_ = dataclasses.replace(EDITOR, tasks=("text-to-video", "reference-to-video"))
    answer = server.http().post(VIDEOS, data={"prompt": "a cat"}, files={"input_reference": ("a.png", picture)})
    assert spec(server, answer.json()["id"])["task"] == "reference-to-video"


@pytest.mark.parametrize("value", [True, False, "true", "false"])
def test_sound_and_the_familys_parameters(server: Server, http: httpx.Client, value: Any) -> None:
    fields = {"prompt": "a cat", "stg_scale": 2.5, "true_cfg_scale": 3, "audio": value}
    for path in (VIDEOS, JOBS):
        answers = [http.post(path, json=fields)]
        if isinstance(value, str):
            answers.append(http.post(path, files={k: (None, str(v)) for k, v in fields.items()}))
        for answer in answers:
            shown = http.get(f"/v1/jobs/{answer.json()['id']}").json()["parameters"]
            assert (shown["stg_scale"], shown["true_cfg_scale"]) == (2.5, 3)
            assert shown["audio"] is (value in (True, "true"))


def test_parameters_beyond_their_limits(http: httpx.Client, refused: Refused) -> None:
    refused(http.post(VIDEOS, json={"prompt": "a", "stg_scale": 6}), 400, "stg_scale", "stg_scale=6", "5")
    refused(http.post(VIDEOS, json={"prompt": "a", "stg_scale": "x"}), 400, "stg_scale", "number")
    refused(http.post(VIDEOS, json={"prompt": "a", "audio": "perhaps"}), 400, "audio", "true or false")
    refused(http.post(VIDEOS, json={"prompt": "a", "guidance_rescale": 0.5}), 400, "guidance_rescale", "nothing that")


def test_a_key_covers_files_and_parameters(http: httpx.Client, refused: Refused) -> None:
    def send(data: bytes, **fields: Any) -> httpx.Response:
        headers = {"Idempotency-Key": "edit-1"}
        return http.post(EDITS, data={"prompt": "a", **fields}, files={"video": ("a.mp4", data)}, headers=headers)

    first = send(mp4())
    assert send(mp4()).json()["id"] == first.json()["id"]
    refused(send(mp4(8)), 409, "Idempotency-Key")
    refused(send(mp4(), stg_scale=2), 409, "Idempotency-Key")
    refused(send(mp4(), strength=0.4), 409, "Idempotency-Key")


def test_nothing_stays_of_what_was_refused_after_it_was_looked_into(server: Server, http: httpx.Client) -> None:
    folder = server.service.artifacts._folder / "jobs"  # type: ignore[operator]
    before = {p.name for p in folder.iterdir() if any(p.iterdir())}
    answer = http.post(EDITS, json={"prompt": "a", "video": url(mp4(width=1100))})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "size")
    assert {p.name for p in folder.iterdir() if any(p.iterdir())} == before
