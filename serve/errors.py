"""The exception tree, and its one mapping to HTTP.

    RaydianceError
    ├── InvalidRequest            400  a field that cannot be honoured; names it
    ├── Unauthorized              401
    ├── Forbidden                 403  what the caller's tenant may not use; names the field
    ├── NotFound                  404
    ├── TooSlow                   408  the request's body did not come in time
    ├── Conflict                  409  wrong state, or an idempotency key with another body
    ├── TooLarge                  413
    ├── UnsupportedMedia          415
    ├── TooManyRequests           429  carries retry_after_s
    ├── GenerationFailed          500  the work itself failed; the job says why
    ├── CheckpointRefused         500  (inside only) a state that this replica cannot go on from; it starts anew
    ├── StateGone                 500  (inside only) a state that the replica was thought to keep; it is sent again
    ├── ReplicaLost               503  (inside only) a replica died under its work; carries the last checkpoint: go on
    ├── Unavailable               503  not ready, or the replica died: try again
    └── ConfigError               (start only) an option that cannot be honoured

All of them cross process boundaries by pickle, so arguments are positional and kept.
"""

from __future__ import annotations

from typing import Any, ClassVar


class RaydianceError(Exception):
    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    default_code: ClassVar[str] = "server_error"

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message, param, code)
        self.message = message
        self.param = param
        self.code = code or self.default_code

    def __str__(self) -> str:
        return self.message

    def to_dict(self) -> dict[str, Any]:
        """OpenAI's error object."""
        return {"message": self.message, "type": self.type, "param": self.param, "code": self.code}


class InvalidRequest(RaydianceError):
    status = 400
    type = "invalid_request_error"
    default_code = "invalid_value"


class Unauthorized(RaydianceError):
    status = 401
    type = "authentication_error"
    default_code = "invalid_api_key"


class Forbidden(RaydianceError):
    status = 403
    type = "permission_error"
    default_code = "not_allowed"


class NotFound(RaydianceError):
    status = 404
    type = "invalid_request_error"
    default_code = "not_found"


class TooSlow(RaydianceError):
    status = 408
    type = "invalid_request_error"
    default_code = "request_timeout"


class Conflict(RaydianceError):
    status = 409
    type = "invalid_request_error"
    default_code = "conflict"


class TooLarge(RaydianceError):
    status = 413
    type = "invalid_request_error"
    default_code = "too_large"


class UnsupportedMedia(RaydianceError):
    status = 415
    type = "invalid_request_error"
    default_code = "unsupported_media_type"


class TooManyRequests(RaydianceError):
    status = 429
    type = "rate_limit_error"
    default_code = "rate_limit_exceeded"

    def __init__(
        self, message: str, retry_after_s: float = 1.0, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message, param, code)
        self.args = (message, retry_after_s, param, code)
        self.retry_after_s = retry_after_s


class GenerationFailed(RaydianceError):
    default_code = "generation_failed"


class CheckpointRefused(RaydianceError):
    default_code = "checkpoint_refused"


class StateGone(RaydianceError):
    default_code = "state_gone"


class ReplicaLost(RaydianceError):
    """Raised by whoever consumed a dead replica's events, from Ray's own error. What it did can go on elsewhere.

    Attributes:
        step: of the last checkpoint that was received; 0 where there was none.
        checkpoint: the packed state at that step, by value.
    """

    status = 503
    default_code = "replica_lost"

    def __init__(self, message: str, step: int = 0, checkpoint: bytes | None = None) -> None:
        super().__init__(message)
        self.args = (message, step, checkpoint)
        self.step = step
        self.checkpoint = checkpoint


class Unavailable(RaydianceError):
    status = 503
    default_code = "unavailable"


class ConfigError(RaydianceError):
    default_code = "config_error"
