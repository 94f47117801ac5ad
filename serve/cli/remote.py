"""A running server over HTTP, as the command line sees it."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from raydiance.serve import errors
from raydiance.serve.events import Event

if TYPE_CHECKING:
    import httpx

DEFAULT_URL = "http://127.0.0.1:8000"
READY = {"status": "ok"}
READY_TIMEOUT_S = 3.0
BY_STATUS: dict[int, type[errors.RaydianceError]] = {
    cls.status: cls
    for cls in (
        errors.InvalidRequest,
        errors.Unauthorized,
        errors.Forbidden,
        errors.NotFound,
        errors.Conflict,
        errors.TooLarge,
        errors.UnsupportedMedia,
        errors.TooManyRequests,
        errors.GenerationFailed,
        errors.Unavailable,
    )
}


class Remote:
    """Every call raises a RaydianceError: what the server answered, or Unavailable if nobody answers.

    Raises:
        ConfigError: `url`, or the key in `$RAYDIANCE_API_KEY`, can be none.
    """

    def __init__(self, url: str) -> None:
        import httpx

        self.url = url.rstrip("/")
        if not _is_http(url):
            raise errors.ConfigError(
                f"'{url}' is no server's URL: --url and $RAYDIANCE_URL begin with http:// or https://"
            )
        key = os.environ.get("RAYDIANCE_API_KEY", "")
        if not key.isascii() or not key.isprintable():
            raise errors.ConfigError("$RAYDIANCE_API_KEY holds characters that no header can carry")
        try:
            self._http = httpx.Client(
                base_url=self.url,
                headers={"Authorization": f"Bearer {key}"} if key else {},
                timeout=httpx.Timeout(60, connect=5),
                trust_env=not _is_local(self.url),  # a proxy cannot reach this machine's loopback
            )
        except (ValueError, httpx.InvalidURL) as e:
            raise errors.ConfigError(f"'{url}' is no URL: {e}") from None

    def is_ready(self) -> bool:
        """Whether a Raydiance server answers, and its models are warm. Whatever else answers is none."""
        import httpx

        try:
            ready = self._http.get("/readyz", timeout=READY_TIMEOUT_S)
            served = self._http.get("/v1/models", timeout=READY_TIMEOUT_S)
            if (ready.status_code, ready.json()) != (200, READY):
                return False
            body = served.json()
            if served.status_code == 401:  # it is for the call to say what is wrong with the key
                return bool(body["error"]["code"] == errors.Unauthorized.default_code)
            return served.status_code == 200 and all("tasks" in model for model in body["data"])
        except (httpx.TransportError, httpx.DecodingError, ValueError, KeyError, TypeError):
            return False

    def models(self) -> list[dict[str, Any]]:
        data: list[dict[str, Any]] = self._json("GET", "/v1/models")["data"]
        return data

    def submit(self, request: dict[str, Any]) -> dict[str, Any]:
        """The accepted job. A Ctrl-C meanwhile cancels it before it is passed on, if it got there."""
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        try:
            return self._json("POST", "/v1/jobs", json=request, headers=headers)
        except KeyboardInterrupt:  # by its key the job is found, or else made, and never runs on unseen
            self.cancel(self._json("POST", "/v1/jobs", json=request, headers=headers)["id"])
            raise

    def job(self, job_id: str) -> dict[str, Any]:
        return self._json("GET", _path(job_id))

    def jobs(self, limit: int, after: str | None = None) -> dict[str, Any]:
        params = {"limit": str(limit)} | ({"after": after} if after else {})
        return self._json("GET", "/v1/jobs", params=params)

    def why(self, job_id: str) -> dict[str, Any]:
        return self._json("GET", f"{_path(job_id)}/why")

    def cancel(self, job_id: str) -> dict[str, Any]:
        return self._json("POST", f"{_path(job_id)}/cancel")

    def delete(self, job_id: str) -> None:
        """Whatever its state: an unfinished job is cancelled by the first DELETE and removed by the second."""
        if not self._json("DELETE", _path(job_id)).get("deleted"):
            self._json("DELETE", _path(job_id))

    def content(self, job_id: str, index: int = 0) -> bytes:
        return self._request("GET", f"{_path(job_id)}/content", params={"index": str(index)}).content

    def events(self, job_id: str) -> Iterator[Event]:
        """To the final one; connects again where it was cut."""
        import httpx

        after, failures = 0, 0
        while True:
            try:
                for event in self._stream(job_id, after):
                    after, failures = event.id, 0
                    yield event
                    if event.is_final:
                        return
            except httpx.TransportError as e:
                failures += 1
                if failures > 3:
                    raise errors.Unavailable(f"lost the connection to {self.url}: {e}") from None

    def _stream(self, job_id: str, after: int) -> Iterator[Event]:
        import httpx

        headers = {"Last-Event-ID": str(after)} if after else {}
        timeout = httpx.Timeout(60, connect=5)  # the server sends a comment every few seconds
        with self._http.stream("GET", f"{_path(job_id)}/events", headers=headers, timeout=timeout) as response:
            if response.status_code >= 400:
                response.read()
            _raise_for(response)
            yield from parse_sse(response.iter_lines(), job_id)

    def _json(self, method: str, path: str, **kwargs: Any) -> dict[str, Any]:
        try:
            body = self._request(method, path, **kwargs).json()
        except ValueError:
            body = None
        if not isinstance(body, dict):
            raise errors.Unavailable(f"{self.url}{path} answered no JSON object; is that a Raydiance server?")
        return body

    def _request(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        import httpx

        try:
            response = self._http.request(method, path, **kwargs)
        except httpx.TransportError as e:
            raise errors.Unavailable(
                f"no server answers at {self.url} ({e}); start one with `raydiance serve`, or give --url"
            ) from None
        _raise_for(response)
        return response


def parse_sse(lines: Iterator[str], job_id: str) -> Iterator[Event]:
    """Events from the lines of an SSE stream; comments are skipped."""
    fields: dict[str, str] = {}
    for line in lines:
        if line.startswith(":"):
            continue
        if line:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            fields[name] = f"{fields[name]}\n{value}" if name == "data" and name in fields else value
        elif "data" in fields:
            yield _event(fields, job_id)
            fields = {}


def _event(fields: dict[str, str], job_id: str) -> Event:
    data = json.loads(fields["data"])
    if fields.get("event") == "error":
        raise errors.RaydianceError(str(data.get("error", {}).get("message", "the event stream failed")))
    values = {"id": int(fields.get("id", 0)), "type": fields.get("event"), "job_id": job_id, "data": data}
    return Event.model_validate(values)


def _raise_for(response: httpx.Response) -> None:
    if response.status_code < 400:
        return
    try:
        body = response.json()["error"]
        message, param, code = str(body["message"]), body.get("param"), body.get("code")
    except (ValueError, KeyError, TypeError, AttributeError):
        message, param, code = f"HTTP {response.status_code}: {response.text[:200]}", None, None
    cls = BY_STATUS.get(response.status_code, errors.RaydianceError)
    if issubclass(cls, errors.TooManyRequests):
        raise cls(message, _seconds(response.headers.get("Retry-After")), param, code)
    if issubclass(cls, errors.Unauthorized):
        message = f"{message} (the key is taken from $RAYDIANCE_API_KEY)"
    raise cls(message, param, code)


def _seconds(value: str | None) -> float:
    try:
        return float(value or 1)
    except ValueError:
        return 1.0


def _path(job_id: str) -> str:
    return f"/v1/jobs/{quote(job_id, safe='')}"


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def _is_local(url: str) -> bool:
    return urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")


def find_url(url: str | None) -> str:
    """The server meant: the option, `$RAYDIANCE_URL`, or this machine's port 8000."""
    return url or os.environ.get("RAYDIANCE_URL") or DEFAULT_URL
