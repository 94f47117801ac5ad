"""What does serving cost? One HTTP video request through the three deployments, waited for by SSE, beside the same
diffusers pipeline called in this process and encoding the same MP4. They alternate, with the same number of threads.

    python load_tests/bench_serving_tax.py [--quick] [--json FILE]

Nothing is reported unless both made the same frames.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from typing import Any

import httpx
import numpy as np
import torch
from diffusers import WanPipeline
from report import median, metric, parser, publish

from raydiance.models.tiny import CHECKPOINT
from raydiance.serve import media
from raydiance.serve.config import load_config
from raydiance.serve.local import start_local

PROMPT = "a large red circle moving right on a black background"
MIN_PSNR_DB = 40.0
STEPS, GUIDANCE, FPS = 20, 4.0, 8


def main() -> int:
    args = parser(__doc__)
    args.add_argument("--pairs", type=int, default=12)
    args.add_argument("--size", type=int, default=128, help="pixels, height and width")
    args.add_argument("--frames", type=int, default=25)
    options = args.parse_args()
    pairs = 2 if options.quick else options.pairs
    size, frames = (96, 17) if options.quick else (options.size, options.frames)
    threads = os.cpu_count() or 1
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder:
        config = load_config(
            {
                "model": "tiny",
                "denoiser.num_threads": threads,
                "http.port": 0,
                "storage.database": f"sqlite:///{folder}/jobs.db",
                "storage.artifacts": f"{folder}/artifacts",
            }
        )
        peer = Peer(size, frames)
        with start_local(config) as server, httpx.Client(base_url=server.url, timeout=600) as client:
            ours_s, peer_s, ours_video, peer_video = [], [], b"", b""
            for i in range(pairs + 1):  # the first pair warms up
                seconds, ours_video = through_http(client, size, frames, seed=i)
                peer_seconds, peer_video = peer.run(seed=i)
                if (problem := differs(ours_video, peer_video)) is not None:
                    print(f"not reported: {problem}", file=sys.stderr)
                    return 1
                if i:
                    ours_s.append(seconds)
                    peer_s.append(peer_seconds)
                    print(f"pair {i:2}: served {seconds:7.3f} s   in process {peer_seconds:7.3f} s", flush=True)
    ratios = [a / b for a, b in zip(ours_s, peer_s, strict=True)]
    differences = [a - b for a, b in zip(ours_s, peer_s, strict=True)]
    publish(
        {
            "serving_tax_ratio": metric(median(ratios), "ratio", "<= 1.05 (1.03)"),
            "serving_tax_difference": metric(1000 * median(differences), "ms", "<= 150"),
            "served_s": metric(median(ours_s), "s", "-"),
            "in_process_s": metric(median(peer_s), "s", ">= 5"),
            "pairs": metric(len(ratios), "", ">= 10"),
        },
        options.json,
    )
    return 0


def through_http(client: httpx.Client, size: int, frames: int, seed: int) -> tuple[float, bytes]:
    """Seconds from sending the request to its `completed` event, and the MP4."""
    body = {
        "model": "tiny",
        "prompt": PROMPT,
        "height": size,
        "width": size,
        "num_frames": frames,
        "fps": FPS,
        "num_inference_steps": STEPS,
        "guidance_scale": GUIDANCE,
        "seed": seed,
    }
    started = time.perf_counter()
    job = client.post("/v1/jobs", json=body).raise_for_status().json()
    ended = wait_by_sse(client, job["id"])
    seconds = time.perf_counter() - started
    if ended["status"] != "completed":
        raise RuntimeError(f"job ended as {ended['status']}: {ended['error']}")
    return seconds, client.get(f"/v1/jobs/{job['id']}/content").raise_for_status().content


def wait_by_sse(client: httpx.Client, job_id: str) -> dict[str, Any]:
    with client.stream("GET", f"/v1/jobs/{job_id}/events") as response:
        kind = ""
        for line in response.iter_lines():
            if line.startswith("event:"):
                kind = line.removeprefix("event:").strip()
            elif line.startswith("data:") and kind in ("completed", "failed", "cancelled"):
                ended: dict[str, Any] = json.loads(line.removeprefix("data:"))
                return ended
    raise RuntimeError("the event stream ended without a final event")


class Peer:
    """diffusers' own pipeline on the same checkpoint, in this process."""

    def __init__(self, size: int, frames: int) -> None:
        self._pipe = WanPipeline.from_pretrained(CHECKPOINT)
        self._pipe.set_progress_bar_config(disable=True)
        self._max_length = json.loads((CHECKPOINT / "raydiance.json").read_text())["max_sequence_length"]
        self._size, self._frames = size, frames

    def run(self, seed: int) -> tuple[float, bytes]:
        started = time.perf_counter()
        video = self._pipe(
            prompt=PROMPT,
            height=self._size,
            width=self._size,
            num_frames=self._frames,
            num_inference_steps=STEPS,
            guidance_scale=GUIDANCE,
            generator=torch.Generator().manual_seed(seed),
            max_sequence_length=self._max_length,
            output_type="np",
        ).frames[0]
        data = media.encode_video(iter([(video * 255).round().astype(np.uint8)]), FPS, "mp4")
        return time.perf_counter() - started, data


def differs(ours: bytes, theirs: bytes) -> str | None:
    """None if both MP4s hold the same frames, up to the codec's rounding."""
    a, b = media.decode_video(ours)[0].astype(np.float64), media.decode_video(theirs)[0].astype(np.float64)
    if a.shape != b.shape:
        return f"served {a.shape}, diffusers made {b.shape}"
    error = float(((a - b) ** 2).mean())
    psnr = float("inf") if error == 0 else 10 * float(np.log10(255**2 / error))
    return None if psnr >= MIN_PSNR_DB else f"the frames differ: PSNR {psnr:.1f} dB, at least {MIN_PSNR_DB} is needed"


if __name__ == "__main__":
    sys.exit(main())
