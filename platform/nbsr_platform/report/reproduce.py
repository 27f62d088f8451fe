"""All that somebody needs to get the same again: command, study file, seeds, data, versions, time and machine."""

from __future__ import annotations

from html import escape

from nbsr_platform.report.study_results import StudyResults
from nbsr_platform.report.tables import definitions


def reproduce(study_results: StudyResults) -> str:
    """The last part of the report."""
    results = [result for _, result in study_results.finished]
    spent = sum(result.seconds for result in results)
    facts = {
        **what_was_run(study_results),
        "time": f"{spent:.0f} s of computing in {len(results)} trials"
        + (f", {spent / len(results):.1f} s each" if results else ""),
        **{name: ", ".join(values) for name, values in made_in(study_results).items()},
    }
    return (
        f"<pre>{escape(study_results.command)}</pre>{definitions(facts)}"
        f"<details><summary>study file, every default spelled out</summary>"
        f"<pre>{escape(study_results.study.to_yaml())}</pre></details>"
    )


def what_was_run(study_results: StudyResults) -> dict[str, str]:
    """Seeds and data."""
    results = [result for _, result in study_results.finished]
    fingerprints = dict.fromkeys(str(result.data.get("fingerprint", "unknown")) for result in results)
    seeds = sorted({trial.seed for trial, _ in study_results.finished})
    return {
        "seeds": ", ".join(map(str, seeds)) or "none yet",
        "data": f"{study_results.source}{' (synthetic)' if study_results.synthetic else ''}",
        "data fingerprint": ", ".join(fingerprints) or "unknown",
    }


def made_in(study_results: StudyResults) -> dict[str, list[str]]:
    """What is known of where and when results were made, by name: all values that occur, each once."""
    found: dict[str, list[str]] = {}
    for environment in (one for _, result in study_results.finished for one in result.environments):
        for name, value in environment.items():
            if name != "hostname" and value not in found.setdefault(name, []):
                found[name].append(value)
    return found
