"""Which test samples a model got right, and how surprised it was by each: kept compactly beside the figures.

Two models that answered the same samples can be compared sample by sample: how far would their difference move with
other test samples of the same kind? So a trial keeps a row for each labelled test set and use of its model. Of 10,000
samples it is a string of 1.7 kB for right and wrong (bits) and one of 27 kB for the negative log-likelihoods (float16,
three digits), both in base64. Of very large sets it keeps the same evenly spaced samples whatever the seed.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from nbsr_core.errors import InputError
from nbsr_core.metrics.checks import PROBABILITY_FLOOR
from nbsr_core.metrics.names import FAST, TEST, TO_THE_END, VALID, at_depth

TABLE = "samples"
MOST_SAMPLES = 20_000
"""Of a set with more, so many are kept, evenly spaced."""

Row = dict[str, Any]


def are_kept(data: str, use: str) -> bool:
    """Whether the answers to a set are kept: those to all test sets, to the end and with early exit.

    Of the test split also those of walks that are cut at depth 1, which say what going deeper is worth.
    """
    return data != VALID and (use in (TO_THE_END, FAST) or (data, use) == (TEST, at_depth(1)))


def sample_row(
    data: str,
    use: str,
    probs: Float[Tensor, "N K"],
    y: Int[Tensor, " N"],
    early: Bool[Tensor, " N"] | None = None,
) -> Row:
    """The answers to one set as a row of plain values.

    Args:
        data: the set.
        use: how the model was used, see `nbsr_core.metrics.names`.
        probs: what it said.
        y: the true classes.
        early: whose walks ended at depth 1, where some may end later.

    Returns:
        `count` samples were kept of `of`; `labels` is a checksum of their true classes, the same where two models (or
        two seeds) were asked about the same samples.
    """
    of, kept = len(y), _evenly(len(y))
    probs, y = probs.detach().cpu()[kept], y.detach().cpu()[kept]
    likelihood = probs.double().gather(1, y[:, None]).squeeze(1)
    row = {
        "set": data,
        "use": use,
        "count": len(y),
        "of": of,
        "labels": hashlib.sha256(y.numpy().astype("<i8").tobytes()).hexdigest()[:16],
        "right": _bits(probs.argmax(1) == y),
        "nll": _text((-likelihood.clamp_min(PROBABILITY_FLOOR).log()).numpy().astype("<f2").tobytes()),
    }
    return row if early is None else {**row, "early": _bits(early.cpu()[kept])}


@dataclass(frozen=True, eq=False)
class KeptAnswers:
    """A row unpacked.

    Attributes:
        labels: checksum of the true classes.
        of: number of samples of the set, of which these are all or an evenly spaced part.
        right: which samples were answered right.
        nll: -ln p(true class) of each, in nats, to three digits.
        early: whose walks ended at depth 1; None where no walk may end later.
    """

    labels: str
    of: int
    right: Bool[np.ndarray, " N"]
    nll: Float[np.ndarray, " N"]
    early: Bool[np.ndarray, " N"] | None


def unpack(row: Mapping[str, Any]) -> KeptAnswers:
    """The inverse of `sample_row`; an `InputError` where a row is none of its."""
    try:
        count, early = int(row["count"]), row.get("early")
        nll = np.frombuffer(_bytes(row["nll"]), dtype="<f2").astype(np.float64)
        found = KeptAnswers(
            str(row["labels"]),
            int(row["of"]),
            _flags(row["right"], count),
            nll,
            None if early is None else _flags(early, count),
        )
    except (KeyError, TypeError, ValueError) as error:  # binascii.Error is a ValueError
        raise InputError(f"not a row of samples: {error}") from None
    if count < 1 or len(nll) != count or not np.isfinite(nll).all():
        raise InputError(f"not a row of samples: {count} finite likelihoods expected, {len(nll)} found")
    return found


def _evenly(samples: int) -> Int[Tensor, " kept"]:
    """At most `MOST_SAMPLES` places among so many samples, evenly spaced."""
    kept = min(samples, MOST_SAMPLES)
    return torch.arange(kept) * samples // max(kept, 1)


def _bits(flags: Bool[Tensor, " N"]) -> str:
    return _text(np.packbits(flags.numpy()).tobytes())


def _flags(text: str, count: int) -> Bool[np.ndarray, " N"]:
    packed = np.frombuffer(_bytes(text), dtype=np.uint8)
    if len(packed) != -(-count // 8):
        raise ValueError(f"{count} flags expected, {8 * len(packed)} bits found")
    return np.unpackbits(packed, count=count).astype(bool)


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
