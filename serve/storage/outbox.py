"""The webhooks still to be sent. They are written in the transaction that ends the job, so none is lost or made up."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from raydiance.serve.storage.database import Database
from raydiance.serve.storage.job import now as unix_now
from raydiance.serve.storage.tables import WebhookRow

MAX_ERROR_CHARS = 500


@dataclass(frozen=True)
class Delivery:
    """One event to be sent. `id` stays over all attempts; `attempt` counts from 1; `created_at` in Unix seconds."""

    id: str
    job_id: str
    url: str
    event: str
    attempt: int
    created_at: float


class Outbox(Database):
    def enqueue_webhook(self, job_id: str, url: str, event: str) -> str:
        """Send `event` to `url` as soon as possible; returns the event's id. Ending a job does this by itself."""
        with self._writing() as session:
            return self._enqueue(session, job_id, url, event)

    def _enqueue(self, session: Session, job_id: str, url: str, event: str) -> str:
        at = unix_now()
        row = WebhookRow(
            id=f"evt_{uuid.uuid4().hex}",
            job_id=job_id,
            url=url,
            event=event,
            state="pending",
            attempt=0,
            due_at=at,
            created_at=at,
        )
        session.add(row)
        return row.id

    def due_webhooks(self, now: float, limit: int = 20, *, lease_s: float = 60) -> list[Delivery]:
        """Take up to `limit` deliveries that are due at `now`, oldest first, and count an attempt for each.

        What is taken is the caller's for `lease_s` seconds: nobody else gets it. It falls due again after that, so that
        a sender that died loses nothing.
        """
        due = (
            select(WebhookRow.id)
            .where(WebhookRow.state == "pending", WebhookRow.due_at <= now)
            .order_by(WebhookRow.due_at, WebhookRow.id)
            .limit(limit)
            .with_for_update(skip_locked=True)
            .cte("due")
        )
        with self._writing() as session:
            taken = session.scalars(
                update(WebhookRow)
                .where(WebhookRow.id.in_(select(due.c.id)))
                .values(attempt=WebhookRow.attempt + 1, due_at=now + lease_s)
                .returning(WebhookRow)
            ).all()
            rows = sorted(taken, key=lambda r: (r.created_at, r.id))
            return [Delivery(r.id, r.job_id, r.url, r.event, r.attempt, r.created_at) for r in rows]

    def webhook_done(self, webhook_id: str) -> None:
        self._settle(webhook_id, state="done", last_error=None)

    def webhook_retry(self, webhook_id: str, at: float, error: str) -> None:
        """Try again at `at` (Unix seconds)."""
        self._settle(webhook_id, due_at=at, last_error=error[:MAX_ERROR_CHARS])

    def webhook_gave_up(self, webhook_id: str, error: str) -> None:
        self._settle(webhook_id, state="gave_up", last_error=error[:MAX_ERROR_CHARS])

    def _settle(self, webhook_id: str, **values: str | float | None) -> None:
        pending = update(WebhookRow).where(WebhookRow.id == webhook_id, WebhookRow.state == "pending")
        with self._writing() as session:
            session.execute(pending.values(**values))
