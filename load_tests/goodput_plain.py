"""The peer of the goodput benchmark: diffusers' pipeline in a Ray Serve deployment, as Ray's documentation shows.

python load_tests/goodput_plain.py --port 8100 --replicas 1 --threads 2
"""

import argparse
import io
import json
import signal
import sys
from typing import Any

import numpy as np
import ray
import torch
from diffusers import WanPipeline
from fastapi import FastAPI, Response
from PIL import Image
from pydantic import BaseModel
from ray import serve

from raydiance.models.tiny import CHECKPOINT
from raydiance.serve import media
from raydiance.serve.engine import memory

app = FastAPI()  # it reads annotations, which must not be strings: Ray sends the class as a value, without its module


class Request(BaseModel):
    prompt: str
    height: int
    width: int
    num_frames: int
    num_inference_steps: int
    guidance_scale: float
    fps: int
    seed: int


@serve.deployment(
    max_ongoing_requests=1
)  # a pipeline makes one at a time; the others wait in Serve, first come first served
@serve.ingress(app)
class Pipeline:
    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        self._pipe = WanPipeline.from_pretrained(CHECKPOINT)
        self._pipe.set_progress_bar_config(disable=True)
        self._max_length = json.loads((CHECKPOINT / "raydiance.json").read_text())["max_sequence_length"]

    @app.post("/generate")
    async def generate(self, request: Request) -> Response:
        """Not a plain `def`, which would run the pipeline in several threads at once: the next ones wait here."""
        frames: Any = self._pipe(
            prompt=request.prompt,
            height=request.height,
            width=request.width,
            num_frames=request.num_frames,
            num_inference_steps=request.num_inference_steps,
            guidance_scale=request.guidance_scale,
            generator=torch.Generator().manual_seed(request.seed),
            max_sequence_length=self._max_length,
            output_type="np",
        ).frames[0]
        pixels = (frames * 255).round().astype(np.uint8)
        if request.num_frames > 1:
            return Response(media.encode_video(iter([pixels]), request.fps, "mp4"), media_type="video/mp4")
        file = io.BytesIO()
        Image.fromarray(pixels[0]).save(file, "PNG")
        return Response(file.getvalue(), media_type="image/png")


def main() -> int:
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("--port", type=int, required=True)
    args.add_argument("--replicas", type=int, default=1)
    args.add_argument("--threads", type=int, default=2)
    options = args.parse_args()
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": options.port})
    environment = {"env_vars": memory.environment("cpu")}  # the same memory settings as the stages of ours
    actor = {"num_cpus": 0.5, "runtime_env": environment}
    deployment = Pipeline.options(num_replicas=options.replicas, ray_actor_options=actor)  # type: ignore[attr-defined]
    serve.run(deployment.bind(options.threads))
    print("ready", flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    serve.shutdown()
    ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
