"""Packages that only some need: where one is missing, one sentence says which extra of nbsr brings it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from nbsr_core.errors import InputError

# What packages are called at the index that are imported under another name.
DISTRIBUTIONS = {"PIL": "pillow", "sklearn": "scikit-learn", "yaml": "pyyaml"}


class MissingExtraError(InputError):
    """A package is not installed that an extra of nbsr brings."""


@contextmanager
def extra(name: str, *packages: str) -> Iterator[None]:
    """Around the imports that need an extra; a package that is not there raises a `MissingExtraError`.

    Args:
        name: the extra of nbsr that brings what is imported inside.
        packages: what it brings, by the names that are imported, where the code inside may miss something else too; by
            default whatever is missing is taken to be of the extra.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise_if_missing(error, name, *packages)
        raise


def needs(package: str, name: str) -> None:
    """As `extra` around its import, without importing it: for what can be known before there is work to lose."""
    with extra(name):
        if find_spec(package) is None:
            raise ModuleNotFoundError(name=package)


def raise_if_missing(error: BaseException, name: str, *packages: str) -> None:
    """Raise a `MissingExtraError` if an error says that a package of the extra is missing; see `extra`."""
    missing = (getattr(error, "name", None) or "").partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and missing and (not packages or missing in packages):
        known = DISTRIBUTIONS.get(missing, missing)
        raise MissingExtraError(f"{known} is not installed: pip install 'nbsr[{name}]'") from None
