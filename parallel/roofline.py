"""What hiding communication behind compute can buy at most, by arithmetic: no GPU was asked.

python -m raydiance.parallel.roofline

A step takes compute + exchange where one waits for the other, and max(compute, exchange) where they overlap without a
gap and without slowing each other: the gain is the ratio, at most 2. `docs/roofline.md` quotes the table and says what
it leaves out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

ELEMENT_BYTES = 2  # bfloat16
ACHIEVED_FLOPS = 0.5
"""Of the tensor cores' peak, over a whole forward. Assumed; FlashAttention-3 alone reaches 0.75 (arXiv:2407.08608)."""
ACHIEVED_LINK = 0.75
"""Of a link's peak in one direction. Assumed."""
DEGREES = (2, 4, 8)


@dataclass(frozen=True)
class Model:
    """One step of a request.

    Args:
    tokens: that the layers' self-attention sees.
    width: of a token, all heads together.
    token_weights: weights of a layer that a token is multiplied with.
    text_tokens: of cross-attention, whose keys and values every rank makes for itself; 0 where text is among `tokens`.
    branches: forwards a step.
    output_elements: what a forward returns.
    """

    name: str
    num_layers: int
    tokens: int
    width: int
    token_weights: int
    text_tokens: int
    branches: int
    output_elements: int

    @property
    def forward_flops(self) -> int:
        """Multiply-adds count as two."""
        attention = 4 * self.tokens * (self.tokens + self.text_tokens) * self.width
        text = 4 * self.text_tokens * self.width**2
        return self.num_layers * (2 * self.tokens * self.token_weights + attention + text)

    def ulysses_bytes(self, degree: int) -> float:
        """Sent by a rank in a forward: q, k, v and the output, of a share of the tokens, to all but itself."""
        return self._exchanged(4 * (degree - 1) / degree**2)

    def ring_bytes(self, degree: int) -> float:
        """Sent by a rank in a forward: k and v of a share of the tokens, once for every other rank."""
        return self._exchanged(2 * (degree - 1) / degree)

    def _exchanged(self, share: float) -> float:
        """Args:
        share: of all tokens of a layer, in units of their width.
        """
        return self.num_layers * self.tokens * self.width * share * ELEMENT_BYTES


@dataclass(frozen=True)
class Machine:
    """Args:
    peak_tflops: bfloat16, dense.
    link_gb_s: of one GPU to the others, in one direction; all that it sends passes here.
    """

    name: str
    peak_tflops: float
    link_gb_s: float


@dataclass(frozen=True)
class Step:
    compute_s: float
    exchange_s: float

    @property
    def gain(self) -> float:
        """How many times as fast a step is where all that can overlap does."""
        return (self.compute_s + self.exchange_s) / max(self.compute_s, self.exchange_s)


_WAN_WEIGHTS = (
    4 * 5120**2 + 2 * 5120**2 + 2 * 5120 * 13824
)  # self-attention; q and out of cross-attention; feed-forward
MODELS = (
    Model("Wan 14B, 81 frames of 1280x720, guided", 40, 21 * 45 * 80, 5120, _WAN_WEIGHTS, 512, 2, 16 * 21 * 90 * 160),
    Model("Wan 14B, 81 frames of 832x480, guided", 40, 21 * 30 * 52, 5120, _WAN_WEIGHTS, 512, 2, 16 * 21 * 60 * 104),
    Model("FLUX.1 dev, 1024x1024", 57, 64 * 64 + 512, 3072, 12 * 3072**2, 0, 1, 16 * 128 * 128),
)
MACHINES = (
    Machine("H100 or H200 SXM, NVLink", 1979 / 2, 900 / 2),
    Machine("H100 or H200 SXM, 400 Gbit/s each", 1979 / 2, 400 / 8),
    Machine("H100 PCIe, PCIe 5.0 x16", 1513 / 2, 128 / 2),
    Machine("L40S, PCIe 4.0 x16", 362.05, 64 / 2),
    Machine("L40S, 100 Gbit/s each", 362.05, 100 / 8),
)


def ulysses(model: Model, machine: Machine, degree: int) -> Step:
    return _step(model, machine, degree, model.branches * model.ulysses_bytes(degree))


def ring(model: Model, machine: Machine, degree: int) -> Step:
    return _step(model, machine, degree, model.branches * model.ring_bytes(degree))


def cfg(model: Model, machine: Machine, degree: int) -> Step:
    """A branch on either half of the ranks, Ulysses inside of it, and each half is told what the other's returned.

    Raises ValueError for a model of one branch, or ranks that have no halves.
    """
    if model.branches != 2 or degree % 2:
        raise ValueError(f"{model.branches} branches on {degree} ranks are no guidance pair on two halves")
    return _step(model, machine, degree, model.ulysses_bytes(degree // 2) + model.output_elements * ELEMENT_BYTES)


def _step(model: Model, machine: Machine, degree: int, sent_bytes: float) -> Step:
    flops_s = machine.peak_tflops * 1e12 * ACHIEVED_FLOPS
    bytes_s = machine.link_gb_s * 1e9 * ACHIEVED_LINK
    return Step(model.branches * model.forward_flops / degree / flops_s, sent_bytes / bytes_s)


def tables() -> str:
    """In Markdown: one a model."""
    return "\n\n".join("\n".join([f"**{model.name}**", "", *_lines(model)]) for model in MODELS)


def _lines(model: Model) -> Iterator[str]:
    head = ["machine", "GPUs", "compute ms", "Ulysses ms", "gain", "ring ms", "gain", "cfg x Ulysses ms", "gain"]
    yield from (_line(head), _line(["---"] * len(head)))
    for machine in MACHINES:
        for degree in DEGREES:
            steps = [ulysses(model, machine, degree), ring(model, machine, degree)]
            if model.branches == 2:
                steps.append(cfg(model, machine, degree))
            cells = [machine.name, str(degree), _ms(steps[0].compute_s)]
            for step in steps:
                cells += [_ms(step.exchange_s), f"{step.gain:.2f}"]
            yield _line([*cells, *["-"] * (len(head) - len(cells))])


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f}" if seconds >= 0.01 else f"{seconds * 1e3:.1f}"


if __name__ == "__main__":
    print(tables())
