"""Study files: what is right comes back the same, with overrides, warnings, and modules beside the file."""

from __future__ import annotations

import importlib
import json
import math
import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from nbsr_platform.study.options import from_plain, to_plain
from nbsr_platform.study.problems import StudyError
from nbsr_platform.study.study import Resources, Study
from nbsr_platform.study.warnings import warnings
from nbsr_platform.study.yaml_file import UNSTORABLE, dump, parse
from nbsr_platform.trials import keys
from nbsr_platform.trials.trial import grid
from study_toys import FULL, HEAD, ONE, SEARCH, TOP_KEYS, Toy, ToyData, complaints, write

from nbsr_core.code import named as named_code
from nbsr_core.domains import tabular
from nbsr_core.learning.config import TrainingConfig
from nbsr_core.model.experts import ExpertSpec

# Text that a study file may hold: other characters have no place in a database, and are refused.
STORABLE = st.text().filter(lambda text: UNSTORABLE.search(text) is None)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class TestWhatIsRight:
    def test_every_value_arrives_where_it_belongs(self) -> None:
        study = Study.load(write(FULL))
        assert (study.name, study.seeds, study.path) == ("toy-search", (0, 1, 2), Path("study.yaml"))
        assert study.data == ToyData(noise=0.2, folder=Path.cwd() / "some" / "where")
        assert isinstance(study.domain_object, Toy)
        assert list(study.models) == ["nbsr", "flat", "mlp"]
        nbsr, flat = study.models["nbsr"], study.models["flat"]
        assert (nbsr.kind, nbsr.family, flat.kind, flat.family) == ("nbsr", "nbsr", "mlp", "baseline")
        assert nbsr.options.experts == (ExpertSpec(activation="sigmoid", bound=5.0), ExpertSpec(hidden=(8, 8)))
        assert (nbsr.options.graph.shape, nbsr.options.graph.depth, nbsr.options.graph.width) == ("uniform", 3, 4)
        assert flat.options == tabular.MlpOptions(hidden=(16,))
        assert study.evaluation.etas == (-1.0, 0.5, 2.0)
        assert study.resources == Resources(gpus_per_worker=0.25, concurrency=4)
        assert study.search is not None
        assert (study.search.model, study.search.trials) == ("nbsr", 60)
        assert list(study.search.objectives.items()) == [("valid/accuracy", "maximize"), ("valid/ece", "minimize")]
        assert (study.search.sampler.name, study.search.sampler.seed) == ("nsga2", 7)
        assert study.search.space.picks_eta

    def test_a_models_training_completes_the_studys_own(self) -> None:
        study = Study.load(write(FULL))
        training = study.models["nbsr"].training
        assert (training.epochs, training.learning_rate) == (60, 1e-3)
        assert to_plain(training.temperature) == {"start": 2.0, "decay": 0.8, "floor": 0.5}
        assert study.models["mlp"].training.epochs == 7

    def test_defaults(self) -> None:
        study = Study.load(write(ONE))
        assert (study.seeds, study.question, study.search) == ((0,), None, None)
        assert study.models["nbsr"].training == TrainingConfig()
        assert study.models["nbsr"].options == tabular.NbsrOptions()

    def test_a_fields_own_default_is_what_a_file_completes(self) -> None:
        study = Study.load(write(HEAD + "models: {wide: {size: 3, expert: {bias: false}}}"))
        assert study.models["wide"].options.expert == ExpertSpec(activation="exp", bound=50.0, bias=False)

    def test_round_trip(self) -> None:
        study = Study.load(write(FULL))
        assert Study.from_dict(study.to_dict()) == study
        assert Study.from_dict(json.loads(json.dumps(study.to_dict()))) == study
        assert Study.load(write(study.to_yaml(), "again.yaml")) == study
        assert Study.from_dict(study.to_dict()).to_yaml() == study.to_yaml()
        assert pickle.loads(pickle.dumps(study)) == study

    def test_resolved_yaml_reads_the_same_elsewhere(self) -> None:
        study = Study.load(write(FULL))
        assert yaml.safe_load(study.to_yaml()) == study.to_dict()

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | STORABLE,
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(STORABLE, inner, max_size=3),
        )
    )
    def test_what_is_written_is_read(self, value: Any) -> None:
        document = parse(dump({"key": value}), "text")
        assert not document.problems.found
        assert document.value == {"key": value}

    @pytest.mark.parametrize("name", ["1e-3", "no", "null", "12", "2020-01-01", "<<", "0x1f", ".inf", "=", "~", "1_0"])
    def test_text_that_looks_like_something_else_stays_text(self, name: str) -> None:
        assert parse(dump({name: name}), "text").value == {name: name}

    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("1e-3", 1e-3),
            ("1E5", 1e5),
            ("-.5", -0.5),
            ("+7", 7),
            ("1_000", 1000),
            ("010", 10),
            ("0x1F", 31),
            ("-.inf", -float("inf")),
            ("'1e-3'", "1e-3"),
            ("no", "no"),
            ("12:30", "12:30"),
            ("2020-01-01", "2020-01-01"),
            ("True", True),
            ("~", None),
            ("", None),
        ],
    )
    def test_scalars_are_read_as_yaml_1_2_has_them(self, text: str, value: Any) -> None:
        read = parse(f"key: {text}", "text").value["key"]
        assert read == value
        assert type(read) is type(value)

    def test_anchors_and_merges(self) -> None:
        study = Study.load(
            write(
                HEAD + "models:\n  nbsr: &base {hidden: [4], graph: {depth: 3}}\n"
                "  deep: {<<: *base, kind: nbsr, hidden: [9]}\n"
            )
        )
        deep = study.models["deep"].options
        assert (deep.hidden, deep.graph.depth) == ((9,), 3)

    def test_from_plain_takes_what_asdict_gives(self) -> None:
        from dataclasses import asdict

        options = tabular.NbsrOptions(experts=(ExpertSpec(), ExpertSpec(hidden=(3,))))
        assert from_plain(tabular.NbsrOptions, asdict(options)) == options
        with pytest.raises(StudyError, match=r"<options>: graph.dept: unknown key; did you mean 'depth'\?"):
            from_plain(tabular.NbsrOptions, {"graph": {"dept": 1}})

    @pytest.mark.parametrize("first", ["", "import nbsr_platform.execution.runner; "])
    def test_public_names_are_what_they_say_whatever_was_imported_before(self, first: str) -> None:
        code = f"{first}from nbsr_platform import RunResult, Study, load, run; print(run.__name__, Study.__name__)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["run", "Study"]

    def test_importing_studies_does_not_import_what_runs_them(self) -> None:
        code = (
            "import sys, nbsr_platform.study.study; print(*({'ray', 'mlflow', 'optuna', 'xgboost'} & set(sys.modules)))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=sys.prefix)
        assert done.stdout.strip() == ""


class TestOverrides:
    def test_replace_create_and_parse(self) -> None:
        study = Study.load(
            write(FULL),
            [
                "training.learning_rate=1e-2",
                "models.mlp.hidden=[3, 4]",
                "models.nbsr.experts[0].bound=9",
                "seeds=[5, 8]",
                "question=",
                "search.space.graph.depth={int: [2, 3]}",
                "search.space.lambda.log=false",
                "search.space.router.belief={choice: [log, mean]}",
            ],
        )
        assert study.models["mlp"].training.learning_rate == 1e-2
        assert study.models["mlp"].options.hidden == (3, 4)
        assert study.models["nbsr"].options.experts[0].bound == 9.0
        assert (study.seeds, study.question) == ((5, 8), None)
        assert study.search is not None
        plain = study.search.space.to_plain()
        assert plain["graph.depth"]["int"] == [2, 3]
        assert plain["lambda"]["log"] is False
        assert plain["router.belief"] == {"choice": ["log", "mean"]}

    @pytest.mark.parametrize(
        ("overrides", "epochs", "rates"),
        [
            (["training.epochs=2"], [2, 2, 2], [0.1, 1e-3, 1e-3]),
            (["training={epochs: 2, learning_rate: 0.5}"], [2, 2, 2], [0.5, 0.5, 0.5]),
            (["models.nbsr.training.epochs=4", "training.epochs=2"], [2, 2, 2], [0.1, 1e-3, 1e-3]),
            (["training.epochs=2", "models.nbsr.training.epochs=4"], [4, 2, 2], [0.1, 1e-3, 1e-3]),
        ],
    )
    def test_one_of_training_wins_over_that_of_a_model(
        self, overrides: list[str], epochs: list[int], rates: list[float]
    ) -> None:
        text = FULL.replace("training: {epochs: 60,", "training: {epochs: 60, learning_rate: 0.1,")
        models = Study.load(write(text), overrides).models.values()
        assert [choice.training.epochs for choice in models] == epochs
        assert [choice.training.learning_rate for choice in models] == rates
        assert next(iter(models)).training.temperature.decay == 0.8, "what nobody overrides stays the model's own"

    @pytest.mark.parametrize(
        ("override", "message"),
        [
            (
                "models.nbsr.graph.dept=3",
                "models.nbsr.graph.dept: unknown key; did you mean 'depth'? "
                "allowed: shape, depth, width, widths, generalist",
            ),
            ("trainig.epochs=3", f"trainig: unknown key; did you mean 'training'? allowed: {TOP_KEYS}"),
            ("training.epochs=0", "training.epochs: must be at least 1, got 0"),
            ("training.epochs", "expected key=value, such as training.epochs=5"),
            ("=5", "expected key=value, such as training.epochs=5"),
            ("training..epochs=5", "expected key=value, such as training.epochs=5"),
            ("name.first=x", "name.first: name is 'toy-search', no mapping that could hold a key"),
            (
                "models.nbsr.experts.7.bound=1",
                "models.nbsr.experts[7].bound: models.nbsr.experts is a list of 2, counted from 0",
            ),
            ("seeds=[1, 2", "YAML error at column 6: expected ',' or ']', but got '<stream end>'"),
        ],
    )
    def test_a_wrong_one_is_named_as_the_place(self, override: str, message: str) -> None:
        assert complaints(FULL, override) == [f"--set {override}: {message}"]


class TestWarnings:
    def test_nothing_to_say(self) -> None:
        text = FULL.replace(":Toy", ":Loaded").replace("  flat: {kind: mlp, hidden: [16]}\n  mlp:\n", "")
        assert warnings(Study.load(write(text.replace(", folder: some/where", "")))) == []

    def test_a_vacuous_threshold(self) -> None:
        # The entropy of Dirichlet(1, 1, 1) is -log 2.
        one = ONE.replace(":Toy", ":Loaded")
        assert warnings(Study.load(write(one + "evaluation: {eta: -0.70}\n"))) == []
        (warning,) = warnings(Study.load(write(one + "  mlp:\nevaluation: {eta: -0.69}\n")))
        assert warning == (
            "evaluation.eta: -0.69 is above the entropy of nbsr's prior over 3 classes, -0.7: "
            "every sample exits at depth 1"
        )

    @pytest.mark.parametrize(("eta", "vacuous"), [(-100, True), (-111, False), (math.inf, True)])
    def test_a_vacuous_threshold_of_a_shipped_domain(self, eta: float, vacuous: bool) -> None:
        study = {"name": "a", "domain": "medical", "models": {"nbsr": {}}, "evaluation": {"eta": eta}}
        said = warnings(Study.from_dict(study))
        assert [("41 classes, -110.3" in warning) for warning in said] == [True] * vacuous

    def test_a_search_that_looks_at_the_test_split(self) -> None:
        text = SEARCH.replace("valid/", "test/").replace(":Toy", ":Loaded") + "{lambda: {float: [0, 1]}}}\n"
        assert "search.objectives: test/accuracy is measured on the test split" in warnings(Study.load(write(text)))[0]

    def test_a_condition_that_never_holds_and_a_pruner_that_never_prunes(self) -> None:
        text = SEARCH.replace("trials: 4", "trials: 4, pruner: {warmup_epochs: 40}") + (
            "{density.quantile: {float: [0.9, 0.99], when: {density.enabled: true}}}}\n"
        )
        assert warnings(Study.load(write(text.replace(":Toy", ":Loaded")))) == [
            "search.space.density.quantile: its condition on a fixed option never holds, so it is never sampled",
            "search.pruner: 40 warm-up epochs of 40 leave nothing to prune",
        ]


MODULE = """
from nbsr_platform_test_words import WORDS
from nbsr_core.domains.iris import Iris

class Flowers(Iris):
    name = WORDS
"""


class TestModulesBesideTheFile:
    """A domain's module may stand beside the study file, whatever folder `nbsr` is started in."""

    @pytest.fixture(autouse=True)
    def _path_as_before(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.setattr(named_code, "_folders", [])
        known = set(sys.modules)
        yield
        for name in set(sys.modules) - known:
            del sys.modules[name]

    def study(self, folder: str, module: str = "nbsr_platform_test_flowers") -> str:
        write(MODULE, f"{folder}/{module}.py")
        write(f"WORDS = {folder!r}\n", f"{folder}/nbsr_platform_test_words.py")
        return write(f"name: mine\ndomain: {module}:Flowers\nmodels: {{nbsr: }}\n", f"{folder}/study.yaml")

    def test_it_is_found_with_what_it_imports(self) -> None:
        study = Study.load(self.study("mine"))
        assert study.domain_object.name == "mine"
        (trial,) = grid(study, "abc")
        assert trial.beside == str(Path("mine").absolute())
        assert trial.key == replace(trial, beside=str(Path().absolute())).key, "where it stands does not count"

    def test_its_code_counts(self) -> None:
        (trial,) = grid(Study.load(self.study("mine")), "abc")
        before = trial.key
        write(MODULE + "# changed\n", "mine/nbsr_platform_test_flowers.py")
        keys.training_code.cache_clear()
        (same,) = grid(Study.load("mine/study.yaml"), "abc")
        assert same.key == before, "comments do not"
        write(MODULE + "CHANGED = True\n", "mine/nbsr_platform_test_flowers.py")
        keys.training_code.cache_clear()
        (after,) = grid(Study.load("mine/study.yaml"), "abc")
        assert after.key != before

    def test_the_code_that_it_imports_counts(self) -> None:
        path = self.study("mine")
        (before,) = grid(Study.load(path), "abc")
        write("WORDS = 'others'\n", "mine/nbsr_platform_test_words.py")
        keys.training_code.cache_clear()
        (after,) = grid(Study.load(path), "abc")
        assert after.key != before.key

    def test_what_is_installed_goes_first(self) -> None:
        with pytest.raises(StudyError, match=r"module 'json' \(.*json.__init__.py\) has no 'Flowers'"):
            Study.load(self.study("mine", "json"))
        import optuna

        write("raise AssertionError('hides what is installed')", "mine/optuna.py")
        Study.load(self.study("mine"))
        assert importlib.reload(optuna).create_study

    def test_two_of_one_name_are_not_mixed_up(self) -> None:
        Study.load(self.study("mine"))
        words = "module 'nbsr_platform_test_flowers' stands in .*mine and in .*yours: rename one of them"
        with pytest.raises(StudyError, match=words):
            Study.load(self.study("yours"))

    def test_a_study_in_another_folder_does_not_see_it(self) -> None:
        Path("mine").mkdir()
        path = self.study("yours")
        write(Path(path).read_text(), "mine/study.yaml")
        with pytest.raises(StudyError, match="cannot import 'nbsr_platform_test_flowers'"):
            Study.load("mine/study.yaml")
