"""A table that models were trained on, in a home of its own, for tests of what comes after training."""

from __future__ import annotations

import json
from pathlib import Path

from nbsr_platform.cli.app import app
from nbsr_platform.inspect.stored_model import stored_model
from nbsr_platform.serving.served_model import ServedModel
from nbsr_platform.trials.home import Home
from tables import animals, write_csv
from typer.testing import CliRunner

STUDY = """
name: pets
domain: table
data: {file: pets.csv, target: animal}
seeds: 1
training: {epochs: 3, learning_rate: 5.0e-3}
models: {nbsr: {}, xgboost: {n_estimators: 3}}
"""


def nbsr(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == code, done.output
    assert "Traceback" not in done.output
    return " ".join(done.output.split())


class Trained:
    """A home with a study of a table that was run in it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder, folder / "home"
        write_csv(folder / "pets.csv", animals())
        (folder / "pets.yaml").write_text(STUDY)
        nbsr("run", str(folder / "pets.yaml"), "--local", "--home", str(self.home))
        (study,) = json.loads(nbsr("ls", "--json", "--home", str(self.home)))
        self.keys = {trial["model"]: trial["key"] for trial in study["trials"]}

    def model(self, name: str = "nbsr") -> ServedModel:
        return stored_model(Home(self.home), self.keys[name])
