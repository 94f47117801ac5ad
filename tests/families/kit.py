"""What every family is held to: a tiny checkpoint of the real classes, and requests for each of its tasks.

Each module beside this one that has `MODELS` is found by `all_models`, and its models go through
`tests/models/test_every_family.py`.
"""

from __future__ import annotations

import functools
import importlib
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from raydiance.kernels.attention import attend
from raydiance.models import registry
from raydiance.models.card import ModelCard
from raydiance.models.family import Family
from raydiance.models.inputs import Inputs
from raydiance.models.options import LoadOptions
from raydiance.models.spec import Spec
from raydiance.serve.engine.engine import Engine
from raydiance.serve.engine.orders import Start
from raydiance.serve.engine.trajectory import Trajectory

torch.set_num_threads(1)  # sums in the same order everywhere, and the machine's other cores are left alone
_FOLDERS = tempfile.TemporaryDirectory(prefix="raydiance-families-")


naive_attention = functools.partial(attend, backend="naive")


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """A smooth random picture."""
    small = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def clip(width: int, height: int, num_frames: int, seed: int = 0) -> np.ndarray:
    """A picture that moves, uint8 [T, H, W, 3]."""
    first = np.asarray(picture(width, height, seed))
    return np.stack([np.roll(first, 3 * i, axis=1) for i in range(num_frames)])


@dataclass(frozen=True, eq=False)
class Case:
    """One request: a spec (with all of the card's parameters in `extra`) and what it brings along."""

    id: str
    spec: Spec
    inputs: Inputs | None = None


@dataclass(frozen=True, eq=False)
class Model:
    """Args:
    name: unique among all families, such as `flux-dev`.
    save: writes the checkpoint into a folder that does not exist yet, and returns it; called once a run.
    cases: one for each task at least.
    components: see `LoadOptions.components`; given the folder.
    """

    name: str
    save: Callable[[Path], Path]
    cases: tuple[Case, ...]
    components: Callable[[Path], Mapping[str, str]] = field(default=lambda _: {})

    @functools.cached_property
    def folder(self) -> Path:
        return self.save(Path(_FOLDERS.name) / self.name)

    @functools.cached_property
    def options(self) -> LoadOptions:
        return LoadOptions(components=self.components(self.folder))

    @functools.cached_property
    def studio(self) -> Studio:
        """Its three stages, loaded once a run."""
        encoder, denoiser, decoder = (
            registry.load(self.folder, stage, self.name, self.options) for stage in ("encode", "denoise", "decode")
        )
        return Studio(encoder, denoiser, decoder)


@dataclass(frozen=True, eq=False)
class Studio:
    encoder: Family
    denoiser: Family
    decoder: Family

    def order(self, case: Case, name: str) -> Start:
        """What a denoising loop takes for it."""
        spec = case.spec
        texts = [spec.prompt, spec.negative_prompt] if self.encoder.card.uses_negative(spec) else [spec.prompt]
        embeddings = [self.encoder.encode_prompts([text])[0] for text in texts]
        inputs = None if case.inputs is None else self.decoder.encode_inputs(spec, case.inputs)
        return Start(name, spec, embeddings, inputs)

    def conditioning(self, case: Case) -> dict[str, torch.Tensor]:
        order = self.order(case, "")
        prompt, negative = [*order.embeddings, None][:2]
        return dict(self.denoiser.conditioning(case.spec, prompt, negative, order.inputs))

    def engine(self) -> Engine:
        return Engine(self.denoiser)

    def start(self, case: Case) -> Trajectory:
        self.denoiser.card.check(case.spec)
        return self.engine().start(case.spec, self.conditioning(case))

    def run(self, trajectory: Trajectory, to: int | None = None) -> Trajectory:
        """Alone, up to a step, or to its end."""
        engine = self.engine()
        while trajectory.step_index < (trajectory.num_steps if to is None else to):
            [trajectory] = engine.step([trajectory])
        return trajectory

    def latents(self, case: Case) -> torch.Tensor:
        """What the decoder is given."""
        return self.engine().finish(self.run(self.start(case)))

    def frames(self, case: Case, latents: torch.Tensor | None = None) -> np.ndarray:
        """uint8 [T, H, W, 3]."""
        given = self.latents(case) if latents is None else latents
        return np.concatenate(list(self.decoder.decode(given, case.spec)))


def variants(case: Case, card: ModelCard) -> list[Case]:
    """Three requests that may share a forward: other seeds, prompts, and lengths of the schedule where it has any."""
    spec = case.spec
    steps = min(spec.num_inference_steps + 1, card.max_steps)
    changed = [
        spec,
        replace(spec, seed=spec.seed + 1, prompt="the blue square", num_inference_steps=steps),
        replace(spec, seed=spec.seed + 2, guidance_scale=spec.guidance_scale + 1.5),
    ]
    return [replace(case, id=f"{case.id}-{i}", spec=s) for i, s in enumerate(changed)]


def all_models() -> list[Model]:
    here = Path(__file__).parent
    modules = [importlib.import_module(f"tests.families.{p.stem}") for p in sorted(here.glob("*.py"))]
    return [model for module in modules for model in getattr(module, "MODELS", ())]
