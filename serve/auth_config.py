"""Who is let in: the section `auth` of the configuration."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from raydiance.serve.section import Section


def _as_mode(value: object) -> object:
    """YAML reads `off` as false."""
    return "off" if value is False else value


Mode = Annotated[Literal["auto", "off", "keys"], BeforeValidator(_as_mode)]


class AuthConfig(Section):
    """`auto` asks for keys unless the server listens on loopback only and `http.api_key_sha256` names none."""

    mode: Mode = Field("auto", description="keys: every request needs one; off: none does, on loopback only; auto")
    allow_anonymous: bool = Field(
        False, description="be off beyond loopback too: something in front of the server checks who asks"
    )
    gpu_second_price: float = Field(1.0, ge=0, description="cost of a GPU-second, in whatever budgets are counted in")
