"""Trained models as MLflow models: with a signature, an example that they can answer, and all the code they need."""

from __future__ import annotations

import logging
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from nbsr_core.code.sources import once_trained, starting_elsewhere
from nbsr_core.domains.domain import find_domain
from nbsr_core.domains.service import Service
from nbsr_core.errors import InputError
from nbsr_platform.base.compat import requirements_taken_as_met
from nbsr_platform.serving.code import ARCHIVE, archive, own_code, requirements
from nbsr_platform.serving.served_model import BUDGET, CONFIG, WEIGHTS, ModelConfig, ServedModel, load_learner
from nbsr_platform.study.options import from_plain, to_plain

SCRIPT = Path(__file__).with_name("serving_model.py")


def save_model(folder: Path, config: ModelConfig, state: dict[str, Any]) -> None:
    """Write an MLflow model into a new folder.

    Raises:
        InputError: the model cannot be built, or does not answer its own example.
    """
    import mlflow.pyfunc

    kind = find_domain(config.domain).models.get(config.kind)
    options = None if kind is None else once_trained(from_plain(kind.options, config.options))
    known = config if options is None else replace(config, options=to_plain(options))
    served = ServedModel(known, load_learner(known, state))  # what cannot be loaded is not saved either
    example = pd.DataFrame([served.service.example()])
    _try_out(served, example)
    try:
        own = own_code(config.domain, options)
    except InputError as error:
        own, known = {}, replace(known, left_out=str(error))
    further = [name for part in starting_elsewhere(options) for name in part.packages]
    logging.getLogger("mlflow.pyfunc").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="nbsr-") as name:
        parts = {CONFIG: Path(name) / CONFIG, WEIGHTS: Path(name) / WEIGHTS}
        parts[CONFIG].write_text(known.to_json(), encoding="utf-8")
        torch.save(state, parts[WEIGHTS])
        code = Path(name) / "code"
        code.mkdir()
        (code / ARCHIVE).write_bytes(archive())
        for place, path in own.items():
            (code / place).parent.mkdir(parents=True, exist_ok=True)
            (code / place).write_bytes(path.read_bytes())
        with requirements_taken_as_met():
            mlflow.pyfunc.save_model(
                str(folder),
                python_model=str(SCRIPT),
                artifacts={key: str(path) for key, path in parts.items()},
                code_paths=[str(path) for path in sorted(code.iterdir())],
                signature=_signature(served.service, known),
                input_example=example,
                pip_requirements=requirements(own, [*served.learner.packages, *further]),
            )


def _try_out(served: ServedModel, example: pd.DataFrame) -> None:
    try:
        served.predict(example)
    except InputError:
        raise
    except Exception as error:  # somebody's model can fail in any way
        raise InputError(
            f"the model {served.config.kind!r} of domain {served.config.domain!r} does not answer a table with one "
            f"column per feature ({type(error).__name__}: {error}); give the domain a `service` that asks it otherwise"
        ) from error


def _signature(service: Service, config: ModelConfig) -> Any:
    """Names and kinds of all columns.

    Numbers of a question are of any type to MLflow, and checked by us: as a `double` it would refuse whole numbers,
    such as a file has where nobody wrote the decimal point.
    """
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema
    from mlflow.types.schema import AnyType

    kinds = {"number": DataType.double, "text": DataType.string, "truth": DataType.boolean}
    asked = {**kinds, "number": AnyType(), "value": AnyType()}
    questions = [ColSpec(asked[column.kind], column.name, required=column.required) for column in service.inputs]
    answers = [ColSpec(kinds[column.kind], column.name) for column in service.outputs]
    use = {**config.use, **({BUDGET: None} if service.takes_budget else {})}
    params = [ParamSpec(name, DataType.double, value) for name, value in use.items()]
    return ModelSignature(inputs=Schema(questions), outputs=Schema(answers), params=ParamSchema(params))
