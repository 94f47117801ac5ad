"""`/v1/videos` with the unmodified openai client."""

from __future__ import annotations

import base64
import time
from typing import Any

import httpx
import openai as openai_package
import pytest
from openai import OpenAI

from raydiance.serve import imaging, media
from raydiance.serve.storage.job import JobState

pytestmark = pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")


def inputs_of(server: Any, video_id: str) -> list[bytes]:
    folder = server.service.artifacts._folder
    request = server.service.jobs.get(video_id).request
    return [(folder / i.source.artifact).read_bytes() for i in request.inputs]


def test_create_poll_download(openai: OpenAI) -> None:
    sizes: Any = {"seconds": "2", "size": "96x64"}
    video = openai.videos.create_and_poll(prompt="a cat", model="tiny", **sizes, extra_body={"fps": 4, "seed": 3})
    assert (video.status, video.progress, video.error) == ("completed", 100, None)
    assert (video.seconds, video.size, video.prompt, video.model) == ("2", "96x64", "a cat", "tiny")
    assert video.completed_at is not None
    assert video.expires_at is not None
    frames, fps = media.decode_video(openai.videos.download_content(video.id).read())
    assert (frames.shape, fps) == ((9, 64, 96, 3), 4)


def test_pictures_of_a_video(openai: OpenAI) -> None:
    video = openai.videos.create_and_poll(prompt="a cat")
    for variant, kind in (("thumbnail", "image/webp"), ("spritesheet", "image/jpeg")):
        content = openai.videos.download_content(video.id, variant=variant)  # type: ignore[arg-type]
        assert content.response.headers["content-type"] == kind
        imaging.image_size(content.read())


def test_input_reference_in_all_its_forms(server: Any, openai: OpenAI, http: httpx.Client, picture: bytes) -> None:
    url = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
    made = [
        openai.videos.create(prompt="a cat", input_reference=("first.png", picture)).id,
        openai.videos.create(prompt="a cat", extra_body={"input_reference": {"image_url": url}}).id,
        http.post("/v1/videos", json={"prompt": "a cat", "input_reference": {"image_url": url}}).json()["id"],
        http.post("/v1/videos", data={"prompt": "a cat", "input_reference[image_url]": url}).json()["id"],
    ]
    for video_id in made:
        job = server.until(video_id)
        assert job.specs[0]["task"] == "image-to-video"
        assert [imaging.image_size(data) for data in inputs_of(server, video_id)] == [(64, 64)]


def test_numbers_and_strings_alike(http: httpx.Client) -> None:
    extras = {"seed": 4, "num_inference_steps": 3, "guidance_scale": 2.5, "negative_prompt": "dogs", "num_frames": 5}
    answers = [
        http.post("/v1/videos", json={"prompt": "a cat", **extras}),
        http.post("/v1/videos", files={"prompt": (None, "a cat"), **{k: (None, str(v)) for k, v in extras.items()}}),
        http.post("/v1/videos", data={"prompt": "a cat", **extras}),
    ]
    jobs = [http.get(f"/v1/jobs/{a.json()['id']}").json() for a in answers]
    for job in jobs:
        assert {k: job["parameters"][k] for k in extras} == extras
    for seconds in (2, "2", 2.0):
        assert http.post("/v1/videos", json={"prompt": "a cat", "seconds": seconds}).json()["seconds"] == "2"


def test_seconds_without_being_asked_are_what_the_video_has(openai: OpenAI) -> None:
    assert openai.videos.create(prompt="a cat", extra_body={"num_frames": 13, "fps": 4}).seconds == "3.25"


def test_pages(openai: OpenAI, http: httpx.Client) -> None:
    made = [openai.videos.create(prompt=f"cat {i}").id for i in range(3)]
    http.post("/v1/images/generations", json={"prompt": "not a video"})
    page = openai.videos.list(limit=2)
    assert [v.id for v in page.data] == made[:0:-1]
    assert (page.has_more, page.last_id) == (True, made[1])
    assert [v.id for v, _ in zip(openai.videos.list(limit=1), range(3), strict=False)] == made[::-1]
    raw = http.get("/v1/videos", params={"order": "asc", "limit": 1}).json()
    assert raw["first_id"] == raw["last_id"] == raw["data"][0]["id"]
    assert http.get("/v1/videos", params={"after": made[0], "order": "asc"}).json()["data"][0]["id"] == made[1]


def test_poll_interval(server: Any, http: httpx.Client) -> None:
    video = http.post("/v1/videos", json={"prompt": "hang"}).json()
    answer = http.get(f"/v1/videos/{video['id']}", headers={"X-Stainless-Poll-Helper": "true"})
    assert answer.headers["openai-poll-after-ms"] == "200"
    http.post(f"/v1/jobs/{video['id']}/cancel")
    server.until(video["id"])
    assert "openai-poll-after-ms" not in http.get(f"/v1/videos/{video['id']}").headers


def test_content_of_an_unfinished_video(openai: OpenAI, server: Any) -> None:
    video = openai.videos.create(prompt="hang")
    server.until(video.id, JobState.IN_PROGRESS)
    with pytest.raises(openai_package.ConflictError, match="in_progress"):
        openai.videos.download_content(video.id)
    openai.videos.delete(video.id)


def test_cancelled_and_failed_videos(openai: OpenAI, http: httpx.Client) -> None:
    video = openai.videos.create(prompt="hang")
    http.post(f"/v1/jobs/{video.id}/cancel")
    cancelled = openai.videos.poll(video.id)
    assert cancelled.error is not None
    assert (cancelled.status, cancelled.error.code) == ("failed", "cancelled")
    failed = openai.videos.create_and_poll(prompt="fail")
    assert failed.error is not None
    assert (failed.status, failed.error.message) == ("failed", "the GPU caught fire")
    for ended in (video, failed):
        with pytest.raises(openai_package.NotFoundError, match="has no content"):
            openai.videos.download_content(ended.id)


def test_delete_removes_job_and_files(openai: OpenAI, server: Any) -> None:
    video = openai.videos.create_and_poll(prompt="a cat")
    [artifact] = server.service.jobs.get(video.id).artifacts
    file = server.service.artifacts._folder / artifact.key
    assert file.exists()
    deleted = openai.videos.delete(video.id)
    assert (deleted.id, deleted.deleted, deleted.object) == (video.id, True, "video.deleted")
    assert not file.exists()
    with pytest.raises(openai_package.NotFoundError):
        openai.videos.retrieve(video.id)


def test_deleting_a_running_video_stops_it(openai: OpenAI, server: Any) -> None:
    video = openai.videos.create(prompt="hang")
    server.until(video.id, JobState.IN_PROGRESS)
    assert openai.videos.delete(video.id).deleted
    deadline = time.monotonic() + 5
    while not server.dispatcher.walks[video.id].done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_remix_keeps_seed_parameters_and_image(openai: OpenAI, server: Any, picture: bytes) -> None:
    extras = {"num_frames": 5, "fps": 4, "negative_prompt": "dogs", "metadata": {"shelf": "3"}}
    source = openai.videos.create_and_poll(prompt="a cat", input_reference=("first.png", picture), extra_body=extras)
    remix = openai.videos.remix(source.id, prompt="a dog")
    openai.videos.delete(source.id)  # takes nothing away from the remix
    assert (remix.remixed_from_video_id, remix.prompt) == (source.id, "a dog")
    remixed = openai.videos.poll(remix.id)
    assert remixed.status == "completed"
    job = server.service.jobs.get(remix.id)
    [spec] = job.specs
    assert (spec["task"], spec["num_frames"], spec["fps"], spec["negative_prompt"]) == ("image-to-video", 5, 4, "dogs")
    assert job.request.metadata == {"shelf": "3"}
    assert len(inputs_of(server, remix.id)) == 1


def test_remix_of_what_is_not_there(openai: OpenAI, http: httpx.Client) -> None:
    with pytest.raises(openai_package.NotFoundError):
        openai.videos.remix("video_0", prompt="a dog")
    image = http.post("/v1/jobs", json={"prompt": "a cat", "num_frames": 1}).json()
    assert http.post(f"/v1/videos/{image['id']}/remix", json={"prompt": "a dog"}).status_code == 404
    assert http.get(f"/v1/videos/{image['id']}").status_code == 404
