"""A search whose trials end well at once."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from nbsr_platform.search.feed import SearchFeed
from nbsr_platform.search.journal import mend
from nbsr_platform.study.study import Study
from nbsr_platform.trials.home import Home
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.trial import Trial

STUDY: dict[str, Any] = {
    "name": "hunt",
    "domain": "iris",
    "models": {"mlp": {}},
    "search": {
        "model": "mlp",
        "trials": 4,
        "objectives": {"valid/accuracy": "maximize"},
        "sampler": {"name": "random", "seed": 7},
        "space": {"training.learning_rate": {"float": [1e-4, 1e-2], "log": True}},
    },
}


def feed(home: Home, url: str | None = None) -> SearchFeed:
    """As whoever runs the study opens it."""
    mend(home.search_journal("hunt-key"), ["maximize"])
    return SearchFeed.open(Study.from_dict(STUDY), "key", "fingerprint", home, url)


def ended(trial: Trial) -> TrialResult:
    return TrialResult(trial.key, "finished", 1.0, metrics={"valid/accuracy": 0.5}, trial=asdict(trial))


def finish(feed: SearchFeed) -> list[str]:
    """All that is left to run; the keys of what was run."""
    keys = []
    while (trial := feed.next()) is not None:
        result = ended(trial)
        feed.store.save(result)
        feed.done(trial, result)
        keys.append(trial.key)
    return keys


def run(feed: SearchFeed, count: int) -> list[str]:
    """Trials that end well at once."""
    keys = []
    for _ in range(count):
        trial = feed.next()
        assert trial is not None
        result = ended(trial)
        feed.store.save(result)
        feed.done(trial, result)
        keys.append(trial.key)
    return keys
