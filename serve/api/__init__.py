"""HTTP: OpenAI-compatible images and videos, jobs, models, health. Knows neither torch nor Ray."""

from raydiance.serve.api.app import create_app

__all__ = ["create_app"]
