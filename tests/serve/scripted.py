"""A Serve handle that answers from a script: what the Python client does, without a cluster."""

from __future__ import annotations

from typing import Any

JOB = {"id": "video_1", "status": "completed", "outputs": [{"index": 0}, {"index": 1}]}


class Handle:
    """Stands in for Serve's: answers from a script, by method."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.called: list[tuple[str, tuple[Any, ...]]] = []
        self._method = ""

    def __getattr__(self, method: str) -> Handle:
        if method.startswith("_"):
            raise AttributeError(method)
        bound = Handle(**self.answers)
        bound.called, bound._method = self.called, method
        return bound

    def options(self, stream: bool) -> Handle:
        assert stream
        return self

    def remote(self, *args: Any) -> Any:
        self.called.append((self._method, args))
        answer = self.answers[self._method]
        answer = answer.pop(0) if isinstance(answer, list) else answer
        return Stream(answer) if self._method == "events" else Response(answer)


class Response:
    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def result(self) -> Any:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


class Stream:
    def __init__(self, parts: tuple[Any, ...]) -> None:
        self._parts = iter(parts)

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Any:
        part = next(self._parts)
        if isinstance(part, Exception):
            raise part
        return part

    def cancel(self) -> None:
        pass


def event(number: int, kind: str = "progress") -> dict[str, Any]:
    return {"id": number, "type": kind, "job_id": "video_1", "data": {}}
