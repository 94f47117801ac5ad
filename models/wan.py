"""Wan 2.1 and 2.2, with one expert or two: text to video and image, frames to video, image to image.

Shape letters: B batch, C latent channels, T latent frames, H W latent rows and columns, L tokens, D width.
Sources: diffusers' `pipelines/wan`, whose numbers this gives; https://arxiv.org/abs/2503.20314
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from diffusers import AutoencoderKLWan, WanPipeline, WanTransformer3DModel
from diffusers.models.transformers.transformer_wan import WanAttnProcessor
from diffusers.pipelines.wan.pipeline_wan_video2video import retrieve_latents
from diffusers.utils.torch_utils import randn_tensor
from PIL import Image
from transformers import UMT5EncoderModel

from raydiance.models import wan_tokens
from raydiance.models.family import Family, Row, Stage, Tensors
from raydiance.models.inputs import Inputs
from raydiance.models.options import LoadOptions
from raydiance.models.seams import Seams
from raydiance.models.solver import Solver
from raydiance.models.spec import Spec
from raydiance.models.tokens import Forward, Tokens, Whole
from raydiance.models.wan_attention import Processor
from raydiance.models.wan_card import card_of
from raydiance.models.wan_conditions import FrameEncoder, check_roles
from raydiance.models.wan_config import LOW_NOISE, Expert, WanConfig
from raydiance.models.wan_experts import Experts, load_experts, offloads_idle
from raydiance.models.wan_vae import decode_chunks
from raydiance.models.weights import dtype_of, load_component, load_scheduler, load_tokenizer

MAX_UNTILED_PIXELS = 1920 * 1088
"""Frames larger than this are decoded in spatial tiles, which bounds memory and changes the seams' pixels slightly."""


class Wan(Family):
    """Conditioning: `prompt_embeds` [L, D], `negative_prompt_embeds` [L, D] where guidance is used, and
    `image_latents` [C, T, H, W] where the task takes an image (T = 1) or a video; where given frames are channels
    beside the latents (I2V), `condition` [temporal factor + C, T, H, W] instead; `image_embeds` [N, S, D] beside it
    where an image encoder sees the N frames given (Wan 2.1).

    Raises:
        CheckpointError: names the folder and what is missing or not supported.
    """

    transformer_class: Any = WanTransformer3DModel

    def __init__(self, folder: Path, stage: Stage, model_id: str, options: LoadOptions) -> None:
        self.config = WanConfig.read(folder)
        self.card = card_of(self.config, model_id)
        self.stage = stage
        self.device = torch.device(options.device)
        self.dtype = dtype_of(options)
        offload_idle = offloads_idle(folder, self.config, options)
        if offload_idle:
            options = replace(options, offload="none")  # nothing else than an expert is moved
        parts: dict[str, Any] = dict.fromkeys(("tokenizer", "text_encoder", "vae", "scheduler"))
        models: dict[Expert, Any] = {}
        if stage == "encode":
            parts["tokenizer"] = load_tokenizer(folder, "tokenizer", options)
            parts["text_encoder"] = load_component(UMT5EncoderModel, folder, "text_encoder", options)
        elif stage == "decode":
            parts["vae"] = load_component(AutoencoderKLWan, folder, "vae", options)
            if self.config.kind == "image":
                self.frames = FrameEncoder.load(parts["vae"], folder, self.config, options)
        elif stage == "denoise":
            models = load_experts(self.transformer_class, folder, self.config, options, on_host=offload_idle)
            parts["scheduler"] = load_scheduler(folder, options)
            boundary = self.config.boundary_ratio
            if boundary is not None:
                boundary *= parts["scheduler"].config.num_train_timesteps
            self.experts = Experts(models, boundary, self.device, offload_idle=offload_idle)
        else:
            raise ValueError(f"stage {stage!r} is not one of {', '.join(get_args(Stage))}")
        self.pipeline = WanPipeline(**parts, **models)
        self._solvers: dict[int, Solver] = {}
        self._seams: list[Seams] = []

    # -- stage "encode"

    @torch.no_grad()
    def encode_prompts(self, texts: Sequence[str]) -> list[Tensors]:
        """`prompt_embeds` [L, D] per text, zeros after its end; L is the checkpoint's `max_sequence_length`.

        One forward a text: in a batch the last bits would depend on its size, and with them the conditioning's id.
        """
        return [{"prompt_embeds": self._encode_prompt(text)} for text in texts]

    def _encode_prompt(self, text: str) -> torch.Tensor:
        embeds: torch.Tensor = self.pipeline.encode_prompt(
            text,
            do_classifier_free_guidance=False,
            max_sequence_length=self.config.max_sequence_length,
            device=self.device,
        )[0]
        return embeds[0]

    # -- stage "decode"

    @torch.no_grad()
    def encode_inputs(self, spec: Spec, inputs: Inputs) -> Tensors:
        """`image_latents` or `condition`, fp32, and `image_embeds`, of what the task takes; ValueError for the rest."""
        check_roles(spec, self.card.accepts(spec.task), inputs)
        if self.config.kind == "image":
            return self.frames.encode(spec, inputs)
        if inputs.video is not None:
            given = [Image.fromarray(frame) for frame in inputs.video]
        else:
            given = [inputs.image("first_frame" if spec.task == "image-to-video" else "init")]
        pixels = self.pipeline.video_processor.preprocess_video(given, height=spec.height, width=spec.width)
        vae = self.pipeline.vae
        latents = retrieve_latents(vae.encode(pixels.to(self.device, vae.dtype)), sample_mode="argmax")
        mean, scale = self._latent_statistics(torch.float32)
        return {"image_latents": ((latents.float() - mean) * scale)[0]}

    @torch.no_grad()
    def decode(self, latents: torch.Tensor, spec: Spec) -> Iterator[np.ndarray]:  # noqa: ARG002 - the latents say all
        """Latents [C, T, H, W] -> uint8 [t, h, w, 3], one chunk a latent frame; in one chunk where frames are tiled,
        none where the tiles are not wanted on this rank."""
        vae = self.pipeline.vae
        mean, scale = self._latent_statistics(vae.dtype)
        z = latents[None].to(self.device, vae.dtype) / scale + mean
        pixels = z.shape[-2] * z.shape[-1] * self.config.spatial_factor**2
        for chunk in decode_chunks(vae, z, self.tokens, self.run, is_large=pixels > MAX_UNTILED_PIXELS):
            frames = self.pipeline.video_processor.postprocess_video(chunk, output_type="np")[0]
            yield (frames * 255).round().astype(np.uint8)

    def _latent_statistics(self, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and 1/std of the VAE's latents, [1, C, 1, 1, 1]."""
        config = self.pipeline.vae.config
        mean, std = (torch.tensor(v).view(1, -1, 1, 1, 1) for v in (config.latents_mean, config.latents_std))
        return mean.to(self.device, dtype), (1.0 / std).to(self.device, dtype)

    # -- stage "denoise"

    def new_solver(self, spec: Spec) -> Solver:
        """Shared by all requests with this number of steps: a solver is pure."""
        steps = spec.num_inference_steps
        if steps not in self._solvers:
            self._solvers[steps] = Solver(self.pipeline.scheduler, steps)
        return self._solvers[steps]

    def initial_latents(
        self, spec: Spec, conditioning: Tensors, solver: Solver, generator: torch.Generator
    ) -> torch.Tensor:
        """[C, T, H, W], fp32: diffusers' numbers for this seed."""
        shape = self._latent_shape(spec, conditioning)
        noise: torch.Tensor = randn_tensor((1, *shape), generator, self.device, torch.float32)[0]
        if spec.task not in self.card.strength_tasks:
            return noise
        return solver.add_noise(conditioning["image_latents"].to(self.device), noise, spec.first_step)

    def batch_key(self, spec: Spec, conditioning: Tensors) -> tuple[object, ...]:
        return (
            *self._latent_shape(spec, conditioning),
            *conditioning["prompt_embeds"].shape,
            self._expands(spec),
        )

    @torch.no_grad()
    def predict(self, rows: Sequence[Row]) -> list[torch.Tensor]:
        """Two forwards an expert: the rows that need it with their prompts, then the guided ones with their negative
        prompts.

        Not one of both: a row's rounding depends on how many rows it is batched with, UniPC amplifies it, and so the
        latents of a request on its own would leave diffusers' own by more than 1e-5.
        """
        predictions: dict[int, torch.Tensor] = {}
        shared = not (self.tokens is None or isinstance(self.tokens, Whole))
        for name, places in self.experts.split([row.timestep for row in rows], same_everywhere=shared):
            outputs = self._predict(self.experts.use(name), [rows[i] for i in places], self._guidance(name))
            predictions |= zip(places, outputs, strict=True)
        return [predictions[i].float() for i in range(len(rows))]

    def _predict(self, expert: Any, rows: Sequence[Row], guidance: str) -> list[torch.Tensor]:
        """Args:
        guidance: the name of the scale.
        """
        guided = [i for i, row in enumerate(rows) if self.card.uses_negative(row.spec)]
        forwards = [self._forward(expert, rows, "prompt_embeds")]
        if guided:
            forwards.append(self._forward(expert, [rows[i] for i in guided], "negative_prompt_embeds"))
        conditional, *unconditional = map(list, self.run(forwards))
        predictions: list[torch.Tensor] = conditional
        if guided:
            for i, negative in zip(guided, unconditional[0], strict=True):
                scale = self.card.value(rows[i].spec, guidance)
                predictions[i] = negative + scale * (predictions[i] - negative)
        return predictions

    def _forward(self, expert: Any, rows: Sequence[Row], embeds: str) -> Forward:
        def call() -> torch.Tensor:
            if self.tokens is not None:
                spec, conditioning = rows[0].spec, rows[0].conditioning
                self.tokens.begin(**{wan_tokens.VIDEO: self.num_tokens(spec, conditioning)})
            outputs: torch.Tensor = expert(
                encoder_hidden_states=self._stack([row.conditioning[embeds] for row in rows]),
                return_dict=False,
                **self._arguments(rows),
            )[0]
            return outputs

        shape = self._latent_shape(rows[0].spec, rows[0].conditioning)
        return Forward(call, (len(rows), *shape), self.dtype, self.device)

    def _arguments(self, rows: Sequence[Row]) -> dict[str, torch.Tensor]:
        """What a forward takes beside the prompts."""
        inputs = [self._input(row) for row in rows]
        arguments = {
            "hidden_states": self._stack([latents for latents, _ in inputs]),
            "timestep": torch.stack([timestep for _, timestep in inputs]),
        }
        if self.config.embedded_frames:  # [B * N, S, D]: the transformer joins those of a row
            embeds = self._stack([row.conditioning["image_embeds"] for row in rows])
            arguments["encoder_hidden_states_image"] = embeds.flatten(0, 1)
        return arguments

    def _stack(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.stack(list(tensors)).to(self.device, self.dtype)

    def _guidance(self, expert: Expert) -> str:
        """The parameter that scales an expert's guidance; the low-noise one has its own where there are two."""
        return "guidance_scale_2" if len(self.config.experts) == 2 and expert == LOW_NOISE else "guidance_scale"

    def finish(self, spec: Spec, conditioning: Tensors, latents: torch.Tensor) -> torch.Tensor:
        """Puts a given first frame back, where it is one of the latents' own."""
        if not (spec.task == "image-to-video" and self._expands(spec)):
            return latents
        return torch.cat([conditioning["image_latents"].to(latents), latents[:, 1:]], dim=1)

    def set_tokens(self, tokens: Tokens | None) -> None:
        self.tokens = tokens
        if self.stage != "denoise":  # a decoder has tiles for what is outside, and no blocks
            return
        while self._seams:
            self._seams.pop().remove()
        for expert in self.experts:
            expert.set_attn_processor(WanAttnProcessor() if tokens is None else Processor(tokens))
            if tokens is not None:
                self._seams.append(wan_tokens.hook(expert, tokens, self.config.expand_timesteps))

    def _latent_shape(self, spec: Spec, conditioning: Tensors) -> tuple[int, int, int, int]:  # noqa: ARG002 - VACE's
        frames = (spec.num_frames - 1) // self.config.temporal_factor + 1
        factor = self.config.spatial_factor
        return self.config.latent_channels, frames, spec.height // factor, spec.width // factor

    def _input(self, row: Row) -> tuple[torch.Tensor, torch.Tensor]:
        """Latents [C, T, H, W] and timestep, 0-dim or one a token [L], as the transformer takes them."""
        latents = self.finish(row.spec, row.conditioning, row.latents.to(self.device))
        timestep = row.timestep.to(self.device)
        if "condition" in row.conditioning:
            return torch.cat([latents, row.conditioning["condition"].to(latents)]), timestep
        if not self._expands(row.spec):
            return latents, timestep
        mask = torch.ones_like(latents[0, :, ::2, ::2])
        if row.spec.task == "image-to-video":
            mask[0] = 0  # the given frame is clean
        return latents, (mask * timestep).flatten()

    def _expands(self, spec: Spec) -> bool:
        """Whether each token has its own timestep: as in diffusers' text- and image-to-video, unlike video-to-video."""
        return self.config.expand_timesteps and spec.task not in self.card.strength_tasks
