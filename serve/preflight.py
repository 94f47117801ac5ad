"""What is refused before an application starts: its replicas would be started for it again and again.

Needs neither torch nor Ray, but for `check_weights`.
"""

from __future__ import annotations

from pathlib import Path

from raydiance.models import registry, resolve
from raydiance.models.spec import FieldError
from raydiance.serve.autoscaling_config import STAGES
from raydiance.serve.config import Config, ModelConfig
from raydiance.serve.errors import ConfigError
from raydiance.serve.layout_check import check_layout
from raydiance.serve.parallel_config import ParallelConfig
from raydiance.serve.samples import default_spec


def check_model(model: ModelConfig, parallel: ParallelConfig | None = None, *, simulated: bool = False) -> Path:
    """The folder of a model whose files are all there, and whose defaults and layouts it can do. Raises ConfigError.

    Args:
        simulated: its configuration is enough.
    """
    try:
        folder = resolve.resolve(model.path, model.revision)
        if not simulated:
            registry.check(folder, model.components)
        card = registry.card(folder, model.id).with_defaults(model.defaults)
        if model.defaults:
            card.check(default_spec(card, card.defaults.num_inference_steps))
    except (resolve.CheckpointError, FieldError) as e:
        raise ConfigError(f"model '{model.id}': {brief(e)}") from e
    if parallel is not None:
        check_layout(parallel, card)
    return folder


def check_weights(model: ModelConfig, folder: Path) -> None:
    """Raises ConfigError where a weight is missing, or of another shape than its class has it. Imports torch.

    Of a guest only its own pipeline knows what it opens.
    """
    from raydiance.models.whole import check_whole

    try:
        if not registry.is_guest(folder):
            check_whole(folder, model.components)
    except resolve.CheckpointError as e:
        raise ConfigError(f"model '{model.id}': {brief(e)}") from e


def brief(error: Exception) -> str:
    """Its first line: what a library has to add, such as the hub's advice on connections, comes below."""
    return str(error).strip().partition("\n")[0]


def check_stores(config: Config) -> None:
    """Raises ConfigError where the stores cannot be opened."""
    from raydiance.serve.storage.artifacts import ArtifactStore
    from raydiance.serve.storage.jobs import JobStore

    JobStore(config.storage.database).close()
    ArtifactStore(config.storage.artifacts)


def check_gpus(config: Config, found: int) -> None:
    """Raises ConfigError where the stages ask for more GPUs than there are: Ray would wait for them without end.

    Args:
        found: GPUs of the machine.
    """
    asked, options = asked_gpus(config)
    scaled = [(name, config.autoscaling.of(name).max_replicas) for name in STAGES]
    options += [f"autoscaling.{name}.max_replicas={most}" for name, most in scaled if most is not None]
    if asked > found:
        wanted = ", ".join(dict.fromkeys(options))
        hint = "; to try it on CPUs: parallel.device=cpu" if "parallel.gpus" in wanted else ""
        raise ConfigError(f"{wanted}: {asked:g} GPUs are needed for all replicas, this machine has {found}{hint}")


def asked_gpus(config: Config) -> tuple[float, list[str]]:
    """Of all replicas, and the options that ask for them."""
    stages = {name: getattr(config, name) for name in STAGES}
    asked = len(config.models) * sum(config.most_replicas(name) * s.num_gpus for name, s in stages.items())
    options = [f"{name}.num_gpus={s.num_gpus:g}" for name, s in stages.items() if s.num_gpus]
    if (vae := config.vae_decoder).gpus > 1 and vae.num_gpus:
        asked += len(config.models) * config.most_replicas("vae_decoder") * vae.num_gpus * (vae.gpus - 1)
        options.append(f"vae_decoder.gpus={vae.gpus}")
    for parallel in map(config.parallel_of, config.models):
        if parallel.gpus > 1:
            each = parallel.gpus * (config.denoiser.num_gpus or (parallel.device != "cpu"))
            asked += config.most_replicas("denoiser") * (each - config.denoiser.num_gpus)
            options.append(f"parallel.gpus={parallel.gpus}")
    return asked, options
