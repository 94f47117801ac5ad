"""Solvers against diffusers' own stepping of the same schedulers."""

from __future__ import annotations

import json

import pytest
import torch
from diffusers import DDIMScheduler, FlowMatchEulerDiscreteScheduler, FlowMatchLCMScheduler, UniPCMultistepScheduler
from tests.checkpoints import SCHEDULERS

from raydiance.models.solver import Solver, SolverError, SolverState

SHAPE = (4, 2, 3, 5)


def unipc(**options):
    return UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0, **options)


def velocities(num_steps: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_steps, *SHAPE, generator=torch.Generator().manual_seed(seed))


def diffusers_steps(scheduler, num_steps: int, begin: int, seed: int = 0) -> list[torch.Tensor]:
    scheduler = type(scheduler).from_config(scheduler.config)
    scheduler.set_timesteps(num_steps)
    scheduler.set_begin_index(begin)
    velocity = velocities(num_steps, seed)
    latents, trail = velocity[0:1], []
    for index in range(begin, num_steps):
        latents = scheduler.step(velocity[index : index + 1], scheduler.timesteps[index], latents, return_dict=False)[0]
        trail.append(latents[0])
    return trail


ALL = [
    *(pytest.param(scheduler, id=name) for name, scheduler in SCHEDULERS.items()),
    pytest.param(unipc(solver_order=3), id="unipc-order-3"),
    pytest.param(unipc(disable_corrector=[0, 2]), id="unipc-corrector-off"),
    # bh1 that ends at sigma 0 is NaN in diffusers, and so here
    pytest.param(unipc(solver_type="bh1", final_sigmas_type="sigma_min"), id="unipc-bh1-sigma-min"),
]


@pytest.mark.parametrize("scheduler", ALL)
@pytest.mark.parametrize(("num_steps", "begin"), [(1, 0), (4, 0), (30, 0), (7, 3)])
def test_steps_as_diffusers_does(scheduler, num_steps, begin):
    solver, velocity = Solver(scheduler, num_steps), velocities(num_steps)
    state, latents = solver.initial_state(), velocity[0]
    for index, expected in zip(range(begin, num_steps), diffusers_steps(scheduler, num_steps, begin), strict=True):
        latents, state = solver.step(state, index, velocity[index], latents)
        assert torch.equal(latents, expected)


@pytest.mark.parametrize("scheduler", ALL)
def test_one_solver_serves_many_in_any_order(scheduler):
    solver, seeds = Solver(scheduler, 6), (1, 2, 3)
    states = {seed: (velocities(6, seed)[0], solver.initial_state(), 0) for seed in seeds}
    for seed in [1, 1, 2, 3, 1, 2, 2, 2, 3, 1, 1, 1, 2, 3, 3, 2, 3, 3]:
        latents, state, index = states[seed]
        states[seed] = (*solver.step(state, index, velocities(6, seed)[index], latents), index + 1)
    for seed in seeds:
        assert torch.equal(states[seed][0], diffusers_steps(scheduler, 6, 0, seed)[-1])


def test_a_step_leaves_its_state_alone():
    solver, velocity = Solver(unipc(), 6), velocities(6)
    latents, state = velocity[0], solver.initial_state()
    for index in range(4):
        latents, state = solver.step(state, index, velocity[index], latents)
    before = {name: tensor.clone() for name, tensor in state.to_parts()[0].items()}
    one = solver.step(state, 4, velocity[4], latents)[0]
    two = solver.step(state, 4, velocity[4], latents)[0]
    assert torch.equal(one, two)
    assert all(torch.equal(before[name], tensor) for name, tensor in state.to_parts()[0].items())


@pytest.mark.parametrize("scheduler", ALL)
def test_a_state_survives_json(scheduler):
    solver, velocity = Solver(scheduler, 5), velocities(5)
    latents, state = solver.step(solver.initial_state(), 0, velocity[0], velocity[0])
    tensors, header = state.to_parts()
    again = SolverState.from_parts(tensors, json.loads(json.dumps(header)))
    assert torch.equal(solver.step(again, 1, velocity[1], latents)[0], solver.step(state, 1, velocity[1], latents)[0])


def test_a_state_with_other_attributes_is_refused():
    tensors, header = Solver(unipc(), 2).initial_state().to_parts()
    del header["values"]["last_sample"]
    with pytest.raises(SolverError, match="last_sample"):
        SolverState.from_parts(tensors, header)


@pytest.mark.parametrize("index", [0, 4])
def test_noise_is_added_as_diffusers_does(index):
    x0, noise = velocities(2)
    euler, multistep = FlowMatchEulerDiscreteScheduler(shift=3.0), unipc()
    for scheduler in (euler, multistep):
        scheduler.set_timesteps(9)
    timestep = euler.timesteps[index : index + 1]
    assert torch.equal(
        Solver(euler, 9).add_noise(x0, noise, index), euler.scale_noise(x0[None], timestep, noise[None])[0]
    )
    timestep = multistep.timesteps[index : index + 1]
    added = multistep.add_noise(x0[None], noise[None], timestep)[0]
    assert torch.equal(Solver(multistep, 9).add_noise(x0, noise, index), added)


@pytest.mark.parametrize("scheduler", SCHEDULERS.values(), ids=SCHEDULERS)
def test_x0_and_noise_are_found_again(scheduler):
    solver, (x0, noise) = Solver(scheduler, 9), velocities(2)
    noisy = solver.add_noise(x0, noise, 4)
    torch.testing.assert_close(solver.denoised(noisy, noise - x0, 4), x0, atol=1e-5, rtol=0)
    torch.testing.assert_close(solver.implied_noise(noisy, x0, 4), noise, atol=1e-5, rtol=0)


def test_dynamic_shift_and_own_sigmas_reach_the_scheduler():
    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    scheduler.set_timesteps(sigmas=[1.0, 0.7, 0.2], mu=0.8)
    solver = Solver(scheduler, sigmas=[1.0, 0.7, 0.2], mu=0.8)
    assert solver.num_steps == 3
    assert torch.equal(solver.sigmas, scheduler.sigmas)
    assert torch.equal(solver.timesteps, scheduler.timesteps)
    assert not torch.equal(solver.sigmas, Solver(scheduler, sigmas=[1.0, 0.7, 0.2], mu=0.1).sigmas)


def test_a_stochastic_solver_draws_from_the_generator():
    solver, velocity = Solver(FlowMatchEulerDiscreteScheduler(stochastic_sampling=True), 4), velocities(4)
    assert solver.is_stochastic
    assert not Solver(FlowMatchEulerDiscreteScheduler(), 4).is_stochastic

    def stepped(seed):
        generator = torch.Generator().manual_seed(seed)
        return solver.step(solver.initial_state(), 0, velocity[0], velocity[1], generator)[0]

    assert torch.equal(stepped(1), stepped(1))
    assert not torch.equal(stepped(1), stepped(2))


@pytest.mark.parametrize(
    "scheduler",
    [FlowMatchLCMScheduler(shift=6.0), FlowMatchEulerDiscreteScheduler(shift=3.0, stochastic_sampling=True)],
    ids=["lcm", "euler-stochastic"],
)
@pytest.mark.parametrize(("num_steps", "begin"), [(1, 0), (5, 0), (7, 3)])
def test_stochastic_steps_are_those_of_diffusers_with_the_same_generator(scheduler, num_steps, begin):
    solver, velocity = Solver(scheduler, num_steps), velocities(num_steps)
    assert solver.is_stochastic
    scheduler.set_timesteps(num_steps)
    scheduler.set_begin_index(begin)
    theirs, ours = velocity[0:1], velocity[0]
    theirs_draw, ours_draw = (torch.Generator().manual_seed(3) for _ in range(2))
    state = solver.initial_state()
    for index in range(begin, num_steps):
        timestep = scheduler.timesteps[index]
        theirs = scheduler.step(velocity[index][None], timestep, theirs, generator=theirs_draw).prev_sample
        ours, state = solver.step(state, index, velocity[index], ours, ours_draw)
        assert torch.equal(ours, theirs[0])
        assert torch.equal(ours_draw.get_state(), theirs_draw.get_state())
    estimate = solver.denoised(velocity[0], velocity[1 % num_steps], num_steps - 1)
    end = solver.step(state, num_steps - 1, velocity[1 % num_steps], velocity[0], ours_draw)[0]
    torch.testing.assert_close(end, estimate, atol=1e-6, rtol=0)  # the last step adds no noise


@pytest.mark.parametrize(
    ("scheduler", "named"),
    [
        (DDIMScheduler(), "DDIMScheduler"),
        (UniPCMultistepScheduler(), "use_flow_sigmas"),
        (UniPCMultistepScheduler(use_flow_sigmas=True), "prediction_type"),
        (unipc(thresholding=True), "thresholding"),
        (FlowMatchEulerDiscreteScheduler(invert_sigmas=True), "invert_sigmas"),
        (FlowMatchLCMScheduler(scale_factors=[0.5, 1.0]), "scale_factors"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_stepped_as_a_value_is_refused_by_name(scheduler, named):
    with pytest.raises(SolverError, match=named):
        Solver(scheduler, 4)


def test_a_step_that_is_not_of_the_schedule_is_refused():
    solver, velocity = Solver(unipc(), 4), velocities(4)
    for index in (-1, 4):
        with pytest.raises(SolverError, match=f"step {index}"):
            solver.step(solver.initial_state(), index, velocity[0], velocity[0])
    foreign = Solver(SCHEDULERS["euler"], 4).initial_state()
    with pytest.raises(SolverError, match="FlowMatchEuler"):
        solver.step(foreign, 0, velocity[0], velocity[0])
