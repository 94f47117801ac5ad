"""Profiles of real checkpoints: what is known of one (by hand), and what follows from its configuration (computed).

    python -m raydiance.deploy.profile [NAME …]     computes profile.yaml anew, of all or of some

A profile is a folder under `profiles/`: the checkpoint's own configuration files, `raydiance.json` with the recommended
settings, `source.yaml` with where it comes from, and `profile.yaml`, in which every number is computed from the others.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from raydiance.models import registry
from raydiance.models.card import ModelCard
from raydiance.models.checkup import STAGES, Checkup, examine
from raydiance.models.fit import Fit, fit
from raydiance.models.resolve import CheckpointError, read_json
from raydiance.models.spec import Spec
from raydiance.serve.config import Config, load_config

ROOT = Path(__file__).resolve().parent / "profiles"
CARDS_GB = (24, 48, 80, 141)
GIB = 2**30


@dataclass(frozen=True)
class Profile:
    """Args:
    hub_id: where the weights are.
    components: those that come from other repositories.
    precision: of transformer and text encoders, as recommended.
    adapter: a repository whose adapter makes it a few-step model.
    """

    name: str
    folder: Path
    hub_id: str
    revision: str
    precision: str
    note: str
    components: Mapping[str, str]
    adapter: str | None = None

    def card(self) -> ModelCard:
        return registry.card(self.folder, self.name)

    def scheduler(self) -> str:
        config = read_json(self.folder, "scheduler/scheduler_config.json")
        shift = config.get("flow_shift", config.get("shift"))
        dynamic = ", shift by size" if config.get("use_dynamic_shifting") else f", shift {shift:g}"
        return f"{config['_class_name']}{dynamic}"

    def examine(self, spec: Spec | None = None) -> Checkup:
        """Of the recommended request, or of another one. Its components' configurations are all in the folder."""
        card = self.card()
        return examine(self.folder, spec or recommended(card), card, dtype=self.precision, vae_dtype=self.precision)

    def config(self, way: Fit) -> Config:
        """What to serve it with on cards of one size. Stages that share a card share it by fractions of a GPU."""
        on = [way.placement[s] for s in ("encode", "denoise", "decode")]
        share = {place: round(1 / on.count(place), 2) for place in on}
        defaults = read_json(self.folder, "raydiance.json")["defaults"]
        model = {
            "path": self.hub_id,
            "name": self.name,
            "revision": self.revision,
            "dtype": self.precision,
            "vae_dtype": self.precision,
            "offload": way.offload,
            "components": dict(self.components),
            "defaults": defaults,
        }
        return load_config(
            {
                "models": [model],
                "text_encoder": {"num_gpus": share[on[0]]},
                "denoiser": {"num_gpus": share[on[1]]},
                "vae_decoder": {"num_gpus": share[on[2]]},
            }
        )


def names() -> list[str]:
    return sorted(p.parent.name for p in ROOT.glob("*/source.yaml"))


def load(name: str) -> Profile:
    """Raises CheckpointError for an unknown name."""
    folder = ROOT / name
    if not (folder / "source.yaml").is_file():
        raise CheckpointError(f"there is no profile '{name}'; there is {', '.join(names())}")
    source = yaml.safe_load((folder / "source.yaml").read_text())
    return Profile(name=name, folder=folder, **{"components": {}, **source})


def recommended(card: ModelCard) -> Spec:
    """The model's first task with its defaults: what the numbers of a profile are of."""
    d, task = card.defaults, card.tasks[0]
    spec = Spec(
        card.id, task, "a prompt", d.height, d.width, 1, d.num_inference_steps, d.guidance_scale, seed=0, fps=d.fps
    )
    frames = d.num_frames if spec.is_video else 1
    extra = card.fill({}, d.guidance_scale)
    return card.check(replace(spec, num_frames=frames, audio=card.has_audio and spec.is_video, extra=extra))


def compute(profile: Profile) -> dict[str, Any]:
    """The content of `profile.yaml`."""
    card, checkup = profile.card(), profile.examine()
    d = card.defaults
    return {
        "hub_id": profile.hub_id,
        "revision": profile.revision,
        "family": card.family,
        "tasks": list(card.tasks),
        "note": profile.note,
        **({"adapter": profile.adapter} if profile.adapter else {}),
        "recommended": {
            "size": f"{d.width}x{d.height}",
            "num_frames": checkup.spec.num_frames,
            "fps": d.fps,
            "num_inference_steps": d.num_inference_steps,
            "guidance_scale": d.guidance_scale,
            **dict(checkup.spec.extra),
            "solver": profile.scheduler(),
            "precision": profile.precision,
        },
        "request": {
            "task": checkup.spec.task,
            "tokens": checkup.tokens,
            "rows": checkup.rows,
            "tflop": {s: round(checkup.needs(s).flops / 1e12, 1) for s in STAGES},
        },
        "components": {
            c.name: {"class": c.kind, "parameters_billion": round(c.parameters / 1e9, 3)} for c in checkup.components
        },
        "memory_gib": {s: _memory(checkup, s) for s in STAGES},
        "cards": {f"{gb} GB": _card(fit(checkup, gb * GIB)) for gb in CARDS_GB},
    }


def _memory(checkup: Checkup, stage: Any) -> dict[str, float]:
    needs = checkup.needs(stage)
    return {"weights": round(needs.weight_bytes / GIB, 1), "activations": round(needs.peak_bytes / GIB, 1)}


def _card(way: Fit | None) -> Any:
    if way is None:
        return "does not fit"
    return {
        "gpus": way.gpus,
        "degree": way.degree,
        "offload": way.offload,
        "placement": dict(way.placement),
        "fullest_gib": round(way.peak_bytes / GIB, 1),
    }


def text(computed: Mapping[str, Any]) -> str:
    head = "# Computed by `python -m raydiance.deploy.profile`; change source.yaml or raydiance.json instead.\n"
    return head + yaml.safe_dump(dict(computed), sort_keys=False, width=120)


def main() -> None:
    for name in sys.argv[1:] or names():
        (ROOT / name / "profile.yaml").write_text(text(compute(load(name))))
        print(name)


if __name__ == "__main__":
    main()
