"""What a dispatcher knows of the work of each stage, told twice a second to the autoscaling in Serve's controller.

It goes through the key-value store of Ray's control plane: it is there whichever of both starts first or dies, and a
deployment without replicas, which has no metrics of its own, is told of as well. Nobody waits for anybody.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ray import serve
from ray.experimental import internal_kv
from ray.util import metrics

from raydiance.models.tier import TIERS
from raydiance.serve.autoscaling_config import STAGES
from raydiance.serve.backlog import Backlog
from raydiance.serve.desk import Desk
from raydiance.serve.replicas import Replicas

log = logging.getLogger("ray.serve")
NAMESPACE = b"raydiance-autoscaling"
INTERVAL_S = 0.5
MAX_ENTRIES = 32
"""Of a tier: samples that should be done at about the same time are told of together."""
Entry = tuple[float | None, float, int, str]
"""Seconds until it should be done, None without a deadline; seconds of a replica; samples; tier."""


Due = tuple[float, float, str]
"""Unix seconds, seconds of a replica, tier: of one sample."""


def read(desk: Desk, backlog: Backlog, now: float, *, is_waking: bool) -> dict[str, Any]:
    """Of each stage what is to be done and what has ever come, as JSON takes it. Pure.

    Times are relative, as clocks of two nodes differ.

    Args:
        is_waking: the model waits for its warm-up, so that nothing is known of what requests take.
    """
    expected = list(desk.expected())
    promised = [each.sample for each in expected if not each.is_here]
    held = [*backlog.waiting, *backlog.active, *promised]
    denoise = [(sample.terms.deadline, sample.seconds, sample.terms.tier) for sample in held]
    encode, decode = [], []
    for each in expected:
        terms, price = each.sample.terms, each.price
        after_s = price.decode_s + price.file_s
        decode.append((terms.deadline + after_s, after_s, terms.tier))
        if not each.is_begun:
            encode.append((terms.deadline - each.sample.seconds, price.text_s, terms.tier))
    return {
        "is_waking": is_waking,
        "text_encoder": {"work": list(_grouped(encode, now)), "arrived_s": desk.come.text_encoder},
        "denoiser": {"work": list(_grouped(denoise, now)), "arrived_s": desk.come.denoiser},
        "vae_decoder": {"work": list(_grouped(decode, now)), "arrived_s": desk.come.vae_decoder},
    }


def _grouped(samples: Iterable[Due], now: float) -> Iterator[Entry]:
    """At most `MAX_ENTRIES` of a tier; of those in one entry the earliest deadline counts."""
    for tier in TIERS:
        due = sorted((deadline, seconds) for deadline, seconds, of in samples if of == tier)
        size = math.ceil(len(due) / MAX_ENTRIES) or 1
        for i in range(0, len(due), size):
            some = due[i : i + size]
            slack_s = None if math.isinf(some[0][0]) else round(some[0][0] - now, 3)
            yield slack_s, round(math.fsum(seconds for _, seconds in some), 4), len(some), tier


class Publisher:
    """Of one dispatcher.

    Args:
        model: its id.
        denoiser: the name of its deployment, of whose starts it is told in turn.
    """

    def __init__(self, model: str, denoiser: str, desk: Desk, backlog: Backlog, replicas: Replicas) -> None:
        context = serve.get_replica_context()
        self._key = f"{context.app_name}/signals/{model}/{context.replica_id.unique_id}".encode()
        self._starts = f"{context.app_name}/starts/{denoiser}".encode()
        self._desk, self._backlog, self._replicas = desk, backlog, replicas
        tags = {"model": model}
        self._seconds = metrics.Gauge(
            "raydiance_queue_seconds",
            "Seconds of a replica that samples still take, waiting and running.",
            tag_keys=("model", "stage", "tier"),
        )
        self._seconds.set_default_tags(tags)
        self._trouble = False

    async def run(self) -> None:
        for turn in itertools.count():
            told = read(self._desk, self._backlog, time.time(), is_waking=self._desk.pricer is None)
            self._export(told)
            try:
                starts = await asyncio.to_thread(self._exchange, json.dumps({"turn": turn, **told}))
            except Exception as e:  # noqa: BLE001 - whatever Ray raises while its control plane is away
                if not self._trouble:
                    log.warning("autoscaling is not told of the queue, and holds what there is: %s", e)
                self._trouble = True
            else:
                self._trouble = False
                if starts is not None:
                    self._replicas.told(float(starts["start_s"]), float(starts["waiting_s"]))
            await asyncio.sleep(INTERVAL_S)

    def _exchange(self, told: str) -> dict[str, float] | None:
        internal_kv._internal_kv_put(self._key, told.encode(), namespace=NAMESPACE)
        found = internal_kv._internal_kv_get(self._starts, namespace=NAMESPACE)
        starts: dict[str, float] | None = None if found is None else json.loads(found)
        return starts

    def _export(self, told: Mapping[str, Any]) -> None:
        for stage in STAGES:
            for tier in TIERS:
                seconds = math.fsum(entry[1] for entry in told[stage]["work"] if entry[3] == tier)
                self._seconds.set(seconds, {"stage": stage, "tier": tier})
