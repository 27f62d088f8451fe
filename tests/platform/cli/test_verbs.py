"""The `nbsr` command is put together from verbs, each with a file of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from nbsr_platform.cli.app import VERBS, app
from typer.testing import CliRunner

OF_A_CLUSTER = {"status", "logs", "stop"}  # small, and with `jobs`


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
def test_a_verb_lives_in_the_file_of_its_name_and_says_what_it_does(verb: Callable[..., None]) -> None:
    name = verb.__name__
    assert verb.__module__ == f"nbsr_platform.cli.{'jobs' if name in OF_A_CLUSTER else name}"
    done = CliRunner().invoke(app, [name, "--help"])
    assert done.exit_code == 0
    assert str(verb.__doc__)[:40] in done.stdout
