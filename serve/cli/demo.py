"""`raydiance demo`: what `make demo` runs. A cluster of this machine, a video, an image, a contact sheet."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from raydiance.serve.cli.console import EXIT_FAILED, err, escape, fail, guarded, out
from raydiance.serve.cli.jobs import ending, follow
from raydiance.serve.cli.remote import Remote
from raydiance.serve.errors import InvalidRequest

VIDEO_PROMPT = "a large red circle moves right on a white background"
IMAGE_PROMPT = "a large blue triangle on a black background"
SEED = 7
SHEET_CELL_PX = 160
SHEET_COLUMNS = 5


def register(app: typer.Typer) -> None:
    app.command("demo")(demo)


@guarded
def demo(
    folder: Annotated[Path, typer.Option("--output", "-o", help="Folder for what is made.")] = Path("demo-out"),
) -> None:
    """Generate a video and an image with the embedded model on a local cluster, and show how long each stage took."""
    from raydiance.serve.cli.server import local_config
    from raydiance.serve.local import start_local

    began = time.monotonic()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise InvalidRequest(f"cannot write to -o {folder}: {e.strerror}") from None
    with tempfile.TemporaryDirectory(prefix="raydiance-demo-") as data:
        config = local_config(None, {"model": "tiny", "http.port": 0}, Path(data))
        with err.status("starting") as status, start_local(config, on_phase=lambda p: status.update(p)) as server:
            status.stop()
            out.print(f"generating after [bold]{time.monotonic() - began:.1f} s[/], at {server.url}")
            remote = Remote(server.url)
            video = _make(remote, {"prompt": VIDEO_PROMPT, "seed": SEED}, folder / "video.mp4")
            _make(remote, {"prompt": IMAGE_PROMPT, "seed": SEED, "num_frames": 1}, folder / "image.png")
            _sheet(video, folder / "contact-sheet.png")
    out.print(f"stopped after {time.monotonic() - began:.1f} s in all; the files are in {escape(str(folder))}/")


def _make(remote: Remote, request: dict[str, Any], path: Path) -> bytes:
    job = remote.submit(request | {"output": {"format": path.suffix.removeprefix(".")}})
    ended = follow(remote, job["id"], request["prompt"])
    if ended["status"] != "completed":
        fail(ending(ended))
        raise typer.Exit(EXIT_FAILED)
    content = remote.content(job["id"])
    path.write_bytes(content)
    made = ended["outputs"][0]
    stages = "  ".join(f"{name.removesuffix('_s')} {seconds:.2f} s" for name, seconds in ended["timings"].items())
    out.print(f"[bold]{escape(str(path))}[/]  {made['width']}x{made['height']}, {made['num_frames']} frames")
    out.print(f"  {escape(repr(request['prompt']))}\n  {stages}")
    return content


def _sheet(video: bytes, path: Path) -> None:
    """Every frame of the clip in one picture, enlarged without smoothing."""
    from raydiance.serve.media import contact_sheet, decode_video

    frames, _ = decode_video(video)
    zoom = max(1, SHEET_CELL_PX // frames.shape[2])
    path.write_bytes(contact_sheet(frames.repeat(zoom, axis=1).repeat(zoom, axis=2), SHEET_COLUMNS))
    out.print(f"[bold]{escape(str(path))}[/]  {len(frames)} frames of the video, {zoom}x")
