"""A Ray cluster that runs already: found on this machine or by its address, and joined."""

from __future__ import annotations

import logging
import os
import socket
from typing import Any

from raydiance.serve.errors import Unavailable

LOOPBACK = ("127.0.0.1", "localhost", "::1")
CONNECT_TIMEOUT_S = 5.0


def join_cluster(address: str | None) -> None:
    """Connects this process to a cluster that runs already, one on loopback alone included.

    Ray takes 127.0.0.1 for this machine's outer address, at which such a cluster does not listen: told so, it does not.

    Args:
        address: as `ray.init` takes it; None for `$RAY_ADDRESS`, or the cluster of this machine.

    Raises:
        Unavailable: there is none, there are several to choose from, or it refuses this process's token.
    """
    import ray
    from ray._private import ray_constants, services

    wanted = address or os.environ.get("RAY_ADDRESS") or "auto"
    if wanted == "auto":
        wanted = _only(services.find_gcs_addresses())
    is_client = wanted.startswith("ray://")
    host, _, port = wanted.removeprefix("ray://").partition("/")[0].rpartition(":")
    host = host.strip("[]")
    if host and not _answers(host, port):  # Ray would try for a minute, and then end the process
        raise Unavailable(f"no Ray cluster answers at {wanted}")
    if host in LOOPBACK and not is_client and not _answers(services.get_node_ip_address(), port):
        ray_constants.ENABLE_RAY_CLUSTER = False
    if host and not is_client:
        _check_token(wanted)
    try:
        ray.init(wanted, logging_level=logging.ERROR, log_to_driver=False)
    except (ConnectionError, ray.exceptions.RayError) as e:
        raise Unavailable(f"no Ray cluster at {wanted}: {_reason(e)}") from e
    logging.getLogger("ray.serve").setLevel(logging.WARNING)


def _only(found: frozenset[str]) -> str:
    """The one cluster of this machine."""
    if len(found) > 1:  # Ray would choose one, or wait for one that does not answer
        raise Unavailable(
            f"{len(found)} Ray clusters run on this machine, at {', '.join(sorted(found))}: "
            "pass address=… or set RAY_ADDRESS"
        )
    if not found:
        raise Unavailable(
            "no Ray cluster runs on this machine: start one with `raydiance serve`, pass address=… or set RAY_ADDRESS"
        )
    return next(iter(found))


def _check_token(address: str) -> None:
    """Shows the cluster the user's token if it asks for one. Raises Unavailable if that does not let us in.

    Ray itself would try a refused token for 20 seconds, and then not say that it was the token.
    """
    import ray

    raylet: Any = ray._raylet
    if _lets_in(address):
        return
    has_token = raylet.AuthenticationTokenLoader.instance().has_token(ignore_auth_mode=True)
    if has_token and "RAY_AUTH_MODE" not in os.environ:
        os.environ["RAY_AUTH_MODE"] = "token"  # as Ray does for a cluster that it finds by itself
        raylet.Config.initialize("")
        if _lets_in(address):
            return
    raise Unavailable(
        f"the Ray cluster at {address} asks for a token, and {_shown()}: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN "
        "to the cluster's token or RAY_AUTH_TOKEN_PATH to a file of it (~/.ray/auth_token if neither is set)"
    )


def _lets_in(address: str) -> bool:
    import grpc  # type: ignore[import-untyped]
    from ray._private.grpc_utils import init_grpc_channel
    from ray.exceptions import AuthenticationError

    try:
        with init_grpc_channel(address) as channel:
            channel.unary_unary("/ray.rpc.NodeInfoGcsService/CheckAlive")(b"", timeout=CONNECT_TIMEOUT_S)
    except AuthenticationError:  # there is no token to show
        return False
    except grpc.RpcError as e:
        if e.code() is grpc.StatusCode.UNAUTHENTICATED:
            return False
        raise Unavailable(f"what answers at {address} is no Ray cluster, or not ready: {e.details()}") from e
    return True


def _shown() -> str:
    """What this process has to show."""
    import ray

    raylet: Any = ray._raylet
    mode = os.environ.get("RAY_AUTH_MODE", "token")
    if mode != "token":
        return f"RAY_AUTH_MODE={mode} shows none"
    if not raylet.AuthenticationTokenLoader.instance().has_token(ignore_auth_mode=True):
        return "none was found"
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        if os.environ.get(name):
            return f"refuses the one of {name}"
    return "refuses the one in ~/.ray/auth_token"


def _answers(host: str, port: str) -> bool:
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT_S).close()
    except (OSError, ValueError):
        return False
    return True


def _reason(error: object) -> str:
    """The last line that says something of a long message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
