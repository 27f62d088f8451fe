"""What a run found, for Python, for the table at its end, and for `nbsr run --json`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbsr_platform.execution.study_run import StudyRun
from nbsr_platform.report import pareto, summary
from nbsr_platform.trials.environment import differences
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.trial import Trial

if TYPE_CHECKING:
    import pandas as pd


@dataclass
class RunResult:
    """What a run found, whether of one study or of a collection; a collection may ask a question of its own."""

    name: str
    tracking_uri: str
    report: Path
    parts: list[StudyRun]
    question: str | None = None

    @property
    def run_id(self) -> str:
        """MLflow's id of the study's run (of the first one in a collection)."""
        return self.parts[0].run_id if self.parts else ""

    @cached_property
    def rows(self) -> list[summary.ComparisonRow]:
        return [row for part in self.parts for row in part.rows]

    @cached_property
    def table(self) -> pd.DataFrame:
        """Models x figures with 95% intervals over seeds."""
        return summary.table(self.rows)

    @property
    def legend(self) -> list[str]:
        return list(dict.fromkeys(line for part in self.parts for line in part.legend))

    @property
    def failed(self) -> list[tuple[Trial, TrialResult]]:
        return [item for part in self.parts for item in part.failed]

    @property
    def notes(self) -> list[str]:
        """What a reader must know before believing a figure, each once."""
        results = [result for part in self.parts for _, result in part.study_results.finished]
        elsewhere = differences(one for result in results for one in result.environments)
        warnings = dict.fromkeys(warning for result in results for warning in result.warnings)
        return [*warnings, *([] if elsewhere is None else [elsewhere])]

    def to_json(self) -> dict[str, Any]:
        """The document that `nbsr run --json` prints."""
        all_trials = [part.ended_trials for part in self.parts]
        repeated = sum(len(part.repeats.finished) for part in self.parts)
        judged_again = sum(part.ended_trials.judged_again + part.repeats.judged_again for part in self.parts)
        return {
            "study": self.name,
            "tracking_uri": self.tracking_uri,
            "run_id": self.run_id,
            "report": str(self.report),
            "trials": {
                "total": sum(ended_trials.total for ended_trials in all_trials),
                "finished": sum(len(ended_trials.finished) for ended_trials in all_trials),
                "reused": sum(ended_trials.reused for ended_trials in all_trials),
                "failed": sum(len(ended_trials.failed) for ended_trials in all_trials),
                "pruned": sum(ended_trials.pruned for ended_trials in all_trials),
                **({"judged_again": judged_again} if judged_again else {}),
                **({"repeated": repeated} if repeated else {}),
            },
            "table": [row.to_json() for row in self.rows],
            "pareto": {
                part.study.name: [member.to_json() for member in pareto.members(part.study_results)]
                for part in self.parts
                if part.study.search is not None
            },
            "legend": self.legend,
            "notes": self.notes,
        }


def dump(result: RunResult) -> str:
    """The run's JSON document as text."""
    return json.dumps(result.to_json(), allow_nan=False)
