"""The `raydiance` command. Imports neither torch nor Ray until a command needs them, so that help is instant.

Exit codes: 0 done; 1 it failed; 2 a wrong option, value or configuration; 130 interrupted.
"""

from __future__ import annotations

from typing import Annotated

import typer

from raydiance import __version__
from raydiance.serve.cli import calibrate, config, demo, generate, jobs, keys, models, server

EPILOG = "Exit codes: 0 done, 1 failed, 2 wrong option, value or configuration, 130 interrupted."

app = typer.Typer(
    name="raydiance",
    help="Serve image and video diffusion models on a Ray cluster, and use them.",
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
server.register(app)
generate.register(app)
demo.register(app)
calibrate.register(app)
app.add_typer(models.app, name="models")
app.add_typer(jobs.app, name="jobs")
app.add_typer(keys.app, name="keys")
app.add_typer(config.app, name="config")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"raydiance {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Its docstring is not shown: `help` above is."""


def main() -> None:
    app()
