"""Milliseconds per prediction of a study's trained models: NBSR to the end of its walks and with exits, and baselines.

    python -m benchmarks.latency [STUDY ...] [--home .nbsr] [--rows 256]

Reads what is stored of the first seed; nothing is trained. Models take turns on the same test rows, on one thread. The
backbone counts where it belongs to the model, not where its features were kept beforehand (vision/frozen).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from nbsr_platform.explain.explain import rebuild
from nbsr_platform.report.find import of_study
from nbsr_platform.study.study import Study, load
from nbsr_platform.trials.home import Home
from nbsr_platform.trials.store import ResultStore
from torch import Tensor

from benchmarks.timing import take_turns
from nbsr_core.learning.learners import Learner, NbsrLearner
from nbsr_core.metrics import names

STUDIES = ("medical/best", "vision/frozen")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="*", default=STUDIES, metavar="STUDY")
    parser.add_argument("--home")
    parser.add_argument("--rows", type=int, default=256)
    asked = parser.parse_args()
    for study in (study for name in asked.studies for study in load(name).studies):
        show(study, Home.of(asked.home), asked.rows)


def show(study: Study, home: Home, rows: int) -> None:
    """One table: milliseconds per batch, and the ratio to the first baseline."""
    contenders = contenders_of(study, home, rows)
    found = take_turns(contenders)
    print(f"\n{study.name}, {rows} rows at once\n")
    print("| model | milliseconds | ratio to the first [10%, 90%] |\n| --- | ---: | ---: |")
    for name, timing in found.items():
        print(f"| {name} | {1e3 * timing.seconds:.2f} | {timing.ratio:.2f}x [{timing.low:.2f}, {timing.high:.2f}] |")


def contenders_of(study: Study, home: Home, rows: int) -> dict[str, Callable[[], object]]:
    """What is to be timed of the first seed, baselines first."""
    store, domain, seed = ResultStore(home.trials), study.domain_object, study.seeds[0]
    splits = domain.load(study.data, seed)
    x = splits.test.x.repeat(-(-rows // len(splits.test.x)), *[1] * (splits.test.x.ndim - 1))[:rows]
    finished = [(trial, result) for trial, result in of_study(home, study).finished if trial.seed == seed]
    contenders: dict[str, Callable[[], object]] = {}
    for trial, result in sorted(finished, key=lambda pair: pair[0].family == "nbsr"):
        learner = rebuild(trial, result, domain, splits, store)
        if isinstance(learner, NbsrLearner) and learner.module is learner.model:  # an agent's memory comes before it
            contenders[f"{trial.label} deep"] = walking(learner, x, None)
            contenders[f"{trial.label} fast"] = walking(learner, x, result.metrics[names.ETA])
        else:
            contenders[trial.label] = answering(learner, x)
    return contenders


def walking(learner: NbsrLearner, x: Tensor, eta: float | None) -> Callable[[], object]:
    model = learner.model.eval()
    return lambda: model.predict(x, eta=eta).probs


def answering(learner: Learner, x: Tensor) -> Callable[[], object]:
    return lambda: learner.probabilities(x)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
