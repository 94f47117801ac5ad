"""`/v1/images` with the unmodified openai client: what it sends is understood, what it gets is what it expects."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Callable
from typing import Any

import httpx
import openai as openai_package
import pytest
from openai import OpenAI
from openai.types import ImagesResponse

from raydiance.serve import imaging
from raydiance.serve.api import sse
from raydiance.serve.storage.job import JobState


def files(answer: ImagesResponse) -> list[bytes]:
    return [base64.b64decode(d.b64_json or "") for d in answer.data or []]


def test_n_images_of_distinct_seeds(openai: OpenAI) -> None:
    answer = openai.images.generate(prompt="a cat", model="tiny", n=3, size="96x64", extra_body={"seed": 5})
    assert len(set(files(answer))) == 3
    assert {imaging.image_size(data) for data in files(answer)} == {(96, 64)}
    assert [d.model_extra and d.model_extra["seed"] for d in answer.data or []] == [5, 6, 7]
    assert (answer.size, answer.output_format, answer.background) == ("96x64", "png", "opaque")
    assert abs(answer.created - time.time()) < 60


def test_the_same_seed_gives_the_same_image(openai: OpenAI) -> None:
    first, second = (files(openai.images.generate(prompt="a cat", extra_body={"seed": 9})) for _ in range(2))
    assert first == second


def test_usage_counts_words_and_latent_patches(openai: OpenAI, picture: bytes) -> None:
    usage = openai.images.generate(prompt="three small words", n=2, size="64x32").usage
    assert usage is not None
    # 64x32 pixels are 8x4 latents, in patches of 2x2: 8 tokens
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (6, 16, 22)
    usage = openai.images.edit(image=picture, prompt="blue").usage
    assert usage is not None
    assert (usage.input_tokens_details.text_tokens, usage.input_tokens_details.image_tokens) == (1, 16)


@pytest.mark.parametrize(("output_format", "magic"), [("png", b"\x89PNG"), ("jpeg", b"\xff\xd8"), ("webp", b"RIFF")])
def test_output_formats(openai: OpenAI, output_format: Any, magic: bytes) -> None:
    [data] = files(openai.images.generate(prompt="a cat", output_format=output_format))
    assert data.startswith(magic)


def test_every_value_that_means_the_default_is_accepted(openai: OpenAI, picture: bytes) -> None:
    common: Any = {"prompt": "a cat", "quality": "auto", "background": "auto", "size": "auto", "user": "someone"}
    assert openai.images.generate(**common, moderation="low", output_compression=100, style=None, n=None).data
    assert openai.images.edit(**common, image=picture, input_fidelity="low").data


def test_url_leads_to_the_file(openai: OpenAI, http: httpx.Client) -> None:
    answer = openai.images.generate(prompt="a cat", n=2, response_format="url", output_format="webp")
    urls = [d.url or "" for d in answer.data or []]
    assert len(set(urls)) == 2
    for url in urls:
        got = http.get(url)
        assert (got.status_code, got.headers["content-type"]) == (200, "image/webp")


def test_user_is_kept_in_the_metadata(http: httpx.Client) -> None:
    body = {"prompt": "a cat", "user": "u-1", "metadata": {"shelf": "3"}, "response_format": "url"}
    url = http.post("/v1/images/generations", json=body).json()["data"][0]["url"]
    assert http.get(url.split("/content")[0]).json()["metadata"] == {"shelf": "3", "user": "u-1"}


def test_stream_has_previews_and_ends_with_the_images(openai: OpenAI) -> None:
    stream = openai.images.generate(prompt="a cat", stream=True, partial_images=2, n=2, output_format="jpeg")
    events = list(stream)
    partial, completed = events[:-2], events[-2:]
    assert [e.type for e in completed] == ["image_generation.completed"] * 2
    assert sorted((e.model_extra["index"], e.partial_image_index) for e in partial) == [(0, 0), (0, 1), (1, 0), (1, 1)]  # type: ignore[index,union-attr]
    for event in events:
        kind = b"RIFF" if event.type == "image_generation.partial_image" else b"\xff\xd8"
        assert base64.b64decode(event.b64_json).startswith(kind)
        assert (event.size, event.quality, event.background) == ("64x64", "auto", "opaque")
        assert type(event).model_validate(event.model_dump(), strict=True)
    assert [e.usage.output_tokens for e in completed if e.type == "image_generation.completed"] == [16, 16]


def test_edit_streams_its_own_events(openai: OpenAI, picture: bytes) -> None:
    stream = openai.images.edit(image=picture, prompt="a cat", stream=True, partial_images=1)
    assert [e.type for e in stream] == ["image_edit.partial_image", "image_edit.completed"]


def test_a_stream_without_previews(openai: OpenAI) -> None:
    events = list(openai.images.generate(prompt="a cat", stream=True))
    assert [e.type for e in events] == ["image_generation.completed"]


def test_edit_takes_a_file_a_list_of_one_or_json(openai: OpenAI, http: httpx.Client, picture: bytes) -> None:
    def strength(url: str) -> float:
        return float(http.get(url.split("/content")[0]).json()["parameters"]["strength"])

    for image in (picture, [("a.png", picture)]):
        answer = openai.images.edit(
            image=image, prompt="a cat", n=2, response_format="url", extra_body={"strength": 0.5}
        )
        assert [strength(d.url or "") for d in answer.data or []] == [0.5, 0.5]
    data_url = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
    for value in (data_url, {"image_url": data_url}):
        assert http.post("/v1/images/edits", json={"prompt": "a cat", "image": value}).status_code == 200


def test_async_client(server: Any) -> None:
    async def both() -> list[ImagesResponse]:
        async with openai_package.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            return await asyncio.gather(*(client.images.generate(prompt="a cat", n=i + 1) for i in range(2)))

    assert [len(answer.data or []) for answer in asyncio.run(both())] == [1, 2]


def test_a_failed_generation_says_why_and_is_not_retried(server: Any) -> None:
    with server.openai(max_retries=2) as client:
        before = server.service.jobs.list(limit=1)[0]
        with pytest.raises(openai_package.InternalServerError, match="the GPU caught fire") as caught:
            client.images.generate(prompt="fail at once")
        assert caught.value.code == "generation_failed"
        newer, _ = server.service.jobs.list(limit=100, order="desc")
        since = [j for j in newer if not before or j.created_at > before[0].created_at]
        assert len(since) == 1
        with pytest.raises(openai_package.APIError, match="the GPU caught fire"):
            list(client.images.generate(prompt="fail at once", stream=True))


def newest(server: Any) -> Any:
    return server.service.jobs.list(limit=1)[0][0]


def cut_off(client: httpx.Client, **options: Any) -> None:
    with pytest.raises(httpx.ReadTimeout):
        client.post("/v1/images/generations", timeout=0.5, **options)


def test_a_caller_that_goes_away_cancels_its_job(server: Any) -> None:
    cut_off(server.http(), json={"prompt": "hang around"})
    assert server.until(newest(server).id).state is JobState.CANCELLED
    with server.http().stream("POST", "/v1/images/generations", json={"prompt": "hang on", "stream": True}) as answer:
        assert answer.status_code == 200
    assert server.until(newest(server).id).state is JobState.CANCELLED


def test_with_an_idempotency_key_a_caller_can_come_back(server: Any) -> None:
    body, headers = {"prompt": "slow cat"}, {"Idempotency-Key": "come-back"}
    cut_off(server.http(), json=body, headers=headers)
    answer = server.http().post("/v1/images/generations", json=body, headers=headers)
    assert answer.status_code == 200
    assert server.until(newest(server).id).state is JobState.COMPLETED


def test_the_wait_is_bounded(start: Callable[..., Any]) -> None:
    server = start(limits={"sync_timeout_s": 0.3})
    for body in ({"prompt": "hang"}, {"prompt": "hang", "stream": True}):
        answer = server.http().post("/v1/images/generations", json=body)
        text = answer.text.split("data: ")[-1]
        error = json.loads(text)["error"]
        assert error["code"] == "timeout"
        assert "0.3 s (limits.sync_timeout_s)" in error["message"]
        assert answer.status_code == (200 if "stream" in body else 504)
        assert server.until(newest(server).id).state is JobState.CANCELLED


def test_a_job_cancelled_by_another(server: Any) -> None:
    client = server.http()
    seen = newest(server).id
    with client.stream("POST", "/v1/images/generations", json={"prompt": "hang", "stream": True}) as answer:
        while (job := newest(server)).id == seen:
            time.sleep(0.01)
        server.http().post(f"/v1/jobs/{job.id}/cancel")
        frames = "".join(answer.iter_text())
    assert json.loads(frames.split("data: ")[-1])["error"]["code"] == "cancelled"


def test_silent_streams_are_kept_alive(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "HEARTBEAT_S", 0.05)
    with server.http().stream("POST", "/v1/images/generations", json={"prompt": "slow", "stream": True}) as answer:
        text = "".join(answer.iter_text())
    assert ": alive\n\n" in text
    assert "event: image_generation.completed" in text
