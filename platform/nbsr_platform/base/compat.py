"""What we touch of Optuna and MLflow that is not theirs to promise; a test of each says when a new version changed it.

Ray's private parts are in `nbsr_platform.execution.on_ray`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import optuna


class JournalOperation:
    """Optuna's numbers for what a line of a journal says, as far as we know them by name."""

    CREATE_STUDY = 0
    OF_A_STUDY = (2, 3)  # its attributes
    CREATE_TRIAL = 4
    END_TRIAL = 6
    OF_A_TRIAL = (5, 6, 7, 8, 9)  # parameter, end, intermediate value, attributes


# The table of a database in which Optuna keeps its studies: where it is missing, there are none.
OPTUNA_STUDIES = "studies"

# Where MLflow keeps addresses of artifacts: table, column, and the column that says which experiment it is of, if any.
MLFLOW_ADDRESSES = (
    ("experiments", "artifact_location", "experiment_id"),
    ("runs", "artifact_uri", "experiment_id"),
    ("logged_models", "artifact_location", "experiment_id"),
    ("model_versions", "source", None),
    ("model_versions", "storage_location", None),
)

# Where MLflow keeps its list of installed packages (None until it is made), and which run's artifacts are where.
_PACKAGES, _ARTIFACT_PLACES = "_MODULES_TO_PACKAGES", "_artifact_repos_cache"


def resumed_trial(study: optuna.Study, known: optuna.trial.FrozenTrial) -> optuna.Trial:
    """A trial of a study that can be told its end; Optuna itself gives one only to whoever asked for it."""
    import optuna

    return optuna.Trial(study, known._trial_id)


def forget_artifact_places() -> None:
    """MLflow remembers for the whole process where a run's artifacts are, by the run's id alone.

    In a copy of a store, or one that was moved meanwhile, they are elsewhere.
    """
    from mlflow.tracking._tracking_service import utils

    getattr(utils, _ARTIFACT_PLACES, {}).clear()


@contextlib.contextmanager
def requirements_taken_as_met() -> Iterator[None]:
    """Spare MLflow the comparison of requirements with what is installed: ours are read off what is installed.

    For that it would list the files of all packages once a process, which takes longer than all the rest.
    """
    from mlflow.utils import requirements_utils

    if getattr(requirements_utils, _PACKAGES, "listed") is not None:
        yield
        return
    setattr(requirements_utils, _PACKAGES, {})
    try:
        yield
    finally:
        setattr(requirements_utils, _PACKAGES, None)
