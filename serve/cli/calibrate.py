"""`raydiance calibrate`: what a model's generations cost on this machine, measured and kept for a server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raydiance.serve.cli.console import EXIT_FAILED, fail, guarded, progress_bar, say, table
from raydiance.serve.errors import ConfigError, InvalidRequest
from raydiance.serve.preflight import brief

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from raydiance.models.spec import Spec
    from raydiance.serve.config import Config, ModelConfig

HELP = """Measure what steps, texts and frames of a model cost on this machine, and write a profile for a server.

The model is loaded into one process, as its configuration says. Run it on a machine like the server's, with nothing
beside it: what it measures is what requests are priced by.

[bold]Examples[/]

  raydiance calibrate tiny -o tiny-cost.json

  raydiance calibrate wan --config raydiance.yaml -o wan-cost.json
"""


def register(app: typer.Typer) -> None:
    app.command("calibrate", help=HELP)(calibrate)


@guarded
def calibrate(
    model: Annotated[
        str, typer.Argument(help="tiny, a diffusers folder, or a hub id; with --config, a name of its models.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The profile file.")] = Path("cost-profile.json"),
    threads: Annotated[
        int | None, typer.Option(min=1, help="torch threads, as denoiser.num_threads.", show_default="the cores")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer and smaller sizes.")] = False,
    longest_s: Annotated[
        float, typer.Option("--longest", min=1, metavar="SECONDS", help="Begin no further size after so long.")
    ] = 1800.0,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="YAML file of options, as `raydiance serve` takes.")
    ] = None,
    options: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any option. May be repeated.")
    ] = None,
) -> None:
    from raydiance.deploy.calibrate import MeasuringFailed
    from raydiance.deploy.calibrate import calibrate as measure
    from raydiance.models.resolve import CheckpointError

    resolved, chosen = _chosen(model, config, threads, options)
    try:
        with progress_bar(f"measuring {chosen.id}") as update:
            profile = measure(
                resolved,
                chosen,
                write=write_file,
                quick=quick,
                longest_s=longest_s,
                progress=lambda share, what: update(100 * share, what),
            )
    except CheckpointError as e:
        raise ConfigError(brief(e)) from e
    except MeasuringFailed as e:
        fail(str(e))
        raise typer.Exit(EXIT_FAILED) from None
    if not profile.samples:
        fail(f"nothing was measured within --longest {longest_s:g}")
        raise typer.Exit(EXIT_FAILED)
    try:
        profile.save(output)
    except OSError as e:
        raise InvalidRequest(f"cannot write to -o {output}: {e.strerror}") from None
    rows = (
        [part, str(stats.count), f"{stats.mean:.1%}", f"{stats.p95:.1%}"] for part, stats in profile.errors().items()
    )
    table(("part", "measured", "error, mean", "95th percentile"), rows)
    say(f"{output}: written; name it in models[].cost_profile")


def write_file(spec: Spec, frames: Sequence[NDArray[np.uint8]]) -> bytes:
    """In the format that is the default of its kind, as the decoder's stage writes it."""
    from raydiance.serve import imaging, media

    if spec.is_video:
        return media.encode_video(iter(frames), spec.fps)
    return imaging.encode_image(frames[0][0], "png")


def _chosen(
    model: str, file: Path | None, threads: int | None, options: list[str] | None
) -> tuple[Config, ModelConfig]:
    """The configuration, and of its models the one that is meant. Raises ConfigError."""
    from raydiance.serve.cli.server import given
    from raydiance.serve.config import load_config

    values = given(model if file is None else None, None, None, options)
    config = load_config(values | ({} if threads is None else {"denoiser.num_threads": threads}), file)
    found = [m for m in config.models if file is None or model in (m.id, m.path)]
    if not found:
        raise ConfigError(f"{file} has no model '{model}'; it has {', '.join(m.id for m in config.models)}")
    return config, found[0]
