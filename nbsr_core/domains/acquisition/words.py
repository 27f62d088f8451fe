"""The story of one case in plain words and prices, for people who know the field and not the models.

It is told from a story as it is stored (`story.Story.to_json`), so that a page tells results of any age in the same
words; what older results do not know is left unsaid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Stored = Mapping[str, Any]


def stopped_early(story: Stored) -> bool:
    """Whether something was left that it could have bought."""
    return any(not step["needed"] for step in story["steps"])


def is_right(story: Stored) -> bool:
    """Whether the answer is the true one."""
    return bool(story["predicted"] == story["true"])


def in_plain_words(story: Stored) -> list[str]:
    """What was free, what was bought for how much and what it changed, why it stopped, and what came of it."""
    return [*_at_first(story), *_bought(story), _why_stopped(story), _answer(story), *_saved(story)]


def _at_first(story: Stored) -> Iterator[str]:
    free, candidates = story.get("free"), story.get("candidates") or []
    if free is not None:
        yield f"Free: {free or 'nothing'}."
    if _all_alike(candidates):
        yield "Before anything was bought, every answer was as likely as any other."
    elif candidates:
        yield f"Most likely before anything was bought: {_listed(candidates)}."


def _bought(story: Stored) -> Iterator[str]:
    before = list(story.get("candidates") or [])
    before = [] if _all_alike(before) else before
    for step in (step for step in story["steps"] if step["needed"]):
        own = step["bought"]
        after = list(step.get("candidates") or [[own["diagnosis"], own["confidence"]]])
        was = f"; before: {_listed(before[:1])}" if before else ""
        yield (
            f"Purchase {step['step']}: {own['panel']} for {own['cost']:g}, {step['spent']:g} spent so far. It shows "
            f"{step['shown']}. Most likely now: {_listed(after)}{was}."
        )
        before = after


def _why_stopped(story: Stored) -> str:
    sure = f"{story['predicted']} at {percent(story['confidence'])}"
    if not stopped_early(story):
        limit, everything = story.get("budget"), story.get("price_of_everything")
        if everything is not None and story["spent"] >= everything - 1e-9:
            return f"Stopped: everything was bought, with {sure}."
        if limit is not None:
            return f"Stopped: the money was spent ({story['spent']:g} of at most {limit:g}), with {sure}."
        return f"Stopped: the money was spent, or nothing was left to buy, with {sure}."
    if not any(step["needed"] for step in story["steps"]):
        return f"Stopped before the first purchase, sure enough: {sure}."
    return f"Stopped, sure enough: {sure}, and its doubt was below the limit at which it buys no more."


def _answer(story: Stored) -> str:
    verdict = "which is right" if is_right(story) else f"which is wrong: it is {story['true']}"
    return f"Answer: {story['predicted']}, {verdict}. It cost {story['spent']:g}."


def _saved(story: Stored) -> Iterator[str]:
    everything = story.get("price_of_everything")
    if everything is not None:
        yield f"All panels together would have cost {everything:g}."
    following = story.get("next_best")
    if following is not None:
        if everything is None:
            yield f"Buying on to the end would have cost {story['price_of_all']:g}."
        then = "the same answer" if following["diagnosis"] == story["predicted"] else following["diagnosis"]
        yield (
            f"Next it would have bought {following['panel']} for {following['cost']:g}: {then}, "
            f"at {percent(following['confidence'])}."
        )


def _all_alike(candidates: Sequence[Sequence[Any]]) -> bool:
    """Whether the first candidate is no likelier than the last."""
    return len(candidates) > 1 and candidates[0][1] - candidates[-1][1] < 1e-6


def _listed(candidates: Sequence[Sequence[Any]]) -> str:
    return ", ".join(f"{name} ({percent(probability)})" for name, probability in candidates)


def percent(probability: float) -> str:
    """In whole percent; nobody is as sure as 100% by rounding alone, nor is anything ruled out by it."""
    if 0.995 <= probability < 1:
        return "over 99%"
    return "under 1%" if 0 < probability < 0.005 else f"{probability:.0%}"
