"""What dispatchers tell the autoscaling, and it them: read and written by a thread, so that no policy waits for it.

The other side is `serve/signals.py`.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ray.experimental import internal_kv

log = logging.getLogger("ray.serve")
NAMESPACE = b"raydiance-autoscaling"
INTERVAL_S = 0.25
FRESH_S = 2.0
"""A dispatcher of a model that told so much before the last one is gone."""
FORGOTTEN_S = 300.0
"""After which what a dispatcher told last is removed: it is gone."""


@dataclass(slots=True)
class _Told:
    """Args: at: when it was first seen as it is, in this process's monotonic seconds: clocks of two nodes differ."""

    raw: bytes
    at: float


class Mailbox:
    """Of one deployment.

    Args:
        models: whose dispatchers tell of its work.
    """

    def __init__(self, app: str, models: Iterable[str], deployment: str) -> None:
        prefixes = [f"{app}/signals/{model}/".encode() for model in models]
        self._state = _State(prefixes, f"{app}/starts/{deployment}".encode())
        threading.Thread(target=_run, args=(self._state,), name="raydiance-autoscaling", daemon=True).start()
        weakref.finalize(self, self._state.stop.set)  # a policy that is replaced takes its thread with it

    def read(self) -> tuple[list[dict[str, Any]], float]:
        """What the dispatchers of all models told last, and the age of the oldest of it in seconds.

        Of several dispatchers of one model those count that still tell; inf where one of the models has none.
        Raises ValueError for what is no JSON.
        """
        now, found, oldest = time.monotonic(), [], 0.0
        for prefix in self._state.prefixes:
            told = [told for key, told in dict(self._state.told).items() if key.startswith(prefix)]
            newest = min((now - each.at for each in told), default=float("inf"))
            oldest = max(oldest, newest)
            found += [json.loads(each.raw) for each in told if now - each.at <= newest + FRESH_S]
        return found, oldest

    def tell(self, starts: dict[str, float]) -> None:
        self._state.starts = json.dumps(starts).encode()


class _State:
    """What the thread and the mailbox share; the thread keeps no mailbox alive."""

    def __init__(self, prefixes: list[bytes], key: bytes) -> None:
        self.prefixes, self.key = prefixes, key
        self.starts: bytes | None = None
        self.told: dict[bytes, _Told] = {}
        self.stop = threading.Event()


def _run(state: _State) -> None:
    in_trouble, sent = False, None
    while not state.stop.wait(INTERVAL_S):
        try:
            for prefix in state.prefixes:
                _look(state, prefix)
            if (starts := state.starts) is not None and starts != sent:
                internal_kv._internal_kv_put(state.key, starts, namespace=NAMESPACE)
                sent = starts
        except Exception as e:  # noqa: BLE001 - whatever Ray raises while its control plane is away
            if not in_trouble:
                log.warning("autoscaling: what dispatchers tell cannot be read, and is read again: %s", e)
            in_trouble = True
        else:
            in_trouble = False


def _look(state: _State, prefix: bytes) -> None:
    for key in internal_kv._internal_kv_list(prefix, namespace=NAMESPACE):
        raw, known = internal_kv._internal_kv_get(key, namespace=NAMESPACE), state.told.get(key)
        now = time.monotonic()
        if raw is not None and (known is None or known.raw != raw):
            state.told[key] = _Told(raw, now)
        elif known is not None and now - known.at > FORGOTTEN_S:
            internal_kv._internal_kv_del(key, namespace=NAMESPACE)
            state.told.pop(key)
