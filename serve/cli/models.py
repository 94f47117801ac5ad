"""`raydiance models`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from raydiance.serve.cli.console import guarded, out, say, table


def register(app: typer.Typer) -> None:
    app.command("models")(models)


@guarded
def models(
    model: Annotated[
        str | None, typer.Argument(help="tiny, a diffusers folder, or a hub id: what it is and can do.")
    ] = None,
    url: Annotated[str | None, typer.Option(envvar="RAYDIANCE_URL", help="A server: what it serves.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, as JSON.")] = False,
) -> None:
    """Show what a checkpoint can do, or what a server serves.

    Without an argument: the models of the server on this machine, or the embedded one if none runs.
    """
    from raydiance.serve.cli.remote import Remote, find_url

    if model is None:
        remote = Remote(find_url(url))
        if url is not None or remote.is_ready():
            _show_served(remote, as_json)
            return
        say(f"no server at {remote.url}; this is the embedded model")
    _show_card(_read_card(model or "tiny"), as_json)


def _read_card(model: str) -> dict[str, Any]:
    from raydiance.models import registry, resolve
    from raydiance.serve.config import ModelConfig
    from raydiance.serve.errors import ConfigError

    try:
        folder = resolve.resolve(model)
        card = registry.card(folder, ModelConfig(path=model).id)
    except resolve.CheckpointError as e:
        raise ConfigError(str(e)) from e
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
        "default size": f"{d['width']}x{d['height']}, {d['num_frames']} frames at {d['fps']} fps",
        "default steps": f"{d['num_inference_steps']}, guidance {d['guidance_scale']:g}",
        "sizes": f"multiples of {card['size_multiple']}, up to {card['max_side']} a side",
        "frames": f"{card['frame_stride']}k+1, up to {card['max_frames']}",
        "tokens": f"up to {card['max_tokens']:,}",
    }
    table(("", ""), rows.items())


def _show_served(remote: Any, as_json: bool) -> None:
    served = remote.models()
    if as_json:
        out.print_json(data=served)
        return
    table(("model", "family", "tasks"), ([m["id"], m.get("family", ""), ", ".join(m.get("tasks", ()))] for m in served))
