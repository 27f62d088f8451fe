"""Inputs that are broken or mean harm, and what `nbsr` says to each: one clear message, exit code 2, nothing written.

One list for the test that tries them all and for the table in docs/reliability.md.
"""

from __future__ import annotations

import pickle
import shlex
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from io import BytesIO
from pathlib import Path

from nbsr_platform.paths import Home
from nbsr_platform.results import ResultStore, TrialResult
from nbsr_platform.study import Study
from nbsr_platform.trial import data_fingerprint, grid
from nbsr_platform.worker import run_trial

GOOD = "name: fine\ndomain: iris\nmodels: {mlp: {}}\n"
SEARCH = GOOD.replace("mlp", "nbsr") + "search: {trials: 3, objectives: {valid/accuracy: maximize}, space: "
OWNED = "owned"  # a file that appears where somebody's code was run
PASSWORD = "hunter2-secret"
NAME = "name: expected a name of letters, digits, - and _ (100 at most)"
NO_DOMAIN = "domain: must be a subclass of nbsr_core.domains.Domain"


class Malice:
    """Makes the file `owned` wherever it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (exec, (f"open({OWNED!r}, 'w')",))


def malicious_weights() -> bytes:
    """A file that torch takes for one of its own, with a pickle that runs code."""
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("model/data.pkl", pickle.dumps(Malice()))
        archive.writestr("model/version", "3")
        archive.writestr("model/byteorder", "little")
    return buffer.getvalue()


@cache
def trained() -> TrialResult:
    """A trial of Iris, really trained, for one epoch."""
    study = Study.from_dict({"name": "real", "domain": "iris", "models": {"nbsr": {}}, "training": {"epochs": 1}})
    (trial,) = grid(study, data_fingerprint(study))
    result = list(run_trial(trial, "cpu"))[-1]
    assert isinstance(result, TrialResult)
    return result


@dataclass(frozen=True)
class Hostile:
    """One input.

    Attributes:
        name: what it is, for people.
        command: what follows `nbsr`.
        says: what stands in the message.
        files: what lies in the folder, by path.
        weights: what stands for the model of a trial that was really trained.
    """

    name: str
    command: str
    says: str
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    weights: Callable[[bytes], bytes] | None = None

    def place(self, folder: Path) -> None:
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        if self.weights is not None:
            store = ResultStore(Home(folder / ".nbsr").trials)
            found = trained()
            store.save(found)
            model = store.folder(found.key) / "model.pt"
            model.write_bytes(self.weights(model.read_bytes()))

    @property
    def arguments(self) -> list[str]:
        return shlex.split(self.command.replace(TRAINED, trained().key if self.weights is not None else TRAINED))


def study(name: str, text: str | bytes, says: str, command: str = "validate s.yaml", **more: str | bytes) -> Hostile:
    return Hostile(name, command, says, {"s.yaml": text, **more})


def result(key: str, **files: str | bytes) -> dict[str, str | bytes]:
    """Files of a trial in a store."""
    return {f".nbsr/trials/{key}/{name.replace('_', '.')}": content for name, content in files.items()}


KEY, TRAINED = "0123456789abcdef", "KEY"
LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(9)
)

HOSTILE: tuple[Hostile, ...] = (
    # Files that are no study, or would run code where a careless reader loads them.
    study(
        "a YAML tag that calls a function",
        f"name: !!python/object/apply:os.mknod [{OWNED}]\n",
        "the YAML tag '!!python/object/apply:os.mknod' is not allowed",
    ),
    study(
        "a YAML tag that names a function",
        GOOD + "question: !!python/name:os.system\n",
        "the YAML tag '!!python/name:os.system' is not allowed",
    ),
    study(
        "a YAML tag that imports a module",
        GOOD + "question: !!python/module:antigravity\n",
        "the YAML tag '!!python/module:antigravity' is not allowed",
    ),
    study(
        "a YAML tag of somebody's own", GOOD + "data: !include /etc/passwd\n", "the YAML tag '!include' is not allowed"
    ),
    study("a billion laughs (aliases of aliases)", LAUGHS + GOOD, "more than 20000 values, with aliases written out"),
    study("an alias that contains itself", GOOD + "data: &x {y: *x}\n", "an alias that contains itself"),
    study("a thousand brackets", GOOD + "data: " + "[" * 1000 + "]" * 1000 + "\n", "nested deeper than 40 levels"),
    study("bytes that are no text", b"\xff\xfe\x00name", "s.yaml: is not a text file in UTF-8"),
    study("a NUL character", GOOD + "question: 'a\0b'\n", "special characters are not allowed"),
    study("nothing at all", "", "s.yaml: is empty; a study needs name, domain and models"),
    study("a list", "[1, 2, 3]\n", "s.yaml:1: expected a mapping"),
    study("a single word", "study\n", "s.yaml:1: expected a mapping"),
    study("two documents in one file", GOOD + "---\n" + GOOD, "found another document"),
    study("a key twice", GOOD + "name: other\n", "name: the key stands twice, first in line 1"),
    study("a quote that never ends", "name: 'fine\n", "found unexpected end of stream"),
    study("tabs for spaces", "name: fine\nmodels:\n\tmlp: {}\n", "indent with spaces, not tabs"),
    Hostile("a folder for a file", "validate folder", "folder: is a folder; name a study file in it", {"folder/x": ""}),
    Hostile("a file that is not there", "validate nowhere.yaml", "nowhere.yaml: no such file"),
    Hostile("a file that cannot be read", "validate /proc/self/mem", "/proc/self/mem: cannot be read"),
    # Names that would leave their folder, or be read as something else.
    study("a name that climbs out of the store", GOOD.replace("fine", "../../evil"), NAME),
    study("a name with a slash", GOOD.replace("fine", "a/b"), NAME),
    study("a name with markup", GOOD.replace("fine", "'<script>alert(1)</script>'"), NAME),
    study("a name with a line break", GOOD.replace("fine", '"a\\nb"'), NAME),
    study("a name of 5000 letters", GOOD.replace("fine", "x" * 5000), NAME),
    study("a name that is a number", GOOD.replace("fine", "12"), NAME),
    study("a shell command for a name", GOOD.replace("fine", "'$(touch owned)'"), NAME),
    # Domains: the one door for code, and it takes only domains.
    study("a domain that is a function", GOOD.replace("iris", "os:system"), NO_DOMAIN),
    study("a domain that starts processes", GOOD.replace("iris", "subprocess:Popen"), NO_DOMAIN),
    study("a domain that is not there", GOOD.replace("iris", "nowhere:Domain"), "domain: cannot import 'nowhere'"),
    study("a domain by a path", GOOD.replace("iris", "'../evil:Domain'"), "domain: cannot be used"),
    study("a domain with a dot too many", GOOD.replace("iris", "'.:Domain'"), "domain: cannot be used"),
    study("a domain of a spelling mistake", GOOD.replace("iris", "iriss"), "did you mean 'iris'"),
    study(
        "a domain whose module does not compile",
        GOOD.replace("iris", "broken1:D"),
        "domain: cannot be used: SyntaxError",
        **{"broken1.py": "def ("},
    ),
    study(
        "a domain whose module fails",
        GOOD.replace("iris", "broken2:D"),
        "domain: cannot be used: RuntimeError: no",
        **{"broken2.py": "raise RuntimeError('no')"},
    ),
    study(
        "a domain whose module ends the process",
        GOOD.replace("iris", "broken3:D"),
        "domain: cannot be used: SystemExit: 0",
        **{"broken3.py": "import sys; sys.exit(0)"},
    ),
    # Values out of all bounds.
    study("epochs below zero", GOOD + "training: {epochs: -1}\n", "training.epochs: must be at least 1, got -1"),
    study(
        "epochs without end", GOOD + "training: {epochs: .inf}\n", "training.epochs: expected a whole number, got inf"
    ),
    study(
        "a learning rate that is no number",
        GOOD + "training: {learning_rate: .nan}\n",
        "training.learning_rate: expected a number, got nan",
    ),
    study(
        "text for a number",
        GOOD + "training: {batch_size: '30; rm -rf /'}\n",
        "training.batch_size: expected a whole number",
    ),
    study("no seeds", GOOD + "seeds: 0\n", "seeds: expected a number of seeds (1 to 10000)"),
    study("a million million seeds", GOOD + "seeds: 1000000000000\n", "seeds: expected a number of seeds (1 to 10000)"),
    study(
        "half a worker",
        GOOD + "resources: {workers: 0.5}\n",
        "resources.workers: expected a whole number >= 1, got 0.5",
    ),
    study("a key that nobody knows", GOOD + "modles: {}\n", "modles: unknown key; did you mean 'models'?"),
    study(
        "a space from high to low",
        SEARCH + "{oracle_dim: {int: [9, 3]}}}\n",
        "search.space.oracle_dim.int: low is above high",
    ),
    study("a space over what is not there", SEARCH + "{__class__: {int: [1, 3]}}}\n", "__class__"),
    study(
        "a search for nothing",
        SEARCH.replace("trials: 3", "trials: 0") + "{oracle_dim: {int: [1, 3]}}}\n",
        "search.trials: expected a whole number >= 1, got 0",
    ),
    # Overrides.
    study("an override without a value", GOOD, "--set seeds: expected key=value", "validate s.yaml --set seeds"),
    study("an override without a key", GOOD, "--set =3: expected key=value", "validate s.yaml --set =3"),
    study(
        "an override of Python's own",
        GOOD,
        "models.__class__: expected a name of letters",
        "validate s.yaml --set models.__class__=1",
    ),
    study(
        "an override with a YAML tag",
        GOOD,
        "the YAML tag '!!python/object/new:os.mknod' is not allowed",
        f"validate s.yaml --set 'name=!!python/object/new:os.mknod [{OWNED}]'",
    ),
    # Stores and servers.
    study("a home that is a file", GOOD, "home/mlflow.db: File exists", "run s.yaml --home home", home="x"),
    study(
        "a home that cannot be", GOOD, "No such file or directory (/proc/nobody)", "run s.yaml --home /proc/nobody/home"
    ),
    study("a tracking store of unknown kind", GOOD, "is of unknown kind 'gopher'", "run s.yaml --tracking gopher://x"),
    study(
        "a tracking store that is no database",
        GOOD,
        "file is not a database",
        "run s.yaml --tracking sqlite:///notes.txt",
        **{"notes.txt": "hello, these are notes" * 99},
    ),
    study(
        "a tracking server that is not there", GOOD, "connection refused", "run s.yaml --tracking http://127.0.0.1:9"
    ),
    study(
        "a database that is not there, with a password",
        GOOD,
        "postgresql+psycopg://me:***@127.0.0.1:9/x: connection refused",
        f"run s.yaml --tracking postgresql+psycopg://me:{PASSWORD}@127.0.0.1:9/x",
    ),
    study(
        "a search's database that is not there, with a password",
        SEARCH + "{oracle_dim: {int: [1, 3]}}}\n",
        "cannot open search storage 'postgresql+psycopg://me:***@127.0.0.1:9/x'",
        f"run s.yaml --tracking sqlite:///runs.db --storage postgresql+psycopg://me:{PASSWORD}@127.0.0.1:9/x",
    ),
    study(
        "a cluster that is no address", GOOD, "--cluster 'nowhere' is no web address", "submit s.yaml --cluster nowhere"
    ),
    study(
        "a cluster that is not there",
        GOOD,
        "no cluster at http://127.0.0.1:9: Connection refused",
        "submit s.yaml --cluster http://127.0.0.1:9",
    ),
    study(
        "a cluster with a password",
        GOOD,
        "no names or passwords",
        f"submit s.yaml --cluster http://me:{PASSWORD}@127.0.0.1:9",
    ),
    # Results that somebody has tampered with.
    Hostile("a key that climbs out of the store", "explain ../../../etc/passwd", "no trial '../../../etc/passwd'"),
    Hostile("a trial that is not there", f"explain {KEY}", f"no trial '{KEY}'"),
    Hostile(
        "a result that is no JSON",
        f"explain {KEY}",
        "result.json: not a readable trial result",
        result(KEY, result_json="{"),
    ),
    Hostile(
        "a result of another shape",
        f"explain {KEY}",
        "result.json: not a readable trial result",
        result(KEY, result_json='{"surprise": 1}'),
    ),
    Hostile(
        "weights that run code when they are unpickled",
        f"explain {TRAINED}",
        "model.pt",
        weights=lambda _: malicious_weights(),
    ),
    Hostile(
        "weights that were cut in half", f"explain {TRAINED}", "model.pt", weights=lambda good: good[: len(good) // 2]
    ),
    Hostile("weights that are a text", f"explain {TRAINED}", "model.pt", weights=lambda _: b"weights"),
    Hostile("a report of nothing", "report nowhere", "no trial 'nowhere'"),
    Hostile("pages of a store without runs", "ui --port 99999999", "mlflow.db holds no runs yet"),
)
