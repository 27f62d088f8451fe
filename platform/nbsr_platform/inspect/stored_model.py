"""A model of a stored trial as it would be served, without MLflow in between."""

from __future__ import annotations

from pathlib import Path

from nbsr_core.errors import InputError
from nbsr_platform.serving.served_model import ModelConfig, ServedModel, load_learner
from nbsr_platform.tracking.lookup import find_trial
from nbsr_platform.trials.home import Home
from nbsr_platform.trials.store import ResultStore
from nbsr_platform.trials.stored_trial import domain_of, trial_of


def stored_format(home: Home, what: str, tracking_uri: str | None = None) -> dict[str, str | None]:
    """Separator and encoding of CSV files as the study of a trial names them; None where it leaves them to be found."""
    data = ResultStore(home.trials).load(find_trial(home, what, tracking_uri)).trial["data"]
    return {name: data.get(name) for name in ("separator", "encoding")}


def stored_model(home: Home, what: str, tracking_uri: str | None = None, code: Path | None = None) -> ServedModel:
    """The model of a finished trial, at the thresholds that it was judged by.

    Args:
        home: the store with the trial's result.
        what: a trial's key, the beginning of one, or the id of a trial's run in MLflow.
        tracking_uri: MLflow's address for run ids; the store's own by default.
        code: folder with the module of the trial's domain, where that is not installed.
    """
    store = ResultStore(home.trials)
    key = find_trial(home, what, tracking_uri)
    result = store.load(key)
    trial = trial_of(result, code)
    domain_of(result, code)  # says where a module is that is not here, and allows the folder that the user named
    state = store.load_state(key)
    if state is None:
        raise InputError(f"trial {key} was stored without its weights; run its study again")
    config = ModelConfig.of(trial, result)
    return ServedModel(config, load_learner(config, state))
