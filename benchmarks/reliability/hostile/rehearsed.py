"""Studies whose form is right and that could not work all the same: known before anything runs."""

from __future__ import annotations

from benchmarks.reliability.hostile.case import SEARCH, Hostile, study

MEDICAL = "name: fine\ndomain: medical\ndata: {draws: 1, train_patients: 50, valid_patients: 50, test_patients: 50}\n"
MEDICAL_SEARCH = MEDICAL + "models: {nbsr: {}}\nsearch: {trials: 3, objectives: {valid/accuracy: maximize}, space: "

REHEARSED: tuple[Hostile, ...] = (
    study(
        "a search over the depth of a graph that has its own",
        MEDICAL_SEARCH + "{graph.depth: {int: [1, 4]}}}\n",
        "search.space.graph.depth: has no effect in any proposal: it counts only if shape is uniform, layered, chain "
        "or learned",
    ),
    study(
        "a search over gamma where all nodes cost the same",
        MEDICAL_SEARCH + "{gamma: {float: [0, 1]}}}\n",
        "search.space.gamma: has no effect in any proposal: the children of every node cost the same",
    ),
    study(
        "a search for a figure that no trial has",
        SEARCH.replace("valid/accuracy", "valid/acuracy") + "{oracle_dim: {int: [2, 3]}}}\n",
        "is no figure of the trained model, got 'valid/acuracy'; did you mean 'valid/accuracy'?",
    ),
    study(
        "a metric to prune by that no epoch reports",
        SEARCH.replace("trials: 3", "trials: 3, pruner: {metric: valid/ece, direction: minimize}")
        + "{oracle_dim: {int: [2, 3]}}}\n",
        "search.pruner.metric: is no figure that every epoch reports, got 'valid/ece'",
    ),
    study(
        "data that is not there",
        "name: fine\ndomain: medical\ndata: {source: kaggle, root: nowhere}\nmodels: {mlp: {}}\n",
        "s.yaml:3: data.source: 'kaggle' did not find",
    ),
    study(
        "a search over a temperature where nothing is routed",
        SEARCH + "{training.temperature.start: {float: [1, 2]}}}\n",
        "search.space.training.temperature.start: has no effect in any proposal",
    ),
)
