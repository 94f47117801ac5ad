"""Make the checkpoint from nothing but a seed: the VAE, the latents, the transformer, the folder.

    python -m raydiance.models.tiny.train --out DIR [--vae-seconds 1440] [--seconds 3100] [--resume]

Each stage keeps its result in `--work` (default OUT-work); `--resume` continues from what is there.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKLWan, WanTransformer3DModel
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import UMT5EncoderModel

from raydiance.models.tiny import dit, evaluate, export, latents, tokenizer, vae_train, world
from raydiance.models.tiny.optim import Muon, use_bf16_linears
from raydiance.models.tiny.team import Team, launch

logger = logging.getLogger(__name__)

Z_DIM = 8
MUON_LR, ADAM_LR, TEXT_LR = 0.02, 2e-3, 7e-4
EMA_DECAY = 0.9985
CLIP_BATCH, IMAGE_BATCH = 16, 40  # in each process
EARLY, IMAGES_EARLY, IMAGES = 0.06, 0.7, 0.2  # images teach colour, size and shape cheaply, so they come first
NO_CAPTION, UNKNOWN_WORD, KEEP_FIRST, UNMOVED_CAPTION = 0.1, 0.01, 0.25, 0.03
LENGTHS, LENGTH_SHARES = (tokenizer.MAX_SEQUENCE_LENGTH, 48, 128), (0.9, 0.07, 0.03)


@dataclass(frozen=True)
class Options:
    """What a run is asked to do."""

    out: Path
    work: Path
    vae_seconds: float
    decoder_seconds: float
    seconds: float
    clips: int
    seed: int
    export_every: float
    probe: int
    workers: int
    resume: bool


class Trainer:
    """The transformer and the text encoder, their optimizers and the running mean of their weights.

    Muon takes the transformer's matrices. The text encoder stays on Adam: T5 has neither a norm on queries and keys
    nor a 1/sqrt(d), so Muon's equal-sized steps blow its attention logits up and the captions are forgotten.
    """

    def __init__(self, options: Options, team: Team, vae: AutoencoderKLWan, clips: Tensor, specs: list[world.Spec]):
        self.options, self.team, self.vae, self.clips, self.specs = options, team, vae, clips, specs
        torch.manual_seed(options.seed)
        self.tokenizer = tokenizer.build()
        self.text_encoder: UMT5EncoderModel = dit.build_text_encoder(self.tokenizer)
        self.transformer: WanTransformer3DModel = dit.build_transformer(Z_DIM)
        use_bf16_linears(self.transformer)
        matrices: list[nn.Parameter] = []
        rest: list[nn.Parameter] = []
        for name, param in self.transformer.named_parameters():
            is_matrix = param.ndim == 2 and ("blocks." in name or "condition_embedder" in name)
            (matrices if is_matrix else rest).append(param)
        text = list(self.text_encoder.parameters())
        self.params: list[nn.Parameter] = [*matrices, *rest, *text]
        self.muon = Muon(matrices, lr=MUON_LR, momentum=0.95, weight_decay=0.02)
        groups = [{"params": rest, "peak_lr": ADAM_LR}, {"params": text, "peak_lr": TEXT_LR}]
        self.adam = torch.optim.AdamW(groups, lr=ADAM_LR, betas=(0.9, 0.98), weight_decay=0.0)
        self.ema = [param.detach().clone() for param in self.params]
        self.step, self.elapsed_s, self.clock = 0, 0.0, time.monotonic()

    @property
    def progress(self) -> float:
        return self.elapsed_s / self.options.seconds

    def set_lr(self) -> None:
        """A short warm-up, constant for 40% of the time, then a cosine to zero."""
        decay = 1.0 if self.progress < 0.4 else 0.5 * (1 + math.cos(math.pi * min(1.0, (self.progress - 0.4) / 0.6)))
        share = min(1.0, (self.step + 1) / 100) * max(decay, 0.005)
        self.muon.param_groups[0]["lr"] = MUON_LR * share
        for group in self.adam.param_groups:
            group["lr"] = group["peak_lr"] * share

    def batch(self, rng: np.random.Generator, still: bool) -> tuple[Tensor, list[str]]:
        """Latents [B, C, t, h, w] and captions of clips, or of their first frames."""
        chosen = rng.integers(0, len(self.clips), IMAGE_BATCH if still else CLIP_BATCH)
        captions = []
        for i in chosen:
            unmoved = still or rng.random() < UNMOVED_CAPTION
            templates = world.IMAGE_TEMPLATES if unmoved else world.TRAINING_TEMPLATES
            captions.append("" if rng.random() < NO_CAPTION else world.caption(self.specs[i], rng, templates))
        frames = self.clips[torch.from_numpy(chosen)]
        return (frames[:, :, :1] if still else frames), captions

    def train_step(self) -> float:
        """One update; its randomness depends on seed, step and process alone, so a resumed run repeats none."""
        rng = np.random.default_rng((self.options.seed, self.step, self.team.rank))
        torch.manual_seed(int(rng.integers(2**62)))
        self.set_lr()
        shared = np.random.default_rng((self.options.seed, self.step))  # the kind of batch, the same in each process
        still = bool(shared.random() < (IMAGES_EARLY if self.progress < EARLY else IMAGES))
        keep_first = not still and bool(shared.random() < KEEP_FIRST)
        length = int(shared.choice(LENGTHS, p=LENGTH_SHARES))
        frames, captions = self.batch(rng, still)
        text = dit.encode_text(self.text_encoder, self.tokenizer, captions, length, UNKNOWN_WORD, rng)
        sigmas = dit.sample_sigmas(rng, len(frames))
        loss = dit.flow_loss(self.transformer, frames, torch.randn_like(frames), sigmas, text, keep_first)
        for param in self.params:
            param.grad = None
        loss.backward()
        now = time.monotonic()
        self.elapsed_s, self.clock = self.elapsed_s + self.team.average(self.params, now - self.clock), now
        nn.utils.clip_grad_norm_(self.params, 1.0)
        self.muon.step()
        self.adam.step()
        self.step += 1
        decay = min(EMA_DECAY, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            torch._foreach_lerp_(self.ema, [param.detach() for param in self.params], 1 - decay)
        return loss.item()

    def run(self) -> None:
        """Train until the time is used up, exporting the mean weights as it goes."""
        losses: list[float] = []
        next_export = self.elapsed_s + self.options.export_every
        while self.progress < 1:
            losses.append(self.train_step())
            if self.step % 200 == 0:
                logger.info("step %d, %.0f s, loss %.4f", self.step, self.elapsed_s, np.mean(losses[-200:]))
            if self.elapsed_s >= next_export:
                next_export = self.elapsed_s + self.options.export_every
                self.keep()
        self.keep()

    def keep(self) -> None:
        if self.team.rank == 0:
            self.save()
            self.export()
            record = {
                "seed": self.options.seed,
                "steps": self.step,
                "seconds": round(self.elapsed_s),
                "workers": self.team.size,
                "clips": len(self.clips),
                "parameters": sum(param.numel() for param in self.transformer.parameters()),
            }
            (self.options.work / "training.json").write_text(json.dumps(record, indent=2) + "\n")
        self.team.wait()
        self.clock = time.monotonic()  # exporting is not training time

    def swap(self) -> None:
        """Exchange the weights with their running mean."""
        for param, mean in zip(self.params, self.ema, strict=True):
            param.data, mean.data = mean.data, param.data

    def export(self) -> None:
        self.swap()
        pipe = export.pipeline(self.tokenizer, self.text_encoder, self.vae, self.transformer)
        export.save(pipe, self.options.out)
        prompts = evaluate.draw_prompts(evaluate.splits()[2], self.options.probe, seed=500)
        clips = evaluate.generate(pipe, prompts)
        figures = evaluate.score(prompts, clips)
        logger.info("held out: %s", ", ".join(f"{name} {share:.2f}" for name, share in figures.items()))
        shown = list(zip(prompts, clips, strict=True))
        evaluate.contact_sheet(shown, self.options.work / "sheet.png")
        self.swap()

    # State ----------------------------------------------------------------------------------------------------------

    def _optimizer_tensors(self) -> dict[str, Tensor]:
        """Every tensor that the optimizers keep, by parameter."""
        index: dict[Tensor, int] = {param: i for i, param in enumerate(self.params)}
        return {
            f"{key}.{index[param]}": value
            for optimizer in (self.muon, self.adam)
            for param, state in optimizer.state.items()
            for key, value in state.items()
        }

    def save(self) -> None:
        """Everything a resumed run needs, in one safetensors file."""
        tensors = {f"param.{i}": param.detach().contiguous() for i, param in enumerate(self.params)}
        tensors |= {f"ema.{i}": mean.contiguous() for i, mean in enumerate(self.ema)}
        tensors |= {key: value.contiguous() for key, value in self._optimizer_tensors().items()}
        path = self.options.work / "state.safetensors"
        partial = path.with_suffix(".partial")
        save_file(tensors, partial, metadata={"step": str(self.step), "elapsed_s": str(self.elapsed_s)})
        partial.replace(path)

    def restore(self) -> None:
        owners: list[Any] = [self.adam] * len(self.params)
        owners[: len(self.muon.param_groups[0]["params"])] = [self.muon] * len(self.muon.param_groups[0]["params"])
        with safe_open(self.options.work / "state.safetensors", framework="pt") as state, torch.no_grad():
            for key in state.keys():  # noqa: SIM118 - not a dictionary
                kind, number = key.rsplit(".", 1)
                i, value = int(number), state.get_tensor(key)
                if kind == "param":
                    self.params[i].copy_(value)
                elif kind == "ema":
                    self.ema[i].copy_(value)
                else:
                    owners[i].state[self.params[i]][kind] = value
            self.step, self.elapsed_s = int(state.metadata()["step"]), float(state.metadata()["elapsed_s"])
        logger.info("resumed at step %d, %.0f s", self.step, self.elapsed_s)


def prepare(options: Options, team: Team) -> tuple[AutoencoderKLWan, Tensor, list[world.Spec]]:
    """The trained VAE and the encoded clips, made now unless a resumed run has them."""
    vae_dir, cache = options.work / "vae", options.work / "latents.safetensors"
    if not (options.resume and cache.exists()):
        if options.resume and vae_dir.exists():
            vae = AutoencoderKLWan.from_pretrained(vae_dir)
        else:
            torch.manual_seed(options.seed)
            vae = vae_train.build(Z_DIM)
            vae_train.train(vae, options.vae_seconds, options.seed, team)
        if team.rank == 0:
            latents.save(cache, *latents.encode(vae.eval(), options.clips, options.seed + 1))
            vae.save_pretrained(vae_dir)
        team.wait()
    return AutoencoderKLWan.from_pretrained(vae_dir).eval(), *latents.load(cache)


def run(team: Team, options: Options) -> None:
    """Every stage, in one process of the team."""
    level = logging.INFO if team.rank == 0 else logging.WARNING
    logging.basicConfig(level=level, format="%(asctime)s %(message)s")
    trainer = Trainer(options, team, *prepare(options, team))
    if options.resume and (options.work / "state.safetensors").exists():
        trainer.restore()
    trainer.run()
    if options.decoder_seconds:
        vae_train.train(trainer.vae, options.decoder_seconds, options.seed + 2, team, decoder_only=True)
        trainer.vae.eval()
        trainer.keep()


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="checkpoint folder to write")
    parser.add_argument("--work", type=Path, help="folder for what the stages leave (default: OUT-work)")
    parser.add_argument("--vae-seconds", type=float, default=1440.0, help="training time of the VAE")
    parser.add_argument("--seconds", type=float, default=3100.0, help="training time of the transformer")
    parser.add_argument("--decoder-seconds", type=float, default=600.0, help="of the VAE's decoder alone, at the end")
    parser.add_argument("--clips", type=int, default=7_200, help="training clips to render and encode")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--export-every", type=float, default=300.0, help="seconds between exports")
    parser.add_argument("--probe", type=int, default=40, help="held-out prompts to try at each export")
    parser.add_argument("--workers", type=int, default=2, help="processes of one thread each that train together")
    parser.add_argument("--resume", action="store_true", help="continue from what is in the work folder")
    args = parser.parse_args(argv)
    work = args.work or args.out.with_name(args.out.name + "-work")
    options = Options(**{**vars(args), "work": work})
    work.mkdir(parents=True, exist_ok=True)
    (work / "options.json").write_text(json.dumps({k: str(v) for k, v in vars(options).items()}, indent=2) + "\n")
    launch(run, options.workers, options)


if __name__ == "__main__":
    main()
