"""Tokens per second of the language models, side by side: Standard, MoE, NBSR Deep and Fast. Ratios of one run.

    python -m benchmarks.language [--quick] [--batch 256] [--cpu]

All read through the same transformer (d = 64, 2 layers, 4 heads, ff 256); a ratio is a model's tokens per second over
Standard's, so more is better. NBSR is measured as it is used, with the recipes of `studies/language/best.yaml`
(K = 65, calibrated) and `real_text.yaml` (K = 5,000): fitted density factor, belief normalised, arg-max taken. "Fast"
tests the entropy of every token; 99% of them exit at depth 1, as in `best.yaml`. Weights are random: what is timed does
not depend on them, but for the routes, which a trained router spreads as the data do. MAC ceilings are what arithmetic
allows.
"""

from __future__ import annotations

import argparse
import itertools
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.timing import take_turns
from nbsr_core.domains.domain import Signature
from nbsr_core.domains.language import grammar
from nbsr_core.domains.language.models import (
    MoeOptions,
    NbsrOptions,
    StandardOptions,
    TokenClassifier,
    TokenNbsr,
    build_moe,
    build_nbsr,
    build_standard,
)
from nbsr_core.domains.tabular import DensityOptions
from nbsr_core.model.experts import ExpertSpec
from nbsr_core.model.routers import RouterSpec


@dataclass(frozen=True)
class Setting:
    """A vocabulary, a window and the NBSR recipe for it."""

    vocabulary: tuple[str, ...]
    length: int
    nbsr: NbsrOptions
    calibrated: bool = True

    @property
    def signature(self) -> Signature:
        return Signature(self.vocabulary, [f"token {place}" for place in range(self.length)])


ROUTER = RouterSpec(hidden=(32,), belief="none")
GRAMMAR = Setting(
    grammar.VOCABULARY,
    grammar.LENGTH,
    NbsrOptions(
        experts=ExpertSpec(activation="exp"), router=ROUTER, prior_weight=5.0, density=DensityOptions(enabled=True)
    ),
)
TEXT = Setting(
    (*grammar.SPECIAL, *(f"w{rank}" for rank in range(4996))),
    16,
    NbsrOptions(
        experts=ExpertSpec(hidden=(32,), activation="exp"),
        router=ROUTER,
        prior_weight=5.0,
        density=DensityOptions(enabled=True),
    ),
    calibrated=False,
)


def tokens(setting: Setting, batch: int) -> Tensor:
    """Whole windows without padding: sentences of the grammar's longest templates, or Zipfian words."""
    generator = torch.Generator().manual_seed(0)
    if setting is GRAMMAR:
        x, _ = grammar.generate(3 * batch, generator)
        return x[(x != grammar.PAD).all(1)][:batch]
    ranks = torch.arange(1, len(setting.vocabulary) - len(grammar.SPECIAL) + 1)
    drawn = torch.multinomial(1.0 / ranks, batch * setting.length, replacement=True, generator=generator)
    return drawn.view(batch, setting.length) + len(grammar.SPECIAL)


def macs(setting: Setting) -> dict[str, float]:
    """Multiply-adds a token: the transformer, then each head. The density factor whitens each oracle once."""
    options, classes = setting.nbsr, len(setting.vocabulary)
    body = options.transformer
    dim = body.dim
    trunk = body.layers * (4 * dim * dim + 2 * dim * body.feedforward + 2 * setting.length * dim)
    assert isinstance(options.experts, ExpertSpec)
    sizes = (dim, *options.experts.hidden, classes)
    expert = sum(a * b for a, b in itertools.pairwise(sizes))
    router = dim * options.router.hidden[0] + options.router.hidden[0] * 2
    whitening = dim * dim
    return {
        "Standard": trunk + dim * classes,
        "MoE": trunk + dim * 4 + dim * classes,
        "NBSR Deep": trunk + whitening + 2 * (router + expert),
        "NBSR Fast": trunk + whitening + router + expert,
    }


def contenders(setting: Setting, x: Tensor) -> tuple[dict[str, Callable[[], object]], TokenNbsr]:
    """What is compared, the reference first; and NBSR itself."""
    torch.manual_seed(0)
    standard = build_standard(StandardOptions(), setting.signature)
    moe = build_moe(MoeOptions(), setting.signature)
    nbsr = build_nbsr(setting.nbsr, setting.signature)
    nbsr.model.eval()
    nbsr.model.fit_density_on(x, x)
    if setting.calibrated:
        nbsr.use_temperatures([1.1] * nbsr.model.graph.depth)
    return {
        "Standard": _flat(standard, x),
        "MoE": _flat(moe, x),
        "NBSR Deep": _walk(nbsr, x, None),
        "NBSR Fast": _walk(nbsr, x, exit_threshold(nbsr, x)),
    }, nbsr


def exit_threshold(learner: TokenNbsr, x: Tensor, share: float = 0.99) -> float:
    """The eta at which so many tokens exit at depth 1."""
    entropy = learner.trace(x[:64]).entropy[1].sort().values
    last = round(share * len(entropy))
    return float(entropy[last - 1 : last + 1].mean())


def _flat(learner: TokenClassifier, x: Tensor) -> Callable[[], object]:
    learner.module.eval()

    @torch.inference_mode()
    def predict() -> Tensor:
        probs: Tensor = learner.module(x).softmax(-1)
        probs.argmax(-1)
        return probs

    return predict


def _walk(learner: TokenNbsr, x: Tensor, eta: float | None) -> Callable[[], object]:
    def predict() -> Tensor:
        prediction = learner.model.predict(x, eta=eta)
        prediction.label  # noqa: B018
        return prediction.probs

    return predict


def walks_alone(learner: TokenNbsr, x: Tensor) -> dict[str, Callable[[], object]]:
    """Deep and Fast from the oracles on, as `predict` walks: what an exit saves without the transformer before it."""
    model = learner.model
    with torch.inference_mode():
        h = model.oracle(x)
        scale = model.evidence_scale(h, x)

    def walk(eta: float | None) -> Callable[[], object]:
        @torch.inference_mode()
        def run() -> Tensor:
            return model.walk_from(h, eta, None, scale).label

        return run

    return {"Deep": walk(None), "Fast": walk(exit_threshold(learner, x))}


def peak_memory(run: Callable[[], object]) -> int:
    """Bytes that a prediction needs beyond what the process holds already, at the peak; 0 where it is not told."""
    reset, status = Path("/proc/self/clear_refs"), Path("/proc/self/status")
    if not reset.exists():
        return 0

    def kilobytes(field: str) -> int:
        return int(re.search(rf"{field}:\s+(\d+)", status.read_text())[1])  # type: ignore[index]

    run()
    reset.write_text("5")
    before = kilobytes("VmRSS")
    kept = run()
    peak = kilobytes("VmHWM")
    del kept
    return (peak - before) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two seconds per measurement instead of ten")
    parser.add_argument("--batch", type=int, default=256, help="sentences at once; K = 65 also with four times as many")
    parser.add_argument("--cpu", action="store_true", help="CPU seconds of one thread, where the machine is busy")
    arguments = parser.parse_args()
    budget = 2.0 if arguments.quick else 10.0
    clock = time.thread_time if arguments.cpu else time.perf_counter
    if arguments.cpu:
        torch.set_num_threads(1)
    seconds = "CPU seconds" if arguments.cpu else "seconds"
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, by {seconds}; median [10%, 90%]")
    for setting, batch in ((GRAMMAR, arguments.batch), (GRAMMAR, 4 * arguments.batch), (TEXT, arguments.batch)):
        x = tokens(setting, batch)
        classes, ceilings = len(setting.vocabulary), macs(setting)
        print(f"\nK = {classes:,}, {len(x)} x {setting.length} tokens; one belief takes {classes * 4:,} bytes a token,")
        print(f"all of the batch {x.numel() * classes * 4 / 2**20:.1f} MB")
        print(f"{'':<10} {'ratio':>6}  {'[10%, 90%]':<14} {'MAC ceiling':>11}  {'tokens/s':>10}  {'memory':>8}")
        runs, nbsr = contenders(setting, x)
        memory = {name: peak_memory(run) for name, run in runs.items()}
        for name, timing in take_turns(runs, budget=budget, clock=clock).items():
            spread = f"[{1 / timing.high:.2f}, {1 / timing.low:.2f}]"
            ceiling = f"{ceilings['Standard'] / ceilings[name]:.2f}x"
            rate = x.numel() / timing.seconds
            row = f"{name:<10} {1 / timing.ratio:>5.2f}x  {spread:<14} {ceiling:>11}  {rate:>10,.0f}"
            print(f"{row}  {memory[name] / 2**20:>5.0f} MB")
        fast = take_turns(walks_alone(nbsr, x), budget=budget / 4, clock=clock)["Fast"]
        print(f"the walk alone: Fast takes {fast.ratio:.2f}x [{fast.low:.2f}, {fast.high:.2f}] of Deep's time")


if __name__ == "__main__":
    main()
