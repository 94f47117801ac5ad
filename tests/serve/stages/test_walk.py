"""One job's walk over doubles of the stages: what is lost on the way, and what is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from ray.exceptions import OwnerDiedError, RayActorError, RayTaskError
from ray.serve._private.common import DeploymentID
from ray.serve.exceptions import DeploymentUnavailableError
from tests.local_handles import LocalHandle

from raydiance.models.card import Defaults, ModelCard
from raydiance.models.spec import Spec
from raydiance.serve.calls import ask
from raydiance.serve.errors import GenerationFailed
from raydiance.serve.feed import Feed
from raydiance.serve.request import GenerationRequest
from raydiance.serve.stages import recovery
from raydiance.serve.stages.messages import Decoded, Denoised, Encoded, Spent, StageEvent
from raydiance.serve.stages.walk import Stages, Walk
from raydiance.serve.storage.artifacts import ArtifactStore
from raydiance.serve.storage.job import Artifact, Job

SPEC = Spec("m", "text-to-video", "a ball", 32, 32, 5, 4, 1.0, 0)
CARD = ModelCard("m", "m", ("text-to-video",), Defaults(32, 32, 5, 8, 4, 1.0), 16, 4, 8, 4, (1, 2, 2))
LATENTS: Any = "latents"


def lost() -> Exception:
    """What a caller gets when an argument's object died with the replica that made it."""
    return RayTaskError("generate", "", OwnerDiedError("00", b"", "")).as_instanceof_cause()


class Doubles:
    """All three stages. `encode`, `generate` and `decode` raise `losses[name]` times as `lost` does."""

    def __init__(self, **losses: int) -> None:
        self.losses = losses
        self.error: Callable[[], Exception] = lost

    def lose(self, name: str) -> None:
        if self.losses.get(name, 0):
            self.losses[name] -= 1
            raise self.error()

    async def encode(self, texts: list[str]) -> Encoded:
        self.lose("encode")
        return Encoded(texts, 0.0)  # type: ignore[arg-type]

    async def generate(self, work: Any, encoded: Any, image: Any) -> AsyncIterator[StageEvent]:
        self.lose("generate")
        yield Denoised(LATENTS, Spent())

    async def decode(
        self, latents: Any, spec: Spec, output: Any, prefix: str, index: int, previous: Any = None
    ) -> Decoded:
        self.lose("decode")
        file = Artifact(
            key=f"{prefix}/{index}.mp4", index=index, content_type="video/mp4", size_bytes=1, width=32, height=32
        )
        return Decoded(file, {})


def a_walk(doubles: Doubles) -> Walk:
    handle: Any = LocalHandle(doubles)
    job = Job(
        id="video_1",
        kind="video",
        model="m",
        request=GenerationRequest(prompt="a ball"),
        specs=[SPEC.to_dict()],
        created_at=0,
    )

    async def begin() -> Job:
        return job

    async def saved(_percent: int) -> None:
        return None

    return Walk(Stages(handle, handle, handle), CARD, job, Feed(job.id, 0), saved, begin=begin)


@pytest.mark.parametrize("stage", ["encode", "generate", "decode"])
async def test_what_died_with_the_replica_that_made_it_is_made_again(
    monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    monkeypatch.setattr(recovery, "RETRY_S", 0.001)
    [artifact], _ = await a_walk(Doubles(**{stage: 2})).run()
    assert artifact.key == "jobs/video_1/0.mp4"


@pytest.mark.parametrize(("stage", "deaths"), [("encode", 5), ("generate", 2), ("decode", 5)])
async def test_one_that_takes_every_replica_of_a_stage_down_is_failed(
    monkeypatch: pytest.MonkeyPatch, stage: str, deaths: int
) -> None:
    monkeypatch.setattr(recovery, "RETRY_S", 0.001)
    doubles = Doubles(**{stage: 99})
    doubles.error = RayActorError
    with pytest.raises(GenerationFailed, match=f"{deaths} replicas died") as failed:
        await a_walk(doubles).run()
    assert failed.value.code == "poison_request"
    assert 99 - doubles.losses[stage] == deaths


async def test_what_is_away_for_long_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(recovery.asyncio, "sleep", sleep)
    one = recovery.Recovery()
    for _ in range(2000):
        await one.lost(0, 3, 9, DeploymentUnavailableError(DeploymentID("Denoiser")))
    assert max(waited) == recovery.MAX_RETRY_S


class Slow:
    """A stage that takes long, and a moment more to stop."""

    has_ended = False

    async def work(self) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            self.has_ended = True


async def test_a_call_ends_in_its_replica_before_its_cancelled_caller_goes_on() -> None:
    stage = Slow()
    handle: Any = LocalHandle(stage)
    caller = asyncio.ensure_future(ask(handle, "work"))
    await asyncio.sleep(0.01)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert stage.has_ended


async def test_a_write_that_is_cancelled_has_ended(tmp_path: Any) -> None:
    """So that who deletes a job's files after it was cancelled finds them all."""
    store = ArtifactStore(str(tmp_path))
    for i in range(20):
        writing = asyncio.ensure_future(store.put(f"jobs/{i}/0.mp4", b"x" * 20_000_000))
        await asyncio.sleep(0)
        writing.cancel()
        await asyncio.wait({writing})
        await store.delete_prefix(f"jobs/{i}")
    await asyncio.sleep(0.3)
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []
