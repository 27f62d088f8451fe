"""MLflow keeps a copy of this script with each model and runs it to load the model: code in place of a pickle.

NBSR itself travels beside it, in one archive, for machines on which it is not installed.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pandas as pd
from mlflow.models import set_model
from mlflow.pyfunc import PythonModel

ARCHIVE = Path(__file__).parent / "code" / "nbsr.zip"
if importlib.util.find_spec("nbsr_platform") is None and ARCHIVE.is_file():
    sys.path.append(str(ARCHIVE))

from nbsr_platform.serving import CONFIG, WEIGHTS, ServedModel  # noqa: E402


class NbsrModel(PythonModel):  # type: ignore[misc]
    """What `mlflow.pyfunc.load_model` wraps."""

    def load_context(self, context: Any) -> None:
        self.model = ServedModel.load(Path(context.artifacts[CONFIG]), Path(context.artifacts[WEIGHTS]))

    def predict(self, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        return self.model.predict(model_input, params)


set_model(NbsrModel())
