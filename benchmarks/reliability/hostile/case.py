"""One hostile input: the files it needs, the command it is given to, and what must be said."""

from __future__ import annotations

import hashlib
import json
import pickle
import shlex
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from io import BytesIO
from pathlib import Path

from nbsr_platform.execution.worker import run_trial
from nbsr_platform.study.study import Study
from nbsr_platform.trials.home import Home
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.sealed import MANIFEST, seal
from nbsr_platform.trials.store import ResultStore
from nbsr_platform.trials.trial import data_fingerprint, grid

GOOD = "name: fine\ndomain: iris\nmodels: {mlp: {}}\n"
SEARCH = GOOD.replace("mlp", "nbsr") + "search: {trials: 3, objectives: {valid/accuracy: maximize}, space: "
OWNED = "owned"  # a file that appears where somebody's code was run
PASSWORD = "hunter2-secret"


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
        make: makes what is no plain file.
    """

    name: str
    command: str
    says: str
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    weights: Callable[[bytes], bytes] | None = None
    make: Callable[[Path], None] | None = None

    def place(self, folder: Path) -> None:
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        if self.make is not None:
            self.make(folder)
        if self.weights is not None:
            store = ResultStore(Home(folder / ".nbsr").trials)
            found = trained()
            store.save(found)
            place = store.weights.folder(found.weights)
            model = place / "model.pt"
            model.write_bytes(self.weights(model.read_bytes()))
            seal(place, found.weights)  # whoever can write to a store can also make its checksums right

    @property
    def arguments(self) -> list[str]:
        return shlex.split(self.command.replace(TRAINED, trained().key if self.weights is not None else TRAINED))


def study(name: str, text: str | bytes, says: str, command: str = "validate s.yaml", **more: str | bytes) -> Hostile:
    return Hostile(name, command, says, {"s.yaml": text, **more})


def result(key: str, **files: str | bytes) -> dict[str, str | bytes]:
    """Files of a trial in a store, with the checksums that belong to them."""
    placed = {name.replace("_", "."): text.encode() if isinstance(text, str) else text for name, text in files.items()}
    checksums = {name: hashlib.sha256(content).hexdigest() for name, content in placed.items()}
    placed[MANIFEST] = json.dumps({"key": key, "files": checksums}).encode()
    return {f".nbsr/trials/{key}/{name}": content for name, content in placed.items()}


KEY, TRAINED = "0123456789abcdef", "KEY"
