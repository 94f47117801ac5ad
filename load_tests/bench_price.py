"""Is a request's price right before any work is done? The embedded model is calibrated here, then generates sizes,
lengths, batches and steps that calibration has not seen, one after the other: each is priced first, as a server would,
and what it took corrects the next price. One core, to which the process is pinned, and one torch thread.

    python load_tests/bench_price.py [--quick] [--json FILE] [--core N]

The truth is the median of several generations of a case, from its prompt to its file, without Ray and HTTP. Nothing is
reported unless each of them gave the frames of one that was not timed.
"""

from __future__ import annotations

import os
import random
import sys
from dataclasses import replace
from statistics import fmean

import numpy as np
from report import median, metric, parser, publish

from raydiance.deploy.studio import QUICK_ROUNDS, ROUNDS, open_studio
from raydiance.models.card import ModelCard
from raydiance.models.tiny import CHECKPOINT
from raydiance.serve.cli.calibrate import write_file
from raydiance.serve.config import load_config
from raydiance.serve.engine import memory
from raydiance.serve.engine.cost_design import PROMPT, Case, design, spec_of
from raydiance.serve.engine.cost_fit import errors, fit, quantile
from raydiance.serve.engine.cost_measure import Made, Studio, generate, measure
from raydiance.serve.engine.price import Pricing

SIZES = ((16, 32), (32, 48), (48, 48), (48, 80), (96, 96), (64, 112))
FRAMES = (1, 5, 13, 21)
ROWS = (1, 1, 3, 6)
STEPS = (4, 10, 16, 24)
SEED = 5
MAX_TOKENS = 30_000
"""Of all steps of a case: longer ones would take most of the time, and say no more."""


def main() -> int:
    args = parser(__doc__)
    args.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)), help="that everything runs on")
    args.add_argument("--cases", type=int, default=48)
    args.add_argument("--repeats", type=int, default=3, help="generations of each case")
    options = args.parse_args()
    num_cases, repeats = (12, 1) if options.quick else (options.cases, options.repeats)
    settings = memory.environment("cpu")
    if not settings.items() <= os.environ.items():  # those of a stage; glibc reads them when a process starts
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **settings})  # noqa: S606
    os.sched_setaffinity(0, {options.core})
    config = load_config({"model": "tiny", "denoiser.num_threads": 1})
    studio = open_studio(CHECKPOINT, config, config.models[0], write_file)
    calibration = design(studio.card, quick=options.quick)
    samples = measure(studio, calibration, rounds=QUICK_ROUNDS if options.quick else ROUNDS)
    model = fit(samples)
    for part, stats in errors(model, samples).items():
        print(f"fitted {part:10} {stats.count:3} measured, error mean {stats.mean:6.1%}, p95 {stats.p95:6.1%}")
    bench = Bench(studio, Pricing(model), Pricing(model))
    most = MAX_TOKENS // 6 if options.quick else MAX_TOKENS
    for case in held_out(studio.card, num_cases, calibration, most):
        if (problem := bench.run(case, repeats)) is not None:
            print(f"not reported: {problem}", file=sys.stderr)
            return 1
    publish(
        {
            "price_error_mean": metric(fmean(bench.errors), "ratio", "<= 0.10"),
            "price_error_p95": metric(quantile(bench.errors, 0.95), "ratio", "<= 0.20"),
            "uncorrected_error_mean": metric(fmean(bench.uncorrected), "ratio", "-"),
            "uncorrected_error_p95": metric(quantile(bench.uncorrected, 0.95), "ratio", "-"),
            "step_error_mean": metric(bench.pricing.error_stats("step").mean, "ratio", "-"),
            "cases": metric(len(bench.errors), "", ">= 40"),
        },
        options.json,
    )
    return 0


def held_out(card: ModelCard, count: int, calibration: list[Case], most: int) -> list[Case]:
    """Cases of no size that was calibrated, in an order that is the same every time.

    Args:
        most: tokens in all forwards of a case.
    """
    drawn, cases = random.Random(SEED), []  # noqa: S311 - nothing secret
    seen = {(case.spec.height, case.spec.width, case.spec.num_frames) for case in calibration}
    while len(cases) < count:
        (height, width), frames = drawn.choice(SIZES), drawn.choice(FRAMES)
        rows, steps, guided = drawn.choice(ROWS), drawn.choice(STEPS), drawn.random() < 0.75
        task = "text-to-image" if frames == 1 else "text-to-video"
        spec = spec_of(card, task, 1, 1, guided=guided)
        spec = replace(spec, height=height, width=width, num_frames=frames, num_inference_steps=steps, prompt=PROMPT)
        case = Case(card.check(spec), rows)
        tokens = card.num_tokens(height, width, frames) * rows * steps * (1 + guided)
        if tokens <= most and case not in cases and (height, width, frames) not in seen:
            cases.append(case)
    return cases


class Bench:
    """Args:
    pricing: is corrected by what it sees.
    fitted: is not.
    """

    def __init__(self, studio: Studio, pricing: Pricing, fitted: Pricing) -> None:
        self.pricing = pricing
        self.errors: list[float] = []
        self.uncorrected: list[float] = []
        self._studio, self._fitted = studio, fitted

    def run(self, case: Case, repeats: int) -> str | None:
        """Prices a case, generates it, and corrects by what that took; says what is wrong with its frames, if so."""
        spec, card = case.spec, self._studio.card
        untimed = generate(self._studio, case)
        price, fitted = (p.price(spec, card, batch=case.num_rows).total_s for p in (self.pricing, self._fitted))
        made = [generate(self._studio, case) for _ in range(repeats)]
        what = (
            f"{case.num_rows} x {spec.width}x{spec.height}, {spec.num_frames} frames, {spec.num_inference_steps} steps"
        )
        for each in made:
            if not same(each, untimed):
                return f"{what}: the frames of a timed generation are not those of one that was not timed"
        truth = median([each.seconds for each in made])
        self.errors.append(abs(price - truth) / truth)
        self.uncorrected.append(abs(fitted - truth) / truth)
        print(f"{what:44} price {price:7.3f} s   took {truth:7.3f} s   {price / truth - 1:+6.1%}", flush=True)
        for sample in (s for each in made for s in each.samples if s.part != "tokens"):
            self.pricing.observe_part(sample.part, sample.work, sample.seconds)
        return None


def same(made: Made, other: Made) -> bool:
    """Whether the first row's frames are equal, and show something."""
    ours, theirs = np.concatenate(made.frames), np.concatenate(other.frames)
    return bool(np.array_equal(ours, theirs) and ours.std() > 0)


if __name__ == "__main__":
    sys.exit(main())
