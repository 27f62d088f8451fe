"""The models that studies compare wherever panels have prices, with their options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from nbsr_core.domains.acquisition.options import EndToEndOptions, SeparateOptions, SharedOptions
from nbsr_core.domains.domain import ModelKind, Signature
from nbsr_core.errors import InputError
from nbsr_core.options.specs import Family

if TYPE_CHECKING:  # imported where models are built: options are checked without torch
    from nbsr_core.domains.acquisition.learners import AcquisitionLearner

BUYERS: Mapping[str, tuple[Family, str]] = {
    "ar_nbsr": ("nbsr", "learned:Router"),
    "planner": ("nbsr", "planner:Planner"),
    "greedy": ("baseline", "learned:Greedy"),
    "gdfs": ("baseline", "learned:Gdfs"),
    "dime": ("baseline", "learned:Dime"),
    "fixed_order": ("baseline", "buyers:FixedOrder"),
    "cheap_first": ("baseline", "buyers:CheapFirst"),
    "random": ("baseline", "buyers:Random"),
    "oracle_peeking": ("baseline", "buyers:OraclePeeking"),
}
"""Who decides, by the name of the model. `oracle_peeking` sees results before it pays for them: an upper bound for
greedy, and no policy for use."""


def kinds(separate: type[SeparateOptions], end_to_end: type[SeparateOptions]) -> dict[str, ModelKind]:
    """All models, with these options: those of the paper's router, and those of everybody else."""
    return {
        name: ModelKind(family, end_to_end if name == "ar_nbsr" else separate, _builder(name))
        for name, (family, _) in BUYERS.items()
    }


def _builder(name: str) -> Callable[[SeparateOptions, Signature], AcquisitionLearner]:
    def build(options: SeparateOptions, signature: Signature) -> AcquisitionLearner:
        return build_learner(name, options, signature)

    return build


def build_learner(name: str, options: SeparateOptions, signature: Signature) -> AcquisitionLearner:
    """A model for the panels that the data brings along (`Splits.structure`)."""
    from importlib import import_module

    from nbsr_core.domains.acquisition.learners import AcquisitionLearner, Baseline
    from nbsr_core.model.acquisition import Panels
    from nbsr_core.model.autoregressive import AutoregressiveNBSR

    if "panels" not in signature.structure:
        raise InputError(f"{name} needs data with panels and prices (structure.panels), and this data has none")
    panels = Panels.from_json(signature.structure["panels"])
    if panels.num_features != signature.num_features:
        raise InputError(f"the panels are made for {panels.num_features} features, got {signature.num_features}")
    budgets = tuple(signature.structure.get("budgets", ()))
    for budget in budgets:
        panels.checked_steps(budget)
    model = AutoregressiveNBSR(
        panels,
        signature.num_classes,
        experts=options.experts,
        router=options.router,
        sight=options.sight,
        growth=options.growth,
        stop=options.stop,
        training_eta=options.training_eta,
        budget=max(budgets, default=None),
        standardise=options.standardise,
        knots=options.knots,
    )
    family, place = BUYERS[name]
    module, _, buyer = place.partition(":")
    found = getattr(import_module(f"nbsr_core.domains.acquisition.{module}"), buyer)
    kind = AcquisitionLearner if family == "nbsr" else Baseline
    return kind(model, found(model, options, budgets), options, budgets)


MODELS = kinds(SharedOptions, EndToEndOptions)
