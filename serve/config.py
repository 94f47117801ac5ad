"""The one typed configuration: for the command line, the Serve config file and the chart. Unknown keys are refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from raydiance.models.family import Stage
from raydiance.models.options import LoadOptions, Offload
from raydiance.serve.auth_config import AuthConfig
from raydiance.serve.autoscaling_config import STAGES, AutoscalingConfig, StageName
from raydiance.serve.complaints import complaints
from raydiance.serve.edge_config import HTTPConfig, LimitsConfig, NetworkConfig, WebhookConfig
from raydiance.serve.errors import ConfigError
from raydiance.serve.parallel_config import ParallelConfig
from raydiance.serve.scheduling_config import SchedulingConfig
from raydiance.serve.section import Section
from raydiance.serve.simulate_config import SimulateConfig

Precision = Literal["float32", "bfloat16", "float16"]
Attention = Literal["auto", "naive", "sdpa", "flex", "flash2", "flash3", "xformers"]


DATABASES = ("sqlite:///", "postgresql://", "postgresql+psycopg://")


class ModelConfig(Section):
    """One served model. `path` is `tiny`, a diffusers folder or a hub id; `name` what clients call it."""

    path: str = "tiny"
    name: str | None = Field(None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    revision: str | None = None
    dtype: Precision = "float32"
    vae_dtype: Precision = "float32"
    components: dict[str, str] = Field({}, description="component -> folder or hub id that it comes from instead")
    offload: Offload = Field("none", description="group: weights wait in host memory; idle_expert: one of two does")
    device_map: str | None = Field(None, description="diffusers' own, such as balanced: a component over several GPUs")
    defaults: dict[str, int | float] = Field(
        {}, description="used where a request is silent: height, num_inference_steps, …"
    )
    quantization: dict[str, dict[str, Any]] = Field({}, description="component -> {backend: torchao, …}, at load")
    cost_profile: str | None = Field(None, description="of `raydiance calibrate`; left out: measured at every start")
    parallel: ParallelConfig | None = Field(None, description="of this model alone; null: the one of all models")

    @property
    def id(self) -> str:
        return self.name or Path(self.path).name

    def load_options(self, stage: Stage, device: str) -> LoadOptions:
        """How a stage brings its weights onto its device."""
        return LoadOptions(
            device=device,
            dtype=self.vae_dtype if stage == "decode" else self.dtype,
            components=self.components,
            offload=self.offload,
            device_map=self.device_map,
            quantization=self.quantization,
        )


class TextEncoderConfig(Section):
    num_replicas: int = Field(1, ge=1, le=64)
    num_cpus: float = Field(0.2, ge=0)
    num_gpus: float = Field(0, ge=0)
    max_batch_size: int = Field(16, ge=1, le=256)
    cache_entries: int = Field(1024, ge=0)


class DenoiserConfig(Section):
    """`max_batch_size` and `max_batch_tokens` bound one forward; `max_active` the trajectories that a replica holds."""

    num_replicas: int = Field(1, ge=1, le=1024)
    num_cpus: float = Field(0.5, ge=0)
    num_gpus: float = Field(0, ge=0)
    num_threads: int = Field(0, ge=0, description="torch threads; 0 = the machine's cores")
    max_batch_size: int = Field(8, ge=1, le=256)
    max_batch_tokens: int = Field(65_536, ge=1)
    max_active: int = Field(64, ge=1)
    attention: Attention = Field("auto", description="the backend; one that is named is used, or refused at start")
    checkpoint_interval_s: float = Field(5.0, gt=0)
    store_interval_s: float = Field(30.0, gt=0, description="between states of a sample in the artifact store")
    progress_interval_s: float = Field(1.0, ge=0)


class DispatcherConfig(Section):
    """Processes of a model that hand its work out; more than one where one is too slow."""

    num_replicas: int = Field(1, ge=1, le=16)


class VAEDecoderConfig(Section):
    """`num_cpus` and `num_gpus` are a rank's. `deadline_s`: how much later than another one may be with its tiles."""

    num_replicas: int = Field(1, ge=1, le=64)
    num_cpus: float = Field(0.2, ge=0)
    num_gpus: float = Field(0, ge=0)
    gpus: int = Field(1, ge=1, le=64, description="ranks of one replica: they share what is decoded in tiles")
    small_tiles: bool = Field(False, description="tile what would fit whole too; seams change its pixels slightly")
    deadline_s: float = Field(120, gt=0, description="a rank that is later than that hangs: the replica is replaced")

    @model_validator(mode="after")
    def _shared(self) -> VAEDecoderConfig:
        if self.small_tiles and self.gpus == 1:
            raise ValueError("small_tiles=true needs gpus of 2 or more, not gpus=1")
        if self.gpus > 1 and not (self.num_cpus or self.num_gpus):
            raise ValueError(f"gpus={self.gpus} ranks need num_cpus or num_gpus above 0 to be placed by")
        return self


class StorageConfig(Section):
    """`database`: sqlite:///FILE or postgresql://…; `artifacts`: a folder, or s3://bucket/prefix.

    Relative paths are taken from where the configuration is read, not from where a replica happens to run.
    """

    database: str = "sqlite:///raydiance-data/jobs.db"
    artifacts: str = "raydiance-data/artifacts"
    artifact_ttl_s: float = Field(7 * 86_400, gt=0)
    sweep_interval_s: float = Field(60, gt=0)

    @field_validator("database")
    @classmethod
    def _absolute_database(cls, url: str) -> str:
        if not url.startswith(DATABASES):
            raise ValueError("must be sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME")
        prefix = "sqlite:///"
        return prefix + str(Path(url.removeprefix(prefix)).absolute()) if url.startswith(prefix) else url

    @field_validator("artifacts")
    @classmethod
    def _absolute_artifacts(cls, url: str) -> str:
        if not url or ("://" in url and not url.startswith(("s3://", "file://"))):
            raise ValueError("must be a folder, file:///FOLDER or s3://BUCKET/PREFIX")
        return url if "://" in url else str(Path(url).absolute())


class Config(Section):
    """Everything that can be set. `model: tiny` is short for `models: [{path: tiny}]`."""

    models: list[ModelConfig] = Field([ModelConfig()], min_length=1)
    text_encoder: TextEncoderConfig = TextEncoderConfig()
    denoiser: DenoiserConfig = DenoiserConfig()
    parallel: ParallelConfig = ParallelConfig()
    vae_decoder: VAEDecoderConfig = VAEDecoderConfig()
    dispatcher: DispatcherConfig = DispatcherConfig()
    scheduling: SchedulingConfig = SchedulingConfig()
    autoscaling: AutoscalingConfig = AutoscalingConfig()
    storage: StorageConfig = StorageConfig()
    limits: LimitsConfig = LimitsConfig()
    webhooks: WebhookConfig = WebhookConfig()
    network: NetworkConfig = NetworkConfig()
    http: HTTPConfig = HTTPConfig()
    auth: AuthConfig = AuthConfig()
    simulate: SimulateConfig = SimulateConfig()

    @model_validator(mode="before")
    @classmethod
    def _short_model(cls, values: Any) -> Any:
        if not isinstance(values, dict) or "model" not in values:
            return values
        if "models" in values:
            raise ValueError("give model or models, not both")
        rest = {k: v for k, v in values.items() if k != "model"}
        return {**rest, "models": [{"path": values["model"]}]}

    @model_validator(mode="after")
    def _unique(self) -> Config:
        names = [m.id for m in self.models]
        if len(set(names)) != len(names):
            raise ValueError(f"models must have distinct names; got {', '.join(names)}")
        return self

    @model_validator(mode="after")
    def _scaled(self) -> Config:
        fixed: dict[StageName, int] = {stage: getattr(self, stage).num_replicas for stage in STAGES}
        self.autoscaling.check(fixed, len(self.models))
        return self

    @model_validator(mode="after")
    def _keys_when_exposed(self) -> Config:
        if self.auth.mode != "off":
            return self
        if self.http.api_key_sha256:
            raise ValueError(
                "auth.mode=off lets everybody in, and http.api_key_sha256 names keys: leave one of them out"
            )
        if not (self.http.is_loopback or self.auth.allow_anonymous):
            raise ValueError(
                f"auth.mode=off with http.host={self.http.host}, which is reached from outside: let it ask for keys "
                "(auth.mode=keys), or set auth.allow_anonymous=true where something in front of it checks who asks"
            )
        return self

    @property
    def needs_keys(self) -> bool:
        """Whether requests need an API key."""
        if self.auth.mode != "auto":
            return self.auth.mode == "keys"
        is_open = self.http.is_loopback or self.auth.allow_anonymous
        return bool(self.http.api_key_sha256) or not is_open

    def most_replicas(self, stage: StageName) -> int:
        """Of a stage, at any time."""
        fixed: int = getattr(self, stage).num_replicas
        return self.autoscaling.paid(stage) or fixed

    def parallel_of(self, model: ModelConfig) -> ParallelConfig:
        return model.parallel or self.parallel


def load_config(values: dict[str, Any] | None = None, file: Path | None = None) -> Config:
    """From a YAML file, overlaid by `values`; dotted keys reach into sections (`denoiser.num_threads`).

    Values may be strings, as `serve run … key=value` gives them. Raises ConfigError that names the option.
    """
    merged: dict[str, Any] = {}
    if file is not None:
        try:
            loaded = yaml.safe_load(file.read_text())
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as e:
            raise ConfigError(f"cannot read {file}: {e}") from e
        if loaded is not None and not isinstance(loaded, dict):
            raise ConfigError(f"{file} must hold a mapping of options, not a {type(loaded).__name__}")
        merged = loaded or {}
    for key, value in (values or {}).items():
        _overlay(merged, key.split("."), value)
    try:
        return Config.model_validate(merged)
    except ValidationError as e:
        found = complaints([dict(error) for error in e.errors()], Config, what="option", also=["model"])
        raise ConfigError("; ".join(map(str, found))) from None  # what pydantic says holds values, secrets among them


def _overlay(target: dict[str, Any], path: list[str], value: Any) -> None:
    *sections, last = path
    for section in sections:
        target = target.setdefault(section, {})
        if not isinstance(target, dict):
            raise ConfigError(f"{'.'.join(path)}: '{section}' is not a section")
    if isinstance(value, dict) and isinstance(target.get(last), dict):
        for key, inner in value.items():
            _overlay(target[last], [key], inner)
    else:
        target[last] = value


def data_folder() -> Path:
    """Where a server started by hand keeps its jobs: `$RAYDIANCE_DATA`, or ./raydiance-data."""
    return Path(os.environ.get("RAYDIANCE_DATA", "raydiance-data")).absolute()
