"""Videos edited and gone on from, for real: the `raydiance serve` command and the unmodified `openai` client."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from PIL import Image
from tests.servers import SETTINGS, Server

from raydiance.serve import media

pytestmark = pytest.mark.filterwarnings("ignore:.*(videos|Videos|Sora).*:DeprecationWarning")
PROMPT = "a large red circle moving right on a black background"
FAST = {"num_inference_steps": 4, "seed": 7}
Frames = np.ndarray[Any, np.dtype[np.uint8]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("inputs"), SETTINGS).wait_ready()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def http(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=120) as made:
        yield made


@pytest.fixture(scope="module")
def source(client: openai.OpenAI) -> Any:
    extras = {**FAST, "num_frames": 9, "fps": 6}
    return client.videos.create_and_poll(model="tiny", prompt=PROMPT, size="48x32", extra_body=extras)  # type: ignore[arg-type]


def frames_of(client: openai.OpenAI, video_id: str) -> tuple[Frames, float]:
    return media.decode_video(client.videos.download_content(video_id).read())


def drawn(num_frames: int, width: int = 50, height: int = 34) -> Frames:
    """A red square that moves right."""
    frames = np.full((num_frames, height, width, 3), 16, np.uint8)
    for t, frame in enumerate(frames):
        frame[10:22, 2 + 3 * t : 14 + 3 * t] = (200, 30, 30)
    return frames


def picture() -> bytes:
    data = io.BytesIO()
    Image.fromarray(drawn(1)[0]).save(data, "PNG")
    return data.getvalue()


def distance(a: Frames, b: Frames) -> float:
    return float(np.abs(a.astype(float) - b).mean())


def by_id(video_id: str, **fields: Any) -> Any:
    """The client refuses `{"id": …}` as its own argument: it goes beside it."""
    return {"video": {"id": video_id}, **FAST, **fields}


def test_a_video_is_edited_in_proportion_to_strength(client: openai.OpenAI) -> None:
    given = drawn(9)

    def edited(strength: float) -> Frames:
        file = ("a.mp4", media.encode_video([given], 6), "video/mp4")
        extras: Any = {"seed": 7, "num_inference_steps": 8, "strength": strength}
        video = client.videos.edit(prompt=PROMPT, video=file, extra_body=extras)
        assert (video.size, video.seconds) == ("48x32", "1.5")
        assert client.videos.poll(video.id).status == "completed"
        frames, fps = frames_of(client, video.id)
        assert (frames.shape, fps) == ((9, 32, 48, 3), 6)
        return frames

    cut = given[:, 1:33, 1:49]
    assert distance(edited(0.2), cut) < distance(edited(1.0), cut)


def test_an_edit_by_id_outlives_its_source(client: openai.OpenAI, http: httpx.Client) -> None:
    extras: Any = {**FAST, "num_frames": 5}
    source = client.videos.create_and_poll(prompt=PROMPT, extra_body=extras)
    body = {"prompt": "a blue square", "strength": 0.6, **by_id(source.id)}
    made = http.post("/v1/videos/edits", json=body).raise_for_status().json()
    client.videos.delete(source.id)
    assert made["remixed_from_video_id"] == source.id
    assert client.videos.poll(made["id"]).status == "completed"
    assert frames_of(client, made["id"])[0].shape[0] == 5


def test_an_extension_holds_both_and_can_be_extended(client: openai.OpenAI, source: Any) -> None:
    before, _ = frames_of(client, source.id)
    longer = client.videos.extend(
        prompt=PROMPT,
        seconds="2",  # type: ignore[arg-type]
        video=openai.omit,  # type: ignore[arg-type]
        extra_body=by_id(source.id),
    )
    assert (longer.remixed_from_video_id, longer.size) == (source.id, "48x32")
    told = longer.seconds
    assert client.videos.poll(longer.id).status == "completed"
    frames, fps = frames_of(client, longer.id)
    assert (frames.shape[0], fps) == (9 + 12, 6)
    assert told == f"{21 / 6:g}"
    assert distance(frames[:9], before) < 3  # encoded a second time
    assert frames[8].tobytes() != frames[9].tobytes()

    again = client.videos.extend(
        prompt=PROMPT,
        seconds="1",  # type: ignore[arg-type]
        video=("b.mp4", client.videos.download_content(longer.id).read()),
        extra_body={**FAST, "output_format": "webm"},  # type: ignore[arg-type]
    )
    assert client.videos.poll(again.id).status == "completed"
    chained, _ = frames_of(client, again.id)
    assert chained.shape[0] == 21 + 4
    assert distance(chained[:21], frames) < 4
    assert client.videos.download_content(again.id, variant="spritesheet").read()


def test_an_extension_begins_where_the_video_ends(client: openai.OpenAI, source: Any, http: httpx.Client) -> None:
    """The same as image-to-video from the last frame, joined."""
    before, _ = frames_of(client, source.id)
    made = http.post("/v1/videos/extensions", json={"prompt": PROMPT, **by_id(source.id, num_frames=5)}).json()
    data = io.BytesIO()
    Image.fromarray(before[-1]).save(data, "PNG")
    extras: Any = {**FAST, "num_frames": 5, "fps": 6}
    alone = client.videos.create_and_poll(
        prompt=PROMPT,
        input_reference=("last.png", data.getvalue()),
        size="48x32",
        extra_body=extras,  # type: ignore[arg-type]
    )
    client.videos.poll(made["id"])
    added, lone = frames_of(client, made["id"])[0][9:], frames_of(client, alone.id)[0][1:]
    assert len(added) == len(lone) == 4
    assert distance(added, lone) < 3


def test_what_this_model_does_not_take(client: openai.OpenAI, http: httpx.Client, source: Any) -> None:
    def refused(answer: httpx.Response, status: int, param: str, word: str) -> None:
        assert answer.status_code == status, answer.text
        assert answer.json()["error"]["param"] == param
        assert word in answer.json()["error"]["message"]

    with pytest.raises(openai.BadRequestError, match=r"2 inputs of role 'init'.*the limit is 1"):
        client.images.edit(image=[picture(), picture()], prompt=PROMPT)
    with pytest.raises(openai.BadRequestError, match="takes no mask"):
        client.images.edit(image=picture(), mask=picture(), prompt=PROMPT)
    files = {"video": ("a.mp4", media.encode_video([drawn(5)], 6)), "mask": ("m.png", picture())}
    refused(http.post("/v1/videos/edits", data={"prompt": PROMPT}, files=files), 400, "mask", "takes no mask")
    body = {"prompt": PROMPT, **by_id(source.id)}
    refused(http.post("/v1/videos/edits", json={**body, "audio": True}), 400, "audio", "no sound")
    refused(http.post("/v1/videos/edits", json={**body, "stg_scale": 1}), 400, "stg_scale", "nothing that model")
    refused(http.post("/v1/videos/extensions", json={**body, "num_frames": 1}), 400, "num_frames", "last one")
    cut = {"video": ("a.mp4", files["video"][1][:-200])}
    refused(http.post("/v1/videos/edits", data={"prompt": PROMPT}, files=cut), 400, "video", "truncated")


def test_the_model_says_what_it_takes(http: httpx.Client) -> None:
    model = http.get("/v1/models/tiny").raise_for_status().json()
    assert model["inputs"]["video-to-video"] == [{"role": "video", "required": True, "max_count": 1}]
    assert (model["guest"], model["features"]["step_batching"]) == (False, True)
