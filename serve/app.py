"""The one place where deployments are bound together."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.serve import Application
from ray.serve.config import RequestRouterConfig
from ray.serve.handle import DeploymentHandle

from raydiance.models import registry, resolve
from raydiance.models.card import ModelCard
from raydiance.models.family import Stage
from raydiance.serve.config import Config, ModelConfig, load_config
from raydiance.serve.dispatcher import Dispatcher
from raydiance.serve.engine import memory
from raydiance.serve.errors import ConfigError
from raydiance.serve.gateway import Gateway
from raydiance.serve.layout_check import check_layout
from raydiance.serve.stages.elastic import Elastic
from raydiance.serve.stages.placement import decoder_placement, placement, simulated_placement

log = logging.getLogger("ray.serve")
APP_NAME = "raydiance"
ROUTER: dict[str, Any] = {"request_router_class": "raydiance.serve.stages.router.WorkRouter"}
UNBOUNDED = 1_000_000  # the queue is the jobs table, bounded by limits.max_queued_jobs; none of it waits in Serve


def build_app(args: Config | Mapping[str, Any] | None = None) -> Application:
    """From a Config, or from a mapping as `serve run raydiance.serve.app:build_app model=tiny` and the `args` of a
    Serve config file give it. Raises ConfigError that names the option."""
    config = args if isinstance(args, Config) else load_config(dict(args or {}))
    if config.simulate.gpu is not None:
        log.warning("SIMULATED: nothing is generated, steps are those of %s", config.simulate.gpu)
    num_nodes = sum(node["Alive"] for node in ray.nodes()) if ray.is_initialized() else 1
    bind = Binder(config, num_nodes)
    dispatchers = {model.id: bind.model(model, chores=i == 0) for i, model in enumerate(config.models)}
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


class Binder:
    """Binds the deployments of each model. Models whose text encoders or VAEs are the same share one of them."""

    def __init__(self, config: Config, num_nodes: int) -> None:
        self._config = config
        self._num_nodes = num_nodes
        self._encoders = shared(config.models, "encode", _device(config.text_encoder))
        self._decoders = shared(config.models, "decode", _device(config.vae_decoder))
        self._bound: dict[str, Any] = {}
        denoisers = {model.id: model for model in config.models}
        self._elastic = Elastic(config.autoscaling, self._encoders, denoisers, self._decoders)

    def model(self, model: ModelConfig, chores: bool) -> list[DeploymentHandle[Any]]:
        """Its dispatchers, by slot, bound to its stages."""
        config, guest = self._config, is_guest(model)
        if guest:  # it runs one at a time: the others wait as queued jobs, and not in its replica
            config = config.model_copy(update={"denoiser": config.denoiser.model_copy(update={"max_active": 1})})
        if config.simulate.gpu is not None:
            stages, model = self._simulated(model), model.model_copy(update={"cost_profile": None})  # it is measured
        else:
            stages = self._guest(model) if guest else self._family(model)
        return [
            self._dispatcher(model, slot).bind(config, model, self._num_nodes, chores and slot == 0, slot, **stages)
            for slot in range(config.dispatcher.num_replicas)
        ]

    def _dispatcher(self, model: ModelConfig, slot: int) -> Any:
        return _deployment(
            Dispatcher,
            name=f"Dispatcher-{model.id}" + (f"~{slot}" if slot else ""),  # in no model's name
            num_replicas=1,
            max_ongoing_requests=UNBOUNDED,
            ray_actor_options={"num_cpus": 0.05},
            health_check_period_s=2,
        )

    def _family(self, model: ModelConfig) -> dict[str, Any]:
        from raydiance.serve.stages.denoiser import Denoiser
        from raydiance.serve.stages.text_encoder import TextEncoder
        from raydiance.serve.stages.vae_decoder import VAEDecoder

        c, encoder, decoder = self._config, self._encoders[model.id], self._decoders[model.id]
        return {
            "text_encoder": self._bind(TextEncoder, encoder, c.text_encoder, c.text_encoder),
            "denoiser": self._denoiser(Denoiser, model),
            "vae_decoder": self._decoder(VAEDecoder, decoder, c),
        }

    def _simulated(self, model: ModelConfig) -> dict[str, Any]:
        """One light process a replica, whatever its ranks: it takes all their GPUs, which may be pretended ones."""
        from raydiance.serve.stages.simulated.costs import simulated
        from raydiance.serve.stages.simulated.denoiser import SimulatedDenoiser
        from raydiance.serve.stages.simulated.text_encoder import SimulatedTextEncoder
        from raydiance.serve.stages.simulated.vae_decoder import SimulatedVAEDecoder

        c, parallel, made = self._config, self._config.parallel_of(model), simulated(model, self._config.simulate)
        if (card := _card(model)) is not None:
            check_layout(parallel, card)
        router = {"request_router_config": RequestRouterConfig(**ROUTER)}

        def bind(cls: type, of: ModelConfig, options: Any, ranks: int, more: dict[str, Any], *args: Any) -> Any:
            actor = simulated_placement(options, ranks) | more
            return self._deploy(cls, of, options.num_replicas, "cpu", actor, of, *args, made)

        encoder, decoder = self._encoders[model.id], self._decoders[model.id]
        denoiser = c.denoiser, "cpu", parallel, c.scheduling
        return {
            "text_encoder": bind(SimulatedTextEncoder, encoder, c.text_encoder, 1, {}, c.text_encoder, "cpu"),
            "denoiser": bind(SimulatedDenoiser, model, c.denoiser, parallel.gpus, router, *denoiser),
            "vae_decoder": bind(SimulatedVAEDecoder, decoder, c.vae_decoder, c.vae_decoder.gpus, {}, c, "cpu"),
        }

    def _guest(self, model: ModelConfig) -> dict[str, Any]:
        """Its pipeline encodes and decodes by itself; what is left to the last stage is the file, without a GPU."""
        from raydiance.serve.stages.guest import GuestDenoiser
        from raydiance.serve.stages.vae_decoder import VAEDecoder

        c = self._config
        if (gpus := c.parallel_of(model).gpus) > 1:
            raise ConfigError(f"parallel.gpus={gpus}: model '{model.id}' is run by diffusers' own pipeline, on one GPU")
        files = c.vae_decoder.model_copy(update={"num_gpus": 0, "gpus": 1, "small_tiles": False})
        return {
            "text_encoder": None,
            "denoiser": self._bind(GuestDenoiser, model, c.denoiser, c.denoiser),
            "vae_decoder": self._decoder(VAEDecoder, model, c.model_copy(update={"vae_decoder": files})),
        }

    def _denoiser(self, cls: type, model: ModelConfig) -> Any:
        """On as many GPUs as are configured. Raises ConfigError where no layout of the model takes them."""
        config, parallel = self._config.denoiser, self._config.parallel_of(model)
        if (card := _card(model)) is not None:
            check_layout(parallel, card)
        device = "cpu" if parallel.gpus > 1 else _device(config)  # of the coordinator, where there are ranks
        options = placement(config, parallel) | {"request_router_config": RequestRouterConfig(**ROUTER)}
        args = model, config, device, parallel, self._config.scheduling
        return self._deploy(cls, model, config.num_replicas, device, options, *args)

    def _decoder(self, cls: type, model: ModelConfig, config: Config) -> Any:
        """On as many GPUs as are configured."""
        options, device = config.vae_decoder, _device(config.vae_decoder)
        return self._deploy(cls, model, options.num_replicas, device, decoder_placement(options), model, config, device)

    def _bind(self, cls: type, model: ModelConfig, options: Any, *args: Any) -> Any:
        device = _device(options)
        actor = {"ray_actor_options": {"num_cpus": options.num_cpus, "num_gpus": options.num_gpus}}
        return self._deploy(cls, model, options.num_replicas, device, actor, model, *args, device)

    def _deploy(
        self, cls: type, model: ModelConfig, num_replicas: int, device: str, options: dict[str, Any], *args: Any
    ) -> Any:
        """One deployment a class and model, however often it is asked for."""
        name = f"{cls.__name__.removeprefix('Simulated')}-{model.id}"
        if name not in self._bound:
            options["ray_actor_options"]["runtime_env"] = {"env_vars": memory.environment(device)}
            deployment = _deployment(
                cls,
                name=name,
                **(self._elastic.options(cls.__name__, model.id) or {"num_replicas": num_replicas}),
                max_ongoing_requests=UNBOUNDED,
                health_check_period_s=2,
                graceful_shutdown_timeout_s=20,
                **options,
            )
            self._bound[name] = deployment.bind(*args)
        return self._bound[name]


def _device(options: Any) -> str:
    return "cuda" if options.num_gpus else "cpu"


def shared(models: Sequence[ModelConfig], stage: Stage, device: str) -> dict[str, ModelConfig]:
    """By model, the first one whose deployment of a stage gives the same results: itself where none does.

    A model whose folder is not to be had where the application is built shares nothing.
    """
    owners = {model.id: model for model in models}
    if len(models) == 1:
        return owners
    by_size = {model.id: _share_key(model, stage, device, contents=False) for model in models}
    counts = Counter(by_size.values())
    first: dict[object, ModelConfig] = {}
    for model in models:
        size = by_size[model.id]
        if size is not None and counts[size] > 1:  # the contents of the others need not be read
            owners[model.id] = first.setdefault(_share_key(model, stage, device, contents=True), model)
    for owner in models:
        if len(users := [name for name, other in owners.items() if other is owner]) > 1:
            log.info("models %s share one deployment for '%s'", ", ".join(users), stage)
    return owners


def _share_key(model: ModelConfig, stage: Stage, device: str, *, contents: bool) -> tuple[object, ...] | None:
    """None where it cannot be told, and for guests, which have no such stage."""
    try:
        folder = resolve.resolve(model.path, model.revision)
        if registry.is_guest(folder):
            return None
        return registry.share_key(folder, stage, model.load_options(stage, device), contents=contents)
    except resolve.CheckpointError as e:
        log.warning("model '%s' shares no stage: %s", model.id, e)
        return None


def is_guest(model: ModelConfig) -> bool:
    """Whether diffusers' own pipeline is to run it. Of a hub id only model_index.json is fetched.

    One that is not to be had where the application is built is taken for a family's: its stages say what is wrong.
    """
    try:
        return registry.is_guest(_index_folder(model))
    except resolve.CheckpointError as e:
        log.warning("model '%s' is taken for one of a family: %s", model.id, e)
        return False


def _card(model: ModelConfig) -> ModelCard | None:
    """None where the folder is not to be had where the application is built: its stages will say."""
    try:
        return registry.card(_index_folder(model), model.id).with_defaults(model.defaults)
    except resolve.CheckpointError as e:
        log.warning("model '%s' is not checked against parallel: %s", model.id, e)
        return None


def _index_folder(model: ModelConfig) -> Path:
    """Of a model's model_index.json; raises CheckpointError."""
    if model.path == "tiny" or Path(model.path).expanduser().exists():
        return resolve.resolve(model.path)
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(model.path, "model_index.json", revision=model.revision)).parent
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as e:
        raise resolve.CheckpointError(
            f"{model.path} is no local folder, and the hub does not give its index: {e}"
        ) from e
