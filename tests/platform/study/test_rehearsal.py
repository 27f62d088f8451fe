"""What a study says is held against its data and its models before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from nbsr_platform.study.problems import StudyError
from nbsr_platform.study.study import Study, load
from nbsr_platform.study.warnings import warnings
from study_toys import write

HEAD = "name: toy\ndomain: study_toys:Buildable\n"
SEARCH = HEAD + "models: {nbsr: {}}\nsearch:\n  trials: 4\n  objectives: {valid/accuracy: maximize}\n  space:\n"


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def said(text: str, *overrides: str) -> list[str]:
    return warnings(Study.load(write(text), overrides))


def refused(text: str) -> list[str]:
    study = load(write(text))  # its form is right
    assert isinstance(study, Study)
    with pytest.raises(StudyError) as caught:
        warnings(study)
    return str(caught.value).splitlines()


class TestSearchedInVain:
    def test_options_of_a_graph_that_is_not_there(self) -> None:
        text = SEARCH + "    graph.depth: {int: [1, 4]}\n    graph.width: {int: [2, 8]}\n"
        assert refused(text) == [
            "study.yaml:8: search.space.graph.depth: has no effect in any proposal: it counts only if shape is "
            "uniform, layered, chain or learned; drop it, or change what it depends on",
            "study.yaml:9: search.space.graph.width: has no effect in any proposal: it counts only if shape is "
            "uniform or learned, or layered without widths; drop it, or change what it depends on",
        ]

    @pytest.mark.parametrize(
        "space",
        [
            "    graph.shape: {choice: [taxonomy, layered]}\n    graph.depth: {int: [1, 2]}\n",
            "    graph.shape: {choice: [taxonomy, chain]}\n"
            "    graph.depth: {int: [1, 2], when: {graph.shape: chain}}\n",
            "    objective.regulariser: {float: [0, 1]}\n    objective.anneal_epochs: {int: [1, 9]}\n",
            # What makes it count may stand behind it.
            "    training.factor: {float: [0.1, 0.9]}\n    training.scheduler: {choice: [none, step]}\n",
            # Two others have to come together for it: shape and widths.
            "    graph.widths: {choice: [[], [4, 4]]}\n    graph.shape: {choice: [taxonomy, layered]}\n"
            "    graph.width: {int: [2, 4]}\n",
        ],
    )
    def test_what_counts_in_some_proposals_is_fine(self, space: str) -> None:
        assert said(SEARCH + space) == []

    def test_gamma_where_all_nodes_cost_the_same(self) -> None:
        (message,) = refused(SEARCH + "    gamma: {float: [0, 0.1]}\n    lambda: {float: [0, 0.1]}\n")
        assert "search.space.gamma: has no effect in any proposal: the children of every node cost the same" in message

    def test_the_training_of_boosted_trees(self) -> None:
        text = SEARCH.replace("{nbsr: {}}", "{xgboost: {}}").replace("  trials", "  model: xgboost\n  trials")
        (message,) = refused(text + "    training.batch_size: {int: [1, 9]}\n    max_depth: {int: [2, 6]}\n")
        assert "search.space.training.batch_size: has no effect in any proposal: trees are fitted by" in message


class TestSetInVain:
    @pytest.mark.parametrize(
        ("text", "warning"),
        [
            (
                "models: {nbsr: {graph: {depth: 3}}}\n",
                "models.nbsr.graph.depth: has no effect: it counts only if shape is uniform, layered, chain or learned",
            ),
            (
                "models: {nbsr: {experts: [{}, {}], density: {quantile: 0.9}}}\n",
                "models.nbsr.density.quantile: has no effect: it counts only if enabled is true",
            ),
            (
                "models: {nbsr: {routing: argmax, estimator: counterfactual}}\n",
                "models.nbsr.estimator: has no effect: it counts only if routing is gumbel",
            ),
            (
                "models: {nbsr: {graph: {shape: chain}, router: {belief: log}}}\n",
                "models.nbsr.router: has no effect: no node of the graph has a choice between children",
            ),
            (
                "models: {mlp: {training: {temperature: {start: 2}}}}\n",
                "models.mlp.training.temperature: has no effect: the model has no routers",
            ),
            (
                "models: {mlp: {}, xgboost: {training: {batch_size: 3}}}\n",
                "models.xgboost.training.batch_size: has no effect: trees are fitted by options of their own",
            ),
            (
                "training: {patience: 3}\nmodels: {mlp: {}}\n",
                "training.patience: has no effect: it counts only if scheduler is plateau",
            ),
            (
                "evaluation: {eta: -3, max_nll_loss: 0.1}\nmodels: {nbsr: {}, mlp: {}}\n",
                "evaluation.max_nll_loss: has no effect: it counts only if eta is not set",
            ),
            (
                "evaluation: {eta: -3}\nmodels: {mlp: {}}\n",
                "evaluation.eta: has no effect: it is about walks, and the model has none",
            ),
        ],
    )
    def test_is_a_warning_that_says_when_it_would_count(self, text: str, warning: str) -> None:
        assert said(HEAD + text) == [warning]

    def test_what_counts_for_one_of_the_models_is_no_warning(self) -> None:
        text = "training: {temperature: {start: 2}, epochs: 3}\nmodels: {nbsr: {}, mlp: {}, xgboost: {}}\n"
        assert said(HEAD + text) == []

    def test_a_file_that_spells_out_every_default_is_no_warning(self) -> None:
        study = Study.load(write(HEAD + "models: {nbsr: {}, mlp: {}, xgboost: {}}\n"))
        assert said(study.to_yaml()) == []

    def test_an_override_is_looked_at_like_the_file(self) -> None:
        (warning,) = said(HEAD + "models: {nbsr: {}}\n", "models.nbsr.graph.width=9")
        assert warning.startswith("models.nbsr.graph.width: has no effect")

    def test_a_pruner_that_prunes_nothing(self) -> None:
        text = SEARCH.replace("  trials", "  pruner: {name: none, warmup_epochs: 9}\n  trials")
        (warning,) = said(text + "    lambda: {float: [0, 0.1]}\n")
        assert warning == "search.pruner.warmup_epochs: has no effect: it counts only if name is median or halving"

    def test_a_model_that_the_search_leaves_out(self) -> None:
        text = SEARCH.replace("{nbsr: {}}", "{nbsr: {}, mlp: {}}") + "    lambda: {float: [0, 0.1]}\n"
        assert said(text) == ["models.mlp: has no effect: a search trains nbsr alone"]


class TestModelsThatCannotBeBuilt:
    def test_a_taxonomy_in_a_domain_without_one(self) -> None:
        assert refused(HEAD + "models:\n  bare: {}\n  mlp: {}\n") == [
            "study.yaml:4: models.bare.graph.shape: this domain has no taxonomy; choose uniform, layered or chain"
        ]

    def test_one_that_a_search_would_propose(self) -> None:
        text = SEARCH.replace("nbsr: {}", "bare: {}") + "    graph.shape: {choice: [uniform, taxonomy]}\n"
        (message,) = refused(text)
        assert "models.bare.graph.shape: this domain has no taxonomy" in message
        assert message.endswith("(with graph.shape: taxonomy)")


class TestFigures:
    LAMBDA = "    lambda: {float: [0, 0.1]}\n"

    @pytest.mark.parametrize(
        ("name", "meant"),
        [("valid/acuracy", "valid/accuracy"), ("fast/mean_dept", "fast/mean_depth"), ("dept2/nll", "depth1/nll")],
    )
    def test_an_objective_that_no_trial_has(self, name: str, meant: str) -> None:
        (message,) = refused(SEARCH.replace("valid/accuracy", name) + self.LAMBDA)
        assert message.startswith(
            f"study.yaml:6: search.objectives.{name}: is no figure of the trained model, got {name!r}; "
            f"did you mean {meant!r}? allowed: "
        )

    @pytest.mark.parametrize("name", ["valid/fast/ece", "depth2/accuracy", "test/vacuity", "model/parameters"])
    def test_an_objective_of_the_evaluation(self, name: str) -> None:
        found = said(SEARCH.replace("valid/accuracy", name) + self.LAMBDA)
        assert all("measured on the test split" in warning for warning in found)

    def test_a_figure_that_only_abstaining_has(self) -> None:
        text = SEARCH.replace("valid/accuracy", "test/abstained") + self.LAMBDA
        never = text + "evaluation: {max_vacuity: 1}\n"
        assert "search.objectives.test/abstained: is no figure" in refused(never)[0]
        assert all("measured on the test split" in warning for warning in said(text))

    @pytest.mark.parametrize(("metric", "fine"), [("valid/nll", True), ("train/entropy", True), ("valid/ece", False)])
    def test_a_pruner_looks_at_what_every_epoch_reports(self, metric: str, fine: bool) -> None:
        pruner = f"  pruner: {{metric: {metric}, direction: minimize}}\n  trials"
        text = SEARCH.replace("  trials", pruner) + "    lambda: {float: [0.1, 0.2]}\n"
        if fine:
            assert said(text) == []
        else:
            (message,) = refused(text)
            assert "search.pruner.metric: is no figure that every epoch reports, got 'valid/ece'" in message

    def test_nobody_knows_the_figures_of_an_evaluation_that_does_not_tell(self) -> None:
        text = SEARCH.replace("Buildable", "Silent").replace("valid/accuracy", "valid/charm") + self.LAMBDA
        assert said(text) == []


class TestData:
    def test_what_is_missing_is_named_with_its_key(self) -> None:
        text = (
            HEAD.replace("study_toys:Buildable", "medical") + "data: {source: kaggle, root: nowhere}\nmodels: {mlp: }\n"
        )
        (message,) = refused(text)
        assert message.startswith("study.yaml:3: data.source: 'kaggle' did not find ")
        assert "nowhere/medical/Training.csv" in message
        assert "Download the dataset" in message

    def test_a_file_that_a_domain_of_ones_own_opens(self) -> None:
        text = HEAD.replace("Buildable", "Reading") + "data: {folder: nowhere}\nmodels: {mlp: }\n"
        missing = Path.cwd() / "nowhere" / "x.csv"
        assert refused(text) == [f"study.yaml:3: data: {missing} cannot be read: No such file or directory"]

    def test_weights_that_are_not_there(self) -> None:
        text = "name: toy\ndomain: vision\nmodels: {flat: {backbone: {name: small, weights: none.pt}}}\n"
        (message,) = refused(text)
        assert message.startswith("study.yaml:3: models.flat.backbone.weights: no file ")
