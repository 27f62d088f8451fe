"""All that somebody needs to get the same again: command, study file, seeds, data, versions, time and machine."""

from __future__ import annotations

from html import escape

from nbsr_platform.report.material import Material
from nbsr_platform.report.tables import definitions


def reproduce(material: Material) -> str:
    """The last part of the report."""
    results = [result for _, result in material.finished]
    versions: dict[str, list[str]] = {}
    for result in results:
        for name, value in result.environment.items():
            if name != "hostname" and value not in versions.setdefault(name, []):
                versions[name].append(value)
    fingerprints = dict.fromkeys(str(result.data.get("fingerprint", "unknown")) for result in results)
    seeds = sorted({trial.seed for trial, _ in material.finished})
    spent = sum(result.seconds for result in results)
    facts = {
        "seeds": ", ".join(map(str, seeds)) or "none yet",
        "data": f"{material.source}{' (synthetic)' if material.synthetic else ''}",
        "data fingerprint": ", ".join(fingerprints) or "unknown",
        "time": f"{spent:.0f} s of computing in {len(results)} trials"
        + (f", {spent / len(results):.1f} s each" if results else ""),
        **{name: ", ".join(values) for name, values in versions.items()},
    }
    return (
        f"<pre>{escape(material.command)}</pre>{definitions(facts)}"
        f"<details><summary>study file, every default spelled out</summary>"
        f"<pre>{escape(material.study.to_yaml())}</pre></details>"
    )
