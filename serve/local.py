"""A Ray cluster of this machine alone with Raydiance on it: for the command line, the demo and tests.

Bound to loopback, without a dashboard, and gone when the context ends.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import logging
import math
import os
import signal
import socket
import sqlite3
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from raydiance.serve import preflight, session
from raydiance.serve.autoscaling_config import STAGES
from raydiance.serve.config import Config
from raydiance.serve.errors import ConfigError, RaydianceError, Unavailable

log = logging.getLogger(__name__)
APP_NAME = "raydiance"
OBJECT_STORE_BYTES = 512 << 20
READY_TIMEOUT_S = 300.0
OVERHEAD_CPUS = 1.0  # gateway, dispatchers, Serve's own
# set before Ray starts, unless the user has set them otherwise
ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # for all systems, whatever its name: every daemon listens on loopback
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # workers start at nice 15: beside anything else on the machine they would starve
    "RAY_prestart_worker_first_driver": "0",  # idle workers take the CPU that the stages need to start
    "TOKENIZERS_PARALLELISM": "false",
}


@dataclass(frozen=True)
class LocalServer:
    """Args:
    url: where HTTP answers.
    address: of the Ray cluster, for `raydiance.connect`.
    start_s: seconds from nothing to ready.
    """

    url: str
    address: str
    config: Config
    start_s: float


@contextmanager
def start_local(
    config: Config,
    *,
    object_store_bytes: int = OBJECT_STORE_BYTES,
    ready_timeout_s: float = READY_TIMEOUT_S,
    on_phase: Callable[[str], None] = lambda _: None,
) -> Iterator[LocalServer]:
    """Starts Ray and Serve in this process, waits until the warm-up generation is through, and stops both at the end.

    Unfinished jobs stay in the database, for the next start. Ray's folder of the session is removed, unless it ends
    with Unavailable: its logs tell why.

    Args:
        on_phase: told in a few words what is being waited for.

    Raises:
        ConfigError: a model that cannot be served, a store that cannot be opened, a port that is taken, or more GPUs
            than there are.
        Unavailable: it did not become ready.
    """
    began = time.monotonic()
    config = config.model_copy(update={"http": config.http.model_copy(update={"port": _port(config)})})
    simulated = config.simulate.gpu is not None
    check = partial(preflight.check_model, simulated=simulated)
    folders = [check(model, config.parallel_of(model)) for model in config.models]
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import ray

    if ray.is_initialized():
        raise RaydianceError("this process is connected to a Ray cluster already; call ray.shutdown() first")
    # while Ray and Serve start their processes, and this one only waits
    with_torch = ThreadPoolExecutor(1)
    imported = with_torch.submit(_import_application, config)
    checked = with_torch.submit(_check_weights, config, folders)
    with_torch.shutdown(wait=False)
    keep_logs = False
    try:
        on_phase("starting Ray")
        pretended: dict[str, Any] = {"num_gpus": math.ceil(preflight.asked_gpus(config)[0])} if simulated else {}
        with _sigterm_kept():
            try:
                context: Any = ray.init(
                    address="local",
                    num_cpus=_num_cpus(config),
                    **pretended,
                    include_dashboard=False,
                    object_store_memory=object_store_bytes,
                    logging_level=logging.ERROR,
                    log_to_driver=False,
                )
            except Exception as e:  # Ray raises nothing more exact
                raise Unavailable(f"Ray did not start on this machine, which may be busy; try again: {e}") from e
        preflight.check_gpus(config, int(ray.cluster_resources().get("GPU", 0)))
        on_phase("loading " + ", ".join(m.id for m in config.models))
        imported.result()
        _start_serve(config)
        checked.result()
        preflight.check_stores(config)
        _run(config)
        url = _url(config)
        _wait_ready(url, ready_timeout_s, Path(context.address_info["session_dir"], "logs", "serve"))
        yield LocalServer(url, str(context.address_info["gcs_address"]), config, time.monotonic() - began)
    except Unavailable:
        keep_logs = True
        raise
    finally:
        session.stop(keep_logs=keep_logs)
        _put_back(config.storage.database)
        _close_database(config.storage.database)


@contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Ray puts a handler of its own for SIGTERM while it starts, which exits: it ends like Ctrl-C instead."""
    kept = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit:
        raise KeyboardInterrupt from None
    if kept is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, kept)


def _import_application(config: Config) -> None:
    stages = ("stages.text_encoder", "stages.denoiser", "stages.vae_decoder")
    for name in ("app", *(() if config.simulate.gpu else stages)):
        importlib.import_module(f"raydiance.serve.{name}")


def _check_weights(config: Config, folders: Sequence[Path]) -> None:
    if config.simulate.gpu is not None:
        return
    for model, folder in zip(config.models, folders, strict=True):
        preflight.check_weights(model, folder)


def _start_serve(config: Config) -> None:
    from ray import serve
    from ray.serve.schema import LoggingConfig

    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    serve.start(
        proxy_location="HeadOnly",
        http_options={"host": config.http.host, "port": config.http.port},
        logging_config=LoggingConfig(log_level="WARNING"),
    )


def _run(config: Config) -> None:
    """Starts the application and does not wait: who polls finds out sooner than Serve, which looks once a second."""
    from ray import serve
    from ray.serve.schema import LoggingConfig

    from raydiance.serve.app import build_app

    target = serve.RunTarget(build_app(config), APP_NAME, "/", LoggingConfig(log_level="INFO"))
    serve.run_many([target], wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)


def _wait_ready(url: str, timeout_s: float, logs: Path) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy reaches this machine's loopback
    deadline = time.monotonic() + timeout_s
    for attempt in itertools.count(1):
        with contextlib.suppress(urllib.error.URLError, OSError), opener.open(f"{url}/readyz", timeout=5) as response:
            if response.status == 200:
                return
        if attempt % 10 == 0 and (failure := _failure()) is not None:
            raise Unavailable(f"the application did not start: {failure}; logs are in {logs}")
        if time.monotonic() > deadline:
            raise Unavailable(f"not ready after {timeout_s:g} s; logs are in {logs}")
        time.sleep(0.1)


def _failure() -> str | None:
    """Why Serve gave the application up, if it has."""
    from ray import serve

    application = serve.status().applications.get(APP_NAME)
    if application is None or application.status != "DEPLOY_FAILED":
        return None
    deployments = application.deployments.items()
    unhealthy = [f"{name}: {d.message}" for name, d in deployments if d.status != "HEALTHY" and d.message]
    return _reason(next(iter(unhealthy), application.message))


def _put_back(url: str) -> None:
    """Queues what the stop interrupted: it is no attempt that failed. An SQLite file has no other cluster's jobs."""
    from sqlalchemy import make_url

    from raydiance.serve.storage.job import JobState
    from raydiance.serve.storage.jobs import JobStore

    file = make_url(url).database if url.startswith("sqlite") else None
    if file is None or not Path(file).exists():
        return
    jobs = JobStore(url)
    try:
        for job in jobs.unfinished():
            if job.state is JobState.IN_PROGRESS:
                jobs.requeue(job.id)
    except Unavailable as e:  # the next start begins them as after a crash
        log.warning("jobs in progress stay so: %s", e)
    finally:
        jobs.close()


def _close_database(url: str) -> None:
    """Folds what replicas left in SQLite's log into the file: none of them closed it."""
    from sqlalchemy import make_url

    file = make_url(url).database if url.startswith("sqlite") else None
    if file is None or not Path(file).exists():
        return
    # where another process has it open, or its disk is full, the log stays, and is read at the next start
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(file, timeout=1)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _num_cpus(config: Config) -> int:
    """Logical CPUs, at least the machine's, so that every replica is placed however small the machine."""
    asked: float = len(config.models) * sum(
        config.most_replicas(name) * getattr(config, name).num_cpus for name in STAGES
    )
    vae = config.vae_decoder
    asked += len(config.models) * config.most_replicas("vae_decoder") * vae.num_cpus * (vae.gpus - 1)
    asked += config.most_replicas("denoiser") * sum(p.num_cpus * p.gpus for p in map(config.parallel_of, config.models))
    return max(os.cpu_count() or 1, math.ceil(asked + OVERHEAD_CPUS))


def _port(config: Config) -> int:
    """The port to listen on; a free one for 0. Raises ConfigError when it is taken."""
    host, port = config.http.host, config.http.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as e:
            raise ConfigError(f"cannot listen on {host}:{port} ({e.strerror or e}); choose another --port") from e
        return int(probe.getsockname()[1])


def _url(config: Config) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(config.http.host, config.http.host)  # noqa: S104 - compared only
    return f"http://[{host}]:{config.http.port}" if ":" in host else f"http://{host}:{config.http.port}"


def _reason(error: object) -> str:
    """The last line that says something of a long message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
