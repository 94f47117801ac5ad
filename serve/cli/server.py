"""`raydiance serve`."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raydiance.serve.cli.console import err, escape, guarded, out, say
from raydiance.serve.cli.greeting import greeting
from raydiance.serve.errors import ConfigError

if TYPE_CHECKING:
    from raydiance.serve.config import Config, ModelConfig
    from raydiance.serve.local import LocalServer

HELP = """Serve models on this machine, until Ctrl-C.

MODEL is [bold]tiny[/] (the embedded model), a folder in diffusers' format, or a hub id (org/name).

[bold]Examples[/]

  raydiance serve

  raydiance serve ./Wan2.2-TI2V-5B-Diffusers --set denoiser.num_gpus=1

  raydiance serve --config raydiance.yaml --port 9000
"""


def register(app: typer.Typer) -> None:
    app.command("serve", help=HELP)(serve)


@guarded
def serve(
    model: Annotated[
        str | None, typer.Argument(help="tiny, a diffusers folder, or a hub id.", show_default="tiny")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="YAML file of options; see `raydiance config check`.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 = a free one.", show_default="8000")] = None,
    options: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any option, e.g. denoiser.num_threads=2. May be repeated."),
    ] = None,
) -> None:
    from raydiance.serve.local import start_local

    resolved = local_config(config, given(model, host, port, options))
    stop = threading.Event()
    with err.status("starting") as status, start_local(resolved, on_phase=lambda p: status.update(p)) as server:
        status.stop()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        _greet(server)
        stop.wait()
        say("stopping; unfinished jobs go on at the next start")
    say("stopped")


def given(model: str | None, host: str | None, port: int | None, options: list[str] | None) -> dict[str, Any]:
    """The command line's part of the configuration, by dotted keys. Raises ConfigError."""
    values: dict[str, Any] = {"model": model, "http.host": host, "http.port": port}
    for option in options or []:
        key, equals, value = option.partition("=")
        if not equals or not key:
            raise ConfigError(f"--set {option}: write KEY=VALUE, e.g. --set denoiser.num_threads=2")
        values[key] = value
    return {key: value for key, value in values.items() if value is not None}


def local_config(file: Path | None, values: dict[str, Any], data: Path | None = None) -> Config:
    """The configuration of a server on this machine: its jobs are in `data` unless the configuration says otherwise."""
    from raydiance.serve.config import data_folder, load_config

    config = load_config(values, file)
    if config.simulate.gpu is not None:
        config = config.model_copy(update={"models": [_of_profile(model) for model in config.models]})
    folder = data or data_folder()
    places = {"database": f"sqlite:///{folder}/jobs.db", "artifacts": str(folder / "artifacts")}
    unset = {name: place for name, place in places.items() if name not in config.storage.model_fields_set}
    return config.model_copy(update={"storage": config.storage.model_copy(update=unset)})


def _of_profile(model: ModelConfig) -> ModelConfig:
    """One that is named after a profile is that: its configuration is all that a simulation needs."""
    if model.path == "tiny" or "/" in model.path or Path(model.path).is_dir():
        return model
    from raydiance.deploy import profile

    if model.path not in profile.names():
        return model
    found = profile.load(model.path)
    whole = {"path": str(found.folder), "name": model.id}
    if "dtype" not in model.model_fields_set:
        whole |= {"dtype": found.precision, "vae_dtype": found.precision}
    return model.model_copy(update=whole)


def _greet(server: LocalServer) -> None:
    if (gpu := server.config.simulate.gpu) is not None:
        speed = server.config.simulate.speed
        out.print(
            f"\n[bold white on red] SIMULATED [/] [bold red]nothing is generated[/]: steps take the time of a {gpu} at "
            f"speed {speed:g}, and every file says SIMULATED. For planning and tests only.\n"
        )
    names = ", ".join(m.id for m in server.config.models)
    out.print(f"[bold green]ready[/] {escape(names)} at [bold]{escape(server.url)}[/] after {server.start_s:.1f} s\n")
    out.print(greeting(server), markup=False)
