"""A Ray cluster that runs already: found on this machine, and joined."""

from __future__ import annotations

import logging
import os
import socket
from typing import Any

from raydiance.serve.errors import Unavailable

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def join_cluster(address: str | None) -> None:
    """Connects this process to a cluster that runs already, one on loopback alone included.

    Ray takes 127.0.0.1 for this machine's outer address, at which such a cluster does not listen: told so, it does not.

    Args:
        address: as `ray.init` takes it; None for `$RAY_ADDRESS`, or the cluster of this machine.

    Raises:
        Unavailable: there is none, or there are several to choose from.
    """
    import ray
    from ray._private import ray_constants, services

    wanted = address or os.environ.get("RAY_ADDRESS", "auto")
    if wanted == "auto" and len(found := services.find_gcs_addresses()) == 1:
        wanted = next(iter(found))
    host, _, port = wanted.removeprefix("ray://").partition("/")[0].rpartition(":")
    host = host.strip("[]")
    if host and not _answers(host, port):  # Ray would try for a minute, and then end the process
        raise Unavailable(f"no Ray cluster answers at {wanted}")
    outer = services.get_node_ip_address()
    if host in LOOPBACK and not wanted.startswith("ray://") and not _answers(outer, port):
        ray_constants.ENABLE_RAY_CLUSTER = False
        if "RAY_AUTH_MODE" not in os.environ:
            _use_token()
    try:
        ray.init(wanted, logging_level=logging.ERROR, log_to_driver=False)
    except (ConnectionError, ray.exceptions.RayError) as e:
        raise Unavailable(f"no Ray cluster at {address or 'this machine'}: {_reason(e)}") from e
    logging.getLogger("ray.serve").setLevel(logging.WARNING)


def _use_token() -> None:
    """As Ray does for a cluster that it finds by itself: the user's token, if there is one."""
    import ray

    raylet: Any = ray._raylet
    if raylet.AuthenticationTokenLoader.instance().has_token(ignore_auth_mode=True):
        os.environ["RAY_AUTH_MODE"] = "token"
        raylet.Config.initialize("")


def _answers(host: str, port: str) -> bool:
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, ValueError):
        return False
    return True


def _reason(error: object) -> str:
    """The last line that says something of a long message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
