"""The dispatchers, by the name of their model, and what holds while one of them is away. No torch."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar

from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

from raydiance.models.card import ModelCard
from raydiance.serve.errors import NotFound, Unavailable
from raydiance.serve.events import Event
from raydiance.serve.pricer import Quote
from raydiance.serve.request import GenerationRequest
from raydiance.serve.storage.job import Job

log = logging.getLogger("ray.serve")
T = TypeVar("T")
LOST = (RayActorError, DeploymentUnavailableError, BackPressureError)


class DispatcherHandle(Protocol):
    """The calls of `serve.dispatcher.Dispatcher`, over whatever carries them."""

    async def card(self) -> ModelCard | None: ...
    async def quote(self, request: GenerationRequest, specs: list[dict[str, Any]]) -> Quote: ...
    async def admit(self, job_id: str, request: GenerationRequest, specs: list[dict[str, Any]]) -> Quote: ...
    async def withdraw(self, job_id: str) -> None: ...
    async def why(self, job_id: str) -> str | None: ...
    async def enqueue(self, job_id: str) -> None: ...
    async def cancel(self, job_id: str) -> None: ...
    def events(self, job_id: str, after: int) -> AsyncIterator[list[Event]]: ...
    async def events_since(self, job_id: str, after: int, wait_s: float) -> list[Event]: ...


class Roster:
    """Args:
    dispatchers: by model name; the first is the default model.
    """

    def __init__(self, dispatchers: Mapping[str, DispatcherHandle]) -> None:
        self._dispatchers = dict(dispatchers)
        self._cards: dict[str, ModelCard] = {}

    def find(self, model: str) -> DispatcherHandle | None:
        """None for a model that is not served here now."""
        return self._dispatchers.get(model)

    async def cards(self) -> list[ModelCard | None]:
        """Of every model; None where it has not finished its warm-up generation."""
        return [await self._card(name) for name in self._dispatchers]

    async def card(self, model: str | None) -> ModelCard:
        """Raises NotFound for an unknown model, Unavailable while it warms up."""
        name = model or next(iter(self._dispatchers))
        if name not in self._dispatchers:
            known = ", ".join(self._dispatchers)
            raise NotFound(f"model '{name}' is not served here; there is {known}", "model", "model_not_found")
        card = await self._card(name)
        if card is None:
            raise Unavailable(f"model '{name}' is still warming up; try again in a few seconds")
        return card

    async def _card(self, name: str) -> ModelCard | None:
        if name not in self._cards:
            try:
                card = await self._dispatchers[name].card()
            except LOST:
                return None
            if card is None:
                return None
            self._cards[name] = card
        return self._cards[name]

    async def ask(self, model: str, question: Callable[[DispatcherHandle], Awaitable[T]]) -> T:
        """Raises Unavailable while the dispatcher is away."""
        try:
            return await question(self._dispatchers[model])
        except LOST as e:
            raise Unavailable(f"the dispatcher of '{model}' is away; try again in a few seconds") from e

    async def withdraw(self, model: str, job_id: str) -> None:
        """A job that was let in and will not come."""
        try:
            await self._dispatchers[model].withdraw(job_id)
        except LOST as e:
            log.warning("dispatcher of '%s' is away, and forgets job %s by itself: %s", model, job_id, e)

    async def tell(self, job: Job) -> None:
        """Of a job in the table: one that is away takes up what is unfinished when it is back."""
        try:
            await self._dispatchers[job.model].enqueue(job.id)
        except LOST as e:
            log.warning("dispatcher of '%s' is away; job %s waits in the table: %s", job.model, job.id, e)

    async def drop(self, job: Job) -> None:
        """Of a job that the table has as cancelled."""
        if (dispatcher := self.find(job.model)) is None:
            return
        try:
            await dispatcher.cancel(job.id)
        except LOST as e:
            log.warning("dispatcher of '%s' is away; job %s is cancelled in the table: %s", job.model, job.id, e)
