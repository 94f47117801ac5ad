"""`raydiance config`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raydiance.serve.cli.console import guarded, say

app = typer.Typer(help="Look at a configuration.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keeps `check` a command of its own."""


@app.command("check")
@guarded
def check(
    file: Annotated[Path, typer.Argument(help="YAML file of options.")],
    options: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Overlaid, as `raydiance serve` does.")
    ] = None,
) -> None:
    """Validate a file and print every option as it would be used. Secrets are not shown."""
    import yaml

    from raydiance.serve.cli.server import given
    from raydiance.serve.config import load_config
    from raydiance.serve.storage.database import without_password

    config = load_config(given(None, None, None, options), file)
    shown = config.model_dump(mode="json")
    shown["storage"]["database"] = without_password(shown["storage"]["database"])
    typer.echo(yaml.safe_dump(shown, sort_keys=False), nl=False)
    say(f"{file} is valid")
