"""`raydiance.connect()` from drivers of a real cluster, and from a Ray Client, each in a process of its own."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import RayActorError, RayTaskError
from tests.serve.scripted import JOB, Handle, event
from tests.servers import Server, free_port

from raydiance.serve.client import Client
from raydiance.serve.errors import GenerationFailed, InvalidRequest, NotFound, RaydianceError, Unavailable
from raydiance.serve.keywords import Fields
from raydiance.serve.request import GenerationRequest

STORY = """
import json, sys, raydiance
from pathlib import Path
from PIL import Image
from raydiance.serve.errors import InvalidRequest, NotFound, GenerationFailed

told = {}
client = raydiance.connect(sys.argv[1] or None)
told["models"] = [card.id for card in client.models()]
told["tasks"] = client.models()[0].tasks
told["streams"] = client._streams

job = client.generate("a red circle", seed=3, num_inference_steps=4, num_frames=5)
told["events"] = [[e.id, e.type] for e in job.events()]
files = job.result()
told["size"] = len(files[0])
told["same"] = client.job(job.id).job()["parameters"]["seed"]
told["resumed"] = [[e.id, e.type] for e in job.events(after=told["events"][-2][0])]

image = Image.new("RGB", (32, 32), "red")
half = dict(strength=0.5, num_inference_steps=4, n=2, output_format="webp")
pair = client.generate("x", image=image, image_role="init", **half)
told["saved"] = [p.name for p in pair.save(Path(sys.argv[2]) / "pair.webp")]

clip = job.save(Path(sys.argv[2]) / "clip.mp4")[0]
edited = client.generate("a blue square", video=clip, strength=0.5, num_inference_steps=4, audio=False)
told["edited"] = [edited.wait()[name] for name in ("status", "task")]

long = client.generate("x", num_inference_steps=200, height=128, width=128, num_frames=17)
for event in long.events():
    if event.type == "progress":
        break
told["cancelled"] = long.cancel()["status"]
told["ended"] = long.wait()["status"]
for name, call in {
    "frames": lambda: client.generate("x", num_frames=6),
    "local": lambda: client.generate("x", n=99),
    "unknown": lambda: client.job("video_" + 32 * "0"),
    "failed": lambda: long.result(),
}.items():
    try:
        call()
    except (InvalidRequest, NotFound, GenerationFailed) as e:
        told[name] = [type(e).__name__, e.param, e.code]
key = dict(idempotency_key="k-" + sys.argv[3], num_inference_steps=2, seed=1, num_frames=1)
told["idempotent"] = client.generate("x", **key).id == client.generate("x", **key).id
print(json.dumps(told))
"""


def address_of(server: Server) -> str:
    """Of the Ray cluster under a server, as the server's greeting tells it."""
    deadline = time.monotonic() + 10  # HTTP is ready a moment before the greeting is written
    while not (found := re.search(r'raydiance\.connect\("([^"]+)"\)', server.log.read_text())):
        assert time.monotonic() < deadline, server.log.read_text()
        time.sleep(0.1)
    return found[1]


def tell(address: str, folder: Path, key: str, **env: str) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    clean = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    command = [sys.executable, "-W", "ignore", "-c", STORY, address, str(folder), key]
    done = subprocess.run(command, env=clean | env, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return told


def check(told: dict[str, Any]) -> None:
    assert told["models"] == ["tiny"]
    assert "image-to-video" in told["tasks"]
    ids = [number for number, _ in told["events"]]
    kinds = [kind for _, kind in told["events"]]
    assert ids == sorted(set(ids))
    assert kinds[-1] == "completed"
    assert "progress" in kinds
    assert told["resumed"] == told["events"][-1:]
    assert told["size"] > 500
    assert told["same"] == 3
    assert told["saved"] == ["pair-1.webp", "pair-2.webp"]
    assert told["edited"] == ["completed", "video-to-video"]
    assert told["cancelled"] == told["ended"] == "cancelled"
    assert told["frames"][:2] == ["InvalidRequest", "num_frames"]
    assert told["local"][:2] == ["InvalidRequest", "n"]
    assert told["unknown"][0] == "NotFound"
    assert told["failed"] == ["GenerationFailed", None, "cancelled"]
    assert told["idempotent"]


def test_from_a_driver(server: Server, tmp_path: Path) -> None:
    told = tell(address_of(server), tmp_path, "driver")
    assert told["streams"]
    check(told)


@pytest.fixture
def ray_client_url(server: Server, tmp_path: Path) -> Iterator[str]:
    """A Ray Client server on the cluster of the running application."""
    port = free_port()
    options = ("--mode", "specific-server", "--address", address_of(server), "--host", "127.0.0.1", "--port", str(port))
    env = os.environ | {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "token"}
    log = (tmp_path / "ray-client.log").open("wb")
    process = subprocess.Popen(
        [sys.executable, "-m", "ray.util.client.server", *options], env=env, stdout=log, stderr=subprocess.STDOUT
    )
    try:
        time.sleep(3)
        yield f"ray://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)
        log.close()


def test_from_a_ray_client(ray_client_url: str, tmp_path: Path) -> None:
    """Serve refuses to stream there: events come by long poll."""
    told = tell(ray_client_url, tmp_path / "files", "client", RAY_AUTH_MODE="token")
    assert not told["streams"]
    check(told)


def test_no_cluster() -> None:
    code = "import raydiance; raydiance.connect('127.0.0.1:9')"
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "Unavailable: no Ray cluster answers at 127.0.0.1:9" in done.stderr


# without a cluster ---------------------------------------------------------------------------------------------------


def test_a_cut_stream_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raydiance.serve.client.RECONNECT_S", 0.0)
    cut = ([event(1)], RayActorError())
    handle = Handle(job=JOB, events=[cut, ([event(2), event(3, "completed")],)])
    events = list(Client(handle).job("video_1").events())  # type: ignore[arg-type]
    assert [e.id for e in events] == [1, 2, 3]
    assert [args for name, args in handle.called if name == "events"] == [("video_1", 0), ("video_1", 1)]


def test_a_cluster_that_stays_away_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raydiance.serve.client.RECONNECT_S", 0.0)
    handle = Handle(job=JOB, events=(RayActorError(),))
    with pytest.raises(Unavailable):
        list(Client(handle).job("video_1").events())  # type: ignore[arg-type]


def test_long_poll_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    polls = [[], [event(1), event(2)], [event(3, "completed")]]
    handle = Handle(job=JOB, events_since=polls)
    job = Client(handle, streams=False).job("video_1")  # type: ignore[arg-type]
    assert [e.id for e in job.events()] == [1, 2, 3]
    assert [args[1] for name, args in handle.called if name == "events_since"] == [0, 0, 2]


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (InvalidRequest("bad", "num_frames"), InvalidRequest),
        (NotFound("no"), NotFound),
        (ValueError("odd"), RaydianceError),
    ],
)
def test_errors_come_as_they_were_raised(raised: Exception, expected: type[Exception]) -> None:
    wrapped = RayTaskError("submit", "trace", raised).as_instanceof_cause()
    with pytest.raises(expected) as caught:
        Client(Handle(submit=wrapped)).generate("x")  # type: ignore[arg-type]
    assert not isinstance(caught.value, RayTaskError)


def test_images_go_as_bytes(tmp_path: Path) -> None:
    handle = Handle(submit=JOB)
    file = tmp_path / "x.png"
    file.write_bytes(b"picture")
    for image in (file, str(file), b"picture"):
        Client(handle).generate("x", image=image)  # type: ignore[arg-type]
    inputs = [args[0]["inputs"] for _, args in handle.called]
    assert inputs[0] == inputs[1] == inputs[2]
    assert inputs[0][0]["source"] == {"b64": "cGljdHVyZQ=="}


def test_every_kind_of_file_in_its_role(tmp_path: Path) -> None:
    handle = Handle(submit=JOB)
    video = tmp_path / "v.mp4"
    video.write_bytes(b"video")
    pictures: dict[str, Any] = {"image": b"first", "last_frame": b"last", "references": [b"one", b"two"]}
    Client(handle).generate("x", **pictures, video=video, mask=b"mask")  # type: ignore[arg-type]
    [(_, (request, _))] = handle.called
    got = [(i["type"], i.get("role"), base64.b64decode(i["source"]["b64"])) for i in request["inputs"]]
    assert got == [
        ("image", None, b"first"),
        ("image", "last_frame", b"last"),
        ("image", "reference", b"one"),
        ("image", "reference", b"two"),
        ("video", "video", b"video"),
        ("mask", None, b"mask"),
    ]


def test_every_field_of_a_request_can_be_given() -> None:
    named = {"prompt", "inputs", "output"}  # `inputs` by kind, of `output` the format
    assert set(Fields.__annotations__) == set(GenerationRequest.model_fields) - named
    handle = Handle(submit=JOB)
    Client(handle).generate("x", audio=False, true_cfg_scale=2.0)  # type: ignore[arg-type]
    [(_, (request, _))] = handle.called
    assert (request["audio"], request["true_cfg_scale"]) == (False, 2.0)


def test_quotes_and_groups() -> None:
    handle = Handle(quote={"object": "quote"}, create_group={"id": "g"}, group={"id": "g"}, cancel_group={"id": "g"})
    client = Client(handle)  # type: ignore[arg-type]
    assert client.quote("x", image=b"picture", output_format="webp", n=2, service_tier="batch") == {"object": "quote"}
    assert client.create_group([{"prompt": "x"}], atomic=True, deadline_s=5.0) == {"id": "g"}
    assert client.group("g") == client.cancel_group("g") == {"id": "g"}
    asked = dict(handle.called)
    [request] = asked["quote"]
    assert (request["n"], request["service_tier"], request["output"]) == (2, "batch", {"format": "webp"})
    assert request["inputs"][0]["source"] == {"b64": "cGljdHVyZQ=="}
    assert asked["create_group"] == ({"atomic": True, "deadline_s": 5.0, "requests": [{"prompt": "x"}]},)
    assert asked["group"] == asked["cancel_group"] == ("g",)
    with pytest.raises(InvalidRequest) as caught:
        client.quote("x", n=99)
    assert caught.value.param == "n"


def test_why_a_job_waits() -> None:
    handle = Handle(job=JOB, why={"where": "it waits"})
    assert Client(handle).job("video_1").why() == {"where": "it waits"}  # type: ignore[arg-type]
    assert handle.called[-1] == ("why", ("video_1",))


def test_result_of_a_failed_job() -> None:
    failed = {"id": "video_1", "status": "failed", "error": {"message": "out of memory", "code": "oom"}}
    handle = Handle(job=failed, events=([event(1, "failed")],))
    with pytest.raises(GenerationFailed, match="out of memory"):
        Client(handle).job("video_1").result()  # type: ignore[arg-type]
