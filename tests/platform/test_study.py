"""Study files: what is right comes back the same; what is wrong is all said at once, with place and remedy."""

from __future__ import annotations

import importlib
import json
import math
import pickle
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from nbsr_platform import trial as trial_module
from nbsr_platform.advice import warnings
from nbsr_platform.documents import dump, parse
from nbsr_platform.options import from_plain, to_plain
from nbsr_platform.problems import StudyError
from nbsr_platform.study import Collection, Resources, Study, load
from nbsr_platform.trial import grid

from nbsr_core.domains import domain as domain_module
from nbsr_core.domains import tabular
from nbsr_core.domains.base import Split, Splits
from nbsr_core.domains.domain import SHIPPED, Domain, ModelKind
from nbsr_core.errors import InputError
from nbsr_core.experts import ExpertSpec
from nbsr_core.training.config import TrainingConfig

DOMAINS = ", ".join(SHIPPED)


@dataclass(frozen=True)
class ToyData:
    rows: int = 90
    noise: float = 0.1
    folder: Path | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.noise < 1:
            raise InputError(f"noise must lie in [0, 1), got {self.noise!r}")


@dataclass(frozen=True)
class Wide:
    """Options of somebody's own model: a required key, a pair that must be in order, a default that is not plain."""

    size: int
    low: float = 0.0
    high: float = 1.0
    expert: ExpertSpec = ExpertSpec(activation="exp", bound=50.0)  # noqa: RUF009

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"low {self.low} is above high {self.high}")


def no_build(options: Any, signature: Any) -> Any:
    raise AssertionError("reading a study builds nothing")


class Toy(Domain):
    name = "toy"
    data = ToyData
    models: ClassVar[Mapping[str, ModelKind]] = {
        "nbsr": ModelKind("nbsr", tabular.NbsrOptions, no_build),
        "mlp": ModelKind("baseline", tabular.MlpOptions, no_build),
        "wide": ModelKind("baseline", Wide, no_build),
    }

    def load(self, data: Any, seed: int) -> Splits:
        raise AssertionError("reading a study loads no data")


class Loaded(Toy):
    """With data, of three classes."""

    def load(self, data: ToyData, seed: int) -> Splits:
        if data.folder is not None:
            raise InputError(f"no data in {data.folder}")
        part = Split(torch.zeros(3, 2), torch.arange(3))
        return Splits(part, part, part, ("a", "b", "c"), ("x", "y"), "nowhere", synthetic=True)


class Bare(Domain):
    """Forgot to say what its data and models are."""

    name = "bare"

    def load(self, data: Any, seed: int) -> Splits:
        raise NotImplementedError


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(text: str, name: str = "study.yaml") -> str:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text)
    return name


def complaints(text: str, *overrides: str) -> list[str]:
    with pytest.raises(StudyError) as caught:
        load(write(text), overrides)
    return str(caught.value).splitlines()


HEAD = f"name: toy\ndomain: {__name__}:Toy\n"
ONE = HEAD + "models:\n  nbsr:\n"
SEARCH = ONE + "search: {trials: 4, objectives: {valid/accuracy: maximize}, space: "
TOP_KEYS = "name, question, domain, data, seeds, training, evaluation, models, paper, resources, search, variants"

FULL = f"""\
name: toy-search
question: "Does routing cost accuracy: yes or no?"
domain: {__name__}:Toy
data: {{noise: 0.2, folder: some/where}}
seeds: 3
training: {{epochs: 7, learning_rate: 1e-3, temperature: {{start: 2, floor: 0.5}}}}
evaluation: {{etas: [-1, .5, 2], max_vacuity: 0.5}}
models:
  nbsr:
    training: {{epochs: 60, temperature: {{decay: 0.8}}}}
    graph: {{shape: uniform, depth: 3}}
    experts: [{{activation: sigmoid, bound: 5}}, {{hidden: [8, 8]}}]
  flat: {{kind: mlp, hidden: [16]}}
  mlp:
resources: {{gpus_per_worker: 0.25, concurrency: 4}}
search:
  trials: 60
  objectives: {{valid/accuracy: maximize, valid/ece: minimize}}
  sampler: {{name: nsga2, seed: 7}}
  pruner: {{name: median, metric: valid/nll, direction: minimize, warmup_epochs: 5}}
  space:
    graph.depth: {{int: [1, 4]}}
    graph.width: {{int: [2, 8], step: 2}}
    lambda: {{float: [1e-5, 1e-2], log: true}}
    eta: frontier
    hidden: {{choice: [[64], [64, 64]]}}
    density.enabled: {{choice: [true, false]}}
    density.quantile: {{float: [0.9, 0.999], when: {{density.enabled: true}}}}
"""


class TestWhatIsRight:
    def test_every_value_arrives_where_it_belongs(self) -> None:
        study = Study.load(write(FULL))
        assert (study.name, study.seeds, study.path) == ("toy-search", (0, 1, 2), Path("study.yaml"))
        assert study.data == ToyData(noise=0.2, folder=Path("some/where"))
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
            st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
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

    def test_importing_studies_does_not_import_what_runs_them(self) -> None:
        code = "import sys, nbsr_platform.study; print(*({'ray', 'mlflow', 'optuna', 'xgboost'} & set(sys.modules)))"
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
        ("override", "message"),
        [
            (
                "models.nbsr.graph.dept=3",
                "models.nbsr.graph.dept: unknown key; did you mean 'depth'? allowed: shape, depth, width",
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


BROKEN: dict[str, tuple[str, list[str]]] = {
    "empty": ("", ["study.yaml: is empty; a study needs name, domain and models"]),
    "only a comment": ("# later\n", ["study.yaml: is empty; a study needs name, domain and models"]),
    "a list": ("- a\n", [f"study.yaml:1: expected a mapping (keys: {TOP_KEYS}), got ['a']"]),
    "text": ("just text\n", [f"study.yaml:1: expected a mapping (keys: {TOP_KEYS}), got 'just text'"]),
    "unclosed list": (
        "name: a\nseeds: [1, 2\nmodels: {}\n",
        ["study.yaml:3: YAML error at column 7: expected ',' or ']', but got ':'"],
    ),
    "tab": (
        "models:\n\tnbsr: {}\n",
        [
            "study.yaml:2: YAML error at column 1: found character '\\t' that cannot start any token; "
            "indent with spaces, not tabs"
        ],
    ),
    "two documents": (ONE + "---\nname: b\n", ["study.yaml:5: YAML error at column 1: but found another document"]),
    "duplicate key": (
        ONE + "seeds: 2\n# more\nseeds: 3\n",
        ["study.yaml:7: seeds: the key stands twice, first in line 5"],
    ),
    "unknown top-level key": (
        ONE + "sedes: 3\n",
        [f"study.yaml:5: sedes: unknown key; did you mean 'seeds'? allowed: {TOP_KEYS}"],
    ),
    "no name": (
        ONE.removeprefix("name: toy\n"),
        ["study.yaml:1: name: is missing: a study needs a name of letters, digits, - and _"],
    ),
    "name with a slash": (
        ONE.replace("name: toy", "name: ../toy"),
        ["study.yaml:1: name: expected a name of letters, digits, - and _ (100 at most), got '../toy'"],
    ),
    "name that is a number": (
        ONE.replace("name: toy", "name: 12"),
        [
            "study.yaml:1: name: expected a name of letters, digits, - and _ (100 at most), got 12; put it in quotes",
        ],
    ),
    "no domain": (
        "name: a\nmodels: {nbsr: }\n",
        [f"study.yaml:1: domain: is missing: expected one of {DOMAINS}, or package.module:ClassName"],
    ),
    "misspelt domain": (
        "name: a\ndomain: medcal\nmodels: {nbsr: }\n",
        [
            f"study.yaml:2: domain: expected one of {DOMAINS}, or package.module:ClassName, got 'medcal'; "
            "did you mean 'medical'?"
        ],
    ),
    "domain is a list": (
        "name: a\ndomain: [iris]\nmodels: {nbsr: }\n",
        [f"study.yaml:2: domain: expected one of {DOMAINS}, or package.module:ClassName, got ['iris']"],
    ),
    "domain cannot be imported": (
        "name: a\ndomain: no_such_package.mine:Domain\nmodels: {nbsr: }\n",
        [
            "study.yaml:2: domain: cannot import 'no_such_package.mine' (No module named 'no_such_package'), "
            "got 'no_such_package.mine:Domain'; is it installed, beside the study file, or on PYTHONPATH?"
        ],
    ),
    "domain class is missing": (
        f"name: a\ndomain: {__name__}:Toi\nmodels: {{nbsr: }}\n",
        [f"study.yaml:2: domain: module '{__name__}' ({__file__}) has no 'Toi', got '{__name__}:Toi'"],
    ),
    "domain is no domain": (
        f"name: a\ndomain: {__name__}:ToyData\nmodels: {{nbsr: }}\n",
        [f"study.yaml:2: domain: must be a subclass of nbsr_core.domains.Domain, got '{__name__}:ToyData'"],
    ),
    "domain without options": (
        f"name: a\ndomain: {__name__}:Bare\nmodels: {{nbsr: }}\n",
        [f"study.yaml:2: domain: must have `data`, a dataclass of options, and `models`, got '{__name__}:Bare'"],
    ),
    "domain that breaks": (
        "name: a\ndomain: ':Toy'\nmodels: {nbsr: }\n",
        ["study.yaml:2: domain: cannot be used: ValueError: Empty module name, got ':Toy'"],
    ),
    "unknown key of the data": (
        ONE + "data: {row: 2}\n",
        ["study.yaml:5: data.row: unknown key; did you mean 'rows'? allowed: rows, noise, folder"],
    ),
    "data out of range": (ONE + "data: {noise: 2}\n", ["study.yaml:5: data.noise: must lie in [0, 1), got 2.0"]),
    "data is a list": (
        ONE + "data: [2]\n",
        ["study.yaml:5: data: expected a mapping (keys: rows, noise, folder), got [2]"],
    ),
    "no models": (HEAD, ["study.yaml:1: models: is missing: expected at least one model of: nbsr, mlp, wide"]),
    "models is empty": (
        HEAD + "models: {}\n",
        ["study.yaml:3: models: expected a mapping with at least one model of: nbsr, mlp, wide, got {}"],
    ),
    "unknown label": (
        HEAD + "models: {nbrs: }\n",
        [
            "study.yaml:3: models.nbrs: no kind of model is called 'nbrs'; say which it is with "
            "kind: one of nbsr, mlp, wide; did you mean 'nbsr'?"
        ],
    ),
    "unknown kind": (
        HEAD + "models:\n  mine:\n    kind: xgbost\n",
        ["study.yaml:5: models.mine.kind: expected one of nbsr, mlp, wide, got 'xgbost'"],
    ),
    "label with a dot": (
        HEAD + "models: {a.b: {kind: mlp}}\n",
        ["study.yaml:3: models.a.b: expected a name of letters, digits, - and _ (100 at most), got 'a.b'"],
    ),
    "model is a number": (HEAD + "models: {mlp: 3}\n", ["study.yaml:3: models.mlp: expected a mapping, got 3"]),
    "unknown option": (
        ONE + "    graph: {dept: 3}\n",
        ["study.yaml:5: models.nbsr.graph.dept: unknown key; did you mean 'depth'? allowed: shape, depth, width"],
    ),
    "misspelt value": (
        ONE + "    graph: {shape: taxonmy}\n",
        [
            "study.yaml:5: models.nbsr.graph.shape: expected one of taxonomy, uniform, layered, chain, got 'taxonmy'; "
            "did you mean 'taxonomy'?"
        ],
    ),
    "text for a whole number": (
        ONE + "    graph: {depth: deep}\n",
        ["study.yaml:5: models.nbsr.graph.depth: expected a whole number, got 'deep'"],
    ),
    "quoted number": (
        ONE + "    graph: {depth: '3'}\n",
        ["study.yaml:5: models.nbsr.graph.depth: expected a whole number, got '3'; drop the quotes"],
    ),
    "true for a whole number": (
        ONE + "    graph: {depth: true}\n",
        ["study.yaml:5: models.nbsr.graph.depth: expected a whole number, got true"],
    ),
    "fraction for a whole number": (
        ONE + "    hidden: [64, 2.5]\n",
        ["study.yaml:5: models.nbsr.hidden[1]: expected a whole number, got 2.5"],
    ),
    "number for a list": (
        ONE + "    hidden: 64\n",
        ["study.yaml:5: models.nbsr.hidden: expected a list of whole numbers, got 64"],
    ),
    "null for a list": (
        ONE + "    hidden: null\n",
        ["study.yaml:5: models.nbsr.hidden: expected a list of whole numbers, got null"],
    ),
    "list for a mapping": (
        ONE + "    graph: [1]\n",
        ["study.yaml:5: models.nbsr.graph: expected a mapping (keys: shape, depth, width), got [1]"],
    ),
    "yes for true": (
        ONE + "    calibrate: yes\n",
        ["study.yaml:5: models.nbsr.calibrate: expected true or false, got 'yes'; YAML's words are true and false"],
    ),
    "neither number nor null": (
        ONE + "    prior_weight: lots\n",
        ["study.yaml:5: models.nbsr.prior_weight: expected a number or null, got 'lots'"],
    ),
    "not a number": (
        ONE + "    prior_weight: .nan\n",
        ["study.yaml:5: models.nbsr.prior_weight: expected a number or null, got nan"],
    ),
    "neither mapping nor list": (
        ONE + "    experts: 3\n",
        [
            "study.yaml:5: models.nbsr.experts: expected a mapping (keys: hidden, bias, activation, bound) "
            "or a list of mappings, got 3"
        ],
    ),
    "inside a list of mappings": (
        ONE + "    experts:\n    - {}\n    - {activaton: exp}\n",
        [
            "study.yaml:7: models.nbsr.experts[1].activaton: unknown key; did you mean 'activation'? "
            "allowed: hidden, bias, activation, bound"
        ],
    ),
    "an option that needs another": (
        ONE + "    experts: {activation: sigmoid}\n",
        [
            "study.yaml:5: models.nbsr.experts.activation: sigmoid evidence needs a bound, "
            "its confidence budget for each class"
        ],
    ),
    "options that do not go together": (
        HEAD + "models: {wide: {size: 1, low: 3, high: 2}}\n",
        ["study.yaml:3: models.wide: low 3.0 is above high 2.0"],
    ),
    "a required option": (
        HEAD + "models: {wide: }\n",
        ["study.yaml:3: models.wide.size: is missing: expected a whole number"],
    ),
    "rejected by the objective": (
        ONE + "    objective: {entropy: -1}\n",
        ["study.yaml:5: models.nbsr.objective.entropy: must be a finite number >= 0, got -1.0"],
    ),
    "training of all": (ONE + "training: {epochs: 0}\n", ["study.yaml:5: training.epochs: must be at least 1, got 0"]),
    "training of one": (
        ONE + "    training: {clip_norm: -1, optimizer: adm}\n",
        [
            "study.yaml:5: models.nbsr.training.optimizer: expected one of adam, adamw, got 'adm'; "
            "did you mean 'adam'?",
            "study.yaml:5: models.nbsr.training.clip_norm: must be a finite number > 0 or null, got -1.0",
        ],
    ),
    "evaluation": (
        ONE + "evaluation: {eta: '1.5', max_accuracy_loss: 2, audits: -1}\n",
        [
            "study.yaml:5: evaluation.eta: expected a number or null, got '1.5'; drop the quotes",
            "study.yaml:5: evaluation.max_accuracy_loss: must lie in [0, 1), got 2.0",
            "study.yaml:5: evaluation.audits: must be at least 0, got -1",
        ],
    ),
    "infinity": (
        ONE + "evaluation: {eta: inf}\n",
        ["study.yaml:5: evaluation.eta: expected a number or null, got 'inf'; infinity is written .inf"],
    ),
    "no seeds": (
        ONE + "seeds: 0\n",
        [
            "study.yaml:5: seeds: expected a number of seeds (1 to 10000) or a list of different seeds "
            "(0 to 4294967295), got 0"
        ],
    ),
    "far too many seeds": (
        ONE + "seeds: 1000000000\n",
        [
            "study.yaml:5: seeds: expected a number of seeds (1 to 10000) or a list of different seeds "
            "(0 to 4294967295), got 1000000000"
        ],
    ),
    "negative and repeated seeds": (
        ONE + "seeds: [4, -1, 4]\n",
        [
            "study.yaml:5: seeds[1]: expected a whole number from 0 to 4294967295, got -1",
            "study.yaml:5: seeds[2]: stands twice; every seed counts once, got 4",
        ],
    ),
    "resources below one": (
        ONE + "resources: {workers: 0, concurrency: 0, retries: -1, gpus_per_worker: -1}\n",
        [
            "study.yaml:5: resources.workers: expected a whole number >= 1, got 0",
            "study.yaml:5: resources.gpus_per_worker: expected a number >= 0, got -1",
            "study.yaml:5: resources.concurrency: expected a whole number >= 1, got 0",
            "study.yaml:5: resources.retries: expected a whole number >= 0, got -1",
        ],
    ),
    "share of a GPU for several workers": (
        ONE + "resources: {workers: 2, gpus_per_worker: 0.5}\n",
        ["study.yaml:5: resources: gpus_per_worker may be a share of a GPU only with workers: 1, got 0.5"],
    ),
    "one and a half GPUs": (
        ONE + "resources: {gpus_per_worker: 1.5}\n",
        ["study.yaml:5: resources.gpus_per_worker: must be a whole number where it is above 1, got 1.5"],
    ),
    "question is a list": (ONE + "question: [why]\n", ["study.yaml:5: question: expected text or null, got ['why']"]),
    "search without anything": (
        ONE + "search: {}\n",
        [
            "study.yaml:5: search.trials: is missing: expected a whole number >= 1",
            "study.yaml:5: search.objectives: is missing: expected metrics and directions, "
            "such as {valid/accuracy: maximize}",
            "study.yaml:5: search.space: is missing: expected keys and ranges, "
            "such as {training.learning_rate: {float: [1e-4, 1e-2], log: true}}",
        ],
    ),
    "search of a model that is not there": (
        SEARCH.replace("{trials", "{model: nbrs, trials") + "{lambda: {float: [0, 1]}}}\n",
        ["study.yaml:5: search.model: expected one of the study's models: nbsr, got 'nbrs'; did you mean 'nbsr'?"],
    ),
    "search of one of several": (
        ONE + "  two: {kind: nbsr}\n" + SEARCH.removeprefix(ONE) + "{lambda: {float: [0, 1]}}}\n",
        ["study.yaml:6: search.model: is missing: several are NBSR: nbsr, two; name one of nbsr, two"],
    ),
    "objectives": (
        SEARCH.replace("valid/accuracy: maximize", "accuracy: maximize, test/ece: minimise")
        + "{lambda: {float: [0, 1]}}}\n",
        [
            "study.yaml:5: search.objectives.accuracy: expected a metric as it is logged, such as valid/accuracy, "
            "got 'accuracy'",
            "study.yaml:5: search.objectives.test/ece: expected one of maximize, minimize, got 'minimise'; "
            "did you mean 'minimize'?",
        ],
    ),
    "no objective": (
        SEARCH.replace("valid/accuracy: maximize", "") + "{lambda: {float: [0, 1]}}}\n",
        ["study.yaml:5: search.objectives: expected at least one metric, such as valid/accuracy: maximize, got {}"],
    ),
    "sampler and trials": (
        SEARCH.replace("trials: 4", "trials: 0, sampler: {name: nsga, seed: -1}") + "{lambda: {float: [0, 1]}}}\n",
        [
            "study.yaml:5: search.trials: expected a whole number >= 1, got 0",
            "study.yaml:5: search.sampler.name: expected one of tpe, random, nsga2, qmc, got 'nsga'; "
            "did you mean 'nsga2'?",
            "study.yaml:5: search.sampler.seed: expected a whole number from 0 to 4294967295, got -1",
        ],
    ),
    "pruner on a metric that epochs do not report": (
        SEARCH.replace("trials: 4", "trials: 4, pruner: {metric: test/nll}") + "{lambda: {float: [0, 1]}}}\n",
        [
            "study.yaml:5: search.pruner.metric: expected a metric that every epoch reports, such as valid/nll "
            "or train/loss, got 'test/nll'"
        ],
    ),
    "pruner without a direction": (
        SEARCH.replace("trials: 4", "trials: 4, pruner: {metric: valid/nll}") + "{lambda: {float: [0, 1]}}}\n",
        ["study.yaml:5: search.pruner.direction: is missing: shall valid/nll be maximized or minimized?"],
    ),
    "pruner without a metric": (
        SEARCH.replace("trials: 4", "trials: 4, pruner: median").replace("maximize", "maximize, valid/ece: minimize")
        + "{lambda: {float: [0, 1]}}}\n",
        [
            "study.yaml:5: search.pruner.metric: is missing: a pruner looks at one metric of every epoch, "
            "such as valid/nll"
        ],
    ),
    "a fixed eta that is also picked": (
        SEARCH.replace("search:", "evaluation: {eta: 1}\nsearch:") + "{lambda: {float: [0, 1]}, eta: frontier}}\n",
        ["study.yaml:6: search.space.eta: is picked from the frontier, but evaluation.eta fixes it; drop one, got 1.0"],
    ),
}


class TestWhatIsWrong:
    @pytest.mark.parametrize("case", BROKEN)
    def test_file(self, case: str) -> None:
        text, expected = BROKEN[case]
        assert complaints(text) == expected

    def test_everything_at_once_in_the_order_of_the_file(self) -> None:
        lines = complaints(
            f"name: a b\ndomain: {__name__}:Toy\nsedes: 2\nmodels:\n  nbsr:\n    graph: {{depth: x}}\n"
            "    training: {epochs: -1}\n  other: {}\nseeds: []\ntraining: {factor: 7}\n"
        )
        keys = [line.split(": ")[1] for line in lines]
        assert keys == [
            "name",
            "sedes",
            "models.nbsr.graph.depth",
            "models.nbsr.training.epochs",
            "models.other",
            "seeds",
            "training.factor",
        ]
        assert [int(line.split(":")[1]) for line in lines] == [1, 3, 6, 7, 8, 9, 10]

    def test_problems_carry_their_parts(self) -> None:
        with pytest.raises(StudyError) as caught:
            load(write(ONE + "    graph: {shape: taxonmy}\n"))
        (problem,) = caught.value.problems
        assert (problem.file, problem.line, problem.key) == ("study.yaml", 5, "models.nbsr.graph.shape")
        assert (problem.given, problem.hint) == ("'taxonmy'", "did you mean 'taxonomy'?")
        assert problem.allowed == "one of taxonomy, uniform, layered, chain"
        assert isinstance(caught.value, InputError)
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)

    def test_a_dict_has_no_lines(self) -> None:
        with pytest.raises(StudyError, match=r"^mine: sedes: unknown key; did you mean 'seeds'\?"):
            Study.from_dict({"name": "a", "domain": f"{__name__}:Toy", "models": {"mlp": None}, "sedes": 1}, "mine")

    def test_a_broken_domain_hides_nothing_that_can_be_checked(self) -> None:
        lines = complaints(
            "name: a\ndomain: irs\nmodels: {nbsr: {training: {epochs: 0}}}\nseeds: -1\nsearch: {trials: 0}\n"
        )
        assert [line.split(": ")[1] for line in lines] == [
            "domain",
            "models.nbsr.training.epochs",
            "seeds",
            "search.objectives",
            "search.space",
            "search.trials",
        ]


class TestHostileFiles:
    def test_missing_with_the_nearest_name(self) -> None:
        write(ONE, "quickstart.yaml")
        with pytest.raises(StudyError, match=r"^quickstrat.yaml: no such file; did you mean 'quickstart.yaml'\?$"):
            load("quickstrat.yaml")

    def test_folder(self) -> None:
        Path("studies").mkdir()
        with pytest.raises(StudyError, match=r"^studies: is a folder; name a study file in it$"):
            load("studies")

    def test_binary(self) -> None:
        Path("study.yaml").write_bytes(b"name: \xff\xfe\x00")
        with pytest.raises(StudyError, match=r"^study.yaml: is not a text file in UTF-8 \(byte 6\)$"):
            load("study.yaml")

    def test_control_characters(self) -> None:
        assert complaints("name: a\x07b\n") == ["study.yaml: YAML error: special characters are not allowed"]

    def test_byte_order_mark_is_fine(self) -> None:
        Path("study.yaml").write_bytes(b"\xef\xbb\xbf" + ONE.encode())
        assert Study.load("study.yaml").name == "toy"

    def test_null_in_the_path(self) -> None:
        with pytest.raises(StudyError, match="cannot be read: embedded null byte"):
            load("a\0b")

    def test_too_large(self) -> None:
        assert complaints(ONE + "#" * (1 << 20)) == ["study.yaml: is larger than 1 MiB: this is no study file"]

    def test_unreadable(self) -> None:
        with pytest.raises(StudyError, match=r"^.*study.yaml: cannot be read: Not a directory$"):
            load(Path(write(ONE)) / "study.yaml")

    @pytest.mark.parametrize(
        "tag", ["!!python/object/apply:os.system", "!!python/name:os.system", "!mine", "!!binary", "!!set"]
    )
    def test_tags_are_refused_and_do_nothing(self, tag: str) -> None:
        value = "{a, b}" if tag == "!!set" else "['touch owned']" if "apply" in tag else "''"
        (line,) = complaints(ONE + f"question: {tag} {value}\n")
        assert line == f"study.yaml:5: question: the YAML tag {tag!r} is not allowed; write plain values"
        assert not Path("owned").exists()

    def test_a_billion_laughs(self) -> None:
        laughs = "a0: &a0 [ha, ha, ha, ha, ha, ha, ha, ha, ha, ha]\n" + "".join(
            f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12)
        )
        (line,) = complaints(laughs)
        assert line.endswith("more than 20000 values, with aliases written out")

    def test_far_too_long(self) -> None:
        (line,) = complaints("a:\n" + "- 1\n" * 200_000)
        assert line.endswith("more than 20000 values, with aliases written out")

    @pytest.mark.parametrize("text", ["a: &a [*a]\n", "a: &a {b: *a}\n", "a: &a {<<: *a}\n"])
    def test_an_alias_of_itself(self, text: str) -> None:
        (line,) = complaints(text)
        assert line.endswith("an alias that contains itself")

    def test_nested_without_end(self) -> None:
        (line,) = complaints("a: " + "[" * 100_000)
        assert line.startswith("study.yaml:1: YAML error at column 4")
        assert line.endswith("nested deeper than 40 levels")

    def test_undefined_alias(self) -> None:
        assert complaints("a: *b\n") == ["study.yaml:1: YAML error at column 4: found undefined alias 'b'"]

    def test_a_list_as_key(self) -> None:
        (first, *_) = complaints(ONE + "[a, b]: 3\n")
        assert first == "study.yaml:1: a key must be plain text, in line 5 it is a list or mapping"

    def test_merging_what_is_no_mapping(self) -> None:
        assert complaints(ONE + "    <<: 3\n") == [
            "study.yaml:4: models.nbsr.<<: expected a mapping to take keys from, got 3"
        ]

    @pytest.mark.parametrize("number", ["9" * 5000, "0x" + "f" * 5000])
    def test_a_number_without_end(self, number: str) -> None:
        (line,) = complaints(ONE + f"data: {{noise: {number}}}\n")
        assert line.startswith(f"study.yaml:5: data.noise: cannot be read as int, got '{number[:50]}")
        assert len(line) < 200

    def test_keys_with_control_characters_stay_on_one_line(self) -> None:
        (line,) = complaints(ONE + '"a\\nb\\e[31m": 3\n')
        assert line.startswith("study.yaml:5: 'a\\nb\\x1b[31m': unknown key; allowed: ")

    def test_long_values_are_cut(self) -> None:
        (line,) = complaints(ONE + f"seeds: {'x' * 10_000}\n")
        assert len(line) < 200

    @given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
    def test_whatever_it_is_it_is_a_study_error(self, content: bytes) -> None:
        path = Path("random.yaml")
        path.write_bytes(content)
        with pytest.raises(StudyError):
            load(path)


class TestCollections:
    def members(self) -> None:
        write(ONE, "iris/quick.yaml")
        write(
            ONE.replace("name: toy", "name: other") + "  flat: {kind: mlp, training: {epochs: 3}}\n",
            "medical/quick.yaml",
        )
        write("name: all\nquestion: Everything?\ninclude: [iris/quick.yaml, medical/quick.yaml]\n", "all.yaml")

    def test_loads_members_relative_to_itself(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.members()
        Path("elsewhere").mkdir()
        monkeypatch.chdir("elsewhere")
        found = load("../all.yaml")
        assert isinstance(found, Collection)
        assert (found.name, found.question) == ("all", "Everything?")
        assert [study.name for study in found.studies] == ["toy", "other"]
        assert found.studies[0].path == Path("../iris/quick.yaml")

    def test_nested_and_twice_the_same_file(self) -> None:
        self.members()
        write("name: more\ninclude: [all.yaml, iris/quick.yaml]\n", "more.yaml")
        found = load("more.yaml")
        assert isinstance(found, Collection)
        assert [study.name for study in found.studies] == ["toy", "other"]

    def test_overrides_reach_who_has_the_key(self) -> None:
        self.members()
        found = load("all.yaml", ["seeds=2", "training.epochs=9", "models.flat.hidden=[3]", "name=renamed"])
        assert isinstance(found, Collection)
        first, second = found.studies
        assert (found.name, first.seeds, second.seeds) == ("renamed", (0, 1), (0, 1))
        assert (first.models["nbsr"].training.epochs, second.models["flat"].training.epochs) == (9, 3)
        assert list(first.models) == ["nbsr"]
        assert second.models["flat"].options.hidden == (3,)

    def test_an_override_that_reaches_nobody(self) -> None:
        self.members()
        with pytest.raises(
            StudyError, match=r"^--set models.tree.depth=3: models.tree.depth: no study of this collection has"
        ):
            load("all.yaml", ["models.tree.depth=3"])

    def test_a_bad_value_in_an_override(self) -> None:
        self.members()
        with pytest.raises(
            StudyError, match=r"^--set models.flat.hidden=3: models.flat.hidden: expected a list of whole"
        ):
            load("all.yaml", ["models.flat.hidden=3"])

    def test_study_load_wants_one_study(self) -> None:
        self.members()
        with pytest.raises(StudyError, match=r"^all.yaml: holds several studies, not one"):
            Study.load("all.yaml")

    def test_both_kinds_at_once(self) -> None:
        self.members()
        assert complaints(ONE + "include: [iris/quick.yaml]\n") == [
            "study.yaml:2: domain: a file that includes others says no more than name and question; drop one of them",
            "study.yaml:3: models: a file that includes others says no more than name and question; drop one of them",
        ]

    def test_missing_member_names_both_files(self) -> None:
        self.members()
        assert complaints("name: all\ninclude:\n- iris/quick.yaml\n- iris/quik.yaml\n- medical\n") == [
            "study.yaml:4: include[1]: iris/quik.yaml: no such file; did you mean 'iris/quick.yaml'?",
            "study.yaml:5: include[2]: medical: is a folder; name a study file in it",
        ]

    def test_problems_of_all_members_come_together(self) -> None:
        write(ONE + "seeds: -1\n", "a.yaml")
        write(ONE + "seeds: -2\n", "b.yaml")
        lines = complaints("name: all\ninclude: [a.yaml, b.yaml]\nquestion: 3\n")
        assert [line.split(": ")[:2] for line in lines] == [
            ["study.yaml:3", "question"],
            ["a.yaml:5", "seeds"],
            ["b.yaml:5", "seeds"],
        ]

    def test_circles(self) -> None:
        write("name: b\ninclude: [study.yaml]\n", "b.yaml")
        assert complaints("name: a\ninclude: [b.yaml]\n") == [
            "b.yaml:2: include[0]: includes itself: b.yaml includes study.yaml"
        ]
        assert complaints("name: a\ninclude: [./study.yaml]\n") == [
            "study.yaml:2: include[0]: includes itself: study.yaml includes study.yaml"
        ]

    def test_two_studies_of_one_name(self) -> None:
        write(ONE, "a.yaml")
        write(ONE, "b.yaml")
        assert complaints("name: all\ninclude: [a.yaml, b.yaml]\n") == [
            "study.yaml:2: include: two studies are called 'toy': a.yaml and b.yaml; rename one"
        ]

    @pytest.mark.parametrize(
        ("include", "message"),
        [
            ("x.yaml", "include: expected a list of texts, got 'x.yaml'"),
            ("[]", "include: expected a list of study files, got []"),
            ("[3]", "include[0]: expected text, got 3; put it in quotes"),
        ],
    )
    def test_include_is_a_list_of_files(self, include: str, message: str) -> None:
        assert complaints(f"name: all\ninclude: {include}\n") == [f"study.yaml:2: {message}"]


class TestWarnings:
    def test_nothing_to_say(self) -> None:
        assert warnings(Study.load(write(FULL))) == []

    def test_a_vacuous_threshold(self) -> None:
        # The entropy of Dirichlet(1, 1, 1) is -log 2.
        one = ONE.replace(":Toy", ":Loaded")
        assert warnings(Study.load(write(one + "evaluation: {eta: -0.70}\n"))) == []
        (warning,) = warnings(Study.load(write(one + "  mlp:\nevaluation: {eta: -0.69}\n")))
        assert warning == (
            "evaluation.eta: -0.69 is above the entropy of nbsr's prior over 3 classes, -0.7: "
            "every sample exits at depth 1"
        )
        assert warnings(Study.load(write(one + "evaluation: {eta: -0.69}\ndata: {folder: nowhere}\n"))) == []

    @pytest.mark.parametrize(("eta", "vacuous"), [(-100, True), (-111, False), (math.inf, True)])
    def test_a_vacuous_threshold_of_a_shipped_domain(self, eta: float, vacuous: bool) -> None:
        study = {"name": "a", "domain": "medical", "models": {"nbsr": {}}, "evaluation": {"eta": eta}}
        said = warnings(Study.from_dict(study))
        assert [("41 classes, -110.3" in warning) for warning in said] == [True] * vacuous

    def test_a_search_that_looks_at_the_test_split(self) -> None:
        text = SEARCH.replace("valid/", "test/") + "{lambda: {float: [0, 1]}}}\n"
        assert "search.objectives: test/accuracy is measured on the test split" in warnings(Study.load(write(text)))[0]

    def test_a_condition_that_never_holds_and_a_pruner_that_never_prunes(self) -> None:
        text = SEARCH.replace("trials: 4", "trials: 4, pruner: {warmup_epochs: 40}") + (
            "{density.quantile: {float: [0.9, 0.99], when: {density.enabled: true}}}}\n"
        )
        assert warnings(Study.load(write(text))) == [
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
        monkeypatch.setattr(domain_module, "_beside", set())
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
        trial_module.code_version.cache_clear()
        assert replace(trial).key != before

    def test_what_is_installed_goes_first(self) -> None:
        with pytest.raises(StudyError, match=r"module 'json' \(.*json.__init__.py\) has no 'Flowers'"):
            Study.load(self.study("mine", "json"))
        import optuna

        write("raise AssertionError('hides what is installed')", "mine/optuna.py")
        Study.load(self.study("mine"))
        assert importlib.reload(optuna).create_study

    def test_two_of_one_name_are_not_mixed_up(self) -> None:
        Study.load(self.study("mine"))
        words = "domain module 'nbsr_platform_test_flowers' stands in .*mine and in .*yours: rename one of them"
        with pytest.raises(StudyError, match=words):
            Study.load(self.study("yours"))

    def test_a_study_in_another_folder_does_not_see_it(self) -> None:
        Path("mine").mkdir()
        path = self.study("yours")
        write(Path(path).read_text(), "mine/study.yaml")
        with pytest.raises(StudyError, match="cannot import 'nbsr_platform_test_flowers'"):
            Study.load("mine/study.yaml")
