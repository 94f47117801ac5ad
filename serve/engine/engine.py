"""Denoising over values: every method takes trajectories and returns new ones. Knows neither Ray nor HTTP."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from raydiance.models.family import Family, Row, Tensors
from raydiance.models.spec import Spec
from raydiance.serve.engine.plan import PlanItem, plan
from raydiance.serve.engine.trajectory import Fixed, Trajectory

_SAME_WHEN_REWOUND = ("model", "task", "height", "width", "num_frames", "num_inference_steps")


class Engine:
    """What runs a forward (`step`, and a look at a trajectory before its first step) belongs in one thread.

    Args:
        family: built for the stage `denoise`.

    Attributes:
        num_forwards: batched forwards run so far.
        num_rows: trajectories in them; `num_rows / num_forwards` is the mean batch size.
    """

    def __init__(self, family: Family) -> None:
        self.family = family
        self.num_forwards = 0
        self.num_rows = 0

    def start(self, spec: Spec, conditioning: Tensors) -> Trajectory:
        """Noise of the spec's seed, at the spec's first step."""
        generator = torch.Generator("cpu").manual_seed(spec.seed)
        solver = self.family.new_solver(spec)
        latents = self.family.initial_latents(spec, conditioning, solver, generator)
        return Trajectory(
            fixed=Fixed(spec, conditioning),
            step_index=spec.first_step,
            latents=latents,
            solver=solver.initial_state(),
            generator_state=generator.get_state(),
        )

    def plan_item(self, trajectory: Trajectory) -> PlanItem:
        """What `plan` needs to know of it."""
        spec = trajectory.spec
        conditioning = trajectory.fixed.conditioning
        return PlanItem(self.family.batch_key(spec, conditioning), self.family.num_tokens(spec, conditioning))

    def step(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """Each one step further, in their order: one forward per batch key, whatever their steps.

        Raises:
            ValueError: one of them is done.
        """
        for trajectory in trajectories:
            if trajectory.is_done:
                raise ValueError(f"the trajectory is done after {trajectory.num_steps} steps")
        stepped = list(trajectories)
        for batch in plan([self.plan_item(t) for t in trajectories]):
            rows = [trajectories[i].to(self.family.device) for i in batch]
            for i, row, velocity in zip(batch, rows, self._predict(rows), strict=True):
                stepped[i] = self._advance(row, velocity)
        return stepped

    def preview(self, trajectory: Trajectory) -> torch.Tensor:
        """What the result looks like by now, as latents for the decoder; before the first step it costs a forward."""
        return self.family.finish(trajectory.spec, trajectory.fixed.conditioning, self._estimate(trajectory))

    def finish(self, trajectory: Trajectory) -> torch.Tensor:
        """The latents for the decoder; raises ValueError where steps remain."""
        if not trajectory.is_done:
            raise ValueError(f"{trajectory.remaining} of {trajectory.num_steps} steps remain")
        return self.family.finish(trajectory.spec, trajectory.fixed.conditioning, trajectory.latents)

    def branch(self, trajectory: Trajectory, seed: int, spread: float = 0.0) -> Trajectory:
        """A sibling with a seed of its own.

        With x = (1 - s) * x0 + s * noise, where x0 is the estimate and so the noise is known, the sibling's noise is
        sqrt(1 - spread^2) * noise + spread * fresh: of the same variance, at the same noise level, with the same
        estimate. Solver history is dropped with a spread, since a corrector would restore the old latents from it.

        Args:
            spread: 0 copies, 1 replaces all of the noise. The later the step, the less it changes.

        Raises:
            ValueError: the spread is not in [0, 1], or the trajectory is done, when there is no noise left to mix.
        """
        if not 0.0 <= spread <= 1.0:
            raise ValueError(f"spread={spread} must be between 0 and 1")
        generator = torch.Generator("cpu").manual_seed(seed)
        fixed = replace(trajectory.fixed, spec=replace(trajectory.spec, seed=seed))
        if spread == 0.0:
            return replace(trajectory, fixed=fixed, generator_state=generator.get_state())
        if trajectory.is_done:
            raise ValueError("a trajectory that is done has no noise to spread; rewind it first")
        index, solver, x0 = trajectory.step_index, self.family.new_solver(trajectory.spec), self._estimate(trajectory)
        noise = solver.implied_noise(trajectory.latents.to(x0), x0, index)
        noise = math.sqrt(1.0 - spread**2) * noise + spread * _randn_like(x0, generator)
        return Trajectory(
            fixed=fixed,
            step_index=index,
            latents=solver.add_noise(x0, noise, index),
            solver=solver.initial_state(),
            generator_state=generator.get_state(),
            denoised=x0,
        )

    def rewind(
        self,
        trajectory: Trajectory,
        step_index: int,
        conditioning: Tensors | None = None,
        seed: int | None = None,
        spec: Spec | None = None,
    ) -> Trajectory:
        """Back to an earlier step: the x0 estimate, noised to that step's level. Solver history is dropped.

        Args:
            step_index: where to go on; 0 keeps next to nothing of the estimate.
            conditioning: of a changed prompt or image; with it, give the spec that says so.
            seed: of the noise, kept in the spec; None draws on from the trajectory's own generator.
            spec: may differ in prompts, guidance and seed, not in size, task, model or number of steps.

        Raises:
            ValueError: the step is not an earlier one, or the spec differs in what it may not.
        """
        if not 0 <= step_index < trajectory.step_index:
            raise ValueError(f"step_index={step_index} is not before the trajectory's step {trajectory.step_index}")
        old, new = trajectory.spec, spec or trajectory.spec
        for name in _SAME_WHEN_REWOUND:
            if getattr(new, name) != getattr(old, name):
                raise ValueError(f"{name}={getattr(new, name)} differs from the trajectory's {getattr(old, name)}")
        if seed is None:
            generator = _restored(trajectory)
        else:
            generator, new = torch.Generator("cpu").manual_seed(seed), replace(new, seed=seed)
        solver, x0 = self.family.new_solver(new), self._estimate(trajectory)
        return Trajectory(
            fixed=Fixed(new, trajectory.fixed.conditioning if conditioning is None else conditioning),
            step_index=step_index,
            latents=solver.add_noise(x0, _randn_like(x0, generator), step_index),
            solver=solver.initial_state(),
            generator_state=generator.get_state(),
            denoised=x0,
        )

    def _predict(self, trajectories: Sequence[Trajectory]) -> list[torch.Tensor]:
        rows = []
        for t in trajectories:
            timestep = self.family.new_solver(t.spec).timesteps[t.step_index]
            rows.append(Row(t.spec, t.latents, timestep, t.step_index, t.fixed.conditioning))
        self.num_forwards += 1
        self.num_rows += len(rows)
        return self.family.predict(rows)

    def _advance(self, trajectory: Trajectory, velocity: torch.Tensor) -> Trajectory:
        index, solver = trajectory.step_index, self.family.new_solver(trajectory.spec)
        generator = _restored(trajectory)
        latents, state = solver.step(trajectory.solver, index, velocity, trajectory.latents, generator)
        return replace(
            trajectory,
            step_index=index + 1,
            latents=latents,
            solver=state,
            generator_state=generator.get_state(),
            denoised=solver.denoised(trajectory.latents, velocity, index),
        )

    def _estimate(self, trajectory: Trajectory) -> torch.Tensor:
        """x0: the result if it is there, else the last forward's estimate, else that of a forward now."""
        if trajectory.is_done:
            return trajectory.latents
        if trajectory.denoised is not None:
            return trajectory.denoised
        here = trajectory.to(self.family.device)
        velocity = self._predict([here])[0]
        return self.family.new_solver(here.spec).denoised(here.latents, velocity, here.step_index)


def _restored(trajectory: Trajectory) -> torch.Generator:
    generator = torch.Generator("cpu")
    generator.set_state(trajectory.generator_state)
    return generator


def _randn_like(latents: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Drawn on the CPU, so that it is the same on every device."""
    return torch.randn(latents.shape, generator=generator, dtype=torch.float32).to(latents)
