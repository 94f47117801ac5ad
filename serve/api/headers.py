"""Headers, path parameters and the tenant, which several routes read. A plain function would be given a thread."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import Depends, Header, Path, Request

from raydiance.serve.complaints import shown
from raydiance.serve.errors import InvalidRequest, NotFound
from raydiance.serve.request import GROUP_ID

ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
KEY = re.compile(r"[\x21-\x7e]{1,255}")


def check_id(value: str, param: str = "id") -> str:
    """Raises NotFound for what cannot be an id, before it reaches a database."""
    if ID.fullmatch(value) is None:
        raise NotFound(f"there is no job {shown(value)}", param)
    return value


async def _job_id(id: Annotated[str, Path(description="of a job", examples=["video_4f0c"])]) -> str:
    return check_id(id)


async def _group_id(id: Annotated[str, Path(description="of a group", examples=["round-7"])]) -> str:
    if re.fullmatch(GROUP_ID, id) is None:
        raise NotFound(f"there is no group {shown(id)}", "id")
    return id


async def _idempotency_key(
    idempotency_key: Annotated[
        str | None, Header(description="the same key and body give the same job; another body is refused (409)")
    ] = None,
) -> str | None:
    if idempotency_key is not None and KEY.fullmatch(idempotency_key) is None:
        raise InvalidRequest(
            f"Idempotency-Key={shown(idempotency_key)} must be 1 to 255 visible ASCII characters", "Idempotency-Key"
        )
    return idempotency_key


async def _no_idempotency_key(idempotency_key: Annotated[str | None, Header(include_in_schema=False)] = None) -> None:
    if idempotency_key is not None:
        message = "Idempotency-Key is not taken for groups: give an id, which is taken once (409 when it comes again)"
        raise InvalidRequest(message, "Idempotency-Key", "unsupported_parameter")


async def _tenant(request: Request) -> str | None:
    tenant: str | None = request.state.tenant  # where the middleware has not set it, nobody gets anything
    return tenant


JobId = Annotated[str, Depends(_job_id)]
GroupId = Annotated[str, Depends(_group_id)]
NoIdempotencyKey = Annotated[None, Depends(_no_idempotency_key)]
IdempotencyKey = Annotated[str | None, Depends(_idempotency_key)]
Tenant = Annotated[str | None, Depends(_tenant)]
