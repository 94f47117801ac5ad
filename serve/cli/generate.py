"""`raydiance generate`."""

from __future__ import annotations

import math
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from raydiance.models.inputs import ImageRole
from raydiance.models.spec import TASKS, VIDEO_TASKS
from raydiance.models.tier import Tier
from raydiance.serve.attachments import attach
from raydiance.serve.cli.console import EXIT_FAILED, err, fail, guarded, say
from raydiance.serve.cli.jobs import ending, follow
from raydiance.serve.cli.remote import Remote, find_url
from raydiance.serve.complaints import nearest
from raydiance.serve.errors import InvalidRequest, RaydianceError, Unavailable
from raydiance.serve.request import FAMILY_PARAMETERS, ImageInput, Input

FORMATS = {".mp4": "mp4", ".webm": "webm", ".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".webp": "webp"}
VIDEO_FORMATS = ("mp4", "webm")
IMAGE_TASKS = frozenset(TASKS) - VIDEO_TASKS

HELP = (
    "Generate a video or an image from a prompt.\n\n"
    "Uses the server at --url, at $RAYDIANCE_URL or on this machine's port 8000; if there is none, starts one for "
    "this prompt alone and stops it afterwards. What is made follows from the file's suffix: .mp4 .webm .png .jpg "
    ".webp. The names of the files are printed. Ctrl-C cancels the job.\n\n"
    "[bold]Examples[/]\n\n"
    '  raydiance generate "a large red circle moves right on a white background" -o clip.mp4\n\n'
    '  raydiance generate "a small blue square on a black background" -o square.png --seed 7 --n 4\n\n'
    '  raydiance generate "a small blue square moves up on a black background" --image square-1.png -o up.webm\n\n'
    '  raydiance generate "a small blue circle on a black background" --image square-1.png --strength 0.7 -o edit.png'
    "\n\n"
    '  raydiance generate "a large green circle moves right on a white background" --video clip.mp4 --strength 0.7 '
    "-o green.mp4"
)


def register(app: typer.Typer) -> None:
    app.command("generate", help=HELP)(generate)


@guarded
def generate(
    prompt: Annotated[str, typer.Argument(help="What is to be seen.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; with --n, NAME-1, NAME-2, …")
    ] = None,
    image: Annotated[Path | None, typer.Option(help="First frame of a video, or start of an image.")] = None,
    last_frame: Annotated[Path | None, typer.Option(help="Last frame of a video.")] = None,
    reference: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Picture of what is meant. May be repeated.")
    ] = None,
    video: Annotated[Path | None, typer.Option(help="Video that is worked on.")] = None,
    mask: Annotated[
        Path | None, typer.Option(help="Where to paint: white. A picture for every frame, or a video.")
    ] = None,
    task: Annotated[str | None, typer.Option(help=f"{', '.join(TASKS[:-1])} or {TASKS[-1]}, if not obvious.")] = None,
    frames: Annotated[int | None, typer.Option(help="Number of frames; 1 makes an image.")] = None,
    size: Annotated[str | None, typer.Option(metavar="WxH", help="Width and height in pixels.")] = None,
    steps: Annotated[int | None, typer.Option(help="Denoising steps.")] = None,
    guidance: Annotated[float | None, typer.Option(help="Guidance scale; 1 turns it off.")] = None,
    negative: Annotated[str | None, typer.Option(help="What is not to be seen.")] = None,
    strength: Annotated[float | None, typer.Option(help="How much of --image or --video may change, 0 to 1.")] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same pixels.", show_default="drawn")] = None,
    audio: Annotated[
        bool | None, typer.Option("--audio/--no-audio", help="Sound, where the model makes any.", show_default="on")
    ] = None,
    param: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A number that only some models take; see `raydiance models --json`."),
    ] = None,
    tier: Annotated[
        Tier | None,
        typer.Option(help="How urgent it is.", show_default="standard"),
    ] = None,
    slo: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="When it should be done.", show_default="by tier and size")
    ] = None,
    deadline: Annotated[float | None, typer.Option(metavar="SECONDS", help="When nobody wants it any longer.")] = None,
    group: Annotated[str | None, typer.Option(metavar="ID", help="The group that it joins.")] = None,
    n: Annotated[int, typer.Option("--n", "-n", help="How many, with seeds one apart.")] = 1,
    fps: Annotated[int | None, typer.Option(help="Frames per second of the video.")] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Name at the server; or what to serve where none runs.", show_default="the server's first"),
    ] = None,
    url: Annotated[str | None, typer.Option(envvar="RAYDIANCE_URL", help="The server to use.")] = None,
) -> None:
    width, height = _size(size)
    wanted = {
        "prompt": prompt,
        "negative_prompt": negative,
        "task": task,
        "width": width,
        "height": height,
        "num_frames": frames,
        "num_inference_steps": steps,
        "guidance_scale": guidance,
        "strength": strength,
        "audio": audio,
        "seed": seed,
        "n": n,
        "fps": fps,
        "service_tier": tier,
        "slo_s": slo,
        "deadline_s": deadline,
        "group": group,
        **_parameters(param or []),
    }
    others = attach(
        last_frame=_read("--last-frame", last_frame),
        references=[_content("--reference", picture) for picture in reference or []],
        video=_read("--video", video),
        mask=_read("--mask", mask),
    )
    request = build_request({k: v for k, v in wanted.items() if v is not None}, image, output, others)
    _check_writable(output)
    with _server(url, model) as (remote, name):
        paths = run(remote, request | ({"model": name} if name else {}), output)
    for path in paths:
        typer.echo(path)


def build_request(
    wanted: dict[str, Any], image: Path | None, output: Path | None, others: Sequence[Input] = ()
) -> dict[str, Any]:
    """The native request: the task and format follow from the file's suffix where they are not given.

    Args:
        others: inputs beside `image`; with these the server tells what task they are for.

    Raises InvalidRequest for what contradicts itself; the rest is for the server to judge.
    """
    request = dict(wanted)
    if "task" in request and request["task"] not in TASKS:
        raise InvalidRequest(f"--task {request['task']} is not one of {', '.join(TASKS)}")
    for name, value in request.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise InvalidRequest(f"{name}={value} must be a finite number", name)
    suffix = None if output is None else output.suffix.lower()
    if suffix is not None and suffix not in FORMATS:
        raise InvalidRequest(f"-o {output}: the suffix must be one of {', '.join(FORMATS)}")
    made = None if suffix is None else FORMATS[suffix]
    makes_video = None if made is None else made in VIDEO_FORMATS
    if "task" in request and makes_video is not None and makes_video == (request["task"] in IMAGE_TASKS):
        raise InvalidRequest(f"-o {output} does not fit --task {request['task']}")
    if makes_video and request.get("num_frames") == 1:
        raise InvalidRequest(f"-o {output} is a video, and --frames 1 an image")
    is_image = (
        makes_video is False
        or request.get("task") in IMAGE_TASKS
        or request.get("num_frames") == 1
        or (image is not None and "strength" in request and makes_video is None and not others)
    )
    if is_image and "task" not in request and not others:
        request["task"] = "text-to-image" if image is None else "image-to-image"
    role: ImageRole = "init" if is_image else "first_frame"
    own = any(isinstance(i, ImageInput) and i.role == "reference" for i in others) or "task" in wanted
    inputs = [*attach(image=_read("--image", image), image_role=None if own else role), *others]
    if inputs:
        request["inputs"] = [item.model_dump(mode="json", exclude_none=True) for item in inputs]
    if made is not None:
        request["output"] = {"format": made}
    return request


def run(remote: Remote, request: dict[str, Any], output: Path | None) -> list[Path]:
    """Submits, follows, and writes what was made. A Ctrl-C cancels the job before it is passed on."""
    job = remote.submit(request)
    try:
        ended = follow(remote, job["id"], _shorten(str(request["prompt"])))
    except KeyboardInterrupt:
        remote.cancel(job["id"])
        say(f"job {job['id']} is cancelled")
        raise
    if ended["status"] != "completed":
        fail(ending(ended))
        raise typer.Exit(EXIT_FAILED)
    outputs = sorted(ended["outputs"], key=lambda o: int(o["index"]))
    paths = [
        _path(output, str(request["prompt"]), item["content_type"], None if len(outputs) == 1 else i + 1)
        for i, item in enumerate(outputs)
    ]
    for path, item in zip(paths, outputs, strict=True):
        content = remote.content(job["id"], int(item["index"]))
        try:
            path.write_bytes(content)
        except OSError as e:
            raise RaydianceError(f"cannot write {path}: {e.strerror}; job {job['id']} has completed") from None
    seconds = ", ".join(f"{k.removesuffix('_s')} {v:.1f} s" for k, v in ended.get("timings", {}).items())
    say(f"seed {ended['parameters']['seed']}; {seconds}")
    return paths


@contextmanager
def _server(url: str | None, model: str | None) -> Iterator[tuple[Remote, str | None]]:
    """A server that answers, and the model's name there; a local one is started if none was asked for by URL."""
    remote = Remote(find_url(url))
    if remote.is_ready():
        yield remote, model
        return
    if url is not None:
        raise Unavailable(f"no Raydiance server is ready at {url}: start one with `raydiance serve`, or omit --url")
    from raydiance.serve.cli.server import local_config
    from raydiance.serve.local import start_local

    with tempfile.TemporaryDirectory(prefix="raydiance-") as data:
        config = local_config(None, {"model": model or "tiny", "http.port": 0}, Path(data))
        say(f"no Raydiance server at {remote.url}: starting one for this prompt (keep one with `raydiance serve`)")
        with err.status("starting") as status, start_local(config, on_phase=lambda p: status.update(p)) as server:
            status.stop()
            yield Remote(server.url), config.models[0].id


def _size(size: str | None) -> tuple[int | None, int | None]:
    if size is None:
        return None, None
    found = re.fullmatch(r"(\d{1,5})[xX](\d{1,5})", size)
    if not found:
        raise InvalidRequest(f"--size {size}: write WIDTHxHEIGHT, e.g. --size 96x64")
    return int(found[1]), int(found[2])


def _check_writable(output: Path | None) -> None:
    """Makes the folder that is written to, before anything is generated for it. Raises InvalidRequest."""
    folder = Path() if output is None else output.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise InvalidRequest(f"cannot write to {folder}: {e.strerror}") from None
    if output is not None and output.is_dir():
        raise InvalidRequest(f"-o {output} is a folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InvalidRequest(f"cannot write to {folder}: Permission denied")


def _parameters(options: Sequence[str]) -> dict[str, float]:
    """Of `--param NAME=VALUE`. Which of them a model takes is for the server to judge."""
    found = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals:
            raise InvalidRequest(f"--param {option}: write NAME=VALUE, e.g. --param true_cfg_scale=4")
        if name not in FAMILY_PARAMETERS:
            meant = nearest(name, FAMILY_PARAMETERS)
            hint = f"did you mean '{meant}'?" if meant else f"known: {', '.join(FAMILY_PARAMETERS)}"
            raise InvalidRequest(f"--param {name} is unknown; {hint}")
        try:
            found[name] = float(value)
        except ValueError:
            raise InvalidRequest(f"--param {option}: '{value}' is no number") from None
    return found


def _read(option: str, path: Path | None) -> bytes | None:
    return None if path is None else _content(option, path)


def _content(option: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as e:
        raise InvalidRequest(f"cannot read {option} {path}: {e.strerror}") from None


def _path(output: Path | None, prompt: str, content_type: str, number: int | None) -> Path:
    tail = "" if number is None else f"-{number}"
    if output is not None:
        return output.with_name(f"{output.stem}{tail}{output.suffix}")
    stem = re.sub(r"[^a-z0-9]+", "-", prompt.lower()).strip("-")[:48].rstrip("-") or "raydiance"
    suffix = "." + content_type.split("/")[-1].replace("jpeg", "jpg")
    path, again = Path(f"{stem}{tail}{suffix}"), 1
    while path.exists():
        again += 1
        path = Path(f"{stem}{tail}-{again}{suffix}")
    return path


def _shorten(prompt: str) -> str:
    return prompt if len(prompt) <= 40 else prompt[:39] + "…"
