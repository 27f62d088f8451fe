"""Policies end to end: cloning through time, DAgger, halting, figures, and an episode told in words and pictures."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from fnmatch import fnmatch
from io import BytesIO
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch.multiprocessing.spawn import start_processes

import nbsr_core as nbsr
from nbsr_core.domains.domain import Question, Signature, find_domain
from nbsr_core.domains.navigation.dagger import DaggerOptions, EpisodeBatches
from nbsr_core.domains.navigation.evaluation import evaluate
from nbsr_core.domains.navigation.learners import ClonedClassifier, ClonedNbsr, CloningLearner, seen_in
from nbsr_core.domains.navigation.models import (
    ClassifierOptions,
    FrameDensityOptions,
    RecurrentClassifierOptions,
    RoutedMemoryOptions,
)
from nbsr_core.domains.navigation.tasks import NavigationData, NavigationSplits, load
from nbsr_core.domains.service import Questions
from nbsr_core.domains.tabular import GraphOptions
from nbsr_core.evaluation.evaluation import Evaluation, EvaluationOptions
from nbsr_core.learning import TrainingConfig, seed_everything
from nbsr_core.learning.learners import Execution
from nbsr_core.learning.objectives import Objective
from nbsr_core.options.specs import DETECTORS

NAVIGATION = find_domain("navigation")
OURS = RoutedMemoryOptions(
    experts=nbsr.ExpertSpec(activation="exp", bias=False, bound=100.0),
    density=FrameDensityOptions(enabled=True, quantile=0.999),
    objective=Objective(concept=0.3, every_depth=1.0),
)
KEYFRAMES = NavigationData(train=600, valid=600, test=200, noise=0.1, alien=3.0)
MAZES = NavigationData(task="tmaze", train=40, valid=20, test=20)
QUICK = TrainingConfig(epochs=8, batch_size=32, learning_rate=3e-3, optimizer="adamw", clip_norm=1.0)


def build(kind: str, options: object, splits: NavigationSplits) -> CloningLearner:
    torch.manual_seed(0)
    signature = Signature.of(splits)
    learner = NAVIGATION.models[kind].build(options, signature)
    assert isinstance(learner, CloningLearner)
    return learner


@pytest.fixture(scope="module")
def keyframes() -> tuple[ClonedNbsr, NavigationSplits]:
    splits = load(KEYFRAMES, 0)
    learner = build("nbsr_mem", OURS, splits)
    assert isinstance(learner, ClonedNbsr)
    list(learner.train(splits, QUICK, 0, Execution()))
    return learner, splits


@pytest.fixture(scope="module")
def maze() -> tuple[ClonedNbsr, NavigationSplits]:
    """Hardly trained: for what holds of any agent."""
    splits = load(MAZES, 0)
    learner = build("nbsr_mem", replace(OURS, dagger=DaggerOptions(rounds=1, episodes=10)), splits)
    assert isinstance(learner, ClonedNbsr)
    list(learner.train(splits, replace(QUICK, epochs=2), 0, Execution()))
    return learner, splits


def test_it_remembers_the_cue_and_halts_before_the_alien(keyframes: tuple[ClonedNbsr, NavigationSplits]) -> None:
    learner, splits = keyframes
    for options in (EvaluationOptions(answered=1.0, detectors=()), EvaluationOptions(max_vacuity=0.5, detectors=())):
        found = figures(learner, splits, options).metrics
        assert found["test/success"] >= 0.98
        assert found["alien_overlay/halts"] > 0.98
        assert found["alien_replacing/halts"] > 0.98
        assert found["test/halts"] < 0.02
        assert found["test/success"] <= found["test/right"]
        assert found["fast/mean_depth"] < found["test/mean_depth"] == 2.0


def test_steps_are_judged_as_the_samples_of_other_domains_are(
    keyframes: tuple[ClonedNbsr, NavigationSplits], maze: tuple[ClonedNbsr, NavigationSplits]
) -> None:
    for learner, splits in (keyframes, maze):
        found = figures(learner, splits, EvaluationOptions(answered=1.0)).metrics
        y = splits.test.y[splits.test.y >= 0]
        assert found["test/accuracy"] == pytest.approx(nbsr.metrics.accuracy(learner.answers(splits.test).probs, y))
        judged = ("nll_raw", "aurc", "augrc", "set_size", "controlled_coverage")
        for where in ("test", "depth1", "depth2"):
            assert {f"{where}/{name}" for name in judged} <= found.keys()
        said = learner.trace(splits.test.x)
        assert len(said) == len(y)
        assert found["depth1/accuracy"] == pytest.approx(nbsr.metrics.accuracy(said.probabilities(1), y))
        assert found["test/coverage"] == pytest.approx(
            float((said.exit(None).vacuity <= found["test/max_vacuity"]).double().mean()), abs=0.002
        )


def test_frames_after_the_end_of_an_episode_are_no_steps(maze: tuple[ClonedNbsr, NavigationSplits]) -> None:
    learner, splits = maze
    x, y = splits.test.x, splits.test.y
    assert seen_in(x).equal(y >= 0)
    assert not seen_in(x).all()
    longer = torch.cat([x, torch.full_like(x[:, :2], torch.nan)], dim=1)
    torch.testing.assert_close(learner.probabilities(longer), learner.probabilities(x))
    torch.testing.assert_close(learner.inside(longer).features, learner.inside(x).features)
    assert learner.inside(x).features.shape == (int((y >= 0).sum()), 128)


def test_a_graph_without_classes_is_walked_and_judged_too(keyframes: tuple[ClonedNbsr, NavigationSplits]) -> None:
    splits = keyframes[1]
    options = replace(OURS, graph=GraphOptions("uniform", generalist=True), objective=Objective(every_depth=1.0))
    learner = build("nbsr_mem", options, splits)
    list(learner.train(splits, replace(QUICK, epochs=1), 0, Execution()))
    found = evaluate(learner, splits, EvaluationOptions(max_vacuity=0.5)).metrics
    assert found["test/mean_depth"] == 3.0
    assert "test/routing_agreement" not in found


def test_nobody_halts_where_that_is_switched_off(keyframes: tuple[ClonedNbsr, NavigationSplits]) -> None:
    learner, splits = keyframes
    found = figures(learner, splits, EvaluationOptions(eta=5.0, max_vacuity=1.0))
    assert found.metrics["alien_overlay/halts"] == found.metrics["alien_overlay/fast/halts"] == 0.0
    assert "test/max_vacuity" not in found.metrics
    assert any("no test" in warning for warning in found.warnings)


def test_the_limit_is_chosen_on_validation_steps_by_one_rule_for_all(
    keyframes: tuple[ClonedNbsr, NavigationSplits], baseline: tuple[ClonedClassifier, NavigationSplits]
) -> None:
    splits = replace(keyframes[1], extra={})
    other = replace(splits, test=replace(splits.test, x=3 * splits.test.x))
    plain = build("cnn_gru", RecurrentClassifierOptions(), splits)
    for learner, limit in ((keyframes[0], "max_vacuity"), (baseline[0], "max_vacuity"), (plain, "max_doubt")):
        for answered in (0.9, 1.0):
            options = EvaluationOptions(answered=answered, detectors=())
            found, again = (figures(learner, each, options).metrics for each in (splits, other))
            assert found["valid/halts"] <= 1 - answered + 1e-9
            doubts = learner.doubts(splits.valid.x)
            assert float((doubts < found[f"test/{limit}"] - 2e-6).double().mean()) < answered, "no larger than needed"
            assert again[f"test/{limit}"] == found[f"test/{limit}"], "the test split has no say in it"


DENSITY = FrameDensityOptions(enabled=True, quantile=0.999)


@pytest.fixture(scope="module")
def baseline() -> tuple[ClonedClassifier, NavigationSplits]:
    """CNN-GRU with the density factor that NBSR-Mem has."""
    splits = load(KEYFRAMES, 0)
    learner = build("cnn_gru", RecurrentClassifierOptions(density=DENSITY), splits)
    assert isinstance(learner, ClonedClassifier)
    list(learner.train(splits, replace(QUICK, epochs=2), 0, Execution()))
    return learner, splits


def figures(learner: CloningLearner, splits: NavigationSplits, options: EvaluationOptions) -> Evaluation:
    """As a study judges, and no figure that it did not announce."""
    seed_everything(0)
    found = NAVIGATION.judge(learner, splits, options)
    announced = NAVIGATION.figures(MAZES if splits.maps else KEYFRAMES, tuple(splits.extra), learner, options)
    assert announced is not None
    assert all(any(fnmatch(name, pattern) for pattern in announced) for name in found.metrics)
    return found


def test_a_baseline_halts_by_the_density_factor_of_nbsr(baseline: tuple[ClonedClassifier, NavigationSplits]) -> None:
    learner, splits = baseline
    found = figures(learner, splits, EvaluationOptions(max_vacuity=0.5))
    assert found.metrics["alien_overlay/halts"] > 0.98
    assert found.metrics["alien_replacing/halts"] > 0.98
    assert found.metrics["test/halts"] < 0.02
    assert found.metrics["alien_overlay/auroc"] > 0.99, "of the factor that it halts by"
    chosen = figures(learner, splits, EvaluationOptions(answered=1.0)).metrics
    assert chosen["alien_overlay/halts"] > 0.98
    assert chosen["valid/halts"] == 0.0
    assert chosen["test/halts"] == pytest.approx(chosen["test/abstained"], abs=0.002), "it halts where it abstains"
    never = figures(learner, splits, EvaluationOptions(max_vacuity=1.0)).metrics
    assert never["alien_overlay/halts"] == 0.0
    assert never["test/accuracy"] == found.metrics["test/accuracy"], "closeness changes no answer"


def test_detectors_of_the_unknown_stand_beside_the_frame_detector(
    keyframes: tuple[ClonedNbsr, NavigationSplits], baseline: tuple[ClonedClassifier, NavigationSplits]
) -> None:
    for learner, splits in (keyframes, baseline):
        found = figures(learner, splits, EvaluationOptions(answered=1.0)).metrics
        for detector in DETECTORS:
            for figure in ("auroc", "fpr95"):
                assert 0 <= found[f"alien_replacing/{figure}_{detector}"] <= 1
        split = splits.extra["alien_replacing"]
        shown = torch.arange(len(split)) * 4 + split.y
        energy = [learner.inside(x).logits.double().logsumexp(-1) for x in (splits.test.x, split.x)]
        expected = nbsr.metrics.auroc(energy[0], energy[1][shown])
        assert found["alien_replacing/auroc_energy"] == pytest.approx(expected)


def test_the_factor_of_a_baseline_is_that_of_nbsr_frame_by_frame(
    baseline: tuple[ClonedClassifier, NavigationSplits], keyframes: tuple[ClonedNbsr, NavigationSplits]
) -> None:
    frames = baseline[1].extra["alien_overlay"].x[:50].flatten(0, 1)
    ours, theirs = (learner.module.closeness(frames) for learner in (keyframes[0], baseline[0]))
    assert ours is not None
    assert theirs is not None
    assert float(ours.min()) < 0.01 < 0.99 < float(ours.max())
    torch.testing.assert_close(theirs, ours)


def test_a_baseline_without_a_density_factor_halts_where_it_is_least_confident() -> None:
    splits = load(KEYFRAMES, 0)
    learner = build("cnn_gru", RecurrentClassifierOptions(), splits)
    list(learner.train(splits, replace(QUICK, epochs=2), 0, Execution()))
    found = figures(learner, splits, EvaluationOptions(max_vacuity=0.5)).metrics
    assert found["valid/halts"] == pytest.approx(0.05, abs=0.002), "a vacuity says nothing to it, whoever sets it"
    assert figures(learner, splits, EvaluationOptions()).metrics == found
    doubt = 1 - learner.probabilities(splits.test.x).amax(-1)
    assert found["test/halts"] == pytest.approx(float((doubt > found["test/max_doubt"]).double().mean()))
    found = figures(learner, splits, EvaluationOptions(max_vacuity=1.0)).metrics
    assert found["test/halts"] == found["alien_overlay/halts"] == 0.0
    assert "test/max_doubt" not in found


def test_steps_without_noise_are_alike_in_every_batch_and_nobody_halts_there() -> None:
    """Of three distinct sequences, a threshold on confidence is the doubt of some step: it must not exceed itself."""
    splits = load(NavigationData(train=100, valid=60, test=700), 0)
    learner = build("cnn", ClassifierOptions(), splits)
    list(learner.train(splits, replace(QUICK, epochs=1), 0, Execution()))
    found = figures(learner, splits, EvaluationOptions(max_vacuity=0.4)).metrics
    doubts = learner.probabilities(splits.valid.x).amax(-1).neg().add(1)
    rarest = float((doubts > doubts.max() - 1e-5).double().mean())
    assert rarest > 0.05, "the most doubtful step is no rarity here"
    assert found["valid/halts"] == found["test/halts"] == 0.0


def test_in_closed_loop_a_baseline_halts_before_aliens_and_a_stored_one_does_too() -> None:
    splits = load(MAZES, 0)
    options = RecurrentClassifierOptions(density=DENSITY, dagger=DaggerOptions(rounds=1, episodes=10))
    learner = build("cnn_gru", options, splits)
    list(learner.train(splits, replace(QUICK, epochs=2), 0, Execution()))
    found = figures(learner, splits, EvaluationOptions(max_vacuity=0.5)).metrics
    moves = figures(learner, splits, EvaluationOptions(max_vacuity=1.0)).metrics
    assert found["alien/crashes"] == 0.0 < moves["alien/crashes"]
    assert found["alien/halts"] > 0.0
    again = build("cnn_gru", options, splits)
    again.load_state(learner.state())
    again.use_temperatures(learner.temperatures)
    assert figures(again, splits, EvaluationOptions(max_vacuity=0.5)).metrics == found
    answer = NAVIGATION.explain(again, splits, Question(episode=20, max_vacuity=0.5))
    assert answer is not None
    assert all(0 < step["closeness"] <= 1 for step in answer.data["steps"])


def test_a_served_baseline_halts_and_says_its_calibrated_confidence(
    baseline: tuple[ClonedClassifier, NavigationSplits],
) -> None:
    learner, splits = baseline
    learner.use_temperatures((2.0,))
    service = NAVIGATION.service(learner, Signature.of(splits))
    met = splits.extra["alien_overlay"]
    numbers = torch.cat([met.x[:20].flatten(0, 1).flatten(1), torch.arange(20.0).repeat_interleave(4)[:, None]], 1)
    said = service.say(Questions(numbers, max_vacuity=0.5))
    shown = torch.zeros(20, 4, dtype=torch.bool)
    shown[torch.arange(20), met.y[:20]] = True
    assert said.abstained.view(20, 4).equal(shown)
    torch.testing.assert_close(said.probs, learner.probabilities(met.x[:20]), rtol=1e-4, atol=1e-5)
    assert not bool(service.say(Questions(numbers)).abstained.any())
    learner.use_temperatures(())


def test_reactive_policies_cannot_know_the_turn() -> None:
    """At the wall, left and right are equally likely: nobody without memory does better than a coin."""
    splits = load(NavigationData(train=300, valid=50, test=400), 0)
    learner = build("cnn", NAVIGATION.models["cnn"].options(), splits)
    list(learner.train(splits, replace(QUICK, epochs=3), 0, Execution()))
    success = evaluate(learner, splits, EvaluationOptions(max_vacuity=1.0)).metrics["test/success"]
    assert 0.5 < success < 0.75


def test_episodes_end_in_one_way(maze: tuple[ClonedNbsr, NavigationSplits]) -> None:
    learner, splits = maze
    found = evaluate(learner, splits, EvaluationOptions(max_vacuity=0.5)).metrics
    for name in ("test", "fast", "alien", "alien/fast"):
        ends = ("reached_goal", "wrong_door", "crashes", "halts", "lost")
        assert sum(found[f"{name}/{end}"] for end in ends) == pytest.approx(1.0)


def test_a_stored_policy_is_the_same_policy(maze: tuple[ClonedNbsr, NavigationSplits]) -> None:
    learner, splits = maze
    again = build("nbsr_mem", OURS, splits)
    again.load_state(learner.state())
    assert again.probabilities(splits.test.x[:5]).equal(learner.probabilities(splits.test.x[:5]))
    flat = splits.test.x[:, 0].flatten(1)  # a table of single frames, as a served model gets it
    assert again.probabilities(flat).equal(learner.probabilities(splits.test.x[:, :1]))


def test_dagger_asks_the_expert_on_the_agents_own_ways(tmp_path: Path) -> None:
    splits = load(MAZES, 0)
    learner = build("cnn_gru", RecurrentClassifierOptions(dagger=DaggerOptions(rounds=2, episodes=5)), splits)
    kept = tmp_path / "trial.episodes"
    batches = EpisodeBatches(splits.train, 16, 6, learner.dagger, learner, splits.maps["train"], kept)
    sizes = [sum(len(y) for _, y in batches.epoch(0, epoch)) for epoch in range(6)]
    assert sizes == [40, 40, 45, 45, 50, 50]
    resumed = EpisodeBatches(splits.train, 16, 6, learner.dagger, learner, splits.maps["train"], kept)
    assert resumed.gathered.keys() == {1, 2}
    torch.testing.assert_close(resumed.gathered[2].x, batches.gathered[2].x, rtol=0, atol=0, equal_nan=True)
    for x, y in batches.epoch(0, 5):
        assert int((y >= 0).sum(1).max()) == y.shape[1] == x.shape[1]


def _episodes(rank: int, world: int, folder: str) -> None:
    """One worker of several gathers a round; what it has afterwards goes to a file."""
    torch.set_num_threads(1)
    if world > 1:
        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    splits = load(MAZES, 0)
    learner = build("cnn_gru", RecurrentClassifierOptions(dagger=DaggerOptions(rounds=1, episodes=7)), splits)
    maps = splits.maps["train"]
    batches = EpisodeBatches(splits.train, 16, 2, learner.dagger, learner, maps, shard=(rank, world))
    list(batches.epoch(0, 1))
    torch.save((batches.gathered[1].x, batches.gathered[1].y), f"{folder}/{rank} of {world}")


def test_workers_share_a_round_of_dagger_and_all_get_what_one_would_have_gathered(tmp_path: Path) -> None:
    start_processes(_episodes, args=(2, str(tmp_path)), nprocs=2, start_method="spawn")
    _episodes(0, 1, str(tmp_path))
    x, y = torch.load(tmp_path / "0 of 1")
    for rank in range(2):
        x_of_all, y_of_all = torch.load(tmp_path / f"{rank} of 2")
        assert y_of_all.equal(y)
        torch.testing.assert_close(x_of_all, x, equal_nan=True)


def test_dagger_without_maps_is_refused() -> None:
    splits = load(NavigationData(train=20, valid=20, test=20), 0)
    learner = build("cnn_gru", RecurrentClassifierOptions(dagger=DaggerOptions(rounds=1)), splits)
    with pytest.raises(nbsr.InputError, match="dagger needs maps to walk on"):
        list(learner.train(splits, QUICK, 0, Execution()))
    with pytest.raises(nbsr.InputError, match=r"fewer than epochs \(1\), got 3"):
        EpisodeBatches(splits.train, 8, 1, DaggerOptions(rounds=3), learner, load(MAZES, 0).maps["train"])
    few = DaggerOptions(rounds=1, episodes=2)
    with pytest.raises(nbsr.InputError, match="an episode for each of 3 workers, got 2"):
        EpisodeBatches(splits.train, 8, 2, few, learner, load(MAZES, 0).maps["train"], shard=(0, 3))


def test_an_episode_is_told_in_words_and_pictures(maze: tuple[ClonedNbsr, NavigationSplits]) -> None:
    learner, splits = maze
    answer = NAVIGATION.explain(learner, splits, Question(episode=3, max_vacuity=0.5))
    assert answer is not None
    steps = answer.data["steps"]
    assert steps[0]["place"] == tuple(splits.maps["test"].start[3].tolist())
    assert sum(steps[0]["belief"].values()) == pytest.approx(1.0)
    assert next(node for node, _ in steps[0]["route"]) in ("Cruising", "Evasion")
    assert answer.text.count("\n") == len(steps) + 1
    assert answer.svg is not None
    assert ElementTree.fromstring(answer.svg).tag.endswith("svg")
    assert answer.gif is not None
    film = Image.open(BytesIO(answer.gif))
    assert getattr(film, "n_frames") >= 2  # noqa: B009
    assert min(film.size) >= 320, "large enough to be seen"
    everything_unknown = NAVIGATION.explain(learner, splits, Question(episode=20, max_vacuity=1e-9))
    assert everything_unknown is not None
    assert everything_unknown.data["outcome"].startswith("halted after 1 steps")
    with pytest.raises(nbsr.InputError, match=r"from 0 to \d+ \(test 0 to 19, alien 20 to \d+\), got 999"):
        NAVIGATION.explain(learner, splits, Question(episode=999))


def test_keyframes_are_told_too(keyframes: tuple[ClonedNbsr, NavigationSplits]) -> None:
    learner, splits = keyframes
    clean = NAVIGATION.explain(learner, splits, Question(episode=1, max_vacuity=0.5))
    assert clean is not None
    assert clean.data["outcome"] == "all actions right"
    met = NAVIGATION.explain(learner, splits, Question(episode=200, max_vacuity=0.5))
    assert met is not None
    assert met.data["outcome"] == f"halted at frame {int(splits.extra['alien_overlay'].y[0])}"
    assert met.data["steps"][-1]["does"] == "halt"
    assert met.data["steps"][-1]["closeness"] < 1e-3
    with pytest.raises(nbsr.InputError, match="no prompt"):
        NAVIGATION.explain(learner, splits, Question(prompt="go"))
