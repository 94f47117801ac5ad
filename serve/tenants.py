"""Who asks, and whether they may: keys resolved to tenants, and requests let in within their tenant's limits."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections import OrderedDict

from raydiance.models.tier import Tier
from raydiance.serve.config import Config
from raydiance.serve.errors import Unauthorized
from raydiance.serve.quota import Ask
from raydiance.serve.request import GenerationRequest
from raydiance.serve.storage.job import DEFAULT_TENANT
from raydiance.serve.storage.jobs import JobStore
from raydiance.serve.storage.keys import digest_of

KEY_CACHE_S = 5.0  # how long a revoked key may still be let in
MAX_CACHED_KEYS = 4096
DEFAULT_TIER: Tier = "standard"


def tier_of(request: GenerationRequest) -> Tier:
    return request.service_tier or DEFAULT_TIER


class Tenants:
    """One an ingress replica. What counts is in the database, so that limits hold over all of them."""

    def __init__(self, config: Config, store: JobStore) -> None:
        self._store = store
        self._price = config.auth.gpu_second_price
        self._configured = [digest.lower() for digest in config.http.api_key_sha256]
        self._known: OrderedDict[str, tuple[float, str | None]] = OrderedDict()  # digest -> until when, tenant

    async def authenticate(self, key: bytes) -> str:
        """The tenant of a key; that of a key in `http.api_key_sha256` is `default`. Raises Unauthorized, Unavailable.

        What the database says of a key is kept for `KEY_CACHE_S`: a revoked one is let in no longer than that.
        """
        if not key:
            raise Unauthorized("an API key is required: send 'Authorization: Bearer KEY'")
        digest = digest_of(key)
        # every digest is compared, so that the time taken tells nothing
        if sum([hmac.compare_digest(digest, configured) for configured in self._configured]):
            return DEFAULT_TENANT
        until, tenant = self._known.get(digest, (0.0, None))
        if time.monotonic() >= until:
            tenant = await asyncio.to_thread(self._store.find_key, digest)
            self._keep(digest, tenant)
        if tenant is None:
            raise Unauthorized("the API key is not known here")
        return tenant

    def _keep(self, digest: str, tenant: str | None) -> None:
        self._known[digest] = (time.monotonic() + KEY_CACHE_S, tenant)
        self._known.move_to_end(digest)
        while len(self._known) > MAX_CACHED_KEYS:
            self._known.popitem(last=False)

    async def admit(
        self,
        tenant: str | None,
        model: str,
        tier: str,
        num_samples: int,
        expected_gpu_seconds: float,
        group: str | None = None,
    ) -> Ask:
        """Checks a request before any work is done for it. What it returns is checked again, and charged, in the
        transaction that stores the job (`JobStore.create`): parallel requests never exceed a limit together.

        Args:
            tenant: None is the operator, whom nothing limits.
            expected_gpu_seconds: of all samples; 0 where they are not known.
            group: whose budget counts too.

        Raises:
            Forbidden: a model or tier that the tenant may not use, or more than its limits ever let in.
            TooManyRequests: names the limit, and when to come again.
        """
        ask = Ask(tenant, model, tier, num_samples, expected_gpu_seconds, self._price, group)
        if tenant is not None or group is not None:
            await asyncio.to_thread(self._store.check, ask)
        return ask
