"""What the language domain learns from: sentences of the grammar, or windows of a real text.

Inputs and labels are tokens [N, T]; padding (token 0) is no sample. Prompts that no model has seen come along: known
sentences with `<unk>` in them, and sentences whose words were shuffled until no template fits. Nothing is fitted or
chosen on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor

from nbsr_core.domains.domain import Signature
from nbsr_core.domains.language import grammar, text
from nbsr_core.domains.language.grammar import BOS, PAD, UNK
from nbsr_core.errors import InputError
from nbsr_core.files import path_except
from nbsr_core.graph.decision_graph import ROOT, DecisionGraph
from nbsr_core.learning.splits import Split, Splits
from nbsr_core.options.conditions import counts_when
from nbsr_core.options.specs import check_choice

Source = Literal["grammar", "embedded", "file"]
Routers = Literal["every", "root"]

OF_GRAMMAR = counts_when("source is grammar", lambda data: data.source == "grammar")
OF_TEXT = counts_when("source is embedded or file", lambda data: data.source != "grammar")


@dataclass(frozen=True)
class LanguageData:
    """Where the language comes from.

    Attributes:
        source: `grammar` (generated), `embedded` (the real documentation topics of CPython) or `file`.
        text: a UTF-8 text, for `file`.
        train: sentences of the grammar to train on; a tenth as many are held out for validation.
        test: sentences of the grammar to judge by.
        vocabulary: number of tokens of a real text.
        length: tokens of a window of a real text.
    """

    source: Source = "grammar"
    text: str | None = field(default=None, metadata=path_except())
    train: int = field(default=10_000, metadata=OF_GRAMMAR)
    test: int = field(default=2_000, metadata=OF_GRAMMAR)
    vocabulary: int = field(default=5_000, metadata=OF_TEXT)
    length: int = field(default=16, metadata=OF_TEXT)

    def __post_init__(self) -> None:
        check_choice("source", self.source, Source)
        if (self.text is not None) != (self.source == "file"):
            raise InputError(f"data.text goes with source: file, got source: {self.source} and text: {self.text!r}")
        for name, least in (("train", 100), ("test", 10), ("vocabulary", 20), ("length", 2)):
            if getattr(self, name) < least:
                raise InputError(f"data.{name} must be a whole number >= {least}, got {getattr(self, name)}")


@dataclass(frozen=True, eq=False)
class LanguageSplits(Splits):
    """Splits of a language.

    Attributes:
        prompts: tokens to go on from, by name [N, T]: `known` are beginnings of test sentences, `unk` and `scrambled`
            are the unknown. A model is asked for the token after the last one that is not padding.
    """

    prompts: dict[str, Int[Tensor, "N T"]] = field(default_factory=dict)


def load(data: LanguageData, seed: int) -> LanguageSplits:
    """Generate or read the language; everything random follows from the seed."""
    generator = torch.Generator().manual_seed(seed)
    if data.source == "grammar":
        sizes = (data.train, max(data.train // 10, 10), data.test)
        train, valid, test = (Split(*grammar.generate(size, generator)) for size in sizes)
        prompts = {
            "known": beginnings(test.x, generator),
            "unk": with_unknown_word(test.x, generator),
            "scrambled": scrambled(test.x, generator),
        }
        source = f"{data.train:,} generated sentences of {len(grammar.TEMPLATES)} templates"
        return LanguageSplits(
            train,
            valid,
            test,
            class_names=grammar.VOCABULARY,
            feature_names=[f"token {place}" for place in range(grammar.LENGTH)],
            source=source,
            synthetic=True,
            prompts=prompts,
        )
    words = text.embedded_words() if data.text is None else text.words_of(data.text)
    windows = text.blocks(words, data.length, seed)
    vocabulary = text.frequent_words([word for window in windows[0] for word in window], data.vocabulary)
    train, valid, test = (Split(*text.encode(part, vocabulary)) for part in windows)
    name = "the documentation topics of CPython (pydoc_data)" if data.text is None else data.text
    return LanguageSplits(
        train,
        valid,
        test,
        class_names=vocabulary,
        feature_names=[f"token {place}" for place in range(data.length)],
        source=f"{name}: {len(words):,} words",
        synthetic=False,
        prompts={"known": test.x, "scrambled": shuffled(test.x, generator)},
    )


def routing_graph(signature: Signature, bands: int, routers: Routers = "every") -> DecisionGraph:
    """The paper's taxonomy for the grammar; for real text, bands of word frequency, two by two."""
    if tuple(signature.class_names) == grammar.VOCABULARY:
        return with_routers(grammar.taxonomy(), routers)
    cut = text.frequency_bands(signature.class_names, bands)
    names = [f"Band {index + 1}" for index in range(bands)]
    half = (bands + 1) // 2
    taxonomy = {
        "Frequent": dict(zip(names[:half], cut[:half], strict=True)),
        "Rare": dict(zip(names[half:], cut[half:], strict=True)),
    }
    return with_routers(taxonomy, routers)


def with_routers(taxonomy: Mapping[str, Mapping[str, Sequence[str]]], routers: Routers) -> DecisionGraph:
    """Two levels of experts as a graph in which `every` inner node has a router, or the `root` alone.

    The paper's appendix lists one router, and its trace of a prompt has evidence of both leaves below the chosen mid.
    So with one router all leaves of a mid are asked, one after another along a single path, and their evidence adds up.
    Each of them is then passed by the walks of all classes of its mid.
    """
    if routers == "every":
        return DecisionGraph.taxonomy(taxonomy)
    edges = [edge for mid, leaves in taxonomy.items() for edge in pairwise([ROOT, mid, *leaves])]
    classes = {list(leaves)[-1]: list(chain(*leaves.values())) for leaves in taxonomy.values()}
    return DecisionGraph.from_edges(edges, classes=classes)


def beginnings(x: Int[Tensor, "N T"], generator: torch.Generator) -> Int[Tensor, "N T"]:
    """Sentences cut off after one word or more, at random."""
    words = (x != PAD).sum(1) - 1
    kept = 1 + (torch.rand(len(x), generator=generator) * words).long()
    places = torch.arange(x.shape[1])
    return x.masked_fill(places > kept.unsqueeze(1), PAD)


def with_unknown_word(x: Int[Tensor, "N T"], generator: torch.Generator) -> Int[Tensor, "N T"]:
    """Beginnings of sentences in which one word, any, was never seen."""
    prompts = beginnings(x, generator)
    words = (prompts != PAD).sum(1) - 1
    place = 1 + (torch.rand(len(x), generator=generator) * words).long()
    return prompts.scatter(1, place.unsqueeze(1), UNK)


def scrambled(x: Int[Tensor, "N T"], generator: torch.Generator) -> Int[Tensor, "N T"]:
    """Sentences of known words, shuffled until no sentence of the grammar begins like that."""
    result = x.clone()
    for row, sentence in enumerate(x.tolist()):
        words = [token for token in sentence if token not in (PAD, BOS)]
        while True:
            order = torch.randperm(len(words), generator=generator).tolist()
            moved = [words[place] for place in order]
            if not grammar.is_grammatical([grammar.CLASS_OF[grammar.VOCABULARY[token]] for token in moved]):
                break
        result[row, 1 : len(words) + 1] = torch.tensor(moved)
    return result


def shuffled(x: Int[Tensor, "N T"], generator: torch.Generator) -> Int[Tensor, "N T"]:
    """Windows of text with their words in random order."""
    order = torch.rand(x[:, 1:].shape, generator=generator).argsort(1)
    return torch.cat([x[:, :1], x[:, 1:].gather(1, order)], dim=1)
