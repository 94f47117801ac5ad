from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from sqlalchemy import create_engine, text

from raydiance.serve.edge_config import NetworkConfig, WebhookConfig, secret_key
from raydiance.serve.errors import ConfigError
from raydiance.serve.request import GenerationRequest
from raydiance.serve.storage.job import Job, new_job_id, now
from raydiance.serve.storage.jobs import JobStore
from raydiance.serve.webhooks import MAX_CONCURRENT, Deliverer, sign

SECRET = "whsec_" + base64.b64encode(b"a secret of thirty-two bytes ...").decode()
LOOPBACK = NetworkConfig(allow_hosts=["127.0.0.1"])
Hook = tuple[dict[str, str], bytes]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def store(url: str) -> Iterator[JobStore]:
    store = JobStore(url)
    yield store
    store.close()


@asynccontextmanager
async def _receiver(status: Callable[[], str], hooks: list[Hook]) -> Any:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        headers = {k.lower(): v.strip() for k, v in (line.split(":", 1) for line in head.splitlines()[1:-1])}
        body = await reader.readexactly(int(headers["content-length"]))
        hooks.append((headers, body))
        writer.write(f"HTTP/1.1 {status()}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".encode())
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"


def _end_job(store: JobStore, webhook: str, kind: Any = "video") -> Job:
    request = GenerationRequest(webhook=webhook)
    job = Job(id=new_job_id(kind), kind=kind, model="tiny", request=request, specs=[], created_at=now())
    store.create(job)
    store.start(job.id)
    return store.complete(job.id, artifacts=[], timings={}, expires_at=None)


def _config(**values: Any) -> WebhookConfig:
    return WebhookConfig.model_validate({"secret": SECRET, "timeout_s": 1, **values})


def _outbox(url: str) -> list[tuple[Any, ...]]:
    engine = create_engine(url)
    with engine.connect() as connection:
        rows = [tuple(r) for r in connection.execute(text("SELECT state, attempt, last_error FROM webhooks"))]
    engine.dispose()
    return rows


def test_openai_client_takes_the_event_and_refuses_a_forged_one(store: JobStore) -> None:
    hooks: list[Hook] = []

    async def main() -> Job:
        async with _receiver(lambda: "204 No Content", hooks) as hook:
            job = _end_job(store, hook)
            deliverer = Deliverer(store, _config(), LOOPBACK)
            assert await deliverer.run_once(now()) == 1
            assert await deliverer.run_once(now() + 1000) == 0
            return job

    job = asyncio.run(main())
    [(headers, body)] = hooks
    client = openai.OpenAI(api_key="unused", webhook_secret=SECRET)
    event: dict[str, Any] = client.webhooks.unwrap(body, headers).to_dict()
    assert event["type"] == "video.completed"
    assert event["data"] == {"id": job.id}
    assert event["id"] == headers["webhook-id"]
    assert headers["content-type"] == "application/json"
    with pytest.raises(openai.InvalidWebhookSignatureError):
        client.webhooks.verify_signature(body.replace(b"completed", b"failed"), headers)
    with pytest.raises(openai.InvalidWebhookSignatureError):
        client.webhooks.verify_signature(body, {**headers, "webhook-id": "evt_other"})
    client.close()


def test_signature_of_the_specification() -> None:
    """The example in the Standard Webhooks reference libraries."""
    key = secret_key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    signature = sign(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_retries_back_off_and_keep_the_id(store: JobStore, url: str) -> None:
    hooks: list[Hook] = []
    answers = iter(["500 No", "302 Found", "200 OK"])

    async def main() -> None:
        async with _receiver(lambda: next(answers), hooks) as hook:
            _end_job(store, hook)
            deliverer = Deliverer(store, _config(first_retry_s=10), LOOPBACK)
            start = now()
            for at, tried in ((0, 1), (9.9, 0), (12.6, 1), (12.6 + 19.9, 0), (12.6 + 25.1, 1), (1e6, 0)):
                assert await deliverer.run_once(start + at) == tried, at

    asyncio.run(main())
    assert len({h["webhook-id"] for h, _ in hooks}) == 1
    assert len({body for _, body in hooks}) == 1
    assert _outbox(url) == [("done", 3, None)]


def test_it_gives_up_after_max_attempts(store: JobStore, url: str) -> None:
    hooks: list[Hook] = []

    async def main() -> None:
        async with _receiver(lambda: "503 Busy", hooks) as hook:
            _end_job(store, hook)
            deliverer = Deliverer(store, _config(max_attempts=3), LOOPBACK)
            assert [await deliverer.run_once(now() + 100 * i) for i in range(5)] == [1, 1, 1, 0, 0]

    asyncio.run(main())
    assert len(hooks) == 3
    assert _outbox(url) == [("gave_up", 3, "status 503")]


def test_many_are_sent_at_once_and_a_dead_receiver_holds_up_none(store: JobStore, url: str) -> None:
    hooks: list[Hook] = []

    async def main() -> None:
        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        async with (
            _receiver(lambda: "200 OK", hooks) as hook,
            await asyncio.start_server(silent, "127.0.0.1", 0) as dead,
        ):
            for i in range(MAX_CONCURRENT + 2):
                _end_job(store, f"http://127.0.0.1:{dead.sockets[0].getsockname()[1]}/" if i < 4 else hook)
            deliverer = Deliverer(store, _config(timeout_s=0.3, first_retry_s=100), LOOPBACK)
            clock = asyncio.get_running_loop().time
            start = clock()
            assert await deliverer.run_once(now()) == MAX_CONCURRENT
            assert clock() - start < 4 * 0.3 + 1.5
            assert await deliverer.run_once(now()) == 2

    asyncio.run(main())
    assert len(hooks) == MAX_CONCURRENT - 2
    assert sorted(s for s, _, _ in _outbox(url)) == ["done"] * (MAX_CONCURRENT - 2) + ["pending"] * 4


def test_private_receivers_are_not_called_and_the_secret_is_not_logged(
    store: JobStore, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    hooks: list[Hook] = []

    async def main() -> None:
        async with _receiver(lambda: "200 OK", hooks) as hook:
            _end_job(store, hook)
            assert await Deliverer(store, _config(), NetworkConfig()).run_once(now()) == 1

    with caplog.at_level(logging.DEBUG):
        asyncio.run(main())
    assert hooks == []
    [(state, attempt, error)] = _outbox(url)
    assert (state, attempt) == ("pending", 1)
    assert "not a public host" in error
    assert "attempt 1" in caplog.text
    assert SECRET not in caplog.text + repr(_config())
    assert SECRET.removeprefix("whsec_") not in caplog.text


def test_without_a_secret_nothing_is_sent(store: JobStore) -> None:
    _end_job(store, "http://127.0.0.1:1/")
    assert asyncio.run(Deliverer(store, WebhookConfig(), LOOPBACK).run_once(now())) == 0
    assert len(store.due_webhooks(now())) == 1, "it waits for one"


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_!", "plain", base64.b64encode(b"x").decode()])
def test_a_malformed_secret_is_refused_at_start(store: JobStore, secret: str) -> None:
    with pytest.raises(ConfigError, match=r"webhooks\.secret") as error:
        Deliverer(store, _config(secret=secret), LOOPBACK)
    assert len(secret) < 6 or secret not in str(error.value).replace("'whsec_'", "").replace("whsec_$", "")


def test_the_body_is_openais_event(store: JobStore) -> None:
    hooks: list[Hook] = []

    async def main() -> Job:
        async with _receiver(lambda: "200 OK", hooks) as hook:
            job = _end_job(store, hook, "image")
            await Deliverer(store, _config(), LOOPBACK).run_once(now())
            return job

    job = asyncio.run(main())
    event = json.loads(hooks[0][1])
    assert event.pop("created_at") == pytest.approx(now(), abs=60)
    expected = {"object": "event", "type": "image.completed", "data": {"id": job.id}}
    assert event == {"id": hooks[0][0]["webhook-id"], **expected}
