"""NBSR's platform: one study file, run on Ray, recorded in MLflow, resumable.

>>> from nbsr_platform import Study, run  # doctest: +SKIP
>>> run(Study.load("studies/medical/quickstart.yaml")).table  # doctest: +SKIP
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any


def _leave_current_folder() -> None:
    """As `python -m nbsr_platform.cli.app` import what the command `nbsr` does: no module of the current folder.

    Python puts that folder first on its path, so that a `yaml.py` there would stand for the installed one.
    """
    words, root = sys.orig_argv, os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    started = words[words.index("-m") + 1] if sys.argv[:1] == ["-m"] and "-m" in words else ""
    if started.partition(".")[0] == __name__ and not sys.flags.safe_path and sys.path[0] != root:
        del sys.path[0]


_leave_current_folder()

from nbsr_core._extras import extra  # noqa: E402  (only now: nothing is imported from the current folder)
from nbsr_core._lazy import on_first_use  # noqa: E402

# Read by Ray and MLflow when they are imported: no usage reports, no second progress table, our own handling of Ctrl-C,
# no snapshots of Tune's (we never restore from them: the truth of what is done is in our own store), no word on workers
# that died (their trials start again, or are reported as failed) or on lost nodes (`ray_watch`).
for _name, _value in {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": "worker died or was killed|Raylet is terminated|has been marked dead",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "86400",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}.items():
    os.environ.setdefault(_name, _value)

if TYPE_CHECKING:
    from nbsr_platform.execution.run_result import RunResult
    from nbsr_platform.execution.runner import run
    from nbsr_platform.study.study import Collection, Study, load

__all__ = ["Collection", "RunResult", "Study", "load", "run"]


# On first use: reading a study file must not wait for Ray and MLflow to be imported.
_find = on_first_use(
    __name__,
    {
        "Collection": "study.study",
        "RunResult": "execution.run_result",
        "Study": "study.study",
        "load": "study.study",
        "run": "execution.runner",
    },
)


def __getattr__(name: str) -> Any:
    with extra("platform"):
        return _find(name)
