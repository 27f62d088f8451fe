"""From what a store says of a trial to what may be used of it.

A store is data: results and runs that somebody else may have written. The code that it names is imported where it is
installed or stands in a folder that the user named (`--code`), never from the folder in which the trial says it ran.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from nbsr_core.domains.domain import Domain, UnknownModuleError, find_domain
from nbsr_core.errors import InputError
from nbsr_platform.trials.results import TrialResult
from nbsr_platform.trials.trial import Trial

KEY = re.compile(r"[0-9a-f]{8,64}")
TEXTS = ("study", "domain", "data_fingerprint", "code", "judging_code", "label", "kind", "family")
MAPPINGS = ("data", "options", "training", "evaluation", "files", "rounding")


def trial_of(result: TrialResult, code: Path | None = None) -> Trial:
    """The trial that a stored result is of.

    Args:
        result: as it was stored.
        code: folder that the user named for the module of its domain; takes the place of the one that is stored.
    """
    try:
        trial = Trial(**result.trial)
    except TypeError:
        raise InputError(f"trial {result.key} was stored without its own description; run its study again") from None
    wrong = [name for name in TEXTS if not isinstance(getattr(trial, name), str)]
    wrong += [name for name in MAPPINGS if not isinstance(getattr(trial, name), Mapping)]
    wrong += [] if isinstance(trial.seed, int) else ["seed"]
    wrong += [] if trial.proposal is None or isinstance(trial.proposal, int) else ["proposal"]
    if wrong:
        raise InputError(f"trial {result.key} is stored with {', '.join(wrong)} of a wrong kind; run its study again")
    return replace(trial, beside=None if code is None else str(code.absolute()))


def domain_of(result: TrialResult, code: Path | None = None) -> Domain:
    """The domain of a stored trial; where its module is not here, the error says where it was and how to name that."""
    return named_domain(f"trial {result.key}", trial_of(result).domain, code, result.trial.get("beside"))


def named_domain(who: str, name: str, code: Path | None, ran_from: Any = None) -> Domain:
    """A domain that a store names.

    Args:
        who: which part of the store names it, for the message.
        name: of the domain.
        code: folder that the user named.
        ran_from: folder that the store names; for the message only.
    """
    try:
        return find_domain(name, code)
    except UnknownModuleError:
        where = "not installed" if code is None else f"neither installed nor in {code}"
        ran = f"; it ran from {ran_from}" if isinstance(ran_from, str) else ""
        folder = ran_from if isinstance(ran_from, str) else "FOLDER"
        raise InputError(
            f"{who} uses the domain {name!r}, whose module is {where}{ran}: add --code {folder} if you trust what is "
            "there"
        ) from None


def checked_key(key: object, who: str) -> str:
    """A key that a run in MLflow names. It becomes part of a path, so it must look like one of ours."""
    if not isinstance(key, str) or not KEY.fullmatch(key):
        raise InputError(f"{who} names {key!r}, which is no key; the run was changed, or is not one of ours")
    return key
