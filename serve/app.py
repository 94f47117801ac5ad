"""The one place where deployments are bound together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ray
from ray import serve
from ray.serve import Application
from ray.serve.handle import DeploymentHandle

from raydiance.serve.config import Config, ModelConfig, load_config
from raydiance.serve.dispatcher import Dispatcher
from raydiance.serve.gateway import Gateway

APP_NAME = "raydiance"
UNBOUNDED = 1_000_000  # the queue is the jobs table, bounded by limits.max_queued_jobs; none of it waits in Serve


def build_app(args: Config | Mapping[str, Any] | None = None) -> Application:
    """From a Config, or from a mapping as `serve run raydiance.serve.app:build_app model=tiny` and the `args` of a
    Serve config file give it. Raises ConfigError that names the option."""
    config = args if isinstance(args, Config) else load_config(dict(args or {}))
    num_nodes = sum(node["Alive"] for node in ray.nodes()) if ray.is_initialized() else 1
    dispatchers = {
        model.id: _bind_model(config, model, num_nodes, chores=i == 0) for i, model in enumerate(config.models)
    }
    gateway = _deployment(
        Gateway,
        name="Gateway",
        num_replicas=config.http.num_replicas,
        max_ongoing_requests=UNBOUNDED,
        ray_actor_options={"num_cpus": 0.05},
    )
    app: Application = gateway.bind(config, dispatchers, num_nodes)
    return app


def _deployment(cls: type, **options: Any) -> Any:
    return serve.deployment(cls, **options)


def _bind_model(config: Config, model: ModelConfig, num_nodes: int, chores: bool) -> DeploymentHandle[Any]:
    from raydiance.serve.stages import memory
    from raydiance.serve.stages.denoiser import Denoiser
    from raydiance.serve.stages.text_encoder import TextEncoder
    from raydiance.serve.stages.vae_decoder import VAEDecoder

    def bind(cls: type, options: Any, *args: Any) -> Any:
        device = "cuda" if options.num_gpus else "cpu"
        deployment = _deployment(
            cls,
            name=f"{cls.__name__}-{model.id}",
            num_replicas=options.num_replicas,
            max_ongoing_requests=UNBOUNDED,
            ray_actor_options={
                "num_cpus": options.num_cpus,
                "num_gpus": options.num_gpus,
                "runtime_env": {"env_vars": memory.environment(device)},
            },
            health_check_period_s=2,
            graceful_shutdown_timeout_s=20,
        )
        return deployment.bind(model, *args, device)

    stages = {
        "text_encoder": bind(TextEncoder, config.text_encoder, config.text_encoder),
        "denoiser": bind(Denoiser, config.denoiser, config.denoiser),
        "vae_decoder": bind(VAEDecoder, config.vae_decoder, config),
    }
    dispatcher = _deployment(
        Dispatcher,
        name=f"Dispatcher-{model.id}",
        num_replicas=1,
        max_ongoing_requests=UNBOUNDED,
        ray_actor_options={"num_cpus": 0.05},
        health_check_period_s=2,
    )
    handle: DeploymentHandle[Any] = dispatcher.bind(config, model, num_nodes, chores, **stages)
    return handle
