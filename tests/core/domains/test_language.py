"""The language domain: the grammar's bound, what models read, what they do with the unknown, what they say of it."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nbsr_core import metrics
from nbsr_core.belief.density import DensityFactor
from nbsr_core.domains.domain import Question, Signature, find_domain
from nbsr_core.domains.language import grammar, text
from nbsr_core.domains.language.counts import WordCounts
from nbsr_core.domains.language.data import LanguageData, LanguageSplits, with_unknown_word
from nbsr_core.domains.language.generation import goes_on, nucleus, read_prompt, top_k
from nbsr_core.domains.language.grammar import BOS, EOS, PAD, UNK
from nbsr_core.domains.language.judging import last_rows
from nbsr_core.domains.language.models import (
    NbsrOptions,
    StandardOptions,
    TokenNbsr,
    Top1Head,
    build_nbsr,
    build_standard,
)
from nbsr_core.domains.language.reading import kinds_of_words, running_max, strangeness
from nbsr_core.domains.language.transformer import CausalTransformer, TransformerOptions
from nbsr_core.domains.tabular import DensityOptions
from nbsr_core.errors import InputError
from nbsr_core.evaluation.evaluation import EvaluationOptions
from nbsr_core.learning import TrainingConfig, seed_everything
from nbsr_core.learning.learners import Execution, Learner
from nbsr_core.learning.objectives import Objective
from nbsr_core.model.experts import ExpertSpec
from nbsr_core.model.routers import RouterSpec

LANGUAGE = find_domain("language")
GRAMMAR = Signature(grammar.VOCABULARY, [f"token {place}" for place in range(grammar.LENGTH)])


def nbsr_options() -> NbsrOptions:
    return NbsrOptions(
        experts=ExpertSpec(activation="exp"),
        router=RouterSpec(hidden=(32,), belief="none"),
        routing="argmax",
        prior_weight=5.0,
        density=DensityOptions(enabled=True),
        objective=Objective(every_depth=0.5, concept=0.1),
    )


def built(kind: str) -> Learner:
    """A model with the options that it has by default, not trained."""
    seed_everything(3)
    offered = LANGUAGE.models[kind]
    return offered.build(offered.options(), GRAMMAR)


@pytest.fixture(scope="module")
def splits() -> LanguageSplits:
    loaded = LANGUAGE.load(LanguageData(train=2000, test=300), 7)
    assert isinstance(loaded, LanguageSplits)
    return loaded


@pytest.fixture(scope="module")
def trained(splits: LanguageSplits) -> TokenNbsr:
    seed_everything(7)
    learner = build_nbsr(nbsr_options(), GRAMMAR)
    config = TrainingConfig(epochs=4, batch_size=128, learning_rate=3e-3)
    for _ in learner.train(splits, config, 7, Execution()):
        pass
    return learner


# --- the grammar ------------------------------------------------------------------------------------------------------


def test_the_vocabulary_is_the_papers() -> None:
    assert len(grammar.VOCABULARY) == len(set(grammar.VOCABULARY)) == 65
    assert [len(words) for words in grammar.WORDS.values()] == [19, 14, 14, 14]
    assert len(grammar.TEMPLATES) == 5


def test_the_bound_is_the_entropy_of_every_sentence_spelled_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """With two words per class, all sentences can be listed with their probabilities."""
    small = {name: words[:2] for name, words in grammar.WORDS.items()}
    monkeypatch.setattr(grammar, "WORDS", small)
    entropy = tokens = 0.0
    for template in grammar.TEMPLATES:
        sentences = list(itertools.product(*(small[name] for name in template)))
        share = 1 / len(grammar.TEMPLATES) / len(sentences)
        entropy -= len(sentences) * share * math.log(share)
        tokens += len(sentences) * share * min(len(template) + 1, grammar.LENGTH)
    assert grammar.bound() == pytest.approx(math.exp(entropy / tokens))


def test_the_grammars_own_predictions_reach_the_bound_and_are_distributions() -> None:
    x, y = grammar.generate(4000, torch.Generator().manual_seed(0))
    probs = grammar.next_token_probabilities(x)
    torch.testing.assert_close(probs.sum(1), torch.ones(len(probs), dtype=torch.float64))
    assert math.exp(metrics.nll(probs, y[y != PAD])) == pytest.approx(grammar.bound(), rel=0.02)


def test_sentences_follow_a_template_and_every_template_occurs() -> None:
    x, y = grammar.generate(500, torch.Generator().manual_seed(3))
    assert bool((x[:, 0] == BOS).all())
    assert bool(((x == PAD) == (y == PAD)).all())
    assert not bool((x == UNK).any())
    assert not bool((y == UNK).any())
    found = set()
    for row in y.tolist():
        words = [grammar.VOCABULARY[token] for token in row if token not in (PAD, EOS)]
        found.add(tuple(grammar.CLASS_OF[word] for word in words))
    assert found == set(grammar.TEMPLATES)


def test_unknown_prompts_are_unknown(splits: LanguageSplits) -> None:
    assert bool(((splits.prompts["unk"] == UNK).sum(1) == 1).all())
    for row in splits.prompts["scrambled"].tolist():
        classes = [grammar.CLASS_OF[grammar.VOCABULARY[token]] for token in row if token not in (PAD, BOS)]
        assert not any(template[: len(classes)] == tuple(classes) for template in grammar.TEMPLATES)
    for row in splits.prompts["known"].tolist():
        classes = [grammar.CLASS_OF[grammar.VOCABULARY[token]] for token in row if token not in (PAD, BOS)]
        assert classes
        assert any(template[: len(classes)] == tuple(classes) for template in grammar.TEMPLATES)
    for split in (splits.train, splits.valid, splits.test):
        assert not bool((split.x == UNK).any())


# --- real text --------------------------------------------------------------------------------------------------------


def test_real_text_is_words_of_the_training_part(tmp_path: Path) -> None:
    words = [f"w{n % 50}" for n in range(4000)] + ["rare"] * 3
    (tmp_path / "text.txt").write_text(" ".join(words))
    data = LanguageData(source="file", text=str(tmp_path / "text.txt"), vocabulary=30, length=8)
    loaded = LANGUAGE.load(data, 0)
    assert (loaded.num_classes, loaded.synthetic) == (30, False)
    assert bool((loaded.train.x[:, 1:] == loaded.train.y[:, :-1]).all())
    assert bool((loaded.train.y == UNK).any())
    assert loaded.fingerprint() == LANGUAGE.load(data, 0).fingerprint() != LANGUAGE.load(data, 1).fingerprint()


def test_the_embedded_text_is_real() -> None:
    assert len(text.embedded_words()) > 50_000


@given(st.integers(20, 6000), st.integers(4, 8))
def test_frequency_bands_share_out_the_vocabulary_in_order(size: int, bands: int) -> None:
    vocabulary = [f"w{n}" for n in range(size)]
    cut = text.frequency_bands(vocabulary, bands)
    assert list(itertools.chain(*cut)) == vocabulary
    sizes = [len(band) for band in cut]
    assert min(sizes) >= 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"source": "file"}, "data.text goes with"),
        ({"source": "file", "text": "/no/such/file"}, "cannot be read"),
        ({"text": "x"}, "data.text goes with"),
        ({"source": "embedded", "vocabulary": 100_000}, "different words"),
        ({"train": 3}, "data.train"),
    ],
)
def test_bad_data_options_are_told(options: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        LANGUAGE.load(LanguageData(**options), 0)  # type: ignore[arg-type]


# --- the models -------------------------------------------------------------------------------------------------------


def test_a_token_is_predicted_from_what_came_before_it_alone() -> None:
    model = CausalTransformer(65, 6, TransformerOptions()).eval()
    x, _ = grammar.generate(8, torch.Generator().manual_seed(0))
    x = x[(x != PAD).all(1)]
    before = model(x).view(len(x), 6, -1)
    x[:, 4:] = UNK
    after = model(x).view(len(x), 6, -1)
    torch.testing.assert_close(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4:], after[:, 4:])


def test_padding_is_no_row_and_changes_none() -> None:
    model = CausalTransformer(65, 6, TransformerOptions()).eval()
    short = torch.tensor([[BOS, 4, 40]])
    padded = torch.tensor([[BOS, 4, 40, PAD, PAD, PAD], [BOS, 5, 41, 6, 7, 30]])
    rows = model(padded)
    assert len(rows) == 9
    torch.testing.assert_close(rows[:3], model(short), rtol=1e-4, atol=1e-5)


def test_top1_is_the_favoured_expert_scaled_by_its_probability() -> None:
    head = Top1Head(8, 11, 4)
    h = torch.randn(50, 8)
    gate = head.router(h).softmax(-1)
    best = gate.argmax(-1)
    weight, bias = head.experts.weight, head.experts.bias
    assert bias is not None
    wanted = [gate[i, best[i]] * (weight[best[i]] @ h[i] + bias[best[i]]) for i in range(len(h))]
    torch.testing.assert_close(head(h), torch.stack(wanted), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["standard", "moe", "nbsr"])
def test_every_model_gives_a_distribution_for_every_token(kind: str, splits: LanguageSplits) -> None:
    learner = built(kind)
    probs = learner.probabilities(splits.test.x)
    assert probs.shape == (int((splits.test.y != PAD).sum()), 65)
    assert len(learner.labels(splits.test.y)) == len(probs)
    torch.testing.assert_close(probs.sum(1), torch.ones(len(probs)))


def test_the_running_maximum_stays_within_its_sentence() -> None:
    x = torch.tensor([[BOS, 4, 5, PAD], [BOS, 6, 7, 8]])
    distance = torch.tensor([1.0, 3.0, 2.0, 0.5, 0.4, 0.9, 0.1])
    assert running_max(distance, x).tolist() == pytest.approx([1, 3, 3, 0.5, 0.5, 0.9, 0.9])
    assert running_max(distance[:6], x[:, :3]).tolist() == pytest.approx([1, 3, 3, 0.5, 0.5, 0.9])


def test_beside_other_models_distance_is_measured_as_inside_the_belief(
    trained: TokenNbsr, splits: LanguageSplits
) -> None:
    features = trained.inside(splits.train.x).features
    strange = strangeness(DensityFactor(features.shape[1]), features, splits.train.x, splits.num_classes)
    for x in (splits.test.x[:50], splits.prompts["unk"][:50]):
        own = trained.model._strangest(trained.model.oracle(x).detach(), x)
        assert torch.allclose(strange(trained.inside(x).features, x), own.to(features), rtol=1e-3, atol=1e-3)


def test_kinds_are_words_in_places_then_words_then_the_rest() -> None:
    x = torch.tensor([[BOS, 4, PAD]] * 30 + [[5, 4, 5]] * 12 + [[6, 6, PAD]] * 3)
    kinds = kinds_of_words(x, 8, 3)
    rest = int(kinds.max())
    assert len({int(kinds[BOS, 0]), int(kinds[4, 1]), int(kinds[5, 0]), rest}) == 4
    assert int(kinds[5, 0]) == int(kinds[5, 2]) == int(kinds[5, 1])  # 12 + 12 readings: a mean of the word's own
    assert int(kinds[6, 0]) == int(kinds[7, 1]) == int(kinds[4, 0]) == rest
    assert len(kinds.unique()) == rest + 1


# --- trained ----------------------------------------------------------------------------------------------------------


def test_it_learns_the_grammar_and_stops_at_the_unknown(trained: TokenNbsr, splits: LanguageSplits) -> None:
    options = EvaluationOptions(max_nll_loss=0.01, max_vacuity=2 / 3, audits=2)
    found = LANGUAGE.evaluate(trained, splits, options).metrics
    assert found["test/perplexity"] == pytest.approx(math.exp(found["test/nll"]))
    assert found["ceiling/test/perplexity"] < found["test/perplexity"] < 1.3 * grammar.bound()
    assert found["valid/fast/nll"] <= found["valid/nll"] + 0.01 + 1e-6
    assert found["unk/abstained"] > 0.9
    assert found["scrambled/abstained"] > 0.6
    assert found["known/abstained"] < 0.05


PROMPTS = ("known", "unk", "scrambled")
ALL_DETECTORS = ("confidence", "energy", "mahalanobis", "knn", "vim", "counts")


def announced(learner: Learner, options: EvaluationOptions) -> set[str]:
    found = LANGUAGE.figures(LanguageData(), (), learner, options)
    assert found is not None
    return {name for name in found if name.split("/")[0] in PROMPTS}


@pytest.mark.parametrize("kind", ["standard", "moe"])
def test_baselines_abstain_by_their_own_doubt_and_by_every_detector_like_nbsr(
    kind: str, splits: LanguageSplits, trained: TokenNbsr
) -> None:
    options = EvaluationOptions(max_vacuity=2 / 3, audits=0)
    learner = built(kind)
    flat = LANGUAGE.evaluate(learner, splits, options).metrics
    walked = LANGUAGE.evaluate(trained, splits, options).metrics
    for found, model in ((flat, learner), (walked, trained)):
        assert {name for name in found if name.split("/")[0] in PROMPTS} == announced(model, options)
        for detector in ALL_DETECTORS:
            assert 0 <= found[f"unk/auroc_{detector}"] <= 1
            assert 0 <= found[f"known/abstained_{detector}"] <= 1
    # A softmax doubts what it is not confident of, above a threshold of its own where the study sets a vacuity.
    doubt = 1 - learner.probabilities(splits.prompts["unk"]).max(-1).values[last_rows(splits.prompts["unk"])]
    assert flat["unk/abstained"] == pytest.approx(float((doubt > flat["test/max_doubt"]).double().mean()))
    assert flat["unk/auroc"] == pytest.approx(flat["unk/auroc_confidence"], abs=1e-3)
    # Counts know no model, and the energy of NBSR is its precision.
    for name in ("unk/auroc_counts", "scrambled/abstained_counts"):
        assert flat[name] == walked[name]
    assert walked["unk/auroc_energy"] == pytest.approx(walked["unk/auroc"], abs=1e-3)


def test_where_nobody_shall_abstain_nobody_does(splits: LanguageSplits, trained: TokenNbsr) -> None:
    options = EvaluationOptions(max_vacuity=1.0, audits=0, detectors=("confidence",), doubt="energy")
    for learner in (built("standard"), trained):
        found = LANGUAGE.evaluate(learner, splits, options).metrics
        assert found["unk/auroc"] == pytest.approx(found["unk/auroc_energy"], abs=1e-3), "what it was told to doubt by"
        assert {name for name in found if name.split("/")[0] in PROMPTS} == announced(learner, options)
        assert "unk/auroc" in found
        assert not any("abstained" in name for name in found)


@pytest.mark.parametrize("kind", ["standard", "moe", "nbsr"])
def test_what_is_inside_a_token_model_has_a_row_for_every_token(kind: str, splits: LanguageSplits) -> None:
    learner, x = built(kind), splits.prompts["known"]
    inside = learner.inside(x)
    assert inside.features.shape == (int((x != PAD).sum()), 64)
    assert not inside.features.requires_grad
    torch.testing.assert_close(inside.logits.softmax(-1), learner.raw_probabilities(x), rtol=1e-4, atol=1e-6)


sentences = st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=12)


@given(sentences, sentences)
def test_counts_are_the_rarest_place_or_pair_so_far(known: list[list[int]], asked: list[list[int]]) -> None:
    def padded(rows: list[list[int]]) -> Tensor:
        return torch.tensor([row + [PAD] * (4 - len(row)) for row in rows])

    places = Counter((word, place) for row in known for place, word in enumerate(row))
    pairs = Counter(pair for row in known for pair in itertools.pairwise(row))
    wanted = []
    for row in asked:
        rarest = math.inf
        for place, word in enumerate(row):
            rarest = min(rarest, places[word, place], math.inf if place == 0 else pairs[row[place - 1], word])
            wanted.append(math.log(1 + rarest))
    assert WordCounts(padded(known), 6).score(padded(asked)).tolist() == pytest.approx(wanted)


def test_counts_tell_an_unknown_word_from_the_grammars_sentences() -> None:
    train, _ = grammar.generate(10_000, torch.Generator().manual_seed(0))
    test, _ = grammar.generate(300, torch.Generator().manual_seed(1))
    counts, strange = WordCounts(train, 65), with_unknown_word(test, torch.Generator().manual_seed(2))
    assert bool((counts.score(strange)[last_rows(strange)] == 0).all())
    assert float((counts.score(test)[last_rows(test)] > 0).double().mean()) > 0.95


def test_with_one_router_both_leaves_below_the_chosen_mid_are_asked(splits: LanguageSplits) -> None:
    seed_everything(0)
    learner = build_nbsr(NbsrOptions(routers="root"), GRAMMAR)
    graph = learner.model.graph
    assert [node.name for node in graph.nodes if len(node.children) > 1] == ["root"]
    leaves = {"Function", "Modifiers", "Abstract", "Concrete"}
    assert {node.name for node in graph.nodes[1:]} == leaves | {"Syntactic", "Semantic"}
    x = splits.test.x[:20]
    with torch.no_grad():
        trace, h = learner.trace(x), learner.model.eval().oracle(x)
        every = [experts.every_expert(h) for experts in learner.model.experts]
    mid, rows = trace.nodes[1] - graph.levels[1].start, torch.arange(len(h))
    evidence = torch.stack([level[rows, mid] for level in every]).sum(0)
    torch.testing.assert_close(trace.belief(3), 1 + evidence, rtol=1e-4, atol=1e-5)
    assert "bands" in learner.ignores
    answer = LANGUAGE.explain(learner, splits, Question(prompt="the dog is by the"))
    assert answer is not None
    assert set(answer.data["leaf_evidence"]) == leaves


def test_what_is_learned_survives_a_file(trained: TokenNbsr, splits: LanguageSplits) -> None:
    again = build_nbsr(nbsr_options(), GRAMMAR)
    again.load_state(trained.state())
    x = splits.prompts["unk"][:20]
    torch.testing.assert_close(again.model.predict(x).alpha, trained.model.predict(x).alpha)


def test_a_prompt_is_explained(trained: TokenNbsr, splits: LanguageSplits) -> None:
    answer = LANGUAGE.explain(trained, splits, Question(prompt="the dog is by the"))
    assert answer is not None
    assert answer.svg is not None
    assert answer.svg.count("<svg") == 1
    data = answer.data
    assert [row["token"] for row in data["read"]] == ["<bos>", "the", "dog", "is", "by", "the"]
    assert set(data["leaf_evidence"]) == {"Function", "Modifiers", "Abstract", "Concrete"}
    assert data["routers"][0]["chosen"] == "Semantic"
    assert all(token["token"] in grammar.WORDS["abstract"] for token in data["top"])
    assert not data["abstains"]
    for words in ("Syntactic", "Abstract", "evidential", "nucleus"):
        assert words in answer.text


def test_a_strange_prompt_is_refused_with_a_reason(trained: TokenNbsr, splits: LanguageSplits) -> None:
    answer = LANGUAGE.explain(trained, splits, Question(prompt="the zebra"))
    assert answer is not None
    assert answer.data["unknown_words"] == ["zebra"]
    assert answer.data["abstains"]
    evidential = [c for c in answer.data["continuations"] if c["strategy"] == "evidential"]
    assert all(c["abstained"] and not c["words"] and "evidence" in c["ended"] for c in evidential)
    others = [c for c in answer.data["continuations"] if c["strategy"] != "evidential"]
    assert all(c["words"] or c["ended"] == "end of sentence" for c in others)


def test_samples_are_beginnings_of_test_sentences(trained: TokenNbsr, splits: LanguageSplits) -> None:
    answer = LANGUAGE.explain(trained, splits, Question(sample=3))
    assert answer is not None
    assert answer.data["prompt"] == [grammar.VOCABULARY[t] for t in splits.test.x[3].tolist() if t != PAD]
    with pytest.raises(InputError, match="sample must be from 0"):
        LANGUAGE.explain(trained, splits, Question(sample=10**6))
    assert LANGUAGE.explain(trained, splits, Question(episode=0)) is None


# --- generation -------------------------------------------------------------------------------------------------------


@given(st.integers(0, 1000), st.integers(1, 30), st.floats(0.05, 0.999))
def test_truncated_sampling_keeps_the_best_and_renormalises(seed: int, k: int, mass: float) -> None:
    probs = torch.rand(20, generator=torch.Generator().manual_seed(seed)).softmax(0)
    for cut, kept in ((top_k(probs, k), min(k, 20)), (nucleus(probs, mass), None)):
        assert float(cut.sum()) == pytest.approx(1.0, abs=1e-5)
        chosen = cut > 0
        assert float(probs[chosen].min()) >= float(probs[~chosen].max() if bool((~chosen).any()) else 0.0)
        if kept is not None:
            assert int(chosen.sum()) == kept
        else:
            inside = probs[chosen]
            assert float(inside.sum()) >= mass - 1e-5
            assert float(inside.sum() - inside.min()) < mass + 1e-5


def test_generated_sentences_are_grammatical_and_repeatable(trained: TokenNbsr) -> None:
    def draw(seed: int) -> tuple[str, ...]:
        generator = torch.Generator().manual_seed(seed)
        start = read_prompt("the dog", grammar.VOCABULARY, grammar.LENGTH)
        return goes_on(trained, start, grammar.VOCABULARY, "nucleus", generator, length=6, mass=0.5).words

    assert draw(1) == draw(1)
    sentences = [("the", "dog", *draw(seed)) for seed in range(10)]
    fitting = [grammar.is_grammatical([grammar.CLASS_OF[word] for word in sentence]) for sentence in sentences]
    assert sum(fitting) >= 5  # words drawn at random would hardly ever fit


@pytest.mark.parametrize("prompt", ["", "   ", "the dog is by the old car"])
def test_prompts_that_cannot_be_read_are_told(prompt: str) -> None:
    with pytest.raises(InputError, match="prompt"):
        read_prompt(prompt, grammar.VOCABULARY, grammar.LENGTH)


def test_a_softmax_cannot_be_evidential() -> None:
    learner = build_standard(StandardOptions(), GRAMMAR)
    with pytest.raises(InputError, match="only NBSR"):
        goes_on(learner, [BOS], grammar.VOCABULARY, "evidential", torch.Generator(), length=6)
