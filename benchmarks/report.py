"""How long does the report of a large study take, and how large is it? Aimed for: 500 trials in 20 s, 8 MB.

    python -m benchmarks.report

The results are made up (nobody trained for them), but of full size: every table and 20 walks of 41 classes in each.
They are stored like real ones, so that reading them counts.
"""

from __future__ import annotations

import random
import tempfile
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

from nbsr_platform.report import StudyResults, page
from nbsr_platform.report.find import of_study
from nbsr_platform.search.proposals import Proposal
from nbsr_platform.study.study import Study
from nbsr_platform.trials.home import Home
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.store import ResultStore
from nbsr_platform.trials.trial import Trial, data_fingerprint, grid, make_trial

TRIALS, CLASSES, MIDS = 500, 41, 4


def made_up_study(trials: int, search: bool) -> Study:
    """A grid of NBSR and a flat network over many seeds, or a search; nothing of it needs to be run."""
    values: dict[str, Any] = {
        "name": "made-up",
        "domain": "medical",
        "data": {"source": "embedded", "train_patients": 300, "valid_patients": 100, "test_patients": 100, "draws": 1},
        "models": {"nbsr": {}, "mlp": {}},
        "seeds": trials // 2,
    }
    if search:
        space = {"lambda": {"float": [1e-6, 1e-2], "log": True}, "graph.width": {"int": [2, 6]}}
        objectives = {"valid/accuracy": "maximize", "valid/ece": "minimize"}
        values |= {"models": {"nbsr": {}}, "seeds": 1}
        values["search"] = {"trials": trials, "objectives": objectives, "space": space, "pruner": "none"}
    return Study.from_dict(values)


def made_up_result(trial: Trial, chance: random.Random) -> TrialResult:
    """A result with every table that is drawn, at its full size."""
    accuracy, ece = chance.uniform(0.9, 0.99), chance.uniform(0.005, 0.05)
    figures = {"accuracy": accuracy, "ece": ece, "nll": chance.uniform(0.05, 0.3)}
    metrics = {f"{split}/{name}": value for split in ("test", "valid") for name, value in figures.items()}
    reliability = _reliability(chance, None)
    tables: dict[str, list[dict[str, Any]]] = {"reliability": reliability, "risk_coverage": _risk(chance, "confidence")}
    audits: list[dict[str, Any]] = []
    if trial.family == "nbsr":
        metrics |= {f"fast/{name}": value for name, value in figures.items()}
        metrics |= {"fast/eta": -120.0, "fast/mean_depth": 1.2, "fast/exited": 0.8, "test/mean_depth": 2.0}
        tables |= _walk_tables(chance, accuracy, ece)
        audits = [_audit(chance, sample) for sample in range(20)]
    return TrialResult(
        key=trial.key,
        status="finished",
        seconds=chance.uniform(5, 9),
        epochs=[{"epoch": float(n), "train/loss": 3 / (n + 1), "train/nll": 2 / (n + 1)} for n in range(50)],
        metrics=metrics,
        tables=tables,
        audits=audits,
        data={"source": "made up", "synthetic": True, "fingerprint": trial.data_fingerprint},
        environment={"python": "3.11", "machine": "none"},
        trial=asdict(trial),
    )


def _reliability(chance: random.Random, depth: int | None) -> list[dict[str, Any]]:
    return [
        {"depth": depth, "low": n / 10, "high": (n + 1) / 10, "confidence": (n + 0.5) / 10, "accuracy": chance.random(),
         "count": 10 + n}
        for n in range(10)
    ]  # fmt: skip


def _risk(chance: random.Random, score: str) -> list[dict[str, Any]]:
    return [{"score": score, "coverage": n / 100, "risk": chance.random() * n / 1000} for n in range(1, 101)]


def _walk_tables(chance: random.Random, accuracy: float, ece: float) -> dict[str, list[dict[str, Any]]]:
    names = ("precision", "precision_low", "precision_high", "entropy", "entropy_low", "entropy_high", "vacuity")
    etas = [None, *(-400.0 + n / 2 for n in range(511))]
    mids = [f"mid {n}" for n in range(MIDS)]
    shares = [1 / MIDS] * MIDS
    return {
        "frontier": [
            {"eta": eta, "accuracy": accuracy - 1e-4 * n, "mean_depth": 2 - n / 511, "mean_cost": 2 - n / 511,
             "ece": ece * chance.random(), "exited": n / 511}
            for n, eta in enumerate(etas)
        ],
        "reliability": [row for depth in (None, 1, 2) for row in _reliability(chance, depth)],
        "reliability_raw": [row for depth in (1, 2) for row in _reliability(chance, depth)],
        "risk_coverage": _risk(chance, "confidence") + _risk(chance, "precision"),
        "belief": [{"depth": depth, **dict.fromkeys(names, 10.0 * (depth + 1))} for depth in range(3)],
        "entropy": [
            {"set": which, "low": -float(n), "high": 1.0 - n, "share": 1 / 40} for which in ("test", "far")
            for n in range(40)
        ],
        "separation": [{"set": "far", "entropy_auroc": 0.9, "precision_auroc": 0.9}],
        "usage": [{"node": "root", "level": 0, "share": 1.0}]
        + [{"node": name, "level": 1, "share": share} for name, share in zip(mids, shares, strict=True)],
        "edges": [{"parent": "root", "child": name, "share": share} for name, share in zip(mids, shares, strict=True)],
        "confusion": [{"true": f"class {n}", "predicted": f"class {n}", "count": 3} for n in range(CLASSES)],
    }  # fmt: skip


def _audit(chance: random.Random, sample: int) -> dict[str, Any]:
    classes = {f"class {n}": chance.random() for n in range(5)}
    step = {
        "node": f"mid {sample % MIDS}", "route_probability": 0.9,
        "alternatives": {f"mid {n}": 0.25 for n in range(MIDS)},
        "evidence": classes, "belief": classes, "belief_shift": 3.0, "entropy": -200.0, "vacuity": 0.1,
        "prediction": "class 0", "confidence": 0.9,
    }  # fmt: skip
    features = [{"name": f"symptom {n} (present)", "attribution": chance.gauss(0, 1)} for n in range(10)]
    return {
        "sample": sample, "true": "class 0", "predicted": "class 0", "text": "a walk " * 60, "steps": [step, step],
        "verdict": ("right", "wrong", "abstained")[sample % 3], "exit_depth": 1, "exit_prediction": "class 0",
        "features": features, "features_by_step": [features[:4]] * 2, "density": None,
    }  # fmt: skip


def made_up_search(trials: int, chance: random.Random) -> StudyResults:
    """A search of which every proposal is finished and every tenth is on the Pareto set."""
    study, finished, proposals = made_up_study(trials, search=True), [], []
    for number in range(trials):
        options = {"lambda": 10 ** chance.uniform(-6, -2), "graph.width": chance.randint(2, 6)}
        trial = make_trial(study, "nbsr", number, "none", proposal=number)
        finished.append((trial, made_up_result(trial, chance)))
        proposals.append(Proposal(number, "COMPLETE", options, [chance.random(), chance.random()], trial.key))
    pareto = [proposal.number for proposal in proposals[::10]]
    return StudyResults(study, finished, (), trials, proposals, pareto, "nbsr run made-up.yaml")


def main() -> None:
    """Print seconds and size of both kinds of study."""
    chance = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        home, study = Home(Path(folder)), made_up_study(TRIALS, search=False)
        store = ResultStore(home.trials)
        for trial in grid(study, data_fingerprint(study)):
            store.save(made_up_result(trial, chance))
        began = perf_counter()
        study_results = of_study(home, study)
        read = perf_counter() - began
        text = page([study_results], "made up")
        seconds = perf_counter() - began
        print(
            f"grid of {len(study_results.finished)} trials: {seconds:.1f} s ({read:.1f} s of it reading), {_size(text)}"
        )
    found = made_up_search(TRIALS, chance)
    began = perf_counter()
    text = page([found], "made up")
    print(f"search of {TRIALS} trials: {perf_counter() - began:.1f} s without reading, {_size(text)}")


def _size(text: str) -> str:
    return f"{len(text.encode()) / 1e6:.2f} MB"


if __name__ == "__main__":
    main()
