"""What a page needs of a result's tables and walks, and what to do where they are something else.

A store is data that somebody else may have written, and a domain of one's own may use a table's name for something of
its own. Such a table is left out of the page and named in a note, rather than ending it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NotRequired, TypedDict

from nbsr_core.errors import InputError
from nbsr_core.evaluation import samples
from nbsr_platform.base.shape import fits
from nbsr_platform.trials.results import TrialResult

# What JSON has no word for (infinities) is None.
Figure = float | None


class FrontierRow(TypedDict):
    """One exit threshold."""

    eta: Figure
    accuracy: Figure
    mean_depth: Figure
    mean_cost: NotRequired[Figure]
    mean_macs: NotRequired[Figure]
    exited: NotRequired[Figure]
    ece: NotRequired[Figure]


class ReliabilityRow(TypedDict):
    """One bin of confidence; `depth` is None for the final answer."""

    depth: int | None
    low: float
    confidence: float
    accuracy: float
    count: int


class RiskRow(TypedDict):
    """Error rate among the share that is answered."""

    score: str
    coverage: float
    risk: float


class BeliefRow(TypedDict):
    """The belief at one depth, over all samples."""

    depth: int
    precision: Figure
    precision_low: Figure
    precision_high: Figure
    entropy: Figure
    entropy_low: Figure
    entropy_high: Figure
    vacuity: Figure


class EntropyRow(TypedDict):
    """One bar of a histogram."""

    set: str
    low: Figure
    high: Figure
    share: float


class SeparationRow(TypedDict):
    """How well a set is told from the test split."""

    set: str
    entropy_auroc: Figure
    precision_auroc: Figure


class UsageRow(TypedDict):
    """One node."""

    node: str
    level: int
    share: float


class EdgeRow(TypedDict):
    """One edge."""

    parent: str
    child: str
    share: float


class OrderRow(TypedDict):
    """How often a panel is bought at a step."""

    step: int
    panel: str
    share: float
    paid: NotRequired[float]


class StopRow(TypedDict):
    """What is spent on the cases of a class, and how often the answer is right."""

    name: str
    cases: int
    mean_cost: float
    stopped_early: float
    accuracy: float


class PosteriorRow(TypedDict):
    """One test input: the true posterior, and what was said of it."""

    truth: list[float]
    deep: NotRequired[list[float]]
    fast: NotRequired[list[float]]


class SampleRow(TypedDict):
    """The answers to one set of samples, packed; see `nbsr_core.evaluation.samples`."""

    set: str
    use: str
    count: int
    of: int
    labels: str
    right: str
    nll: str
    early: NotRequired[str]


TABLES: dict[str, type] = {
    "frontier": FrontierRow,
    "reliability": ReliabilityRow,
    "reliability_raw": ReliabilityRow,
    "risk_coverage": RiskRow,
    "belief": BeliefRow,
    "entropy": EntropyRow,
    "separation": SeparationRow,
    "usage": UsageRow,
    "edges": EdgeRow,
    "orders": OrderRow,
    "stops": StopRow,
    "posterior": PosteriorRow,
    samples.TABLE: SampleRow,
}


class FeatureRow(TypedDict):
    """An input and its part in a belief."""

    name: str
    attribution: Figure


class LedgerRow(TypedDict):
    """One class in the ledger of a step, see `nbsr_core.trace.visit.Entry`."""

    name: str
    before: Figure
    evidence: Figure
    alpha: Figure
    expected: Figure
    calibrated: Figure


class StepRow(TypedDict):
    """The visit to one node as `nbsr_core.trace.visit.Visit.to_row` stores it; older results have less."""

    node: str
    route_probability: Figure
    alternatives: NotRequired[dict[str, Figure]]
    evidence: NotRequired[dict[str, Figure]]
    belief: NotRequired[dict[str, Figure]]
    ledger: NotRequired[list[LedgerRow]]
    precision: NotRequired[Figure]
    temperature: NotRequired[Figure]
    measures: NotRequired[str]
    belief_shift: Figure
    entropy: Figure
    vacuity: Figure


class WalkRow(TypedDict):
    """One sample's walk over a graph."""

    sample: int
    true: str
    predicted: str
    verdict: NotRequired[str]
    density: NotRequired[Figure]
    exit_depth: NotRequired[int]
    exit_prediction: NotRequired[str]
    steps: list[StepRow]
    features: NotRequired[list[FeatureRow]]
    features_by_step: NotRequired[list[list[FeatureRow]]]


class StoryRow(TypedDict):
    """One sample's story in words of its domain's own."""

    sample: int
    true: str
    text: str


def drawable(result: TrialResult) -> tuple[TrialResult, list[str]]:
    """The result with such tables and walks only as can be drawn, and the names of what was left out."""
    left_out = [name for name, row in TABLES.items() if not fits(result.tables.get(name, []), list[row])]  # type: ignore[valid-type]
    if not _of_one_size(result.tables.get("posterior", [])):
        left_out.append("posterior")
    if samples.TABLE not in left_out and not _can_be_unpacked(result.tables.get(samples.TABLE, [])):
        left_out.append(samples.TABLE)
    audits = [audit for audit in result.audits if fits(audit, WalkRow) or _is_story(audit)]
    if len(audits) < len(result.audits):
        left_out.append("audits")
    if not left_out:
        return result, []
    tables = {name: rows for name, rows in result.tables.items() if name not in left_out}
    return replace(result, tables=tables, audits=audits), list(dict.fromkeys(left_out))


def _can_be_unpacked(rows: list[dict[str, Any]]) -> bool:
    try:
        return all(samples.unpack(row) is not None for row in rows)
    except InputError:
        return False


def _is_story(audit: dict[str, Any]) -> bool:
    return fits(audit, StoryRow) and not fits(audit.get("steps"), list[StepRow])


def _of_one_size(posterior: list[dict[str, Any]]) -> bool:
    """Whether every list over classes is as long as the first."""
    lists = [value for row in posterior for value in row.values() if isinstance(value, list)]
    columns = {tuple(row) for row in posterior}
    return len(columns) < 2 and len(set(map(len, lists))) < 2
