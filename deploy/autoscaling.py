"""The policy that Serve's controller calls for each deployment that is scaled, ten times a second.

Serve sends this module to the controller by value, and scales nothing while a policy raises: what decides is in modules
that are imported there, and what they raise ends here.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

    from raydiance.deploy.steering import Steering

log = logging.getLogger("ray.serve")


class WorkPolicy:
    """Args: see `Steering`."""

    def __init__(self, stage: str, models: Sequence[str], rules: Mapping[str, Any], reserved: float = 0.0) -> None:
        self._options = stage, list(models), dict(rules), reserved
        self._steering: Steering | None = None
        self._error = ""

    def __call__(self, ctx: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        """The replicas that there should be. Never raises, waits for nobody: what fails holds the count."""
        try:
            if self._steering is None:
                from raydiance.deploy.steering import Steering

                self._steering = Steering(str(ctx.app_name), str(ctx.deployment_name), *self._options)
            chosen = self._steering.replicas(ctx.current_num_replicas, ctx.target_num_replicas)
        except Exception as e:
            if (says := repr(e)) != self._error:  # else it would be ten times a second
                self._error = says
                log.exception("autoscaling of %s fails: %d replicas held", ctx.deployment_name, ctx.target_num_replicas)
            if self._steering is not None:
                self._steering.failed()
            return ctx.target_num_replicas, {}
        self._error = ""
        return chosen, {}
