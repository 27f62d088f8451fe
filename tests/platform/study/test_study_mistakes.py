"""Study files: what is wrong is all said at once, with place and remedy."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import study_toys
from hypothesis import given
from hypothesis import strategies as st
from nbsr_platform.study.problems import StudyError
from nbsr_platform.study.study import Study, load
from study_toys import HEAD, ONE, SEARCH, TOP_KEYS, complaints, write

from nbsr_core.domains.domain import SHIPPED
from nbsr_core.errors import InputError

DOMAINS = ", ".join(SHIPPED)
GRAPH_KEYS = "shape, depth, width, widths, generalist"


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


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
    "reference that is no model": (
        ONE + "reference: best\n",
        ["study.yaml:5: reference: must be a model of the study (nbsr), got 'best'"],
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
            "got 'no_such_package.mine:Domain'; is it installed, beside the study file, or at the top of its project?",
        ],
    ),
    "domain class is missing": (
        "name: a\ndomain: study_toys:Toi\nmodels: {nbsr: }\n",
        [f"study.yaml:2: domain: module 'study_toys' ({study_toys.__file__}) has no 'Toi', got 'study_toys:Toi'"],
    ),
    "domain is no domain": (
        "name: a\ndomain: study_toys:ToyData\nmodels: {nbsr: }\n",
        ["study.yaml:2: domain: must be a subclass of nbsr_core.domains.Domain, got 'study_toys:ToyData'"],
    ),
    "domain without options": (
        "name: a\ndomain: study_toys:Bare\nmodels: {nbsr: }\n",
        ["study.yaml:2: domain: must have `data`, a dataclass of options, and `models`, got 'study_toys:Bare'"],
    ),
    "domain that breaks": (
        "name: a\ndomain: ':Toy'\nmodels: {nbsr: }\n",
        ["study.yaml:2: domain: cannot be used: expected package.module:name, got ':Toy'"],
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
        [
            "study.yaml:5: models.nbsr.graph.dept: unknown key; did you mean 'depth'? allowed: "
            "shape, depth, width, widths, generalist"
        ],
    ),
    "misspelt value": (
        ONE + "    graph: {shape: taxonmy}\n",
        [
            "study.yaml:5: models.nbsr.graph.shape: expected one of taxonomy, uniform, layered, chain, learned, "
            "got 'taxonmy'; did you mean 'taxonomy'?"
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
        [f"study.yaml:5: models.nbsr.graph: expected a mapping (keys: {GRAPH_KEYS}), got [1]"],
    ),
    "yes for true": (
        ONE + "    density: {enabled: yes}\n",
        [
            "study.yaml:5: models.nbsr.density.enabled: expected true or false, got 'yes'; "
            "YAML's words are true and false"
        ],
    ),
    "misspelt detector": (
        ONE + "evaluation: {detectors: [energy, vimm]}\n",
        [
            "study.yaml:5: evaluation.detectors[1]: expected one of confidence, energy, mahalanobis, knn, vim, "
            "got 'vimm'; did you mean 'vim'?"
        ],
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
            "study.yaml:5: models.nbsr.training.optimizer: expected one of adam, adamw, muon, got 'adm'; "
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
            "study.yaml:5: search.sampler.name: expected one of tpe, gp, nsga2, nsga3, qmc, random, got 'nsga'; "
            "did you mean 'nsga3'?",
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
            "name: a b\ndomain: study_toys:Toy\nsedes: 2\nmodels:\n  nbsr:\n    graph: {depth: x}\n"
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
        assert problem.allowed == "one of taxonomy, uniform, layered, chain, learned"
        assert isinstance(caught.value, InputError)
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)

    def test_a_dict_has_no_lines(self) -> None:
        with pytest.raises(StudyError, match=r"^mine: sedes: unknown key; did you mean 'seeds'\?"):
            Study.from_dict({"name": "a", "domain": "study_toys:Toy", "models": {"mlp": None}, "sedes": 1}, "mine")

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
        with pytest.raises(StudyError, match=r"cannot be read: .*embedded null (byte|character)"):
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


def test_a_float_that_stands_for_several_whole_numbers_is_refused() -> None:
    values = {"name": "a", "domain": "study_toys:Toy", "models": {"mlp": None}}
    assert Study.from_dict({**values, "training": {"epochs": 5.0}}).models["mlp"].training.epochs == 5
    with pytest.raises(StudyError, match=r"training.epochs: .*whole number"):
        Study.from_dict({**values, "training": {"epochs": 1e301}})
