"""The main path for real: the `raydiance serve` command, its Ray cluster, HTTP, and the unmodified `openai` client."""

from __future__ import annotations

import base64
import io
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import httpx
import numpy as np
import openai
import pytest
from PIL import Image
from tests.servers import SETTINGS, Server

from raydiance.serve import media
from raydiance.serve.engine import memory

pytestmark = pytest.mark.filterwarnings("ignore:.*(videos|Videos|Sora).*:DeprecationWarning")
PROMPT = "a large red circle moving right on a black background"
FAST = {"num_inference_steps": 4, "seed": 7}


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=120) as made:
        yield made


def picture(size: int = 32, colour: tuple[int, int, int] = (200, 30, 30)) -> bytes:
    image = Image.new("RGB", (size, size), (16, 16, 16))
    image.paste(colour, (8, 8, 24, 24))
    data = io.BytesIO()
    image.save(data, "PNG")
    return data.getvalue()


def pixels(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def events_of(http: httpx.Client, job_id: str, last_id: int | None = None) -> list[tuple[int, str, dict[str, Any]]]:
    headers = {} if last_id is None else {"Last-Event-ID": str(last_id)}
    found, event_id, kind = [], 0, ""
    with http.stream("GET", f"/v1/jobs/{job_id}/events", headers=headers) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        for line in response.iter_lines():
            if line.startswith("id:"):
                event_id = int(line[3:])
            elif line.startswith("event:"):
                kind = line[6:].strip()
            elif line.startswith("data:"):
                found.append((event_id, kind, json.loads(line[5:])))
    return found


def run(http: httpx.Client, **request: Any) -> dict[str, Any]:
    answer = http.post("/v1/jobs", json={"prompt": PROMPT, **FAST, **request})
    assert answer.status_code == 201, answer.text
    last = events_of(http, answer.json()["id"])[-1]
    assert last[1] == "completed", last
    return last[2]


def content(http: httpx.Client, job: dict[str, Any], index: int = 0) -> bytes:
    return http.get(f"/v1/jobs/{job['id']}/content", params={"index": index}).raise_for_status().content


def test_images_generate_with_n_and_b64(client: openai.OpenAI) -> None:
    answer = client.images.generate(
        model="tiny", prompt=PROMPT, n=3, size="32x48", response_format="b64_json", extra_body=FAST
    )
    images = [base64.b64decode(d.b64_json or "") for d in answer.data or []]
    assert [pixels(i).shape for i in images] == [(48, 32, 3)] * 3
    assert len({pixels(i).tobytes() for i in images}) == 3  # distinct seeds
    assert answer.usage is not None


def test_images_generate_by_url(client: openai.OpenAI) -> None:
    answer = client.images.generate(model="tiny", prompt=PROMPT, response_format="url", extra_body=FAST)
    assert answer.data is not None
    url = answer.data[0].url
    assert url is not None
    assert pixels(httpx.get(url).raise_for_status().content).shape == (32, 32, 3)


def test_images_stream_with_real_previews(client: openai.OpenAI) -> None:
    stream = client.images.generate(
        model="tiny", prompt=PROMPT, stream=True, partial_images=3, extra_body={"seed": 7, "num_inference_steps": 12}
    )
    got = list(stream)
    assert [e.type for e in got] == ["image_generation.partial_image"] * 3 + ["image_generation.completed"]
    decoded = [pixels(base64.b64decode(e.b64_json)).astype(float) for e in got]
    errors = [np.abs(d - decoded[-1]).mean() for d in decoded[:-1]]
    assert errors[0] > errors[-1] > 0  # they come nearer to the result, and are not the result


def test_images_edit(client: openai.OpenAI) -> None:
    def edited(strength: float) -> np.ndarray:
        answer = client.images.edit(
            model="tiny",
            image=("start.png", picture()),
            prompt=PROMPT,
            extra_body={"seed": 7, "num_inference_steps": 10, "strength": strength},
        )
        assert answer.data is not None
        return pixels(base64.b64decode(answer.data[0].b64_json or "")).astype(float)

    given = pixels(picture()).astype(float)
    assert np.abs(edited(0.2) - given).mean() < np.abs(edited(1.0) - given).mean()


def test_videos_create_and_poll_download_list_remix_delete(client: openai.OpenAI) -> None:
    video = client.videos.create_and_poll(
        model="tiny", prompt=PROMPT, size="48x32", extra_body={**FAST, "num_frames": 13, "fps": 6}
    )  # type: ignore[arg-type]
    assert (video.status, video.progress, video.object) == ("completed", 100, "video")
    data = client.videos.download_content(video.id).read()
    frames, fps = media.decode_video(data)
    assert (frames.shape, fps) == ((13, 32, 48, 3), 6)
    assert pixels(client.videos.download_content(video.id, variant="thumbnail").read()).ndim == 3
    assert pixels(client.videos.download_content(video.id, variant="spritesheet").read()).ndim == 3
    assert video.id in [v.id for v in client.videos.list(limit=5).data]
    remix = client.videos.remix(video.id, prompt="a small blue square moving up on a white background")
    assert remix.remixed_from_video_id == video.id
    remix = client.videos.poll(remix.id)
    assert remix.status == "completed"
    assert client.videos.download_content(remix.id).read() != data
    assert client.videos.delete(video.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.videos.retrieve(video.id)
    assert client.videos.download_content(remix.id).read()


def test_image_to_video_keeps_the_first_frame(client: openai.OpenAI) -> None:
    video = client.videos.create_and_poll(
        model="tiny",
        prompt=PROMPT,
        input_reference=("first.png", picture()),
        extra_body={"seed": 1, "num_inference_steps": 20},  # type: ignore[arg-type]
    )
    assert video.status == "completed", video.error
    frames, _ = media.decode_video(client.videos.download_content(video.id).read())
    error = ((frames[0].astype(float) - pixels(picture())) ** 2).mean()
    assert 10 * np.log10(255**2 / error) > 18


def test_same_request_same_pixels_alone_or_in_a_crowd(http: httpx.Client) -> None:
    alone = content(http, run(http, num_frames=1, num_inference_steps=12))
    with ThreadPoolExecutor(6) as pool:
        others = [
            pool.submit(run, http, num_frames=1, num_inference_steps=8 + i, seed=i, guidance_scale=1.0 + i)
            for i in range(5)
        ]
        crowded = content(http, pool.submit(run, http, num_frames=1, num_inference_steps=12).result())
        assert all(o.result()["status"] == "completed" for o in others)
    assert np.abs(pixels(alone).astype(int) - pixels(crowded)).max() <= 1


def test_events_are_numbered_resumable_and_end(http: httpx.Client) -> None:
    job = http.post(
        "/v1/jobs", json={"prompt": PROMPT, "height": 96, "width": 96, "previews": 2, "num_inference_steps": 30}
    ).json()
    seen = events_of(http, job["id"])
    ids, kinds = [e[0] for e in seen], [e[1] for e in seen]
    assert ids == sorted(set(ids))
    assert kinds[-1] == "completed"
    assert kinds.count("preview") == 2
    assert "progress" in kinds
    again = events_of(http, job["id"], last_id=ids[-2])
    assert [e[1] for e in again] == ["completed"]
    progress = [e[2]["progress"] for e in seen if e[1] == "progress"]
    assert progress == sorted(progress)
    timings = seen[-1][2]["timings"]
    assert {"encode_s", "denoise_s", "decode_s", "total_s"} <= set(timings)


def test_cancel_stops_the_denoiser(http: httpx.Client) -> None:
    job = http.post(
        "/v1/jobs", json={"prompt": PROMPT, "height": 128, "width": 128, "num_frames": 33, "num_inference_steps": 200}
    ).json()
    while http.get(f"/v1/jobs/{job['id']}").json()["progress"] == 0:
        time.sleep(0.05)
    started = time.monotonic()
    assert http.delete(f"/v1/jobs/{job['id']}").json()["status"] == "cancelled"
    assert events_of(http, job["id"])[-1][1] == "cancelled"
    run(http)  # the denoiser is free again: 200 steps of this size would take minutes
    assert time.monotonic() - started < 30
    assert http.get(f"/v1/jobs/{job['id']}/content").status_code == 404


def test_a_caller_that_goes_away_takes_its_work_along(http: httpx.Client) -> None:
    body = {"prompt": PROMPT, "size": "256x256", "num_inference_steps": 200, "user": "gone"}
    with pytest.raises(httpx.ReadTimeout):
        http.post("/v1/images/generations", json=body, timeout=1.5)
    newest = http.get("/v1/jobs", params={"limit": 1}).json()["data"][0]
    assert newest["parameters"]["height"] == 256
    assert events_of(http, newest["id"])[-1][1] == "cancelled"


def test_every_answer_names_its_request_once(http: httpx.Client) -> None:
    answer = http.get("/healthz", headers={"x-request-id": "mine"})
    assert answer.headers.get_list("x-request-id") == ["mine"]
    assert len(http.get("/v1/jobs/none").headers.get_list("x-request-id")) == 1


def test_health_readiness_models_and_docs(http: httpx.Client, client: openai.OpenAI) -> None:
    assert http.get("/healthz").status_code == http.get("/readyz").status_code == 200
    assert [m.id for m in client.models.list().data] == ["tiny"]
    assert "/v1/jobs" in http.get("/openapi.json").json()["paths"]
    assert http.get("/docs").status_code == 200


@pytest.mark.parametrize(("deployment", "loaded"), [("Gateway", False), ("Dispatcher", False), ("Denoiser", True)])
def test_only_the_stages_load_torch(server: Server, http: httpx.Client, deployment: str, loaded: bool) -> None:
    run(http)  # a whole job has gone through
    for pid in server.pids(f"ServeReplica:raydiance:{deployment}"):
        assert ("libtorch" in Path(f"/proc/{pid}/maps").read_text()) == loaded


def test_content_by_range(http: httpx.Client) -> None:
    job = run(http)
    whole = content(http, job)
    part = http.get(f"/v1/jobs/{job['id']}/content", headers={"Range": "bytes=10-19"})
    assert (part.status_code, part.content) == (206, whole[10:20])
    assert http.get(f"/v1/jobs/{job['id']}/content", headers={"Range": f"bytes={len(whole)}-"}).status_code == 416


class Hook(BaseHTTPRequestHandler):
    """Fails its first call, to be told again."""

    calls: ClassVar[list[tuple[bytes, dict[str, str]]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.calls.append((body, dict(self.headers)))
        self.send_response(200 if len(self.calls) > 1 else 500)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_a_signed_webhook_is_delivered_again_until_it_is_taken(http: httpx.Client, client: openai.OpenAI) -> None:
    hook = ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    threading.Thread(target=hook.serve_forever, daemon=True).start()
    try:
        job = run(http, webhook=f"http://127.0.0.1:{hook.server_port}/told")
        deadline = time.monotonic() + 30
        while len(Hook.calls) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        hook.shutdown()
        hook.server_close()
    (first, _), (body, headers) = Hook.calls
    assert first == body
    event = client.webhooks.unwrap(body.decode(), headers, secret=str(SETTINGS["webhooks.secret"]))
    assert (event.type, event.data.id) == ("video.completed", job["id"])  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"model": "none"}, "model"),
        ({"height": 33}, "height"),
        ({"num_frames": 10}, "num_frames"),
        ({"num_inference_steps": 0}, "num_inference_steps"),
        ({"num_inference_steps": 10_000}, "num_inference_steps"),
        ({"guidance_scale": -1}, "guidance_scale"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": "x" * 100_000}, "prompt"),
        ({"steps": 4}, "steps"),
        ({"inputs": [{"type": "image", "source": {"url": "http://169.254.169.254/latest"}}]}, "inputs"),
        ({"inputs": [{"type": "image", "source": {"b64": base64.b64encode(picture()[:60]).decode()}}]}, "inputs"),
    ],
)
def test_bad_input_is_refused_by_name_and_the_next_request_works(
    http: httpx.Client, change: dict[str, Any], field: str
) -> None:
    answer = http.post("/v1/jobs", json={"prompt": PROMPT, **FAST, **change})
    assert 400 <= answer.status_code < 500
    error = answer.json()["error"]
    assert field in (error["param"] or "")
    assert len(error["message"]) > 10
    run(http, num_inference_steps=1)


def test_stages_keep_the_memory_they_free(server: Server) -> None:
    """The variables count only when they are there as a process starts: /proc has what it was started with."""
    wanted = {f"{name}={value}" for name, value in memory.environment("cpu").items()}
    for stage in ("TextEncoder", "Denoiser", "VAEDecoder"):
        [pid] = server.pids(f"{stage}-tiny")
        assert wanted <= set(Path(f"/proc/{pid}/environ").read_text().split("\0")), stage
