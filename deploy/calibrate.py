"""What a model's generations cost on this machine, measured in a process with the memory settings of a stage."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from raydiance.models import registry, resolve
from raydiance.serve.config import Config, ModelConfig
from raydiance.serve.engine import memory
from raydiance.serve.engine.cost_profile import Profile

if TYPE_CHECKING:
    from raydiance.serve.engine.cost_measure import Write


class MeasuringFailed(RuntimeError):
    """The process that measured has died."""


def calibrate(
    config: Config,
    model: ModelConfig,
    *,
    write: Write,
    quick: bool = False,
    longest_s: float = float("inf"),
    progress: Callable[[float, str], None] = lambda _share, _what: None,
) -> Profile:
    """All stages of a model are loaded into one process, as `config` has them loaded by theirs.

    Args:
        write: frames of a spec to the bytes of a file; a function of a module, which the process imports.
        quick: fewer and smaller sizes.
        longest_s: no further size is begun after so long.
        progress: called with a share in [0, 1] and with what is measured now.

    Raises:
        CheckpointError: it is no checkpoint, or a guest, whose steps have no price.
        MeasuringFailed: the process has died, of too little memory for example.
    """
    folder = resolve.resolve(model.path, model.revision)
    if registry.is_guest(folder):
        raise resolve.CheckpointError(f"{folder} runs as a guest: diffusers runs it whole, so its steps have no price")
    registry.check(folder, model.components)
    spawn = multiprocessing.get_context("spawn")  # glibc reads its settings when a process starts
    ours, theirs = spawn.Pipe(duplex=False)
    process = spawn.Process(target=_measure, args=(theirs, config, model, write, quick, longest_s), daemon=True)
    on_gpu = all(s.num_gpus > 0 for s in (config.text_encoder, config.denoiser, config.vae_decoder))
    with _environment(memory.environment("cuda" if on_gpu else "cpu")):
        process.start()
    theirs.close()
    try:
        while True:
            told = ours.recv()
            if isinstance(told, Profile):
                return told
            if isinstance(told, Exception):
                raise told
            progress(*told)
    except EOFError:
        process.join()
        raise MeasuringFailed(f"the process that measures has died, exit code {process.exitcode}") from None
    finally:
        process.terminate()
        process.join()
        ours.close()


def _measure(tell: Connection, config: Config, model: ModelConfig, write: Write, quick: bool, longest_s: float) -> None:
    """In the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the one that started it, which ends this one
    from raydiance.deploy.studio import measured_here

    progress = partial(_tell, tell)
    try:
        tell.send(measured_here(config, model, write, quick=quick, longest_s=longest_s, progress=progress))
    except Exception as error:  # noqa: BLE001 - raised where it was asked for
        tell.send(error)


def _tell(tell: Connection, share: float, what: str) -> None:
    tell.send((share, what))


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """For processes that are started meanwhile."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
