"""Every route of the API, by what it is about, and a body that it takes."""

from __future__ import annotations

from typing import Any

PROMPT = {"prompt": "a cat", "seed": 1}

# route -> body; `{id}` is another tenant's job
BY_ID: dict[str, dict[str, Any] | None] = {
    "GET /v1/jobs/{id}": None,
    "DELETE /v1/jobs/{id}": None,
    "POST /v1/jobs/{id}/cancel": None,
    "GET /v1/jobs/{id}/why": None,
    "GET /v1/jobs/{id}/events": None,
    "GET /v1/jobs/{id}/content": None,
    "HEAD /v1/jobs/{id}/content": None,
    "GET /v1/videos/{id}": None,
    "DELETE /v1/videos/{id}": None,
    "GET /v1/videos/{id}/content": None,
    "HEAD /v1/videos/{id}/content": None,
    "POST /v1/videos/{id}/remix": {"prompt": "at night"},
    "POST /v1/videos/edits": {"prompt": "at night", "video": {"id": "{id}"}},
    "POST /v1/videos/extensions": {"prompt": "at night", "video": {"id": "{id}"}},
    "GET /v1/jobs?after={id}": None,
    "GET /v1/videos?after={id}": None,
}
# route -> `{id}` is another tenant's group
GROUP_BY_ID = ("GET /v1/groups/{id}", "DELETE /v1/groups/{id}")
LISTS = ("GET /v1/jobs", "GET /v1/videos")
MAKES: dict[str, dict[str, Any]] = {
    "POST /v1/jobs": PROMPT,
    "POST /v1/videos": PROMPT,
    "POST /v1/images/generations": PROMPT,
    "POST /v1/images/edits": PROMPT | {"image": "data:image/png;base64,{picture}"},
}
SUMS = ("GET /v1/usage",)
GROUPS = "POST /v1/groups"
QUOTES = "POST /v1/quotes"
# these tell nothing of tenants
COMMON = (
    *("GET /healthz", "GET /readyz", "GET /v1/models", "GET /v1/models/{model:path}"),
    *(
        f"{method} {path}"
        for method in ("GET", "HEAD")
        for path in ("/openapi.json", "/docs", "/docs/oauth2-redirect", "/redoc")
    ),
)
