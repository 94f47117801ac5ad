"""Simulated stages under the real dispatcher, in one process: they take their time, keep leases and resume."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.local_handles import LocalHandle
from tests.serve.house import TIMEOUT_S, House, events

from raydiance.models import registry, resolve
from raydiance.models.spec import Spec
from raydiance.serve import dispatcher as module
from raydiance.serve.config import Config, ModelConfig, load_config
from raydiance.serve.engine.cost_model import CostModel
from raydiance.serve.engine.pack_error import PackError
from raydiance.serve.engine.ways import Shape
from raydiance.serve.errors import ConfigError
from raydiance.serve.gpus import GPUS
from raydiance.serve.samples import default_spec
from raydiance.serve.simulate_config import SimulateConfig
from raydiance.serve.stages import refs
from raydiance.serve.stages.messages import Checkpointed, Denoised, Leased, Previewed, Stepped, Work
from raydiance.serve.stages.simulated import placards
from raydiance.serve.stages.simulated.costs import Simulated, costs_on, simulated
from raydiance.serve.stages.simulated.denoiser import SimulatedDenoiser
from raydiance.serve.stages.simulated.fleet import pack, unpack
from raydiance.serve.stages.simulated.text_encoder import SimulatedTextEncoder
from raydiance.serve.stages.simulated.timeline import CATCH_UP_S, Timeline
from raydiance.serve.stages.simulated.vae_decoder import SimulatedVAEDecoder
from raydiance.serve.storage.job import JobState

STEP_S = 0.02
COSTS = CostModel({"step": {"rows": STEP_S}, "decode": {"calls": 0.001}, "text": {"texts": 0.001}})
TINY = ModelConfig(path="tiny", name="m")


def spec(**values: Any) -> Spec:
    card = registry.card(resolve.resolve("tiny"), "m")
    made = default_spec(card, values.pop("num_inference_steps", 10)).to_dict()
    return Spec.from_dict({**made, **values})


def a_denoiser(costs: CostModel = COSTS, **settings: Any) -> SimulatedDenoiser:
    config = load_config({"denoiser.progress_interval_s": 0, "denoiser.checkpoint_interval_s": 1e-9, **settings})
    made = Simulated(costs, 1.0, 0.0)
    return SimulatedDenoiser(TINY, config.denoiser, "cpu", config.parallel, config.scheduling, made)


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refs, "put", lambda value, loop: value)
    monkeypatch.setattr(module, "LOOK_S", 0.05)


class SimulatedHouse(House):
    """A dispatcher over simulated stages of the embedded model."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        from raydiance.serve.storage.artifacts import ArtifactStore
        from raydiance.serve.storage.jobs import JobStore

        self.config: Config = load_config(
            {
                "storage.database": f"sqlite:///{folder}/jobs.db",
                "storage.artifacts": f"{folder}/artifacts",
                "denoiser.checkpoint_interval_s": 1e-9,
                "denoiser.progress_interval_s": 0,
                **settings,
            }
        )
        self.model = TINY.model_copy(update={"path": str(resolve.resolve("tiny"))})
        self.jobs = JobStore(self.config.storage.database)
        self.artifacts = ArtifactStore(self.config.storage.artifacts)
        made = Simulated(COSTS, 1.0, 0.0)
        c = self.config
        self.denoiser = SimulatedDenoiser(self.model, c.denoiser, "cpu", c.parallel, c.scheduling, made)
        self.stages = {
            "text_encoder": LocalHandle(SimulatedTextEncoder(self.model, c.text_encoder, "cpu", made)),
            "denoiser": LocalHandle(self.denoiser),
            "vae_decoder": LocalHandle(SimulatedVAEDecoder(self.model, c, "cpu", made)),
        }
        self.dispatchers = []


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[Callable[..., SimulatedHouse]]:
    made: list[SimulatedHouse] = []

    def build(**settings: Any) -> SimulatedHouse:
        made.append(SimulatedHouse(tmp_path, **settings))
        return made[-1]

    yield build
    for each in made:
        await each.close()


async def test_a_job_ends_with_a_file_that_says_what_it_is(house: Callable[..., SimulatedHouse]) -> None:
    here = house()
    dispatcher = await here.start()
    card = await dispatcher.card()
    assert card is not None
    assert card.is_simulated
    job = here.create(previews=1, num_inference_steps=6)
    await dispatcher.enqueue(job.id)
    seen = await events(dispatcher, job)
    ended = await here.ended(job)
    assert ended.state is JobState.COMPLETED
    [artifact] = ended.artifacts
    assert artifact.simulated
    assert ended.public()["outputs"][0]["simulated"] is True
    data = await here.artifacts.get(artifact.key)
    assert len(data) == artifact.size_bytes
    assert {"preview", "progress", "completed"} <= {event.type for event in seen}
    assert ended.timings["denoise_s"] >= 6 * STEP_S - CATCH_UP_S  # the first may begin when what was before it ended


async def test_a_lease_hands_the_step_back_and_the_next_goes_on(house: Callable[..., SimulatedHouse]) -> None:
    here = house(**{"scheduling.lease_s": 0.1})
    dispatcher = await here.start()
    before = await here.steps()
    job = here.create(num_inference_steps=20)
    await dispatcher.enqueue(job.id)
    ended = await here.ended(job)
    assert ended.state is JobState.COMPLETED
    assert await here.steps() - before == 20  # none twice


async def test_a_cancelled_job_stops_within_a_step(house: Callable[..., SimulatedHouse]) -> None:
    here = house()
    dispatcher = await here.start()
    job = here.create(num_inference_steps=200)
    await dispatcher.enqueue(job.id)
    async with asyncio.timeout(TIMEOUT_S):
        while here.jobs.get(job.id).progress == 0:
            await asyncio.sleep(0.01)
    here.jobs.cancel(job.id)
    await dispatcher.cancel(job.id)
    steps = await here.steps()
    await asyncio.sleep(5 * STEP_S)
    assert await here.steps() <= steps + 1


async def test_a_checkpoint_goes_on_in_another_replica() -> None:
    first, second = a_denoiser(), a_denoiser()
    work, at = Work("a", spec()), None
    events = first.generate(work, [])
    async for event in events:
        if isinstance(event, Checkpointed) and event.step == 4:
            at = event
            break
    await events.aclose()  # type: ignore[attr-defined]
    assert at is not None
    resumed = Work("a", work.spec, checkpoint=at.data, step=at.step)
    kinds = [type(event) async for event in second.generate(resumed, [])]
    assert kinds[-1] is Denoised
    assert (await second.stats())["steps"] == 6
    for denoiser in (first, second):
        denoiser._loop.stop()


async def test_a_lease_ends_with_a_state_and_previews_are_told() -> None:
    denoiser = a_denoiser()
    work = Work("a", spec(num_inference_steps=50), preview_steps=(2,), lease_s=0.2)
    seen = [event async for event in denoiser.generate(work, [])]
    assert isinstance(seen[-1], Leased)
    assert any(isinstance(event, Previewed) for event in seen)
    assert any(isinstance(event, Stepped) for event in seen)
    assert 0 < seen[-1].step < 50
    denoiser._loop.stop()


async def test_the_real_policy_batches() -> None:
    """A row costs nothing beside a forward, so those of one kind go together."""
    denoiser = a_denoiser(CostModel({"step": {"forwards": STEP_S}}))

    async def one(i: int) -> None:
        async for _ in denoiser.generate(Work(str(i), spec(seed=i, num_inference_steps=20)), []):
            pass

    await asyncio.gather(*map(one, range(4)))
    stats = await denoiser.stats()
    assert stats["steps"] == 80
    assert stats["rows"] == 160  # of two branches
    assert stats["forwards"] < 160
    denoiser._loop.stop()


async def test_ranks_share_a_step() -> None:
    whole = a_denoiser(CostModel({"step": {"work": 2e-4}}, inflation=0.0))
    halves = a_denoiser(CostModel({"step": {"work": 2e-4}}, inflation=0.0), **{"parallel.gpus": 2})
    took = []
    for denoiser in (whole, halves):
        seen = [event async for event in denoiser.generate(Work("a", spec(num_inference_steps=20)), [])]
        assert isinstance(seen[-1], Denoised)
        took.append(seen[-1].spent.busy_s)
        denoiser._loop.stop()
    assert took[1] < 0.8 * took[0]


def test_a_checkpoint_of_something_else_is_refused() -> None:
    assert unpack(pack(spec(), 3), spec()) == 3
    for data, of in ((pack(spec(), 3), spec(seed=9)), (b"nothing", spec()), (b"{}", spec())):
        with pytest.raises(PackError):
            unpack(data, of)


def test_sleeps_do_not_drift() -> None:
    timeline, began = Timeline(), time.monotonic()
    for _ in range(20):
        timeline.sleep(0.01)
        time.sleep(0.003)  # what a loop does between steps
    assert time.monotonic() - began + 0.001 >= 0.2
    assert timeline._until - began < 0.23


@pytest.mark.parametrize("size", [(32, 32), (1280, 720), (720, 1280), (64, 2048)], ids=str)
def test_placards_keep_proportions_and_can_be_read_back(size: tuple[int, int]) -> None:
    width, height = placards.fitted(*size)
    assert max(width, height) <= 256
    assert width % 2 == height % 2 == 0
    image = Image.open(io.BytesIO(placards.picture(width, height, "png")))
    assert image.size == (width, height)
    assert len(image.getcolors(1 << 16) or []) > 1  # letters on a ground


def test_costs_follow_the_flops_of_the_real_modules() -> None:
    folder = resolve.resolve("tiny")
    slow, fast = (costs_on(GPUS[name], folder, TINY) for name in ("l4", "h100"))
    assert {"step", "text", "inputs", "decode", "video_file", "image_file"} <= set(slow.coefficients)
    assert slow.seconds(Shape(1000)) > 3 * fast.seconds(Shape(1000))
    assert fast.seconds(Shape(2000)) > fast.seconds(Shape(1000))


def test_what_cannot_be_simulated_says_so(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text('{"_class_name": "SanaPipeline"}')
    guest = ModelConfig(path=str(tmp_path), name="guest")
    with pytest.raises(ConfigError, match="guest"):
        simulated(guest, SimulateConfig(gpu="h100"))
    missing = ModelConfig(path="tiny", cost_profile=str(tmp_path / "none.json"))
    with pytest.raises(ConfigError, match="cannot read"):
        simulated(missing, SimulateConfig(gpu="h100"))
    with pytest.raises(ConfigError, match="not set"):
        simulated(TINY, SimulateConfig())
