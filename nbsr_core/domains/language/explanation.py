"""Why a language model goes on as it does: the trace of a prompt, as the paper prints it and more.

For each token read: how close it is to what was trained on, and at which depth its successor is predicted. For the
token to come: what every router says, how much evidence each leaf has to offer, and the words that the belief favours.
Then continuations, evidential and otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from nbsr_core.domains.domain import Answer, Question
from nbsr_core.domains.language.generation import PAPER_VACUITY, Continuation, Strategy, goes_on, read_prompt
from nbsr_core.domains.language.grammar import PAD, UNK
from nbsr_core.errors import InputError
from nbsr_core.learning.learners import Learner, NbsrLearner
from nbsr_core.learning.splits import Splits
from nbsr_core.model.network import evaluating

TOP, DRAWS = 5, 2
# What the exit threshold shown here may cost on the validation split.
FAST_NLL_LOSS = 0.005


def explain(learner: Learner, splits: Splits, question: Question) -> Answer | None:
    """The trace of a prompt; a sample is the beginning of that test sentence, all but its last token."""
    if question.episode is not None:
        return None
    tokens = _tokens(splits, question)
    data: dict[str, Any] = {"prompt": [splits.class_names[token] for token in tokens]}
    if question.prompt is not None:
        data["unknown_words"] = _unknown(question.prompt, splits.class_names)
    if isinstance(learner, NbsrLearner):
        data |= _walk(learner, splits, tokens)
    else:
        data["top"] = _top(learner.probabilities(torch.tensor([tokens]))[-1], splits.class_names)
    data["continuations"] = [_plain(c) for c in _continuations(learner, splits, tokens)]
    from nbsr_core.domains.language.picture import draw_prompt

    return Answer(text=tell(data), data=data, svg=draw_prompt(data))


def _tokens(splits: Splits, question: Question) -> list[int]:
    if question.prompt is not None:
        return read_prompt(question.prompt, splits.class_names, len(splits.feature_names))
    sample = 0 if question.sample is None else question.sample
    if not 0 <= sample < len(splits.test):
        raise InputError(
            f"sample must be from 0 to {len(splits.test) - 1}, the sentences of the test split; got {sample}"
        )
    return [token for token in splits.test.x[sample].tolist() if token != PAD]


def _unknown(prompt: str, class_names: Sequence[str]) -> list[str]:
    known = set(class_names)
    return [word for word in prompt.split() if word not in known or word == class_names[UNK]]


@torch.no_grad()
def _walk(learner: NbsrLearner, splits: Splits, tokens: list[int]) -> dict[str, Any]:
    model, names = learner.model, splits.class_names
    x = torch.tensor([tokens])
    trace = learner.trace(x)
    valid = learner.trace(splits.valid.x)
    eta = valid.frontier(learner.labels(splits.valid.y)).cheapest(0.0, max_nll_loss=FAST_NLL_LOSS)
    depth, last = trace.exit_depth(eta), len(trace) - 1
    density = torch.ones(len(trace)) if trace.density is None else trace.density
    with evaluating(model):
        h = model.oracle(x.to(model.prior.device))[-1:]
        leaves = {
            model.graph.nodes[level.start + place].name: float(evidence.sum() * density[last])
            for index, level in enumerate(model.graph.levels[2:], start=1)
            for place, evidence in enumerate(model.experts[index].every_expert(h)[0])
        }
    trail = trace.audit(last)
    vacuity = trail.steps[-1].vacuity
    return {
        "read": [
            {"token": names[token], "closeness": float(c), "depth": int(d)}
            for token, c, d in zip(tokens, density, depth, strict=True)
        ],
        "eta": eta,
        "routers": [
            {"step": step.depth, "chosen": step.node, "probabilities": step.alternatives} for step in trail.steps
        ],
        "leaf_evidence": leaves,
        "steps": [
            {"node": s.node, "entropy": s.entropy, "vacuity": s.vacuity, "top": _top(s.alpha / s.alpha.sum(), names)}
            for s in trail.steps
        ],
        "precision": float(trace.precision[-1, last]),
        "prior": float(trace.prior.sum()),
        "vacuity": vacuity,
        "abstains": vacuity > PAPER_VACUITY,
        "top": _top(trace.probabilities()[last], names),
    }


def _top(probs: Float[Tensor, " K"], names: Sequence[str]) -> list[dict[str, Any]]:
    best = probs.topk(min(TOP, len(probs)))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [{"token": names[token], "belief": value} for token, value in pairs]


def _continuations(learner: Learner, splits: Splits, tokens: list[int]) -> list[Continuation]:
    generator = torch.Generator().manual_seed(0)
    strategies: list[Strategy] = ["top-k", "nucleus"]
    if isinstance(learner, NbsrLearner):
        strategies.insert(0, "evidential")
    return [
        goes_on(learner, tokens, splits.class_names, strategy, generator, length=len(splits.feature_names))
        for strategy in strategies
        for _ in range(DRAWS)
    ]


def _plain(continuation: Continuation) -> dict[str, Any]:
    return {
        "strategy": continuation.strategy,
        "words": list(continuation.words),
        "ended": continuation.ended,
        "abstained": continuation.abstained,
    }


def tell(data: dict[str, Any]) -> str:
    """The same as text."""
    lines = [f'Prompt: "{" ".join(data["prompt"])} ..."']
    if data.get("unknown_words"):
        lines.append(f"not in the vocabulary: {', '.join(data['unknown_words'])}")
    if "routers" in data:
        lines.append("Reading (closeness to the training data; depth at which the next token is predicted)")
        lines += [f"   {r['token']:<12} {r['closeness']:>8.3g}   depth {r['depth']}" for r in data["read"]]
        for router in data["routers"]:
            options = " | ".join(f"{name}: {p:.2f}" for name, p in router["probabilities"].items())
            lines.append(f"[Phase {router['step']}] router:  {options}  -> {router['chosen']}")
        evidence = " | ".join(f"{name}: {value:.1f}" for name, value in data["leaf_evidence"].items())
        lines.append(f"Evidence that each leaf has to offer:  {evidence}")
        lines.append(
            f"Belief: alpha_0 = {data['precision']:.1f} (prior {data['prior']:g}), vacuity {data['vacuity']:.3f}"
            + ("  -> abstains" if data["abstains"] else "")
        )
    lines.append("Next token:  " + ", ".join(f"{t['token']} {t['belief']:.1%}" for t in data["top"]))
    lines.append("Continuations")
    for c in data["continuations"]:
        lines.append(f"   {c['strategy']:<11} ... {' '.join(c['words'])}   [{c['ended']}]")
    return "\n".join(lines)
