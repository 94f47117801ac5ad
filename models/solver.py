"""diffusers' flow-matching schedulers as pure functions: what they remember between steps becomes a value.

A diffusers scheduler is an object that changes as it steps. Here the object is private scratch: every step loads the
state into it, steps, and reads the state back, so that one solver serves any number of trajectories, at any of their
steps, in any order. The arithmetic is diffusers' own.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

Value = torch.Tensor | int | None
_UNIPC = ("model_outputs", "timestep_list", "lower_order_nums", "last_sample", "this_order")
STATE: dict[str, tuple[str, ...]] = {
    "UniPCMultistepScheduler": _UNIPC,
    "FlowMatchEulerDiscreteScheduler": (),
    "FlowMatchLCMScheduler": (),
}
"""Scheduler class to the attributes that its `step` reads and writes, beside the step index."""


_REQUIRED: dict[str, dict[str, Any]] = {
    "UniPCMultistepScheduler": {"use_flow_sigmas": True, "prediction_type": "flow_prediction", "thresholding": False},
    "FlowMatchEulerDiscreteScheduler": {"invert_sigmas": False},
    "FlowMatchLCMScheduler": {"invert_sigmas": False, "scale_factors": None},
}
_STOCHASTIC = ("FlowMatchLCMScheduler",)
"""Those that draw noise in every step, whatever their options."""


class SolverError(ValueError):
    """A scheduler, or a configuration of one, that cannot be stepped as a value."""


@dataclass(frozen=True, eq=False)
class SolverState:
    """What a scheduler remembers between two steps.

    Args:
        scheduler: its class name.
        values: attribute to tensor ([1, C, T, H, W], or 0-dim), number, None, or a tuple of these.
    """

    scheduler: str
    values: Mapping[str, Value | tuple[Value, ...]]

    def to(self, device: torch.device) -> SolverState:
        def move(value: Value) -> Value:
            return value.to(device) if isinstance(value, torch.Tensor) else value

        moved = {k: tuple(map(move, v)) if isinstance(v, tuple) else move(v) for k, v in self.values.items()}
        return replace(self, values=moved)

    def to_parts(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Tensors by name, and what JSON can hold: together they are the state (see `from_parts`)."""
        tensors: dict[str, torch.Tensor] = {}

        def part(name: str, value: Value | tuple[Value, ...]) -> Any:
            if isinstance(value, tuple):
                return [part(f"{name}.{i}", item) for i, item in enumerate(value)]
            if isinstance(value, torch.Tensor):
                tensors[name] = value
                return {"tensor": name}
            return value

        values = {name: part(name, value) for name, value in self.values.items()}
        return tensors, {"scheduler": self.scheduler, "values": values}

    @classmethod
    def from_parts(cls, tensors: Mapping[str, torch.Tensor], header: Mapping[str, Any]) -> SolverState:
        """Raises KeyError where a tensor is missing, SolverError where the attributes are not this scheduler's."""

        def whole(value: Any) -> Any:
            if isinstance(value, list):
                return tuple(whole(item) for item in value)
            return tensors[value["tensor"]] if isinstance(value, dict) else value

        name, values = header["scheduler"], {k: whole(v) for k, v in header["values"].items()}
        if set(values) != set(_attributes(name)):
            raise SolverError(f"state of {name} has {sorted(values)}, not {sorted(_attributes(name))}")
        return cls(name, values)


class Solver:
    """One schedule of one scheduler.

    Args:
        scheduler: a diffusers scheduler; it is copied, not changed.
        num_inference_steps: length of the schedule; left out when `sigmas` are given.
        mu: the shift of schedulers with `use_dynamic_shifting`.
        sigmas: an own schedule, descending, without the final 0.

    Raises:
        SolverError: names a scheduler class or an option that is not supported.
    """

    def __init__(
        self,
        scheduler: Any,
        num_inference_steps: int | None = None,
        *,
        mu: float | None = None,
        sigmas: Sequence[float] | None = None,
    ) -> None:
        self.name = type(scheduler).__name__
        self.check(scheduler)
        self._attributes = _attributes(self.name)
        self._scratch = copy.deepcopy(scheduler)
        options: dict[str, Any] = {} if mu is None else {"mu": mu}
        if sigmas is not None:
            options["sigmas"] = list(sigmas)
        self._scratch.set_timesteps(None if sigmas is not None else num_inference_steps, device="cpu", **options)
        self.timesteps: torch.Tensor = self._scratch.timesteps
        """[num_steps], on the CPU, of the scheduler's own type."""
        self.sigmas: torch.Tensor = self._scratch.sigmas
        """[num_steps + 1], fp32, on the CPU."""
        self._initial = self._read()

    @staticmethod
    def check(scheduler: Any) -> None:
        """Raises SolverError where this scheduler, or how it is configured, cannot be stepped as a value."""
        _attributes(type(scheduler).__name__)
        _check(type(scheduler).__name__, scheduler.config)

    @property
    def num_steps(self) -> int:
        return len(self.timesteps)

    @property
    def is_stochastic(self) -> bool:
        """Whether `step` draws noise, the last one too."""
        return self.name in _STOCHASTIC or bool(self._scratch.config.get("stochastic_sampling", False))

    def initial_state(self) -> SolverState:
        """A solver that remembers nothing; so is one that was rewound."""
        return self._initial

    def step(
        self,
        state: SolverState,
        index: int,
        model_output: torch.Tensor,
        latents: torch.Tensor,
        generator: torch.Generator | None = None,
    ) -> tuple[torch.Tensor, SolverState]:
        """From `sigmas[index]` to `sigmas[index + 1]`.

        Args:
            model_output: the velocity, like the latents.
            latents: of any shape, fp32.
            generator: used if the solver is stochastic.

        Raises:
            SolverError: the state is another scheduler's, or the index is not of this schedule.
        """
        self._check_index(index)
        if state.scheduler != self.name:
            raise SolverError(f"a state of {state.scheduler} cannot be stepped by {self.name}")
        for name, value in state.values.items():
            setattr(self._scratch, name, list(value) if isinstance(value, tuple) else value)
        self._scratch._step_index = index
        options = {"generator": generator} if self.is_stochastic else {}
        timestep = self.timesteps[index]
        stepped = self._scratch.step(model_output[None], timestep, latents[None], return_dict=False, **options)[0]
        return stepped[0], self._read()

    def denoised(self, latents: torch.Tensor, model_output: torch.Tensor, index: int) -> torch.Tensor:
        """The estimate of x0 at a step: x - sigma * v."""
        self._check_index(index)
        return latents - self.sigmas[index].to(latents) * model_output

    def add_noise(self, x0: torch.Tensor, noise: torch.Tensor, index: int) -> torch.Tensor:
        """x0 at the noise level at which step `index` begins: (1 - sigma) * x0 + sigma * noise."""
        self._check_index(index)
        sigma = self.sigmas[index].to(x0)
        return (1.0 - sigma) * x0 + sigma * noise

    def implied_noise(self, latents: torch.Tensor, x0: torch.Tensor, index: int) -> torch.Tensor:
        """The noise that `add_noise` makes these latents from; sigmas before a schedule's end are above 0."""
        self._check_index(index)
        sigma = self.sigmas[index].to(x0)
        return (latents - (1.0 - sigma) * x0) / sigma

    def _check_index(self, index: int) -> None:
        if not 0 <= index < self.num_steps:
            raise SolverError(f"step {index} is not of a schedule of {self.num_steps} steps")

    def _read(self) -> SolverState:
        values = {name: getattr(self._scratch, name, None) for name in self._attributes}
        return SolverState(self.name, {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})


def _attributes(name: str) -> tuple[str, ...]:
    if name not in STATE:
        raise SolverError(f"scheduler {name} is not supported; supported are {', '.join(STATE)}")
    return STATE[name]


def _check(name: str, config: Mapping[str, Any]) -> None:
    """Refuses what is not a flow from noise (sigma 1) to data (sigma 0) with a velocity as the model's output."""
    for option, value in _REQUIRED[name].items():
        if config.get(option) != value:
            raise SolverError(f"{name} with {option}={config.get(option)!r} is not supported; it must be {value!r}")
