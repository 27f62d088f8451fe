"""A language whose every probability is known: five templates of word classes, words drawn evenly within a class.

The paper's corpus isolates syntax: 65 tokens (4 special, 19 function words, 14 modifiers, 14 abstract nouns, 14
concrete entities) and five templates, of which it prints one; the others here are ours, the first chosen such that the
paper's own prompt, "the dog is by the", is a sentence under way. Since classes are disjoint and words even, the best
possible model is known exactly: `bound` is its perplexity, `next_token_probabilities` what it says.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

PAD, BOS, EOS, UNK = range(4)
SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
_LISTS = {
    "function": "the a is was by in on to and or but of with for from that this near at",
    "modifier": "fast slow big small old new bright dark deep quiet happy cold strong strange",
    "abstract": "freedom truth peace war logic fear love time hope justice power memory beauty chaos",
    "concrete": "dog river bank car tree house stone bird ship road apple city child table",
}
WORDS = {name: words.split() for name, words in _LISTS.items()}
VOCABULARY = (*SPECIAL, *(word for words in WORDS.values() for word in words))
TEMPLATES = (
    ("function", "concrete", "function", "function", "function", "abstract"),  # the car is by the logic
    ("function", "concrete", "function", "function", "abstract"),  # the paper's example
    ("function", "modifier", "concrete", "function", "modifier"),
    ("function", "modifier", "abstract", "function", "concrete"),
    ("function", "abstract", "function", "modifier"),
)
LENGTH = 6
END = "<eos>"

CLASS_OF = {word: name for name, words in WORDS.items() for word in words} | {END: END}


def taxonomy() -> dict[str, dict[str, list[str]]]:
    """The paper's graph. Special tokens belong to the function words: an end of sentence is syntax."""
    return {
        "Syntactic": {"Function": [*SPECIAL, *WORDS["function"]], "Modifiers": WORDS["modifier"]},
        "Semantic": {"Abstract": WORDS["abstract"], "Concrete": WORDS["concrete"]},
    }


def targets_of(template: Sequence[str]) -> tuple[str, ...]:
    """The classes that a model has to predict: the words and the end, as far as they fit."""
    return (*template, END)[:LENGTH]


def generate(count: int, generator: torch.Generator) -> tuple[Int[Tensor, "{count} 6"], Int[Tensor, "{count} 6"]]:
    """Sentences as (input, next token), both padded: `<bos> w1 .. wn` and `w1 .. wn <eos>`, six tokens at most."""
    tokens = torch.full((count, LENGTH + 2), PAD)
    tokens[:, 0] = BOS
    which = torch.randint(len(TEMPLATES), (count,), generator=generator)
    first = {name: VOCABULARY.index(words[0]) for name, words in WORDS.items()}
    for index, template in enumerate(TEMPLATES):
        rows = (which == index).nonzero().squeeze(1)
        for place, name in enumerate(template, start=1):
            drawn = torch.randint(len(WORDS[name]), (len(rows),), generator=generator)
            tokens[rows, place] = first[name] + drawn
        tokens[rows, len(template) + 1] = EOS
    targets = tokens[:, 1 : LENGTH + 1]
    inputs = tokens[:, :LENGTH].masked_fill(targets == PAD, PAD)
    return inputs, targets


@cache
def _after(prefix: tuple[str, ...]) -> dict[str, float]:
    """Probability of each class after a prefix of classes; empty where no template begins like that."""
    known = [targets_of(template) for template in TEMPLATES]
    follow = Counter(t[len(prefix)] for t in known if t[: len(prefix)] == prefix and len(t) > len(prefix))
    return {name: count / follow.total() for name, count in follow.items()}


def bound() -> float:
    """Perplexity of the grammar itself, exactly: no model can do better on endless data.

    A sentence tells its template, so its entropy is that of the template and of each word; a token's share of it is the
    whole divided by the mean number of tokens to predict.
    """
    sentences = [targets_of(template) for template in TEMPLATES]
    choice = -sum(c / len(sentences) * math.log(c / len(sentences)) for c in Counter(sentences).values())
    words = sum(math.log(len(WORDS[name])) for sentence in sentences for name in sentence if name != END)
    tokens = sum(map(len, sentences))
    return math.exp((choice * len(sentences) + words) / tokens)


def next_token_probabilities(inputs: Int[Tensor, "N T"]) -> Float[Tensor, "rows 65"]:
    """What the grammar itself says after every token that is not padding, row by row."""
    index = {word: i for i, word in enumerate(VOCABULARY)}
    class_rows = torch.zeros(len(WORDS) + 1, len(VOCABULARY), dtype=torch.float64)
    names = [*WORDS, END]
    for row, name in zip(class_rows, names, strict=True):
        members = [index[word] for word, owner in CLASS_OF.items() if owner == name]
        row[members] = 1 / len(members)
    rows = []
    for sentence in inputs.tolist():
        prefix: tuple[str, ...] = ()
        for token in sentence:
            if token == PAD:
                break
            if token != BOS:
                prefix = (*prefix, CLASS_OF[VOCABULARY[token]])
            mix = _after(prefix)
            rows.append(torch.tensor([mix.get(name, 0.0) for name in names], dtype=torch.float64) @ class_rows)
    return torch.stack(rows)


def is_grammatical(classes: Sequence[str]) -> bool:
    """Whether some sentence begins with words of these classes."""
    return bool(_after(tuple(classes))) or tuple(classes) in TEMPLATES
