"""LTX-2: text and first frame to video with sound, both denoised by one transformer.

Shape letters: S video tokens, C their channels, L audio tokens, A their channels, N text tokens.
Sources: diffusers' `pipelines/ltx2`, whose numbers this gives; https://arxiv.org/abs/2601.03233
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from diffusers import (
    AutoencoderKLLTX2Audio,
    AutoencoderKLLTX2Video,
    LTX2ImageToVideoPipeline,
    LTX2Pipeline,
    LTX2VideoTransformer3DModel,
)
from diffusers.pipelines.ltx2 import vocoder
from diffusers.pipelines.ltx2.connectors import LTX2TextConnectors
from diffusers.pipelines.ltx2.pipeline_ltx2 import calculate_shift
from diffusers.pipelines.ltx2.pipeline_ltx2_image2video import retrieve_latents
from diffusers.pipelines.ltx2.utils import DEFAULT_IMAGE_CRF, apply_image_conditioning_crf
from diffusers.utils.torch_utils import randn_tensor
from PIL import Image
from transformers import Gemma3ForConditionalGeneration

from raydiance.models import ltx_attention, ltx_guidance, ltx_tokens
from raydiance.models.family import Audio, Family, Row, Stage, Tensors
from raydiance.models.inputs import Inputs
from raydiance.models.ltx_config import LTXConfig
from raydiance.models.ltx_guidance import Pair, Prediction, Scales
from raydiance.models.ltx_vae import decode_video
from raydiance.models.options import LoadOptions
from raydiance.models.seams import Seams
from raydiance.models.solver import Solver
from raydiance.models.spec import Spec
from raydiance.models.tokens import Forward, Tokens
from raydiance.models.weights import dtype_of, load_component, load_scheduler, load_tokenizer

MAX_SOLVERS = 64
_TEXT = ("prompt_embeds", "audio_prompt_embeds", "prompt_mask")
Call = tuple[str, int]
"""A row of a forward: which velocity of a `Prediction`, and of which of the rows that are predicted."""


class LTX(Family):
    """Latents are one flat tensor: the video's, packed [S, C], then the sound's, packed [L, A].

    Conditioning: `prompt_embeds` [N, D], `audio_prompt_embeds` [N, D'], `prompt_mask` [N] and with guidance the same
    with `negative_` before them; `image_latents` [C, 1, H, W] of a given first frame.

    Raises:
        CheckpointError: names the folder and what is missing or not supported.
    """

    def __init__(self, folder: Path, stage: Stage, model_id: str, options: LoadOptions) -> None:
        self.config = LTXConfig.read(folder)
        self.card = self.config.card(model_id)
        self.stage = stage
        self.device = torch.device(options.device)
        self.dtype = dtype_of(options)
        names = ("tokenizer", "text_encoder", "connectors", "vae", "audio_vae", "vocoder", "transformer", "scheduler")
        parts: dict[str, Any] = dict.fromkeys(names)
        if stage == "encode":
            parts["tokenizer"] = load_tokenizer(folder, "tokenizer", options)
            parts["text_encoder"] = load_component(Gemma3ForConditionalGeneration, folder, "text_encoder", options)
            parts["connectors"] = load_component(LTX2TextConnectors, folder, "connectors", options)
        elif stage == "decode":
            parts["vae"] = load_component(AutoencoderKLLTX2Video, folder, "vae", options)
            parts["audio_vae"] = load_component(AutoencoderKLLTX2Audio, folder, "audio_vae", options)
            parts["vocoder"] = load_component(getattr(vocoder, self.config.vocoder), folder, "vocoder", options)
        elif stage == "denoise":
            parts["transformer"] = load_component(LTX2VideoTransformer3DModel, folder, "transformer", options)
            parts["scheduler"] = load_scheduler(folder, options)
        else:
            raise ValueError(f"stage {stage!r} is not one of {', '.join(get_args(Stage))}")
        self.pipeline = LTX2Pipeline(**parts)
        self._solver = functools.lru_cache(MAX_SOLVERS)(self._new_solver)
        self._masks_text = True
        self._seams = Seams()

    # -- stage "encode"

    @torch.no_grad()
    def encode_prompts(self, texts: Sequence[str]) -> list[Tensors]:
        """One forward a text: in a batch the last bits would depend on its size, and so would the conditioning's id."""
        return [self._encode_prompt(text) for text in texts]

    def _encode_prompt(self, text: str) -> Tensors:
        states, mask = self.pipeline._get_gemma_prompt_embeds(
            text, max_sequence_length=self.config.max_sequence_length, device=self.device
        )
        side = self.pipeline.tokenizer.padding_side
        embeds = self.pipeline.connectors(states, mask, padding_side=side)
        return {name: tensor[0] for name, tensor in zip(_TEXT, embeds, strict=True)}

    # -- stage "decode"

    @torch.no_grad()
    def encode_inputs(self, spec: Spec, inputs: Inputs) -> Tensors:
        """`image_latents` [C, 1, H, W], fp32, of a picture that was compressed as those of the training were."""
        needed = {a.role for a in self.card.accepts(spec.task)}
        if inputs.roles != needed:
            raise ValueError(f"{spec.task} takes {', '.join(needed) or 'no input'}, not {', '.join(inputs.roles)}")
        given = np.array(inputs.image("first_frame").convert("RGB"))
        image = Image.fromarray(apply_image_conditioning_crf(given, DEFAULT_IMAGE_CRF))
        vae = self.pipeline.vae
        pixels = self.pipeline.video_processor.preprocess(image, height=spec.height, width=spec.width)
        encoded = vae.encode(pixels.unsqueeze(2).to(vae.device, vae.dtype))
        latents = retrieve_latents(encoded, sample_mode="argmax").float()
        normalised = LTX2ImageToVideoPipeline._normalize_latents(latents, vae.latents_mean, vae.latents_std)
        return {"image_latents": normalised[0]}

    @torch.no_grad()
    def decode(self, latents: torch.Tensor, spec: Spec) -> Iterator[np.ndarray]:
        """uint8 [T, H, W, 3], in one chunk; in none where a rank is to have no tiles.

        diffusers' pipeline lets a decoder with `timestep_conditioning` see latents without noise by default: so here.
        """
        vae, (video, _) = self.pipeline.vae, self._split(latents.to(self.device), spec)
        _, frames, rows, cols = self.config.latent_shape(spec)
        z = self.pipeline._unpack_latents(video[None].to(self.dtype), frames, rows, cols)
        z = self.pipeline._denormalize_latents(z, vae.latents_mean, vae.latents_std, vae.config.scaling_factor)
        timestep = torch.zeros(1, device=self.device, dtype=z.dtype) if vae.config.timestep_conditioning else None
        if (pixels := decode_video(vae, z.to(vae.dtype), timestep, self.tokens, self.run)) is not None:
            made = self.pipeline.video_processor.postprocess_video(pixels, output_type="np")[0]
            yield (made * 255).round().astype(np.uint8)

    @torch.no_grad()
    def decode_audio(self, latents: torch.Tensor, spec: Spec) -> Audio | None:
        """The waveform, through mel spectrogram and vocoder."""
        if not spec.audio:
            return None
        vae, (_, sound) = self.pipeline.audio_vae, self._split(latents.to(self.device), spec)
        _, length, bins = self.config.audio_shape(spec)
        z = self.pipeline._denormalize_audio_latents(sound[None], vae.latents_mean, vae.latents_std)
        z = self.pipeline._unpack_audio_latents(z, length, num_mel_bins=bins)
        mel = vae.decode(z.to(vae.dtype), return_dict=False)[0]
        samples = self.pipeline.vocoder(mel)[0]
        return Audio(samples.float().cpu().numpy(), self.pipeline.vocoder.config.output_sampling_rate)

    # -- stage "denoise"

    def new_solver(self, spec: Spec) -> Solver:
        """Shared by all requests of this length and number of steps."""
        return self._solver(spec.num_inference_steps, self._video_tokens(spec))

    def _new_solver(self, steps: int, tokens: int) -> Solver:
        scheduler, sigmas = self.pipeline.scheduler, list(self.config.sigmas)
        config = scheduler.config
        mu = calculate_shift(
            tokens,
            config.get("base_image_seq_len", 1024),
            config.get("max_image_seq_len", 4096),
            config.get("base_shift", 0.95),
            config.get("max_shift", 2.05),
        )
        return Solver(scheduler, sigmas=sigmas or list(np.linspace(1.0, 1 / steps, steps)), mu=mu)

    def initial_latents(
        self,
        spec: Spec,
        conditioning: Tensors,
        solver: Solver,  # noqa: ARG002
        generator: torch.Generator,
    ) -> torch.Tensor:
        video = randn_tensor((1, *self.config.latent_shape(spec)), generator, self.device, torch.float32)
        sound = randn_tensor((1, *self.config.audio_shape(spec)), generator, self.device, torch.float32)
        packed = self.pipeline._pack_latents(video)[0], self.pipeline._pack_audio_latents(sound)[0]
        return self.finish(spec, conditioning, torch.cat([part.flatten() for part in packed]))

    def num_tokens(self, spec: Spec, conditioning: Tensors) -> int:  # noqa: ARG002
        return self._video_tokens(spec) + self.config.audio_shape(spec)[1]

    def batch_key(self, spec: Spec, conditioning: Tensors) -> tuple[object, ...]:
        """Frames per second are part of the tokens' positions."""
        sizes = (*self.config.latent_shape(spec), *self.config.audio_shape(spec), spec.fps)
        return (*sizes, *conditioning["prompt_embeds"].shape, "image_latents" in conditioning)

    @torch.no_grad()
    def predict(self, rows: Sequence[Row]) -> list[torch.Tensor]:
        """One forward of every row with its prompt, the guided ones' negative prompts before them; then one of those
        that want spatio-temporal guidance, and one of those that want the modalities apart: diffusers' forwards.
        Negative prompts have one of their own where what is outside runs several at once."""
        scales = [Scales.of(row.spec) for row in rows]
        guided = [("unconditional", i) for i, row in enumerate(rows) if self.card.uses_negative(row.spec)]
        every = [("conditional", i) for i in range(len(rows))]
        apart = self.tokens is not None and self.tokens.concurrency > 1
        branches = [guided, every] if apart else [guided + every]
        branches.append([("perturbed", i) for i, s in enumerate(scales) if s.perturbs])
        branches.append([("isolated", i) for i, s in enumerate(scales) if s.isolates])
        branches = [calls for calls in branches if calls]
        found: list[dict[str, Pair]] = [{} for _ in rows]
        for calls, outputs in zip(branches, self.run([self._forward(rows, c) for c in branches]), strict=True):
            for (name, i), output in zip(calls, outputs.float(), strict=True):
                found[i][name] = self._split(output, rows[i].spec)
        return [self._velocity(row, Prediction(**f), s) for row, f, s in zip(rows, found, scales, strict=True)]

    def _velocity(self, row: Row, prediction: Prediction, scales: Scales) -> torch.Tensor:
        """Guided, and nothing where the first frame is given: it stays as it is."""
        sigma = self.new_solver(row.spec).sigmas[row.step_index].to(self.device)
        latents = self._split(self._latents(row), row.spec)
        video, sound = ltx_guidance.guide(prediction, latents, sigma, scales)
        if "image_latents" in row.conditioning:
            video[: self._frame_tokens(row.spec)] = 0
        return torch.cat([video.flatten(), sound.flatten()])

    def _forward(self, rows: Sequence[Row], calls: Sequence[Call]) -> Forward:
        """Of velocities, shaped like latents [B, S * C + L * A]. Calls are all of the same kind, or with a prompt."""
        some, prefixes = [rows[i] for _, i in calls], ["negative_" if n == "unconditional" else "" for n, _ in calls]
        shape = len(calls), *rows[0].latents.shape
        options = self._options(calls[0][0])
        return Forward(lambda: self._transform(some, prefixes, **options), shape, self.dtype, self.device)

    def _options(self, name: str) -> dict[str, Any]:
        if name == "perturbed":
            return {"spatio_temporal_guidance_blocks": list(self.config.stg_blocks)}
        return {"isolate_modalities": True} if name == "isolated" else {}

    def _transform(self, rows: Sequence[Row], prefixes: Sequence[str], **options: Any) -> torch.Tensor:
        spec, transformer = rows[0].spec, self.pipeline.transformer
        _, frames, height, width = self.config.latent_shape(spec)
        length = self.config.audio_shape(spec)[1]
        parts = [self._split(self._latents(row), row.spec) for row in rows]
        timestep = torch.stack([row.timestep.to(self.device) for row in rows])
        text: Mapping[str, torch.Tensor] = {
            name: torch.stack([row.conditioning[prefix + name] for row, prefix in zip(rows, prefixes, strict=True)])
            for name in _TEXT
        }
        mask = text["prompt_mask"].to(self.device) if self._masks_text else None
        timesteps: dict[str, Any] = {"timestep": timestep}
        if "image_latents" in rows[0].conditioning:
            clean = torch.arange(self._video_tokens(spec), device=self.device) < self._frame_tokens(spec)
            timesteps = {"timestep": timestep[:, None] * (1 - clean.to(timestep.dtype)), "audio_timestep": timestep}
        coordinates = transformer.rope.prepare_video_coords(len(rows), frames, height, width, self.device, fps=spec.fps)
        video, sound = transformer(
            hidden_states=torch.stack([v for v, _ in parts]).to(self.dtype),
            audio_hidden_states=torch.stack([a for _, a in parts]).to(self.dtype),
            encoder_hidden_states=text["prompt_embeds"].to(self.device, self.dtype),
            audio_encoder_hidden_states=text["audio_prompt_embeds"].to(self.device, self.dtype),
            **timesteps,
            sigma=timestep,
            encoder_attention_mask=mask,
            audio_encoder_attention_mask=mask,
            num_frames=frames,
            height=height,
            width=width,
            fps=spec.fps,
            audio_num_frames=length,
            video_coords=coordinates,
            audio_coords=transformer.audio_rope.prepare_audio_coords(len(rows), length, self.device),
            use_cross_timestep=True,
            return_dict=False,
            **options,
        )
        return torch.cat([video.flatten(1), sound.flatten(1)], dim=1)

    def finish(self, spec: Spec, conditioning: Tensors, latents: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """Puts a given first frame back."""
        if "image_latents" not in conditioning:
            return latents
        frame = self.pipeline._pack_latents(conditioning["image_latents"][None].to(latents))[0].flatten()
        return torch.cat([frame, latents[len(frame) :]])

    def set_tokens(self, tokens: Tokens | None) -> None:
        self.tokens = tokens
        if self.stage != "denoise":  # a decoder has tiles for what is outside, and no blocks
            return
        self._seams.remove()
        self._masks_text = tokens is None or self.config.pads_text  # a mask that lets all through is none
        ltx_attention.set_processors(self.pipeline.transformer, tokens)
        if tokens is not None:
            self._seams = ltx_tokens.hook(self.pipeline.transformer, tokens)

    def _latents(self, row: Row) -> torch.Tensor:
        return self.finish(row.spec, row.conditioning, row.latents.to(self.device))

    def _split(self, latents: torch.Tensor, spec: Spec) -> tuple[torch.Tensor, torch.Tensor]:
        """Video [S, C] and sound [L, A]."""
        channels, (bands, length, bins) = self.config.latent_channels, self.config.audio_shape(spec)
        at = self._video_tokens(spec) * channels
        return latents[:at].view(-1, channels), latents[at:].view(length, bands * bins)

    def _frame_tokens(self, spec: Spec) -> int:
        _, _, rows, cols = self.config.latent_shape(spec)
        return rows * cols

    def _video_tokens(self, spec: Spec) -> int:
        return self.config.latent_shape(spec)[1] * self._frame_tokens(spec)
