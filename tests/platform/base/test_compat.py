"""What we touch of Optuna and MLflow without their promise is as it was: a version that changed it fails here."""

from __future__ import annotations

import optuna
import pytest
from mlflow.store.db.base_sql_model import Base
from mlflow.store.model_registry.dbmodels import models as registered  # noqa: F401 (adds its tables to `Base`)
from mlflow.store.tracking.dbmodels import models as tracked  # noqa: F401
from mlflow.tracking._tracking_service import utils as tracking_utils
from mlflow.utils import requirements_utils
from nbsr_platform.base import compat
from optuna.storages._rdb.models import BaseModel, StudyModel
from optuna.storages.journal._storage import JournalOperation
from optuna.trial import TrialState


def test_a_proposal_that_another_process_asked_for_can_be_told_its_end() -> None:
    study = optuna.create_study()
    asked = study.ask()
    taken_up = compat.resumed_trial(study, study.get_trials()[asked.number])
    assert taken_up.number == asked.number
    study.tell(taken_up, 1.0)
    assert study.trials[asked.number].state == TrialState.COMPLETE


def test_the_lines_of_a_journal_have_the_numbers_that_we_know() -> None:
    ours = compat.JournalOperation
    assert ours.CREATE_STUDY == JournalOperation.CREATE_STUDY
    assert ours.CREATE_TRIAL == JournalOperation.CREATE_TRIAL
    assert ours.END_TRIAL == JournalOperation.SET_TRIAL_STATE_VALUES
    about_trials = {kind.value for kind in JournalOperation if kind.name.startswith("SET_TRIAL")}
    about_studies = {kind.value for kind in JournalOperation if kind.name.startswith("SET_STUDY")}
    assert (set(ours.OF_A_TRIAL), set(ours.OF_A_STUDY)) == (about_trials, about_studies)


def test_optuna_keeps_its_studies_in_the_table_that_we_look_for() -> None:
    assert StudyModel.__tablename__ == compat.OPTUNA_STUDIES
    assert compat.OPTUNA_STUDIES in BaseModel.metadata.tables


def test_mlflow_keeps_addresses_of_artifacts_where_we_correct_them_and_nowhere_else() -> None:
    tables = Base.metadata.tables
    for table, column, owner in compat.MLFLOW_ADDRESSES:
        assert column in tables[table].columns
        assert owner is None or owner in tables[table].columns
    known = {(table, column) for table, column, _ in compat.MLFLOW_ADDRESSES}
    named = {
        (name, column.name)
        for name, table in tables.items()
        for column in table.columns
        if column.name in ("artifact_location", "artifact_uri", "storage_location")
    }
    assert named <= known


def test_mlflow_forgets_where_the_artifacts_of_a_run_are() -> None:
    places = tracking_utils._artifact_repos_cache
    places["run"] = object()
    compat.forget_artifact_places()
    assert tracking_utils._artifact_repos_cache is places
    assert "run" not in places


def test_mlflow_is_spared_the_list_of_packages_and_makes_it_when_it_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements_utils, "_MODULES_TO_PACKAGES", None)
    with compat.requirements_taken_as_met():
        assert requirements_utils._MODULES_TO_PACKAGES == {}
    assert requirements_utils._MODULES_TO_PACKAGES is None
    listed = {"yaml": ["PyYAML"]}
    monkeypatch.setattr(requirements_utils, "_MODULES_TO_PACKAGES", listed)
    with compat.requirements_taken_as_met():
        assert requirements_utils._MODULES_TO_PACKAGES is listed, "what is there is used"
