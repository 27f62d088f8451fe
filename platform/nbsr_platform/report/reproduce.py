"""All that somebody needs to get the same again: command, study file, seeds, data, versions, time and machine."""

from __future__ import annotations

from html import escape

from nbsr_platform.report.study_results import StudyResults
from nbsr_platform.report.tables import definitions


def reproduce(study_results: StudyResults) -> str:
    """The last part of the report."""
    results = [result for _, result in study_results.finished]
    versions: dict[str, list[str]] = {}
    for made_in in (one for result in results for one in result.environments):
        for name, value in made_in.items():
            if name != "hostname" and value not in versions.setdefault(name, []):
                versions[name].append(value)
    fingerprints = dict.fromkeys(str(result.data.get("fingerprint", "unknown")) for result in results)
    seeds = sorted({trial.seed for trial, _ in study_results.finished})
    spent = sum(result.seconds for result in results)
    facts = {
        "seeds": ", ".join(map(str, seeds)) or "none yet",
        "data": f"{study_results.source}{' (synthetic)' if study_results.synthetic else ''}",
        "data fingerprint": ", ".join(fingerprints) or "unknown",
        "time": f"{spent:.0f} s of computing in {len(results)} trials"
        + (f", {spent / len(results):.1f} s each" if results else ""),
        **{name: ", ".join(values) for name, values in versions.items()},
    }
    return (
        f"<pre>{escape(study_results.command)}</pre>{definitions(facts)}"
        f"<details><summary>study file, every default spelled out</summary>"
        f"<pre>{escape(study_results.study.to_yaml())}</pre></details>"
    )
