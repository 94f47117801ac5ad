"""Tenants and their API keys. A key is shown once, when it is made; only its hash is kept."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from raydiance.serve.complaints import shown
from raydiance.serve.errors import InvalidRequest, NotFound
from raydiance.serve.quota import Limits
from raydiance.serve.storage.database import Database
from raydiance.serve.storage.job import now
from raydiance.serve.storage.tables import ApiKeyRow, TenantRow

PREFIX = "rd-"
KEY_BYTES = 32
MAX_LABEL_CHARS = 200
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Tenant:
    """`created_at` in Unix seconds."""

    name: str
    limits: Limits
    created_at: float


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key as people may see it: without the key. Times in Unix seconds; `revoked_at` is None while it is let in."""

    id: str
    tenant: str
    label: str
    last4: str
    created_at: float
    revoked_at: float | None


def digest_of(key: bytes) -> str:
    """The hex SHA-256 that is kept of a key. It has 256 random bits, so that no slow hash is needed."""
    return hashlib.sha256(key).hexdigest()


class Keys(Database):
    def set_tenant(self, name: str, **limits: Any) -> Tenant:
        """Makes the tenant, or changes those of its `quota.Limits` that are given; the others stay.

        Raises:
            InvalidRequest: the name cannot be one, or a limit is out of range.
        """
        if NAME.fullmatch(name) is None:
            raise InvalidRequest(f"tenant {shown(name)} must be 1 to 64 of A-Z a-z 0-9 . _ -, no sign first", "tenant")
        with self._writing() as session:
            row = session.get(TenantRow, name, with_for_update=True)
            if row is None:
                row = TenantRow(name=name, created_at=now(), **_columns(Limits()))
                session.add(row)
            try:
                changed = Limits(**{**_values(row), **limits})
            except ValueError as e:
                raise InvalidRequest(str(e)) from None
            for column, value in _columns(changed).items():
                setattr(row, column, value)
            return _tenant(row)

    def tenants(self) -> list[Tenant]:
        with self._reading() as session:
            return [_tenant(row) for row in session.scalars(select(TenantRow).order_by(TenantRow.name))]

    def tenant(self, name: str) -> Tenant:
        """Raises NotFound."""
        with self._reading() as session:
            row = session.get(TenantRow, name)
            if row is None:
                raise NotFound(f"there is no tenant {shown(name)}", "tenant")
            return _tenant(row)

    def create_key(self, tenant: str, label: str = "") -> tuple[ApiKey, str]:
        """A new key of a tenant, and the secret itself, which cannot be had again. Raises NotFound, InvalidRequest."""
        if len(label) > MAX_LABEL_CHARS or not label.isprintable():
            raise InvalidRequest(f"label takes up to {MAX_LABEL_CHARS} printable characters", "label")
        secret = PREFIX + secrets.token_urlsafe(KEY_BYTES)
        with self._writing() as session:
            if session.get(TenantRow, tenant) is None:
                raise NotFound(f"there is no tenant {shown(tenant)}", "tenant")
            row = ApiKeyRow(
                id=f"key_{secrets.token_hex(8)}",
                tenant=tenant,
                sha256=digest_of(secret.encode()),
                last4=secret[-4:],
                label=label,
                created_at=now(),
            )
            session.add(row)
            return _key(row), secret

    def keys(self, tenant: str | None = None) -> list[ApiKey]:
        """All of them, revoked ones too, oldest first."""
        query = select(ApiKeyRow).order_by(ApiKeyRow.created_at, ApiKeyRow.id)
        if tenant is not None:
            query = query.where(ApiKeyRow.tenant == tenant)
        with self._reading() as session:
            return [_key(row) for row in session.scalars(query)]

    def revoke_key(self, key_id: str) -> ApiKey:
        """Lets it in no longer. Twice is once. Raises NotFound."""
        with self._writing() as session:
            row = session.get(ApiKeyRow, key_id, with_for_update=True)
            if row is None:
                raise NotFound(f"there is no key {shown(key_id)}", "id")
            if row.revoked_at is None:
                row.revoked_at = now()
            return _key(row)

    def weight_of(self, tenant: str) -> float:
        """Of a tenant, in sharing; 1 where it has no limits of its own."""
        with self._reading() as session:
            row = session.get(TenantRow, tenant)
            return 1.0 if row is None else row.weight

    def find_key(self, sha256: str) -> str | None:
        """The tenant of the key with this hash; None where there is none, or it is revoked."""
        with self._reading() as session:
            row = session.scalar(select(ApiKeyRow).where(ApiKeyRow.sha256 == sha256))
            if row is None or row.revoked_at is not None or not hmac.compare_digest(row.sha256, sha256):
                return None
            return row.tenant


def limits_of(session: Session, tenant: str) -> Limits:
    """No limits for a tenant that nobody has made: the default one may be such. Locks the row, where there is one, to
    the end of the transaction: of two requests of a tenant one is let in after the other."""
    row = session.get(TenantRow, tenant, with_for_update=True)
    return Limits() if row is None else Limits(**_values(row))


def _values(row: TenantRow) -> dict[str, Any]:
    values = {field.name: getattr(row, field.name) for field in fields(Limits)}
    return {name: tuple(v) if isinstance(v, Sequence) else v for name, v in values.items()}


def _columns(limits: Limits) -> dict[str, Any]:
    return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(limits).items()}


def _tenant(row: TenantRow) -> Tenant:
    return Tenant(row.name, Limits(**_values(row)), row.created_at)


def _key(row: ApiKeyRow) -> ApiKey:
    return ApiKey(row.id, row.tenant, row.label, row.last4, row.created_at, row.revoked_at)
