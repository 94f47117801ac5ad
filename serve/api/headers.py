"""Headers, path parameters and the tenant, which several routes read."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import Depends, Header, Path, Request

from raydiance.serve.complaints import shown
from raydiance.serve.errors import InvalidRequest, NotFound

ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
KEY = re.compile(r"[\x21-\x7e]{1,255}")


def check_id(value: str, param: str = "id") -> str:
    """Raises NotFound for what cannot be an id, before it reaches a database."""
    if ID.fullmatch(value) is None:
        raise NotFound(f"there is no job {shown(value)}", param)
    return value


def _job_id(id: Annotated[str, Path(description="of a job", examples=["video_4f0c"])]) -> str:
    return check_id(id)


def _idempotency_key(
    idempotency_key: Annotated[
        str | None, Header(description="the same key and body give the same job; another body is refused (409)")
    ] = None,
) -> str | None:
    if idempotency_key is not None and KEY.fullmatch(idempotency_key) is None:
        raise InvalidRequest(
            f"Idempotency-Key={shown(idempotency_key)} must be 1 to 255 visible ASCII characters", "Idempotency-Key"
        )
    return idempotency_key


def _tenant(request: Request) -> str | None:
    tenant: str | None = request.state.tenant  # where the middleware has not set it, nobody gets anything
    return tenant


JobId = Annotated[str, Depends(_job_id)]
IdempotencyKey = Annotated[str | None, Depends(_idempotency_key)]
Tenant = Annotated[str | None, Depends(_tenant)]
