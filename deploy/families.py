"""The README's table of families: made from the registry and from the profiles' cards.

python -m raydiance.deploy.families
"""

from __future__ import annotations

from collections.abc import Iterable

from raydiance.deploy import profile
from raydiance.models import registry
from raydiance.models.card import ModelCard
from raydiance.models.spec import TASKS

_TITLES = {"flux": "FLUX.1", "hidream": "HiDream-I1", "wan": "Wan 2.1, 2.2", "ltx": "LTX-2.3"}
GUEST = (
    "guest",
    "any other `DiffusionPipeline`",
    "what its call takes",
    "run whole by diffusers: progress and cancel, no step batching, previews or checkpoints",
)


def rows() -> list[tuple[str, str, str, str]]:
    """Family, diffusers' classes, tasks, and what it takes beside a prompt; one row a family, then the guest."""
    cards: dict[str, list[ModelCard]] = {}
    for name in profile.names():
        card = profile.load(name).card()
        cards.setdefault(card.family, []).append(card)
    classes: dict[str, list[str]] = {}
    for kind, entry in registry.FAMILIES.items():
        family = entry.family.split(":")[0].rsplit(".", 1)[1]
        classes.setdefault(family, []).append(kind)
    found = [
        (_TITLES[family], ", ".join(f"`{c}`" for c in classes[family]), _tasks(known), _takes(known))
        for family, known in sorted(cards.items())
    ]
    return [*found, GUEST]


def _tasks(cards: Iterable[ModelCard]) -> str:
    return ", ".join(t for t in TASKS if any(t in card.tasks for card in cards))


def _takes(cards: Iterable[ModelCard]) -> str:
    given: dict[str, int] = {}
    parameters: dict[str, None] = {}
    for card in cards:
        for task in card.tasks:
            for a in card.accepts(task):
                given[a.role] = max(a.max_count, given.get(a.role, 0))
        parameters |= dict.fromkeys(p.name for p in card.parameters)
    said = [f"up to {n} `{role}`" if n > 1 else f"`{role}`" for role, n in given.items()]
    if any(card.strength_tasks and set(card.strength_tasks) & set(card.tasks) for card in cards):
        said.append("`strength`")
    said += [f"`{name}`" for name in parameters]
    if any(card.has_audio for card in cards):
        said.append("**sound**")
    return ", ".join(said)


def table() -> str:
    """In Markdown."""
    head = ("family", "diffusers' classes", "tasks", "takes beside prompts, size, steps and seed")
    lines = [head, ("---",) * 4, *rows()]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


if __name__ == "__main__":
    print(table())
