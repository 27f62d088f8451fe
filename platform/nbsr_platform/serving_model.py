"""MLflow keeps a copy of this script with each model and runs it to load the model: code in place of a pickle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from mlflow.models import set_model
from mlflow.pyfunc import PythonModel

from nbsr_platform.serving import CONFIG, WEIGHTS, ServedModel


class NbsrModel(PythonModel):  # type: ignore[misc]
    """What `mlflow.pyfunc.load_model` wraps."""

    def load_context(self, context: Any) -> None:
        self.model = ServedModel.load(Path(context.artifacts[CONFIG]), Path(context.artifacts[WEIGHTS]))

    def predict(self, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        return self.model.predict(model_input, params)


set_model(NbsrModel())
