"""Real text as words: a vocabulary of the most frequent ones, windows of equal length, splits that do not touch.

A word is what stands between white space, as it is written. The vocabulary is counted on the training part alone; what
is not in it becomes `<unk>`, which is then a token like any other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import torch
from jaxtyping import Int
from torch import Tensor

from nbsr_core.domains.language.grammar import BOS, PAD, SPECIAL, UNK
from nbsr_core.errors import InputError
from nbsr_core.files import MEGABYTE, read_text, user_path

# Windows that go to one split together, so that held-out text rarely continues a sentence that was trained on.
BLOCK = 16
SHARES = (0.8, 0.1, 0.1)
LARGEST_TEXT = 200 * MEGABYTE  # some forty million words


def embedded_words() -> list[str]:
    """The documentation topics that CPython carries with it (`pydoc_data.topics`), one after another."""
    from pydoc_data.topics import topics

    return [word for name in sorted(topics) for word in topics[name].split()]


def words_of(file: str) -> list[str]:
    """The words of a text file."""
    try:
        return read_text(user_path(file), LARGEST_TEXT).split()
    except InputError as error:
        raise InputError(f"data.text: {error}; give a UTF-8 text file") from None


def frequent_words(words: Sequence[str], size: int) -> list[str]:
    """Special tokens and the most frequent words, most frequent first; equally frequent ones in their order."""
    counts = Counter(words)
    known = [word for word, _ in counts.most_common(size - len(SPECIAL)) if word not in SPECIAL]
    if len(known) + len(SPECIAL) < size:
        raise InputError(
            f"data.vocabulary: the training text has only {len(counts):,} different words; "
            f"{size:,} tokens cannot be filled, choose at most {len(known) + len(SPECIAL):,}"
        )
    return [*SPECIAL, *known]


def blocks(words: Sequence[str], length: int, seed: int) -> tuple[list[list[str]], list[list[str]], list[list[str]]]:
    """Windows of `length` words for training, validation and test: blocks of neighbours, shuffled by the seed."""
    windows = [list(words[start : start + length]) for start in range(0, len(words) - length + 1, length)]
    groups = [windows[start : start + BLOCK] for start in range(0, len(windows), BLOCK)]
    if len(groups) < 10:
        raise InputError(f"the text has {len(words):,} words; at least {10 * BLOCK * length:,} are needed to split it")
    order = torch.randperm(len(groups), generator=torch.Generator().manual_seed(seed)).tolist()
    first, second = round(SHARES[0] * len(groups)), round((SHARES[0] + SHARES[1]) * len(groups))
    parts = order[:first], order[first:second], order[second:]
    train, valid, test = ([window for group in sorted(part) for window in groups[group]] for part in parts)
    return train, valid, test


def encode(
    windows: Sequence[Sequence[str]], vocabulary: Sequence[str]
) -> tuple[Int[Tensor, "N T"], Int[Tensor, "N T"]]:
    """Windows as (input, next token): `<bos> w1 .. w(T-1)` and `w1 .. wT`."""
    index = {word: i for i, word in enumerate(vocabulary)}
    targets = torch.tensor([[index.get(word, UNK) for word in window] for window in windows])
    inputs = torch.cat([torch.full((len(targets), 1), BOS), targets[:, :-1]], dim=1)
    assert not bool((targets == PAD).any())
    return inputs, targets


def frequency_bands(vocabulary: Sequence[str], bands: int) -> list[list[str]]:
    """The vocabulary, sorted by frequency, cut where a Zipfian text has equal mass: at equal steps of log rank."""
    size = len(vocabulary)
    edges = [0]
    for band in range(1, bands):
        edges.append(max(round(size ** (band / bands)), edges[-1] + 1))  # a tiny vocabulary leaves no band empty
    edges.append(size)
    return [list(vocabulary[low:high]) for low, high in pairwise(edges)]
