"""Which of two experts runs, and where the other one is meanwhile."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from tests.families.kit import Studio, naive_attention
from tests.families.wan import I2V_A14B, MODELS, T2V_A14B
from tests.tokens import Recorder

from raydiance.models import registry, wan_experts
from raydiance.models.options import LoadOptions
from raydiance.models.resolve import CheckpointError
from raydiance.models.wan_experts import Experts

TI2V, T2V, I2V = MODELS[:3]
HIGH, LOW = "transformer", "transformer_2"
IDLE = LoadOptions(offload="idle_expert")


class Moved:
    """Stands for a transformer: knows where it was sent."""

    def __init__(self) -> None:
        self.devices: list[str] = []

    def to(self, device: torch.device) -> None:
        self.devices.append(str(device))


def experts(**options: object) -> tuple[Experts, dict[str, Moved]]:
    models = {HIGH: Moved(), LOW: Moved()}
    return Experts(models, 800.0, torch.device("cuda"), **options), models


def test_the_boundary_belongs_to_high_noise():
    both, _ = experts()
    for high in (torch.tensor(1000), torch.tensor(800), torch.tensor(800.0)):
        assert both.needed(high) == HIGH
    for low in (torch.tensor(799), torch.tensor(799.99), torch.tensor(0)):
        assert both.needed(low) == LOW


def test_one_expert_is_for_every_timestep():
    only = Experts({LOW: Moved()}, None, torch.device("cpu"))
    assert only.split([torch.tensor(999), torch.tensor(0)]) == [(LOW, [0, 1])]


def test_where_both_have_room_nothing_moves():
    both, models = experts()
    assert both.on_device == {HIGH, LOW}
    assert [both.use(name) for name in (HIGH, LOW, HIGH)] == [models[HIGH], models[LOW], models[HIGH]]
    assert both.num_moves == 0
    assert models[HIGH].devices == models[LOW].devices == []


def test_the_idle_one_makes_room_first():
    both, models = experts(offload_idle=True)
    assert both.on_device == set()
    both.use(HIGH)
    both.use(HIGH)
    assert (both.num_moves, both.on_device) == (1, {HIGH})
    log: list[str] = []
    for name, model in models.items():
        model.to = lambda device, name=name: log.append(f"{name} to {device}")
    both.use(LOW)
    assert log == ["transformer to cpu", "transformer_2 to cuda"]
    assert (both.num_moves, both.on_device) == (3, {LOW})


@pytest.mark.parametrize("resident", [HIGH, LOW])
def test_what_is_on_the_device_goes_first(resident):
    both, _ = experts(offload_idle=True)
    both.use(resident)
    order = both.split([torch.tensor(t) for t in (900, 100, 800, 200)])
    assert [name for name, _ in order] == [resident, HIGH if resident == LOW else LOW]
    assert dict(order) == {HIGH: [0, 2], LOW: [1, 3]}


def loaded(model, options: LoadOptions) -> Studio:
    return replace(model.studio, denoiser=registry.load(model.folder, "denoise", "wan", options))


@pytest.mark.parametrize(("model", "case"), [(T2V, T2V_A14B[0]), (I2V, I2V_A14B[1])], ids=["t2v", "i2v"])
def test_off_loading_changes_no_number_and_moves_once_at_the_boundary(model, case):
    studio = loaded(model, IDLE)
    moves, trajectory = [], studio.start(case)
    assert studio.denoiser.experts.num_moves == 0
    for step in range(1, trajectory.num_steps + 1):
        trajectory = studio.run(trajectory, to=step)
        moves.append(studio.denoiser.experts.num_moves)
    assert moves == [1, 1, 3, 3]  # one to the device; at the boundary one off it and the other onto it
    assert torch.equal(studio.engine().finish(trajectory), model.studio.latents(case))


def test_a_batch_on_both_sides_of_the_boundary_swaps_once_a_step():
    studio, case = loaded(T2V, IDLE), replace(T2V_A14B[0], spec=replace(T2V_A14B[0].spec, num_inference_steps=8))
    late = replace(case, spec=replace(case.spec, seed=1, guidance_scale=1.0, num_inference_steps=4))
    alone = [T2V.studio.latents(case), T2V.studio.latents(late)]
    engine, early_one, late_one = studio.engine(), studio.start(case), studio.run(studio.start(late), to=2)
    before = studio.denoiser.experts.num_moves
    rows = []
    for name in (HIGH, LOW):
        getattr(studio.denoiser.pipeline, name).register_forward_hook(
            lambda module, args, kwargs, out, name=name: rows.append((name, len(kwargs["timestep"]))), with_kwargs=True
        )
    early_one, late_one = engine.step([early_one, late_one])
    assert rows == [(HIGH, 1), (HIGH, 1), (LOW, 1)]  # the guided one has two branches
    assert studio.denoiser.experts.num_moves == before + 2
    assert engine.num_forwards == 1
    rows.clear()
    early_one, late_one = engine.step([early_one, late_one])
    assert rows == [(LOW, 1), (HIGH, 1), (HIGH, 1)]  # the one that is there goes first
    assert studio.denoiser.experts.num_moves == before + 4
    assert late_one.is_done
    latents = [engine.finish(studio.run(early_one)), engine.finish(late_one)]
    for ours, expected in zip(latents, alone, strict=True):
        assert torch.equal(ours, expected)


def test_ranks_whose_experts_differ_run_them_in_one_order():
    orders = []
    for resident in (HIGH, LOW):
        studio, case = loaded(T2V, IDLE), T2V_A14B[0]
        both = [studio.start(case), studio.run(studio.start(case), to=3)]
        studio.denoiser.set_tokens(Recorder())
        studio.denoiser.experts.use(resident)
        ran = []
        for name in (HIGH, LOW):
            hook = getattr(studio.denoiser.pipeline, name).register_forward_hook
            hook(lambda module, args, out, name=name, ran=ran: ran.append(name))
        studio.engine().step(both)
        orders.append(ran)
    assert orders[0] == orders[1]
    assert set(orders[0]) == {HIGH, LOW}


def test_neighbours_at_the_same_expert_share_a_forward():
    studio, case = T2V.studio, T2V_A14B[0]
    rows = []
    hook = studio.denoiser.pipeline.transformer.register_forward_hook(
        lambda module, args, kwargs, out: rows.append(len(kwargs["timestep"])), with_kwargs=True
    )
    try:
        studio.engine().step([studio.start(case), studio.run(studio.start(case), to=1)])
    finally:
        hook.remove()
    assert rows == [1, 1, 2, 2]  # alone, then together; each with both branches


@pytest.mark.parametrize("stage", ["encode", "denoise", "decode"])
def test_one_expert_has_no_idle_one_to_off_load(stage):
    with pytest.raises(CheckpointError, match=r"idle_expert is for two experts; .*wan-ti2v has transformer alone"):
        registry.load(TI2V.folder, stage, "wan", IDLE)


def test_two_rules_for_where_experts_are_is_one_too_many():
    with pytest.raises(CheckpointError, match="idle_expert and device_map=balanced"):
        registry.load(T2V.folder, "denoise", "wan", replace(IDLE, device_map="balanced"))


@pytest.mark.parametrize("bits", [4, 8])
def test_what_bitsandbytes_quantised_is_not_moved(bits, monkeypatch):
    quantised = SimpleNamespace(**{f"is_loaded_in_{bits}bit": True})
    monkeypatch.setattr(wan_experts, "load_component", lambda *_: quantised)
    with pytest.raises(CheckpointError, match="idle_expert moves transformer, which bitsandbytes"):
        registry.load(T2V.folder, "denoise", "wan", IDLE)


@pytest.mark.parametrize("model", [T2V, I2V], ids=["t2v", "i2v"])
def test_an_attention_from_outside_is_used_in_both_experts(model):
    case = {T2V: T2V_A14B[0], I2V: I2V_A14B[1]}[model]
    studio, calls = model.studio, []

    def naive(q, k, v):
        calls.append(k.shape[1])
        return naive_attention(q, k, v)

    expected = studio.latents(case)
    try:
        studio.denoiser.set_attention(naive)
        latents = studio.latents(case)
    finally:
        studio.denoiser.set_attention(None)
    forwards, blocks = 2 * case.spec.num_inference_steps, 2
    assert calls == [studio.denoiser.card.num_tokens(32, 48, 5), 12] * blocks * forwards
    assert (latents - expected).abs().max() <= 1e-4
    assert torch.equal(studio.latents(case), expected)
