"""Telling clients that their job has ended: signed as standardwebhooks.com says, tried again until taken."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import random
import time

from raydiance.serve import netguard
from raydiance.serve.edge_config import NetworkConfig, WebhookConfig, secret_key
from raydiance.serve.errors import InvalidRequest, Unavailable
from raydiance.serve.storage.jobs import JobStore
from raydiance.serve.storage.outbox import Delivery

log = logging.getLogger(__name__)
MAX_CONCURRENT = 16
LEASE_MARGIN_S = 30.0


def sign(key: bytes, webhook_id: str, timestamp: int, body: bytes) -> str:
    """The `webhook-signature` header; `timestamp` in Unix seconds."""
    signed = f"{webhook_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


def payload(delivery: Delivery) -> bytes:
    """The body: OpenAI's event object."""
    event = {
        "id": delivery.id,
        "object": "event",
        "type": delivery.event,
        "created_at": int(delivery.created_at),
        "data": {"id": delivery.job_id},
    }
    return json.dumps(event, separators=(",", ":")).encode()


class Deliverer:
    """Sends what the outbox holds. Several may run on one database: each event is one's at a time.

    An event arrives at least once: a sender that dies after the client has answered sends it again, under the same
    `webhook-id`. Without a secret nothing is sent.
    """

    def __init__(self, jobs: JobStore, config: WebhookConfig, network: NetworkConfig) -> None:
        self._jobs = jobs
        self._config = config
        self._network = network
        self._key = None if config.secret is None else secret_key(config.secret.get_secret_value())

    async def run_once(self, now: float) -> int:
        """Send what is due at `now` (Unix seconds), up to 16 at once; returns how many were tried.

        Raises:
            Unavailable: the database does not answer.
        """
        if self._key is None:
            return 0
        lease_s = self._config.timeout_s + LEASE_MARGIN_S
        due = await asyncio.to_thread(self._jobs.due_webhooks, now, MAX_CONCURRENT, lease_s=lease_s)
        await asyncio.gather(*(self._deliver(self._key, delivery, now) for delivery in due))
        return len(due)

    async def _deliver(self, key: bytes, delivery: Delivery, now: float) -> None:
        error = await self._send(key, delivery)
        if error is None:
            await asyncio.to_thread(self._jobs.webhook_done, delivery.id)
            return
        log.warning("webhook %s of %s, attempt %d: %s", delivery.id, delivery.job_id, delivery.attempt, error)
        if delivery.attempt >= self._config.max_attempts:
            await asyncio.to_thread(self._jobs.webhook_gave_up, delivery.id, error)
        else:
            at = now + self._retry_after_s(delivery.attempt)
            await asyncio.to_thread(self._jobs.webhook_retry, delivery.id, at, error)

    async def _send(self, key: bytes, delivery: Delivery) -> str | None:
        """Why it was not taken; None if it was."""
        body, timestamp = payload(delivery), int(time.time())
        headers = {
            "content-type": "application/json",
            "webhook-id": delivery.id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": sign(key, delivery.id, timestamp, body),
        }
        try:
            status = await netguard.post(
                delivery.url,
                body,
                headers,
                timeout_s=self._config.timeout_s,
                allow_hosts=self._network.allow_hosts,
                field="webhook",
            )
        except (InvalidRequest, Unavailable) as e:
            return e.message
        return None if 200 <= status < 300 else f"status {status}"

    def _retry_after_s(self, attempt: int) -> float:
        """Doubles with each attempt; up to a quarter more, so that many events do not come back together."""
        spread: float = random.uniform(1.0, 1.25)  # noqa: S311  (no secret)
        return self._config.first_retry_s * 2.0 ** (attempt - 1) * spread
