"""A steady load of jobs whose pixels are known: clients that lose nothing they were promised, whatever the server does.

A client asks again, with the same idempotency key, until its job is accepted; then it follows the events, connecting
again where they are cut, until the job has ended or is given up for lost.
"""

from __future__ import annotations

import io
import itertools
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
from drill_tally import Seen
from PIL import Image

from raydiance.serve import media

FINAL = ("completed", "failed", "cancelled")
PATIENCE_S = 0.3
SILENCE_S = 15.0
SHAPES = ("a large red circle", "a small blue square", "a large green triangle", "a small yellow circle")
Pixels = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Ask:
    """One kind of request, with a seed of its own."""

    seed: int
    steps: int
    side: int
    num_frames: int = 1

    def body(self, drill: str) -> dict[str, Any]:
        prompt = f"{SHAPES[self.seed % len(SHAPES)]} on a black background"
        size = {"height": self.side, "width": self.side, "num_frames": self.num_frames}
        kind = {} if self.num_frames > 1 else {"output": {"format": "png"}}
        return {
            "prompt": prompt,
            "seed": self.seed,
            "num_inference_steps": self.steps,
            "metadata": {"drill": drill},
            **size,
            **kind,
        }


def pixels(data: bytes, ask: Ask) -> Pixels:
    if ask.num_frames > 1:
        return np.asarray(media.decode_video(data)[0]).astype(np.int16)
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(np.int16)


def levels_off(one: Pixels, other: Pixels) -> int:
    """Of the worst pixel; 255 for pictures of other sizes."""
    return 255 if one.shape != other.shape else int(np.abs(one - other).max())


@dataclass
class Following:
    """A job on its way."""

    ask: Ask
    id: str
    steps: list[tuple[float, int]] = field(default_factory=list)
    last_event: int = 0

    @property
    def share(self) -> float:
        return self.steps[-1][1] / self.ask.steps if self.steps else 0.0


class Load:
    """Args:
    drill: told with every job, to find what nobody asked for.
    expected: pixels of an undisturbed job of each ask; compared where they are there.
    files: names of the files that a job has in the store.
    give_up_s: after its acceptance a job is lost.
    """

    def __init__(
        self,
        url: str,
        drill: str,
        asks: Sequence[Ask],
        expected: Mapping[Ask, Pixels],
        files: Callable[[str], Sequence[str]],
        *,
        clients: int = 4,
        give_up_s: float = 300.0,
    ) -> None:
        self._url = url
        self.drill = f"{drill}-{uuid.uuid4().hex[:6]}"
        self._asks: Iterator[Ask] = itertools.cycle(asks)
        self._expected = expected
        self._files = files
        self._give_up_s = give_up_s
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._live: dict[str, Following] = {}
        self.seen: list[Seen] = []
        self.errors: list[str] = []
        self._threads = [threading.Thread(target=self._client, daemon=True) for _ in range(clients)]

    def start(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def finish(self) -> list[Seen]:
        """Asks for no more; what is accepted is followed to its end."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        return self.seen

    def wait_midway(self, least: int = 1, low: float = 0.25, high: float = 0.7, timeout_s: float = 120.0) -> None:
        """Until so many jobs are in mid-generation. Raises RuntimeError."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            with self._lock:
                if sum(low <= f.share <= high for f in self._live.values()) >= least:
                    return
            time.sleep(0.05)
        raise RuntimeError(f"no job was in mid-generation for {timeout_s:g} s; errors: {self.errors[-3:]}")

    def _client(self) -> None:
        with httpx.Client(base_url=self._url, timeout=httpx.Timeout(20.0, read=SILENCE_S)) as http:
            while not self._stopping.is_set():
                with self._lock:
                    ask = next(self._asks)
                try:
                    self._one(http, ask)
                except Exception as e:  # noqa: BLE001 - of a client that fails nothing may be lost silently
                    self.seen.append(Seen("?", "lost", error=repr(e)))
                    return

    def _one(self, http: httpx.Client, ask: Ask) -> None:
        following = Following(ask, self._accepted(http, ask))
        with self._lock:
            self._live[following.id] = following
        give_up_at = time.monotonic() + self._give_up_s
        job: dict[str, Any] | None = None
        while job is None and time.monotonic() < give_up_at:
            self._follow(http, following)
            job = self._ended(http, following.id)
        with self._lock:
            self._live.pop(following.id)
        self.seen.append(self._judged(http, following, job))

    def _accepted(self, http: httpx.Client, ask: Ask) -> str:
        body, key = ask.body(self.drill), uuid.uuid4().hex
        while True:
            answer = self._call(http, "POST", "/v1/jobs", json=body, headers={"Idempotency-Key": key})
            if answer is not None:
                found: str = answer.json()["id"]
                return found
            time.sleep(PATIENCE_S)

    def _follow(self, http: httpx.Client, following: Following) -> None:
        """To the end of the stream, whatever ends it."""
        headers = {"Last-Event-ID": str(following.last_event)}
        try:
            with http.stream("GET", f"/v1/jobs/{following.id}/events", headers=headers) as response:
                if response.status_code != 200:
                    time.sleep(PATIENCE_S)
                    return
                for text in response.iter_lines():
                    if text.startswith("id: "):
                        following.last_event = int(text[4:])
                    elif text.startswith("data: ") and "step" in (data := json.loads(text[6:])):
                        following.steps.append((time.monotonic(), int(data["step"])))
        except httpx.HTTPError as e:
            self.errors.append(repr(e))
            time.sleep(PATIENCE_S)

    def _ended(self, http: httpx.Client, job_id: str) -> dict[str, Any] | None:
        answer = self._call(http, "GET", f"/v1/jobs/{job_id}")
        job: dict[str, Any] | None = None if answer is None else answer.json()
        return job if job is not None and job["status"] in FINAL else None

    def _judged(self, http: httpx.Client, following: Following, job: dict[str, Any] | None) -> Seen:
        steps = tuple(following.steps)
        if job is None:
            last = self._call(http, "GET", f"/v1/jobs/{following.id}/why")
            return Seen(following.id, "lost", steps=steps, error="never ended" if last is None else last.text)
        why = self._patiently(http, f"/v1/jobs/{following.id}/why")
        counts = {d["decision"]: d["count"] for d in why.json()["decisions"]}
        off: int | None = None
        extra: tuple[str, ...] = ()
        if job["status"] == "completed":
            found = pixels(self._patiently(http, f"/v1/jobs/{following.id}/content").content, following.ask)
            expected = self._expected.get(following.ask)
            off = None if expected is None else levels_off(found, expected)
            extra = tuple(name for name in self._files(f"jobs/{following.id}") if not name.startswith("0."))
        return Seen(
            following.id,
            job["status"],
            job["attempt"],
            counts.get("lost_replica", 0),
            counts.get("recomputed_step", 0),
            steps,
            off,
            extra,
            "" if job["error"] is None else str(job["error"]),
        )

    def _patiently(self, http: httpx.Client, path: str) -> httpx.Response:
        end = time.monotonic() + self._give_up_s
        while (answer := self._call(http, "GET", path)) is None:
            if time.monotonic() > end:
                raise RuntimeError(f"{path} is not to be had: {self.errors[-1:]}")
            time.sleep(PATIENCE_S)
        return answer

    def _call(self, http: httpx.Client, method: str, path: str, **more: Any) -> httpx.Response | None:
        """None where it may be tried again, as where the proxy knows no application yet. Raises RuntimeError for what
        is the client's own fault."""
        try:
            answer = http.request(method, path, **more)
        except httpx.HTTPError as e:
            self.errors.append(repr(e))
            return None
        if answer.status_code < 400:
            return answer
        self.errors.append(f"{method} {path}: {answer.status_code} {answer.text[:200]}")
        is_unrouted = answer.status_code == 404 and "json" not in answer.headers.get("content-type", "")
        if answer.status_code < 500 and answer.status_code not in (408, 409, 429) and not is_unrouted:
            raise RuntimeError(self.errors[-1])
        return None


def stray_jobs(url: str, drill: str, known: Sequence[str]) -> int:
    """Jobs of a drill that the server has and no client was given."""
    found: list[str] = []
    with httpx.Client(base_url=url, timeout=60) as http:
        after: dict[str, str] = {}
        while True:
            page = http.get("/v1/jobs", params={"limit": 100, **after}).raise_for_status().json()
            found += [job["id"] for job in page["data"] if job["metadata"].get("drill") == drill]
            if not page["has_more"]:
                return len(set(found) - set(known))
            after = {"after": page["last_id"]}


def undisturbed(url: str, asks: Sequence[Ask]) -> dict[Ask, Pixels]:
    """Of each ask, the pixels that it gets when it is alone."""
    found: dict[Ask, Pixels] = {}
    with httpx.Client(base_url=url, timeout=300) as http:
        for ask in asks:
            job = http.post("/v1/jobs", json=ask.body("undisturbed")).raise_for_status().json()
            while job["status"] not in FINAL:
                time.sleep(0.1)
                job = http.get(f"/v1/jobs/{job['id']}").raise_for_status().json()
            if job["status"] != "completed":
                raise RuntimeError(f"undisturbed, and {job['status']}: {job['error']}")
            found[ask] = pixels(http.get(f"/v1/jobs/{job['id']}/content").raise_for_status().content, ask)
    return found
