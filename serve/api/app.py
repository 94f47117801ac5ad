"""The HTTP application: its routes, and what every request passes on the way to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import FastAPI

import raydiance
from raydiance.serve.api import docs, errors, groups, health, images, jobs, models, quotes, usage, videos
from raydiance.serve.api.middleware import ApiKeys, BodyLimit, BodyTimeout, RequestScope, SimulatedMark
from raydiance.serve.config import Config

if TYPE_CHECKING:
    from raydiance.serve.service import Service


def create_app(service: Service, config: Config) -> FastAPI:
    """An ASGI application over `service`; nothing runs until it is asked."""
    app = FastAPI(
        title="Raydiance", version=raydiance.__version__, description=docs.DESCRIPTION, redirect_slashes=False
    )
    # the last one added is the first that a request passes
    app.add_middleware(BodyTimeout, timeout_s=config.http.body_timeout_s)
    app.add_middleware(BodyLimit, max_bytes=config.limits.max_body_bytes)
    app.add_middleware(ApiKeys, authenticate=service.tenants.authenticate if config.needs_keys else None)
    app.add_middleware(RequestScope)
    if config.simulate.gpu is not None:
        app.add_middleware(SimulatedMark)
    errors.install(app)
    for router in (
        images.router(service, config),
        videos.router(service, config),
        jobs.router(service, config),
        quotes.router(service, config),
        groups.router(service, config),
        models.router(service),
        usage.router(service),
        health.router(service),
    ):
        app.include_router(router)
    docs.install(app, has_keys=config.needs_keys)
    return app
