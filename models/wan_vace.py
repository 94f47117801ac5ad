"""Wan VACE: a branch of transformer blocks that is given a video, its mask and reference pictures.

Shape letters: C latent channels, R reference pictures, T latent frames, H W latent rows and columns, L tokens.
Sources: diffusers' `pipeline_wan_vace.py`, whose numbers this gives; https://arxiv.org/abs/2503.07598
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from diffusers import WanVACETransformer3DModel

from raydiance.models.family import Row, Tensors
from raydiance.models.inputs import Inputs
from raydiance.models.spec import Spec
from raydiance.models.wan import Wan
from raydiance.models.wan_conditions import check_roles, vace_condition


class WanVACE(Wan):
    """Conditioning: the prompts' embeddings as Wan's, and `condition` [2C + 64, R + T, H, W].

    Latents are [C, R + T, H, W]: references are denoised along, and dropped in `finish`.
    """

    transformer_class = WanVACETransformer3DModel

    @torch.no_grad()
    def encode_inputs(self, spec: Spec, inputs: Inputs) -> Tensors:
        """`condition`; of an empty video where none is given. Raises ValueError for roles that the task lacks."""
        check_roles(spec, self.card.accepts(spec.task), inputs)
        return {"condition": vace_condition(self.pipeline.vae, spec, inputs, self.config.patch, self.device)}

    def num_tokens(self, spec: Spec, conditioning: Tensors) -> int:
        frame = self.card.num_tokens(spec.height, spec.width, 1)
        return super().num_tokens(spec, conditioning) + frame * self._num_references(spec, conditioning)

    def batch_key(self, spec: Spec, conditioning: Tensors) -> tuple[object, ...]:
        return (*super().batch_key(spec, conditioning), self._num_references(spec, conditioning))

    def finish(self, spec: Spec, conditioning: Tensors, latents: torch.Tensor) -> torch.Tensor:
        """Without the references: [C, T, H, W]."""
        return latents[:, self._num_references(spec, conditioning) :]

    def _latent_shape(self, spec: Spec, conditioning: Tensors) -> tuple[int, int, int, int]:
        channels, _, *size = super()._latent_shape(spec, conditioning)
        return channels, conditioning["condition"].shape[1], size[0], size[1]

    def _num_references(self, spec: Spec, conditioning: Tensors) -> int:
        frames = super()._latent_shape(spec, conditioning)[1]
        return conditioning["condition"].shape[1] - frames

    def _arguments(self, rows: Sequence[Row]) -> dict[str, torch.Tensor]:
        """The scale is [layers, B, 1, 1]: diffusers takes one a layer, and each row here has its own."""
        layers = len(next(iter(self.experts)).config.vace_layers)
        scale = self._stack([torch.tensor(self.card.value(row.spec, "conditioning_scale")) for row in rows])
        return {
            "hidden_states": self._stack([row.latents for row in rows]),
            "timestep": torch.stack([row.timestep.to(self.device) for row in rows]),
            "control_hidden_states": self._stack([row.conditioning["condition"] for row in rows]),
            "control_hidden_states_scale": scale.view(1, -1, 1, 1).expand(layers, -1, 1, 1),
        }
