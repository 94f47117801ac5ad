"""What meets the world: HTTP, its limits, hosts that may be reached, webhooks."""

from __future__ import annotations

import base64
import binascii
import ipaddress
from typing import Annotated

from pydantic import BeforeValidator, Field, SecretStr, field_validator

from raydiance.serve.errors import ConfigError
from raydiance.serve.section import Section


def _as_list(value: object) -> object:
    return [v.strip() for v in value.split(",") if v.strip()] if isinstance(value, str) else value


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
