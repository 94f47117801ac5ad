"""HiDream-I1 Full, Dev and Fast: text to image, and image to image from a noised picture.

Shape letters: B batch, C latent channels, H W latent rows and columns, S text tokens, N layers of Llama, D width.
Sources: diffusers' `pipelines/hidream_image`, whose numbers text to image gives; https://arxiv.org/abs/2505.22705
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from diffusers import AutoencoderKL, HiDreamImagePipeline, HiDreamImageTransformer2DModel, UniPCMultistepScheduler
from diffusers.models.transformers.transformer_hidream_image import HiDreamAttnProcessor
from diffusers.pipelines.flux.pipeline_flux_img2img import retrieve_latents
from diffusers.pipelines.hidream_image.pipeline_hidream_image import calculate_shift
from diffusers.utils.torch_utils import randn_tensor
from transformers import CLIPTextModelWithProjection, LlamaForCausalLM, T5EncoderModel

from raydiance.models import hidream_tokens
from raydiance.models.family import Family, Row, Stage, Tensors
from raydiance.models.hidream_attention import Processor
from raydiance.models.hidream_config import HiDreamConfig, check_elsewhere
from raydiance.models.image_vae import decode_image
from raydiance.models.inputs import Inputs
from raydiance.models.options import LoadOptions
from raydiance.models.seams import Seams
from raydiance.models.solver import Solver
from raydiance.models.spec import Spec
from raydiance.models.tokens import Forward, Tokens
from raydiance.models.weights import dtype_of, load_component, load_scheduler, load_tokenizer

ENCODERS = {
    "text_encoder": CLIPTextModelWithProjection,
    "text_encoder_2": CLIPTextModelWithProjection,
    "text_encoder_3": T5EncoderModel,
    "text_encoder_4": LlamaForCausalLM,
}
TOKENIZERS = ("tokenizer", "tokenizer_2", "tokenizer_3", "tokenizer_4")


class HiDream(Family):
    """Latents are [C, H, W].

    Conditioning: `prompt_embeds_t5` [S, D], `prompt_embeds_llama3` [N, S, D] and both CLIPs' `pooled_prompt_embeds`
    [D], all again with `negative_` before their name where guidance is used; `image_latents` [C, H, W] of a given
    picture.

    Raises:
        CheckpointError: names the folder and what is missing or not supported.
    """

    def __init__(self, folder: Path, stage: Stage, model_id: str, options: LoadOptions) -> None:
        self.config = HiDreamConfig.read(folder)
        self.card = self.config.card(model_id)
        self.stage = stage
        self.device = torch.device(options.device)
        self.dtype = dtype_of(options)
        parts: dict[str, Any] = dict.fromkeys((*TOKENIZERS, *ENCODERS, "vae", "transformer", "scheduler"))
        if stage == "encode":
            check_elsewhere(folder, options.components)
            parts |= {name: load_tokenizer(folder, name, options) for name in TOKENIZERS}
            parts |= {name: load_component(kind, folder, name, options) for name, kind in ENCODERS.items()}
        elif stage == "decode":
            parts["vae"] = load_component(AutoencoderKL, folder, "vae", options)
        elif stage == "denoise":
            parts["transformer"] = load_component(HiDreamImageTransformer2DModel, folder, "transformer", options)
            parts["scheduler"] = load_scheduler(folder, options)
        else:
            raise ValueError(f"stage {stage!r} is not one of {', '.join(get_args(Stage))}")
        self.pipeline = HiDreamImagePipeline(**parts)
        self._solver = functools.cache(self._new_solver)
        self._seams = Seams()

    # -- stage "encode"

    @torch.no_grad()
    def encode_prompts(self, texts: Sequence[str]) -> list[Tensors]:
        """See the class; S is the checkpoint's `max_sequence_length`.

        One forward a text: in a batch the last bits would depend on its size, and with them the conditioning's id.
        """
        return [self._encode_prompt(text) for text in texts]

    def _encode_prompt(self, text: str) -> Tensors:
        t5, _, llama, _, pooled, _ = self.pipeline.encode_prompt(
            text,
            do_classifier_free_guidance=False,
            device=self.device,
            max_sequence_length=self.config.max_sequence_length,
        )
        return {"prompt_embeds_t5": t5[0], "prompt_embeds_llama3": llama[:, 0], "pooled_prompt_embeds": pooled[0]}

    # -- stage "decode"

    @torch.no_grad()
    def encode_inputs(self, spec: Spec, inputs: Inputs) -> Tensors:
        """`image_latents` [C, H, W], fp32, of the picture to start from; raises ValueError for other roles."""
        needed = {a.role for a in self.card.accepts(spec.task)}
        if inputs.roles != needed:
            raise ValueError(f"{spec.task} takes {', '.join(needed) or 'no input'}, not {', '.join(inputs.roles)}")
        picture = inputs.image("init")
        pixels = self.pipeline.image_processor.preprocess(picture, height=spec.height, width=spec.width)
        vae = self.pipeline.vae
        latents = retrieve_latents(vae.encode(pixels.to(vae.device, vae.dtype)), sample_mode="argmax")[0].float()
        return {"image_latents": (latents - vae.config.shift_factor) * vae.config.scaling_factor}

    @torch.no_grad()
    def decode(self, latents: torch.Tensor, spec: Spec) -> Iterator[np.ndarray]:  # noqa: ARG002 - the latents say all
        """Latents [C, H, W] -> one chunk, uint8 [1, h, w, 3]; none where a rank is to have no tiles."""
        vae = self.pipeline.vae
        z = latents[None].to(self.device, vae.dtype) / vae.config.scaling_factor + vae.config.shift_factor
        if (pixels := decode_image(vae, z, self.tokens, self.run)) is not None:
            frames = self.pipeline.image_processor.postprocess(pixels, output_type="np")
            yield (frames * 255).round().astype(np.uint8)

    # -- stage "denoise"

    def new_solver(self, spec: Spec) -> Solver:
        """Shared by all requests with this number of steps: a solver is pure."""
        return self._solver(spec.num_inference_steps)

    def _new_solver(self, num_inference_steps: int) -> Solver:
        scheduler = self.pipeline.scheduler
        if isinstance(scheduler, UniPCMultistepScheduler):
            return Solver(scheduler, num_inference_steps)
        # diffusers takes the shift of the largest picture, whatever the size
        return Solver(scheduler, num_inference_steps, mu=calculate_shift(self.config.max_tokens))

    def initial_latents(
        self, spec: Spec, conditioning: Tensors, solver: Solver, generator: torch.Generator
    ) -> torch.Tensor:
        """[C, H, W], fp32: diffusers' numbers for this seed.

        A whole schedule starts from noise alone: its first sigma may be a little below 1.
        """
        noise: torch.Tensor = randn_tensor((1, *self._latent_shape(spec)), generator, self.device, torch.float32)[0]
        if spec.task == "text-to-image" or spec.first_step == 0:
            return noise
        return solver.add_noise(conditioning["image_latents"].to(self.device), noise, spec.first_step)

    def num_tokens(self, spec: Spec, conditioning: Tensors) -> int:
        """Of a block: the picture, which is padded unless it is square, T5's tokens, and Llama's twice."""
        text = conditioning["prompt_embeds_t5"].shape[0] + 2 * conditioning["prompt_embeds_llama3"].shape[1]
        if spec.height != spec.width:
            return self.config.max_tokens + text
        return self.card.num_tokens(spec.height, spec.width, 1) + text

    def batch_key(self, spec: Spec, conditioning: Tensors) -> tuple[object, ...]:
        names = ("prompt_embeds_t5", "prompt_embeds_llama3")
        return (*self._latent_shape(spec), *(tuple(conditioning[name].shape) for name in names))

    @torch.no_grad()
    def predict(self, rows: Sequence[Row]) -> list[torch.Tensor]:
        """One forward, as diffusers runs it: the guided rows with their negative prompt, then every row with its
        prompt. Two, where what is outside runs them at once."""
        guided = [i for i, row in enumerate(rows) if self.card.uses_negative(row.spec)]
        unconditional, conditional = [(rows[i], "negative_") for i in guided], [(row, "") for row in rows]
        apart = bool(guided) and self.tokens is not None and self.tokens.concurrency > 1
        branches = [unconditional, conditional] if apart else [unconditional + conditional]
        outputs = torch.cat(self.run([self._forward(calls) for calls in branches]))
        predictions = list(outputs[len(guided) :])
        for i, negative in zip(guided, outputs, strict=False):
            predictions[i] = negative + rows[i].spec.guidance_scale * (predictions[i] - negative)
        return [prediction.float() for prediction in predictions]

    def _forward(self, calls: Sequence[tuple[Row, str]]) -> Forward:
        """Of velocities [B, C, H, W]; a call is a row and its prompt's prefix."""
        shape = len(calls), *calls[0][0].latents.shape
        return Forward(lambda: self._transform(calls), shape, self.dtype, self.device)

    def _transform(self, calls: Sequence[tuple[Row, str]]) -> torch.Tensor:
        """The transformer gives the velocity's opposite."""

        def embeds(name: str, dim: int = 0) -> torch.Tensor:
            stacked = torch.stack([row.conditioning[prefix + name] for row, prefix in calls], dim=dim)
            return stacked.to(self.device, self.dtype)

        outputs: torch.Tensor = self.pipeline.transformer(
            hidden_states=torch.stack([row.latents for row, _ in calls]).to(self.device, self.dtype),
            timesteps=torch.stack([row.timestep for row, _ in calls]).to(self.device),
            encoder_hidden_states_t5=embeds("prompt_embeds_t5"),
            encoder_hidden_states_llama3=embeds("prompt_embeds_llama3", dim=1),
            pooled_embeds=embeds("pooled_prompt_embeds"),
            return_dict=False,
        )[0]
        return -outputs

    def finish(self, spec: Spec, conditioning: Tensors, latents: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        return latents

    def set_tokens(self, tokens: Tokens | None) -> None:
        self.tokens = tokens
        if self.stage != "denoise":  # a decoder has tiles for what is outside, and no blocks
            return
        self._seams.remove()
        transformer = self.pipeline.transformer
        for block in (*transformer.double_stream_blocks, *transformer.single_stream_blocks):
            block.block.attn1.set_processor(HiDreamAttnProcessor() if tokens is None else Processor(tokens))
        if tokens is not None:
            self._seams = hidream_tokens.hook(transformer, tokens)

    def _latent_shape(self, spec: Spec) -> tuple[int, int, int]:
        factor = self.config.spatial_factor
        return self.config.latent_channels, spec.height // factor, spec.width // factor
