"""The one typed configuration: for the command line, the Serve config file and the chart. Unknown keys are refused."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import os
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BeforeValidator,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

from raydiance.models.family import Stage
from raydiance.models.options import LoadOptions, Offload
from raydiance.serve.auth_config import AuthConfig
from raydiance.serve.complaints import complaints
from raydiance.serve.errors import ConfigError
from raydiance.serve.parallel_config import ParallelConfig
from raydiance.serve.scheduling_config import SchedulingConfig
from raydiance.serve.section import Section
from raydiance.serve.simulate_config import SimulateConfig

Precision = Literal["float32", "bfloat16", "float16"]
Attention = Literal["auto", "naive", "sdpa", "flex", "flash2", "flash3", "xformers"]


DATABASES = ("sqlite:///", "postgresql://", "postgresql+psycopg://")


def _as_list(value: object) -> object:
    return [v.strip() for v in value.split(",") if v.strip()] if isinstance(value, str) else value


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
    progress_interval_s: float = Field(1.0, ge=0)


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


class LimitsConfig(Section):
    max_queued_jobs: int = Field(1_000, ge=1)
    max_body_bytes: int = Field(256 << 20, ge=1024)
    max_image_bytes: int = Field(20 << 20, ge=1024)
    max_image_pixels: int = Field(40_000_000, ge=1, description="of an image, and of a frame of a video")
    max_video_bytes: int = Field(200 << 20, ge=1024)
    max_video_frames: int = Field(2_000, ge=1)
    fetch_timeout_s: float = Field(10, gt=0)
    sync_timeout_s: float = Field(600, gt=0, description="the longest that a synchronous image request waits")


class WebhookConfig(Section):
    """`secret` signs deliveries as Standard Webhooks do (`whsec_` + base64); without one, requests with a webhook are
    refused. `max_attempts` deliveries, the first retry after `first_retry_s`, doubling."""

    secret: SecretStr | None = None
    max_attempts: int = Field(8, ge=1, le=32)
    first_retry_s: float = Field(1.0, gt=0)
    timeout_s: float = Field(10, gt=0)

    @field_validator("secret")
    @classmethod
    def _usable(cls, secret: SecretStr | None) -> SecretStr | None:
        if secret is not None:
            secret_key(secret.get_secret_value())
        return secret


def secret_key(secret: str) -> bytes:
    """The signing key in `whsec_` + base64.

    Raises:
        ConfigError: it is written otherwise. The secret is not repeated.
    """
    try:
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith("whsec_") or not key:
        raise ConfigError("webhooks.secret must be 'whsec_' and base64: echo whsec_$(openssl rand -base64 32)")
    return key


class NetworkConfig(Section):
    """`allow_hosts`: hosts (name or address) that may be fetched from or called although they are private."""

    allow_hosts: Annotated[list[str], BeforeValidator(_as_list)] = Field(default=[])


class HTTPConfig(Section):
    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65_535)
    num_replicas: int = Field(1, ge=1, le=64)
    api_key_sha256: Annotated[list[str], BeforeValidator(_as_list)] = Field(
        default=[], description="hex SHA-256 of keys of the tenant `default`, beside those in the database"
    )
    body_timeout_s: float = Field(60, gt=0, description="the longest that a request's body pauses")

    @field_validator("api_key_sha256")
    @classmethod
    def _digests(cls, keys: list[str]) -> list[str]:
        if any(len(k) != 64 or set(k.lower()) - set("0123456789abcdef") for k in keys):
            raise ValueError("takes 64 hex digits a key: printf %s KEY | sha256sum")
        return keys

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


class Config(Section):
    """Everything that can be set. `model: tiny` is short for `models: [{path: tiny}]`."""

    models: list[ModelConfig] = Field([ModelConfig()], min_length=1)
    text_encoder: TextEncoderConfig = TextEncoderConfig()
    denoiser: DenoiserConfig = DenoiserConfig()
    parallel: ParallelConfig = ParallelConfig()
    vae_decoder: VAEDecoderConfig = VAEDecoderConfig()
    scheduling: SchedulingConfig = SchedulingConfig()
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
