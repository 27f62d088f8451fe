"""Compiled levels say what torch's products say, in values and gradients, whoever else is in the batch."""

from __future__ import annotations

import ast
import copy
import ctypes
import gc
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from models import FEATURES, GRAPHS, make_model
from reference import PADDED
from torch import Tensor

import nbsr_core as nbsr
from nbsr_core.belief.entropy_tests import below
from nbsr_core.kernels import activate, choice
from nbsr_core.kernels.native import build
from nbsr_core.kernels.native.level import CompiledLevel

ALL_GRAPHS = {**GRAPHS, "padded": PADDED}
EXPERTS = {
    "softplus": nbsr.ExpertSpec(),
    "deep softplus": nbsr.ExpertSpec(hidden=(7, 19)),
    "sigmoid": nbsr.ExpertSpec(activation="sigmoid", bound=3.0, bias=False),
    "exp": nbsr.ExpertSpec(activation="exp", bound=20.0),
}
ROUTERS = {
    "paper": nbsr.RouterSpec(),
    "linear": nbsr.RouterSpec(hidden=()),
    "deep": nbsr.RouterSpec(hidden=(18, 5), belief="log"),
    "mean": nbsr.RouterSpec(hidden=(6,), belief="mean", bias=False),
    "blind": nbsr.RouterSpec(hidden=(6,), belief="none"),
}

pytestmark = pytest.mark.skipif(not build.availability()[0], reason=f"not compiled: {build.availability()[1]}")


@contextmanager
def torch_alone() -> Iterator[None]:
    with patch.object(choice, "COMPILED", choice.REFERENCE):
        yield


def walk(model: nbsr.NBSR, x: Tensor, side: Tensor | None = None) -> tuple[nbsr.BeliefTrace, list[Tensor | None]]:
    """A walk on noise that is always the same, and the gradients of a loss that wants something of all it found."""
    torch.manual_seed(7)
    trace = model(x, side=side, tau=0.7)
    loss = nbsr.objectives.nll(trace.beliefs[-1], torch.arange(len(x)) % 5) + trace.beliefs[1].log().square().mean()
    for step in trace.steps:
        loss = loss + step.logits.nan_to_num(neginf=0.0).square().mean()
        loss = loss if step.relaxed is None else loss + step.relaxed.square().sum(-1).mean()
    return trace, list(torch.autograd.grad(loss, [*model.parameters()], allow_unused=True))


def assert_alike(model: nbsr.NBSR, x: Tensor, side: Tensor | None = None) -> None:
    trace, grads = walk(model, x, side)
    with torch_alone():
        expected, expected_grads = walk(model, x, side)
    assert torch.equal(trace.nodes, expected.nodes)
    for belief, expected_belief in zip(trace.beliefs, expected.beliefs, strict=True):
        torch.testing.assert_close(belief, expected_belief, rtol=1e-5, atol=1e-5)
    for step, expected_step in zip(trace.steps, expected.steps, strict=True):
        torch.testing.assert_close(step.logits, expected_step.logits, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(step.relaxed, expected_step.relaxed, rtol=1e-4, atol=1e-5)
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        assert (grad is None) == (expected_grad is None)
        if grad is not None:
            torch.testing.assert_close(grad, expected_grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("graph", ALL_GRAPHS)
@pytest.mark.parametrize("experts", EXPERTS)
@pytest.mark.parametrize("estimator", ["sparse", "counterfactual"])
def test_values_and_gradients_are_those_of_torch(graph: str, experts: str, estimator: str) -> None:
    model = make_model(ALL_GRAPHS[graph], experts=EXPERTS[experts], estimator=estimator)
    x = torch.randn(75, FEATURES)
    assert choice.backend_for(x, levels=model.levels) is choice.COMPILED
    assert_alike(model, x)


@pytest.mark.parametrize("budget", ["sigmoid", "exp"])
@pytest.mark.parametrize("graph", ALL_GRAPHS)
def test_a_budget_at_the_first_level_alone_is_that_of_torch(graph: str, budget: str) -> None:
    first = nbsr.ExpertSpec(activation=budget, bound=4.0)  # type: ignore[arg-type]
    model = make_model(ALL_GRAPHS[graph], experts=(first, nbsr.ExpertSpec(hidden=(7,), activation="exp")))
    assert_alike(model, 3 * torch.randn(75, FEATURES))


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("routing", ["gumbel", "argmax"])
@pytest.mark.parametrize("rows", [1, 2, 5, 6, 13, 700])
def test_whatever_routers_see_and_however_many_rows_there_are(router: str, routing: str, rows: int) -> None:
    model = make_model(GRAPHS["tree"], router=ROUTERS[router], routing=routing, side_dim=3)
    assert_alike(model, torch.randn(rows, FEATURES), torch.randn(rows, 3))


def test_a_row_is_told_the_same_whoever_else_is_in_the_batch() -> None:
    torch.manual_seed(0)
    model = nbsr.NBSR(torch.nn.Identity(), GRAPHS["layered"], 41, 130).eval()
    x = torch.randn(500, 130)
    whole = model.predict(x).alpha
    order = torch.randperm(500)
    assert torch.equal(model.predict(x[order]).alpha, whole[order])
    assert torch.equal(torch.cat([model.predict(row.unsqueeze(0)).alpha for row in x[:40]]), whole[:40])


def test_the_number_of_threads_changes_no_bit() -> None:
    torch.manual_seed(0)
    model, x = nbsr.NBSR(torch.nn.Identity(), GRAPHS["layered"], 41, 130), torch.randn(3000, 130)
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            trace, grads = walk(model, x)
            of_level = [g for (name, _), g in zip(model.named_parameters(), grads, strict=True) if "experts" in name]
            found.append([trace.beliefs[-1].detach(), *of_level])
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            assert a is b is None or (a is not None and b is not None and torch.equal(a, b))


@pytest.mark.parametrize(("name", "bound"), [("softplus", None), ("sigmoid", 30.0), ("exp", 30.0), ("exp", None)])
def test_evidence_is_right_from_the_smallest_to_the_largest(name: str, bound: float | None) -> None:
    """Against float64; strictly positive everywhere, and what is no number stays that."""
    spec = nbsr.ExpertSpec(activation=name, bound=bound)  # type: ignore[arg-type]
    z = torch.cat([torch.linspace(-120, 120, 4801), torch.tensor([0.0, -0.0, 1e-30, 1e30, -1e30, float("nan")])])
    model = nbsr.NBSR(torch.nn.Identity(), nbsr.DecisionGraph.chain(1), len(z), len(z), experts=spec).eval()
    with torch.no_grad():
        bank = model.experts[0].banks[0].layers[0]
        bank.weight.zero_()
        assert bank.bias is not None
        bank.bias.copy_(z)
    level = CompiledLevel(model.levels[0])
    x = torch.zeros(3, len(z))
    found = level.run([x], level.parameters(), torch.zeros(3, dtype=torch.int64), "argmax", 1.0)
    expected = activate(spec, z.double())
    torch.testing.assert_close(found.evidence[1].double(), expected, rtol=1e-6, atol=0.0, equal_nan=True)
    assert bool((found.evidence[:, :-1] > 0).all())


@pytest.mark.parametrize("classes", [2, 41, 1000])
def test_exits_are_those_of_the_exact_entropy(classes: int) -> None:
    """Also for rows at the threshold itself, and for beliefs that no table holds."""
    torch.manual_seed(0)
    alpha = torch.cat([torch.rand(300, classes).mul(20).exp().mul(1e-3), torch.full((2, classes), 1e-25)])
    entropy = nbsr.dirichlet.entropy(alpha, validate_args=False)
    for eta in (*entropy[:20].tolist(), float(entropy.max()) + 1.0, float(entropy.min()) - 1.0):
        assert torch.equal(below(alpha, eta), entropy < eta)


@pytest.mark.parametrize("classes", [2, 7, 8, 41, 1000])
def test_marginals_and_labels_are_those_of_torch(classes: int) -> None:
    alpha = torch.rand(400, classes).mul(9).exp()
    alpha[::5] = alpha[::5].round(decimals=-3) + 1.0  # ties: the first one counts
    told = nbsr.Prediction(alpha, torch.ones(400, dtype=torch.int64), torch.ones(400, dtype=torch.int64), 1.0, None)
    torch.testing.assert_close(told.probs, alpha / alpha.sum(-1, keepdim=True), rtol=1e-6, atol=0.0)
    assert told.label.tolist() == [row.index(max(row)) for row in alpha.tolist()]


def test_models_can_be_copied_pickled_and_made_double_after_a_walk() -> None:
    model, x = make_model(GRAPHS["tree"]).eval(), torch.randn(20, FEATURES)
    alpha = model.predict(x).alpha
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other.predict(x).alpha, alpha)
        with torch.no_grad():
            other.experts[0].banks[0].layers[0].weight.add_(1.0)
        assert not torch.equal(other.predict(x).alpha, alpha)
    assert torch.equal(model.predict(x).alpha, alpha), "a copy has its own parameters"
    double = copy.deepcopy(model).double().predict(x.double()).alpha
    torch.testing.assert_close(double.float(), alpha, rtol=1e-4, atol=1e-5)


def test_a_replaced_parameter_is_the_one_that_counts() -> None:
    model, x = make_model(GRAPHS["tree"]).eval(), torch.randn(20, FEATURES)
    before, layer = model.predict(x).alpha, model.experts[0].banks[0].layers[0]
    layer.weight = torch.nn.Parameter(layer.weight.detach() + 1.0)
    assert not torch.equal(model.predict(x).alpha, before)


def test_a_walk_outlives_its_model() -> None:
    """Compiled code holds addresses: what they point to must be there as long as the walk can be differentiated."""
    model, x = make_model(ALL_GRAPHS["padded"]), torch.randn(200, FEATURES)
    parameters = list(model.parameters())
    trace = model(x, tau=0.7)
    loss = trace.beliefs[-1].log().sum()
    again: tuple[Tensor | None, ...] = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
    del model, trace, x
    gc.collect()
    _ = [torch.full((200, 64), float("nan")) for _ in range(200)]
    later: tuple[Tensor | None, ...] = torch.autograd.grad(loss, parameters, allow_unused=True)
    for a, b in zip(again, later, strict=True):
        assert a is b is None or (a is not None and b is not None and torch.equal(a, b))


def test_results_kept_elsewhere_serve_the_derivative_too() -> None:
    model, x = make_model(GRAPHS["tree"]), torch.randn(30, FEATURES)
    _, expected = walk(model, x)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.numpy(force=True).copy(), torch.from_numpy):
        _, grads = walk(model, x)
    for a, b in zip(grads, expected, strict=True):
        assert a is b is None or (a is not None and b is not None and torch.equal(a, b))


SCRIPT = """
import torch, nbsr_core as nbsr
from nbsr_core.kernels import availability
torch.manual_seed(0)
model = nbsr.NBSR(torch.nn.Linear(4, 8), nbsr.DecisionGraph.uniform(depth=2, width=3), 5, 8).eval()
print(availability())
print(model.predict(torch.ones(3, 4)).probs.sum().item())
"""


def run_script(folder: Path, **environment: str) -> tuple[bool, str]:
    """A new interpreter with an empty cache: whether it compiled, and what it said."""
    given = {**os.environ, "XDG_CACHE_HOME": str(folder), **environment}
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=given, timeout=200)
    assert done.returncode == 0, done.stderr
    said, total = done.stdout.splitlines()
    assert float(total) == pytest.approx(3.0, abs=1e-5)
    available, why = ast.literal_eval(said)
    return available, why


def test_without_a_compiler_torch_does_the_work_and_the_reason_is_told(tmp_path: Path) -> None:
    assert run_script(tmp_path, NBSR_NATIVE="0") == (False, "switched off by NBSR_NATIVE=0")
    assert run_script(tmp_path, CC="", PATH="") == (False, "no C compiler (cc, gcc or clang) was found")
    available, why = run_script(tmp_path, CC="/bin/false")
    assert not available
    assert why.startswith("/bin/false failed")
    assert list(tmp_path.glob("nbsr/native/*")) == [], "a failure leaves nothing behind"


def test_processes_that_compile_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    given = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    both = [subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, env=given) for _ in range(2)]
    said = [process.communicate(timeout=200)[0].decode() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert said[0] == said[1]
    (library,) = (tmp_path / "nbsr" / "native").iterdir()
    assert library.name in said[0]


def test_sources_that_are_included_are_part_of_the_fingerprint() -> None:
    """Otherwise an old library would be loaded after a change."""
    sources = "".join(path.read_text() for path in (build.SOURCE, *build.HEADERS))
    included = set(re.findall(r'#include "(.*)"', sources))
    assert included == {path.name for path in build.HEADERS}


def test_structures_have_the_size_that_compiled_code_expects() -> None:
    from nbsr_core.kernels.native import level

    found = build.library()
    assert found is not None
    found.nbsr_size_of_level.restype = ctypes.c_int64
    assert found.nbsr_size_of_level() == ctypes.sizeof(level.LevelCall)


def test_large_and_mixed_levels_are_left_to_torch() -> None:
    chain = nbsr.DecisionGraph.chain(2)
    large = nbsr.NBSR(torch.nn.Identity(), chain, 5000, 128)
    h = torch.zeros(1, 128)
    assert all(choice.backend_for(h, levels=[level]) is choice.REFERENCE for level in large.levels)
    mixed: dict[str, Any] = {"default": nbsr.ExpertSpec(), "Pets": nbsr.ExpertSpec(activation="exp")}
    levels = make_model(GRAPHS["uneven"], experts=mixed).levels
    assert {choice.backend_for(h, levels=[level]) for level in levels} == {choice.REFERENCE, choice.COMPILED}
