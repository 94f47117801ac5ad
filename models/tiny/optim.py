"""Training on CPUs: the Muon optimizer and linear layers that multiply in bfloat16."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


def orthogonalize(matrices: Tensor) -> Tensor:
    """Five Newton-Schulz steps towards the nearest semi-orthogonal matrix (https://kellerjordan.github.io/posts/muon/).

    Args:
        matrices: [N, rows, cols] with rows <= cols; bfloat16 is accurate enough and the fastest.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    x: Tensor = matrices / (matrices.flatten(1).norm(dim=1).view(-1, 1, 1) + 1e-7)
    for _ in range(5):
        gram = torch.bmm(x, x.transpose(1, 2))
        x = a * x + torch.bmm(b * gram + c * torch.bmm(gram, gram), x)
    return x


class Muon(torch.optim.Optimizer):
    """Momentum whose step is orthogonalized, for the matrices of a network; same-shaped ones are stacked.

    Convolution kernels count as matrices [out_channels, everything else].
    """

    def __init__(self, params: Iterable[nn.Parameter], lr: float, momentum: float = 0.95, weight_decay: float = 0.0):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if closure is not None:
            raise ValueError("Muon takes no closure")
        for group in self.param_groups:
            stacks: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for param in group["params"]:
                if param.grad is not None:
                    stacks[param.shape].append(param)
            for params in stacks.values():
                self._step_stack(params, group["lr"], group["momentum"], group["weight_decay"])

    def _step_stack(self, params: list[Tensor], lr: float, momentum: float, weight_decay: float) -> None:
        rows, cols = params[0].shape[0], params[0][0].numel()
        grads = [param.grad for param in params if param.grad is not None]
        buffers = [self.state[param].setdefault("momentum", torch.zeros_like(param)) for param in params]
        torch._foreach_mul_(buffers, momentum)
        torch._foreach_add_(buffers, grads, alpha=1 - momentum)
        nesterov = torch._foreach_lerp(grads, buffers, momentum)
        stacked = torch.stack([update.reshape(rows, cols) for update in nesterov]).bfloat16()
        if rows > cols:
            updates = orthogonalize(stacked.transpose(1, 2)).transpose(1, 2).float()
        else:
            updates = orthogonalize(stacked).float()
        scale = lr * max(1.0, rows / cols) ** 0.5
        if weight_decay:
            torch._foreach_mul_(params, 1 - lr * weight_decay)
        torch._foreach_add_(params, [update.reshape(params[0].shape) for update in updates], alpha=-scale)


class _LinearBF16(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        x16, weight16 = x.reshape(-1, x.shape[-1]).bfloat16(), weight.bfloat16()
        ctx.save_for_backward(x16, weight16)
        ctx.shape, ctx.has_bias = x.shape, bias is not None
        y = torch.mm(x16, weight16.t()).float()
        if bias is not None:
            y += bias
        return y.view(*x.shape[:-1], weight.shape[0])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x16, weight16 = ctx.saved_tensors
        grad = grads[0].reshape(-1, grads[0].shape[-1])
        grad16 = grad.bfloat16()
        grad_x = torch.mm(grad16, weight16).float().view(ctx.shape) if ctx.needs_input_grad[0] else None
        grad_weight = torch.mm(grad16.t(), x16).float() if ctx.needs_input_grad[1] else None
        return grad_x, grad_weight, grad.sum(0) if ctx.has_bias else None


class LinearBF16(nn.Linear):
    """`nn.Linear` with float32 weights whose training products run in bfloat16 (1.5x faster with AVX512-BF16)."""

    def forward(self, input: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            output: Tensor = _LinearBF16.apply(input, self.weight, self.bias)  # type: ignore[no-untyped-call]
            return output
        return nn.functional.linear(input, self.weight, self.bias)


def use_bf16_linears(model: nn.Module, min_features: int = 64) -> None:
    """Turn every large enough `nn.Linear` of `model` into a `LinearBF16`, in place; the weights stay the same."""
    for module in model.modules():
        if type(module) is nn.Linear and min(module.in_features, module.out_features) >= min_features:
            module.__class__ = LinearBF16
