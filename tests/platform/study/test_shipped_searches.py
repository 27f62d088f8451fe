"""Every domain's search: what it samples can be built, and made small it runs to its Pareto set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest
from nbsr_platform.report.find import find
from nbsr_platform.study.study import Study, load
from nbsr_platform.trials.home import Home
from processes import document

from nbsr_core.domains.domain import SHIPPED

ROOT = Path(__file__).parents[3]
SMALL = {
    "medical": ("data.train_patients=300", "data.valid_patients=200", "data.test_patients=100", "data.draws=1"),
    "triage": ("data.train_patients=300", "data.valid_patients=200", "data.test_patients=100", "data.draws=1"),
    "language": ("data.train=200", "data.test=100"),
    "navigation": ("data.train=30", "data.valid=20", "data.test=20"),
    "vision": ("data={source: digits}", "models.nbsr.backbone={name: small}"),
}


def searches(domain: str, *overrides: str) -> tuple[Study, ...]:
    what = load(ROOT / "studies" / domain / "search.yaml", list(overrides))
    return what.studies


def samples(study: Study, count: int) -> list[dict[str, Any]]:
    assert study.search is not None
    source = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    return [study.search.space.suggest(source.ask()) for _ in range(count)]


def test_every_domain_has_one() -> None:
    without = {"iris": "nothing to search for", "table": "everybody's own data", "acquisition": "triage has one"}
    assert set(SMALL) == set(SHIPPED) - set(without)


@pytest.mark.parametrize("domain", SMALL)
def test_it_prunes_by_one_metric_and_repeats_only_the_promising(domain: str) -> None:
    for study in searches(domain):
        search = study.search
        assert search is not None
        assert search.pruner is not None
        assert search.pruner.metric == "valid/nll"
        assert len(search.objectives) > 1
        assert len(study.seeds) > 1
        assert search.promising < search.trials


@pytest.mark.parametrize("domain", SMALL)
def test_whatever_it_samples_can_be_built(domain: str) -> None:
    for study in searches(domain):
        assert study.search is not None
        choice = study.models[study.search.model]
        for sample in samples(study, 40):
            study.search.space.apply(choice.options, choice.training, sample)


def test_gamma_is_searched_only_where_the_loss_has_costs() -> None:
    for domain in SMALL:
        for study in searches(domain):
            assert study.search is not None
            keys = {parameter.key for parameter in study.search.space.parameters}
            assert ("gamma" in keys) == (study.search.model == "ar_nbsr")


def test_widths_follow_the_depth() -> None:
    (study,) = searches("medical")
    assert study.search is not None
    choice = study.models["nbsr"]
    layered = [sample for sample in samples(study, 200) if sample["graph.shape"] == "layered"]
    assert {sample["graph.depth"] for sample in layered} == {1, 2, 3}
    for sample in layered:
        widths = [sample[f"graph.widths.{level}"] for level in range(sample["graph.depth"])]
        assert f"graph.widths.{len(widths)}" not in sample
        options, _ = study.search.space.apply(choice.options, choice.training, sample)
        graph = options.graph.build(None)
        assert [len(level) for level in graph.levels[1:]] == widths


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("domain", SMALL)
def test_made_small_it_runs(domain: str, tmp_path: Path) -> None:
    small = ("search.trials=3", "search.promising=1", "seeds=2", "training.epochs=1", *SMALL[domain])
    settings = [part for setting in small for part in ("--set", setting)]
    file = ROOT / "studies" / domain / "search.yaml"
    result = document(tmp_path, str(file), *settings)
    parts = len(searches(domain))
    assert result["trials"]["total"] == 3 * parts
    assert result["trials"]["failed"] == 0
    assert result["trials"]["repeated"] == parts
    found = find(Home.of(tmp_path / ".nbsr"), str(file), overrides=small)
    assert [len(study_results.proposals) for study_results in found] == [3] * parts
    assert all(study_results.pareto for study_results in found)
