"""Tenants and keys as they are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from raydiance.serve.errors import InvalidRequest, NotFound
from raydiance.serve.quota import Limits
from raydiance.serve.storage.jobs import JobStore
from raydiance.serve.storage.keys import digest_of


def test_a_key_is_found_until_it_is_revoked(store: JobStore) -> None:
    store.set_tenant("acme")
    key, secret = store.create_key("acme", "of the studio")
    other, _ = store.create_key("acme")
    assert (key.tenant, key.label, key.last4, key.revoked_at) == ("acme", "of the studio", secret[-4:], None)
    assert secret.startswith("rd-")
    assert len(secret) == 3 + 43
    digest = digest_of(secret.encode())
    assert store.find_key(digest) == "acme"
    assert store.find_key(digest_of(b"rd-other")) is None
    revoked = store.revoke_key(key.id)
    assert revoked.revoked_at is not None
    assert store.revoke_key(key.id) == revoked, "twice is once"
    assert store.find_key(digest) is None
    assert store.keys() == store.keys("acme") == [revoked, other]
    assert store.keys("other") == []


def test_the_key_itself_is_not_in_the_database(store: JobStore, url: str) -> None:
    store.set_tenant("acme")
    _, secret = store.create_key("acme")
    store.close()
    folder = Path(url.removeprefix("sqlite:///")).parent
    content = b"".join(file.read_bytes() for file in folder.iterdir())
    assert digest_of(secret.encode()).encode() in content
    assert secret.encode() not in content
    assert secret.removeprefix("rd-").encode()[:12] not in content


def test_limits_are_changed_one_by_one(store: JobStore) -> None:
    made = store.set_tenant("acme", concurrency=4, allowed_models=("tiny", "wan"))
    assert made.limits == Limits(concurrency=4, allowed_models=("tiny", "wan"))
    changed = store.set_tenant("acme", concurrency=None, monthly_budget=5.5, weight=2.0)
    assert changed.limits == Limits(monthly_budget=5.5, allowed_models=("tiny", "wan"), weight=2.0)
    assert changed.created_at == made.created_at
    store.set_tenant("Zeta.1-x")
    assert store.tenants() == [store.tenant("Zeta.1-x"), changed]
    assert store.tenant("acme") == changed


def test_what_cannot_be(store: JobStore) -> None:
    for name in ("", "a b", "-a", "a" * 65, "a\x1fb", "ä"):
        with pytest.raises(InvalidRequest) as error:
            store.set_tenant(name)
        assert error.value.param == "tenant"
    with pytest.raises(InvalidRequest, match="concurrency=0"):
        store.set_tenant("acme", concurrency=0)
    assert store.tenants() == []
    for call in (lambda: store.create_key("nobody"), lambda: store.revoke_key("key_0"), lambda: store.tenant("x")):
        with pytest.raises(NotFound):
            call()
    store.set_tenant("acme")
    for label in ("x" * 201, "a\nb"):
        with pytest.raises(InvalidRequest) as error:
            store.create_key("acme", label)
        assert error.value.param == "label"
