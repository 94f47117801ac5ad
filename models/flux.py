"""FLUX.1 dev and schnell: text to image, image to image; FLUX.1 Kontext: image edit, text to image.

Shape letters: B batch, C latent channels, H W latent rows and columns, L packed latents (tokens of 2x2), S text
tokens, D width. Sources: diffusers' `pipelines/flux`, whose numbers this gives; https://github.com/black-forest-labs/flux
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from diffusers import AutoencoderKL, FluxPipeline, FluxTransformer2DModel
from diffusers.models.transformers.transformer_flux import FluxAttnProcessor
from diffusers.pipelines.flux.pipeline_flux import calculate_shift
from diffusers.pipelines.flux.pipeline_flux_kontext import PREFERRED_KONTEXT_RESOLUTIONS
from diffusers.utils.torch_utils import randn_tensor
from PIL.Image import Image
from transformers import CLIPTextModel, T5EncoderModel

from raydiance.models import flux_tokens
from raydiance.models.family import Family, Row, Stage, Tensors
from raydiance.models.flux_attention import Processor
from raydiance.models.flux_config import FluxConfig
from raydiance.models.image_vae import decode_image
from raydiance.models.inputs import Inputs
from raydiance.models.options import LoadOptions
from raydiance.models.seams import Seams
from raydiance.models.solver import Solver
from raydiance.models.spec import Spec
from raydiance.models.tokens import Forward, Tokens
from raydiance.models.weights import dtype_of, load_component, load_scheduler, load_tokenizer

MAX_SOLVERS = 256
"""Schedules kept: each size and number of steps has its own."""


class Flux(Family):
    """Latents are packed, [L, 4C].

    Conditioning: `prompt_embeds` [S, D] and `pooled_prompt_embeds` [D], both again with `negative_` before their name
    where true classifier-free guidance is used; `image_mean` and `image_std` [C, H, W] of a given picture's latents;
    `reference_latents` [C, H, W], of a size of their own.

    Raises:
        CheckpointError: names the folder and what is missing or not supported.
    """

    def __init__(self, folder: Path, stage: Stage, model_id: str, options: LoadOptions) -> None:
        self.config = FluxConfig.read(folder)
        self.card = self.config.card(model_id)
        self.stage = stage
        self.device = torch.device(options.device)
        self.dtype = dtype_of(options)
        names = ("tokenizer", "text_encoder", "tokenizer_2", "text_encoder_2", "vae", "transformer", "scheduler")
        parts: dict[str, Any] = dict.fromkeys(names)
        if stage == "encode":
            for tokenizer in ("tokenizer", "tokenizer_2"):
                parts[tokenizer] = load_tokenizer(folder, tokenizer, options)
            parts["text_encoder"] = load_component(CLIPTextModel, folder, "text_encoder", options)
            parts["text_encoder_2"] = load_component(T5EncoderModel, folder, "text_encoder_2", options)
        elif stage == "decode":
            parts["vae"] = load_component(AutoencoderKL, folder, "vae", options)
        elif stage == "denoise":
            parts["transformer"] = load_component(FluxTransformer2DModel, folder, "transformer", options)
            parts["scheduler"] = load_scheduler(folder, options)
        else:
            raise ValueError(f"stage {stage!r} is not one of {', '.join(get_args(Stage))}")
        self.pipeline = FluxPipeline(**parts)
        self._solver = functools.lru_cache(MAX_SOLVERS)(self._new_solver)
        self._seams = Seams()

    # -- stage "encode"

    @torch.no_grad()
    def encode_prompts(self, texts: Sequence[str]) -> list[Tensors]:
        """Per text `prompt_embeds` [S, D] of T5, S being the checkpoint's `max_sequence_length`, and CLIP's
        `pooled_prompt_embeds` [D].

        One forward a text: in a batch the last bits would depend on its size, and with them the conditioning's id.
        """
        return [self._encode_prompt(text) for text in texts]

    def _encode_prompt(self, text: str) -> Tensors:
        embeds, pooled, _ = self.pipeline.encode_prompt(
            text, device=self.device, max_sequence_length=self.config.max_sequence_length
        )
        return {"prompt_embeds": embeds[0], "pooled_prompt_embeds": pooled[0]}

    # -- stage "decode"

    @torch.no_grad()
    def encode_inputs(self, spec: Spec, inputs: Inputs) -> Tensors:
        """`image_mean` and `image_std` for image to image, whose start is drawn from them; `reference_latents` for
        image edit. Raises ValueError for other roles, and for a reference that is too small.
        """
        needed = {a.role for a in self.card.accepts(spec.task)}
        if inputs.roles != needed:
            raise ValueError(f"{spec.task} takes {', '.join(needed) or 'no input'}, not {', '.join(inputs.roles)}")
        config = self.pipeline.vae.config
        if spec.task == "image-edit":
            image = inputs.image("reference")
            latents = self._posterior(image, *self._reference_size(image)).mode()
            return {"reference_latents": ((latents - config.shift_factor) * config.scaling_factor)[0]}
        posterior = self._posterior(inputs.image("init"), spec.height, spec.width)
        mean = (posterior.mean - config.shift_factor) * config.scaling_factor
        return {"image_mean": mean[0], "image_std": (posterior.std * config.scaling_factor)[0]}

    def _posterior(self, image: Image, height: int, width: int) -> Any:
        """The VAE's distribution of a picture's latents, scaled to a size first."""
        processor, vae = self.pipeline.image_processor, self.pipeline.vae
        pixels = processor.preprocess(image, height, width)
        return vae.encode(pixels.to(vae.device, vae.dtype)).latent_dist

    def _reference_size(self, image: Image) -> tuple[int, int]:
        """Height and width, of those that Kontext was trained on, nearest in aspect ratio."""
        height, width = self.pipeline.image_processor.get_default_height_width(image)
        multiple = self.card.size_multiple
        if not height or not width:
            raise ValueError(f"a reference of {image.width}x{image.height} is smaller than {multiple}x{multiple}")
        ratio = width / height
        _, width, height = min((abs(ratio - w / h), w, h) for w, h in PREFERRED_KONTEXT_RESOLUTIONS)
        return height // multiple * multiple, width // multiple * multiple

    @torch.no_grad()
    def decode(self, latents: torch.Tensor, spec: Spec) -> Iterator[np.ndarray]:
        """Packed latents [L, 4C] -> one chunk, uint8 [1, height, width, 3]; none where a rank is to have no tiles."""
        vae = self.pipeline.vae
        packed = latents[None].to(self.device, vae.dtype)
        z = self.pipeline._unpack_latents(packed, spec.height, spec.width, self.config.spatial_factor)
        z = z / vae.config.scaling_factor + vae.config.shift_factor
        if (image := decode_image(vae, z, self.tokens, self.run)) is not None:
            pixels = self.pipeline.image_processor.postprocess(image, output_type="np")
            yield (pixels * 255).round().astype(np.uint8)

    # -- stage "denoise"

    def new_solver(self, spec: Spec) -> Solver:
        """Shared by all requests of this size and number of steps: a solver is pure."""
        return self._solver(self.card.num_tokens(spec.height, spec.width, 1), spec.num_inference_steps)

    def _new_solver(self, num_tokens: int, num_inference_steps: int) -> Solver:
        config = self.pipeline.scheduler.config
        mu = calculate_shift(
            num_tokens,
            config.get("base_image_seq_len", 256),
            config.get("max_image_seq_len", 4096),
            config.get("base_shift", 0.5),
            config.get("max_shift", 1.15),
        )
        flow_sigmas = config.get("use_flow_sigmas", False)  # then the scheduler makes its own
        return Solver(
            self.pipeline.scheduler,
            num_inference_steps,
            mu=mu if config.get("use_dynamic_shifting", False) else None,
            sigmas=None if flow_sigmas else list(np.linspace(1.0, 1 / num_inference_steps, num_inference_steps)),
        )

    def initial_latents(
        self, spec: Spec, conditioning: Tensors, solver: Solver, generator: torch.Generator
    ) -> torch.Tensor:
        """[L, 4C], fp32: diffusers' numbers for this seed, drawn in the dtypes in which it draws them.

        A picture's latents are drawn from the VAE's posterior first: here, so that its conditioning has no seed.
        """
        height, width = self._latent_size(spec)
        shape = (self.config.latent_channels, height, width)
        if spec.task == "image-to-image":
            mean, std = (conditioning[name].to(self.device) for name in ("image_mean", "image_std"))
            image = mean + std * randn_tensor(shape, generator, self.device, std.dtype)
        noise: torch.Tensor = randn_tensor(shape, generator, self.device, self.dtype).float()
        if spec.task == "image-to-image":
            noise = solver.add_noise(image.float(), noise, spec.first_step)
        return self._pack(noise)

    def num_tokens(self, spec: Spec, conditioning: Tensors) -> int:
        num_tokens = super().num_tokens(spec, conditioning) + len(conditioning["prompt_embeds"])
        if "reference_latents" in conditioning:
            num_tokens += conditioning["reference_latents"][0].numel() // 4
        return num_tokens

    def batch_key(self, spec: Spec, conditioning: Tensors) -> tuple[object, ...]:
        """Position ids have no batch axis: rows have the same latent rows and columns, not only as many tokens."""
        reference = conditioning.get("reference_latents")
        return (
            *self._latent_size(spec),
            *conditioning["prompt_embeds"].shape,
            None if reference is None else tuple(reference.shape),
        )

    @torch.no_grad()
    def predict(self, rows: Sequence[Row]) -> list[torch.Tensor]:
        """Two forwards, as diffusers does: every row with its prompt, then the guided ones with their negative one."""
        guided = [i for i, row in enumerate(rows) if self.card.uses_negative(row.spec)]
        forwards = [self._forward(rows, "")]
        if guided:
            forwards.append(self._forward([rows[i] for i in guided], "negative_"))
        predictions, *negative = map(list, self.run(forwards))
        if guided:
            for i, unconditional in zip(guided, negative[0], strict=True):
                scale = rows[i].spec.extra["true_cfg_scale"]
                predictions[i] = unconditional + scale * (predictions[i] - unconditional)
        return [prediction.float() for prediction in predictions]

    def _forward(self, rows: Sequence[Row], prefix: str) -> Forward:
        """Of predictions [B, L, 4C].

        Args:
            prefix: of the names of the text's tensors, "" or "negative_".
        """
        shape = len(rows), *rows[0].latents.shape
        return Forward(lambda: self._transform(rows, prefix), shape, self.dtype, self.device)

    def _transform(self, rows: Sequence[Row], prefix: str) -> torch.Tensor:
        embeds, pooled = (
            torch.stack([row.conditioning[prefix + name] for row in rows]).to(self.device, self.dtype)
            for name in ("prompt_embeds", "pooled_prompt_embeds")
        )
        guidance = None
        if self.card.has_guidance:
            scales = [row.spec.guidance_scale for row in rows]
            guidance = torch.tensor(scales, dtype=torch.float32, device=self.device)
        outputs: torch.Tensor = self.pipeline.transformer(
            hidden_states=torch.stack([self._tokens(row) for row in rows]),
            timestep=torch.stack([row.timestep for row in rows]).to(self.device, self.dtype) / 1000,
            guidance=guidance,
            pooled_projections=pooled,
            encoder_hidden_states=embeds,
            txt_ids=torch.zeros(embeds.shape[1], 3, device=self.device),
            img_ids=self._ids(rows[0]),
            return_dict=False,
        )[0]
        return outputs[:, : len(rows[0].latents)]

    def finish(self, spec: Spec, conditioning: Tensors, latents: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """As they are: the decoder unpacks them."""
        return latents

    def set_tokens(self, tokens: Tokens | None) -> None:
        self.tokens = tokens
        if self.stage != "denoise":  # a decoder has tiles for what is outside, and no blocks
            return
        self._seams.remove()
        transformer = self.pipeline.transformer
        transformer.set_attn_processor(FluxAttnProcessor() if tokens is None else Processor(tokens))
        if tokens is not None:
            self._seams = flux_tokens.hook(transformer, tokens)

    def _latent_size(self, spec: Spec) -> tuple[int, int]:
        return spec.height // self.config.spatial_factor, spec.width // self.config.spatial_factor

    def _pack(self, latents: torch.Tensor) -> torch.Tensor:
        """[C, H, W] -> [L, 4C]."""
        packed: torch.Tensor = self.pipeline._pack_latents(latents[None], 1, *latents.shape)[0]
        return packed

    def _tokens(self, row: Row) -> torch.Tensor:
        """[L, 4C], the reference's after those that are denoised."""
        latents = row.latents.to(self.device, self.dtype)
        if "reference_latents" not in row.conditioning:
            return latents
        reference = row.conditioning["reference_latents"].to(self.device, self.dtype)
        return torch.cat([latents, self._pack(reference)])

    def _ids(self, row: Row) -> torch.Tensor:
        """[L, 3]: which picture (0 is the one that is denoised, 1 the reference), row and column."""
        ids = self._grid(*self._latent_size(row.spec))
        if "reference_latents" not in row.conditioning:
            return ids
        reference = self._grid(*row.conditioning["reference_latents"].shape[1:])
        reference[:, 0] = 1
        return torch.cat([ids, reference])

    def _grid(self, height: int, width: int) -> torch.Tensor:
        """[L, 3] of the first picture, of latents [C, height, width]."""
        ids: torch.Tensor = self.pipeline._prepare_latent_image_ids(
            1, height // 2, width // 2, self.device, torch.float32
        )
        return ids
