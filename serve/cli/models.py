"""`raydiance models`: what a server serves, what a checkpoint is, and what it takes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raydiance.serve.cli.console import EXIT_FAILED, fail, guarded, out, say, table
from raydiance.serve.errors import ConfigError
from raydiance.serve.preflight import brief

if TYPE_CHECKING:
    from raydiance.deploy.check import Report
    from raydiance.models.fit import Fit

app = typer.Typer(help="What is served, what a checkpoint can do, and what it takes.", invoke_without_command=True)
GIB = 2**30
AsJSON = Annotated[bool, typer.Option("--json", help="Everything, as JSON.")]


@app.callback()
@guarded
def models(
    context: typer.Context,
    url: Annotated[str | None, typer.Option(envvar="RAYDIANCE_URL", help="A server: what it serves.")] = None,
    as_json: AsJSON = False,
) -> None:
    """Show the models of the server on this machine, or the embedded one if none runs."""
    from raydiance.serve.cli.remote import Remote, find_url

    if context.invoked_subcommand is not None:
        return
    remote = Remote(find_url(url))
    if url is not None or remote.is_ready():
        served = remote.models()
        if as_json:
            out.print_json(data=served)
        else:
            rows = ([m["id"], m.get("family", ""), ", ".join(m.get("tasks", ()))] for m in served)
            table(("model", "family", "tasks"), rows)
        return
    say(f"no Raydiance server at {remote.url}; this is the embedded model")
    _show_card(_read_card("tiny"), as_json)


@app.command("show")
@guarded
def show(
    model: Annotated[str, typer.Argument(help="tiny, a diffusers folder, or a hub id.")], as_json: AsJSON = False
) -> None:
    """Show what a checkpoint can do: from its configuration, without its weights."""
    _show_card(_read_card(model), as_json)


@app.command("profiles")
@guarded
def profiles() -> None:
    """List the profiles of real checkpoints that `check` knows by name."""
    from raydiance.deploy import profile

    table(("profile", "weights", ""), ([n, (p := profile.load(n)).hub_id, p.note] for n in profile.names()))


@app.command("check")
@guarded
def check(
    model: Annotated[str, typer.Argument(help="tiny, a diffusers folder, a hub id, or a profile's name.")],
    size: Annotated[str | None, typer.Option(metavar="WxH", help="Pixels, such as 1280x720.")] = None,
    frames: Annotated[int | None, typer.Option(min=1, help="Frames of the video.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Denoising steps.")] = None,
    gpu: Annotated[int | None, typer.Option(min=1, metavar="GB", help="Memory of a card: does it fit?")] = None,
    dtype: Annotated[str | None, typer.Option(help="bfloat16, float16 or float32.")] = None,
    component: Annotated[
        list[str] | None, typer.Option(metavar="NAME=FOLDER", help="A component that comes from elsewhere.")
    ] = None,
    as_config: Annotated[
        bool, typer.Option("--config", help="Print a configuration for cards of --gpu, for `raydiance serve --config`.")
    ] = False,
) -> None:
    """Check a checkpoint: whether it is whole, what a request takes, and which cards it fits.

    Nothing is loaded: weights are checked by their headers, costs are those of the real modules without numbers. A
    profile stands for a checkpoint that is not here. Exit code 1: it does not fit the card given.
    """
    from raydiance.deploy.check import check as look
    from raydiance.models.resolve import CheckpointError
    from raydiance.models.spec import FieldError
    from raydiance.models.weights import DTYPES

    if dtype is not None and dtype not in DTYPES:
        raise ConfigError(f"--dtype {dtype} is not one of {', '.join(DTYPES)}")
    if as_config and gpu is None:
        raise ConfigError("--config needs --gpu: how a model is placed depends on the cards")
    try:
        report = look(
            model,
            size=_size(size),
            num_frames=frames,
            num_inference_steps=steps,
            gpu_gb=gpu,
            dtype=dtype,
            components=dict(_pair(c) for c in component or []),
        )
    except (CheckpointError, FieldError) as e:
        raise ConfigError(brief(e)) from e
    if as_config:
        _print_config(report, gpu)
    else:
        _print_report(report)
    if gpu is not None and report.fits.get(gpu, "guest") is None:
        fail(f"it does not fit cards of {gpu} GB")
        raise typer.Exit(EXIT_FAILED)


def _size(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,5})x(\d{1,5})", text)
    if match is None:
        raise ConfigError(f"--size {text} must be WIDTHxHEIGHT, such as 1280x720")
    return int(match[1]), int(match[2])


def _pair(text: str) -> tuple[str, str]:
    name, equals, folder = text.partition("=")
    if not (name and equals and folder):
        raise ConfigError(f"--component {text} must be NAME=FOLDER")
    return name, folder


def _read_card(model: str) -> dict[str, Any]:
    from raydiance.models import registry, resolve
    from raydiance.serve.config import ModelConfig

    try:
        folder = resolve.resolve(model)
        card = registry.card(folder, ModelConfig(path=model).id)
    except resolve.CheckpointError as e:
        raise ConfigError(brief(e)) from e
    return {**card.to_dict(), "path": str(folder)}


def _show_card(card: dict[str, Any], as_json: bool) -> None:
    if as_json:
        out.print_json(data=card)
        return
    d = card["defaults"]
    rows = {
        "model": card["id"],
        "family": card["family"],
        "path": card["path"],
        "tasks": ", ".join(card["tasks"]),
        "parameters": ", ".join(p["name"] for p in card["parameters"]) or "none of its own",
        "default size": f"{d['width']}x{d['height']}, {d['num_frames']} frames at {d['fps']} fps",
        "default steps": f"{d['num_inference_steps']}, guidance {d['guidance_scale']:g}",
        "sizes": f"multiples of {card['size_multiple']}, up to {card['max_side']} a side",
        "frames": f"{card['frame_stride']}k+1, up to {card['max_frames']}",
        "tokens": f"up to {card['max_tokens']:,}",
    }
    table(("", ""), rows.items())


def _print_report(report: Report) -> None:
    card, checkup = report.card, report.checkup
    rows = {"model": card.id, "weights": report.source, "family": card.family, "tasks": ", ".join(card.tasks)}
    if report.weights:
        total = _memory(sum(report.weights.values()))
        rows["checked"] = f"{len(report.weights)} components, {total}: whole, every name and shape right"
    if checkup is None:
        rows["costs"] = "not known of a guest: diffusers runs it whole"
        table(("", ""), rows.items())
        return
    spec = checkup.spec
    length = f", {spec.num_frames} frames" if spec.is_video else ""
    rows["request"] = f"{spec.task}, {spec.width}x{spec.height}{length}, {spec.num_inference_steps} steps"
    rows["tokens"] = f"{checkup.tokens:,}, {checkup.rows} rows of forwards"
    for stage in ("encode", "denoise", "decode"):
        needs = checkup.needs(stage)
        rows[stage] = (
            f"{_count(needs.parameters)} parameters, {_memory(needs.weight_bytes)} of weights, "
            f"{_memory(needs.peak_bytes)} of activations, {_work(needs.flops)}"
        )
    for gb, way in report.fits.items():
        rows[f"cards of {gb} GB"] = "does not fit" if way is None else _way(way)
    table(("", ""), rows.items())


def _count(number: int) -> str:
    return f"{number / 1e9:.1f} B" if number >= 1e9 else f"{number / 1e6:.2f} M" if number >= 1e4 else f"{number:,}"


def _work(flops: int) -> str:
    return f"{flops / 1e12:,.1f} TFLOP" if flops >= 1e11 else f"{flops / 1e9:.3f} GFLOP"


def _memory(size: float) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / 2**20:.1f} MiB"


def _way(way: Fit) -> str:
    offload = "" if way.offload == "none" else f", offload: {way.offload}"
    split = "" if way.degree == 1 else f", the denoiser over {way.degree}"
    return f"{way.gpus} GPU{'s' * (way.gpus > 1)}{split}{offload}, {_memory(way.peak_bytes)} on the fullest"


def _print_config(report: Report, gpu: int | None) -> None:
    import yaml

    way = None if gpu is None else report.fits.get(gpu)
    if report.profile is None:
        raise ConfigError("--config is for profiles: see `raydiance models profiles`")
    if way is not None:
        config = report.profile.config(way).model_dump(mode="json", exclude_unset=True)
        typer.echo(yaml.safe_dump(config, sort_keys=False), nl=False)
