"""`nbsr explain`: why a model did what it did with one sample, episode or prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nbsr_platform.base.terminal import Terminal
from nbsr_platform.cli.options import AsJson, Budget, CodeFolder, HomeFolder, Tracking
from nbsr_platform.cli.shared import clear_errors, print_json
from nbsr_platform.trials.home import Home


def explain(
    run: Annotated[
        str, typer.Argument(help="An MLflow run id, a trial key, or a study's file or name.", show_default=False)
    ],
    model: Annotated[
        str | None, typer.Option(help="Of a study, whose first seed to explain; its only NBSR by default.")
    ] = None,
    sample: Annotated[int | None, typer.Option(help="Which sample of the test split; 0 by default.")] = None,
    prompt: Annotated[str | None, typer.Option(help="Words to go on from (language).")] = None,
    episode: Annotated[int | None, typer.Option(help="Which held-out episode (navigation).")] = None,
    budget: Budget = None,
    svg: Annotated[Path | None, typer.Option(help="Also draw it into this file.")] = None,
    gif: Annotated[Path | None, typer.Option(help="Also animate it into this file (navigation).")] = None,
    code: CodeFolder = None,
    home: HomeFolder = None,
    tracking: Tracking = None,
    as_json: AsJson = False,
) -> None:
    """Why did the model do that? One sample's walk: nodes, routes, evidence, belief shift, and the features behind."""
    with clear_errors():
        from nbsr_core.domains.domain import Answer, Question
        from nbsr_platform.explain.explain import explain as explain_sample
        from nbsr_platform.explain.explain import picture
        from nbsr_platform.inspect.named_trial import named_trial

        key = named_trial(Home.of(home), run, model)
        explained = explain_sample(Home.of(home), key, Question(sample, prompt, episode, budget=budget), tracking, code)
        for kind, file in {"svg": svg, "gif": gif}.items():
            if file is not None:
                drawn = picture(explained, kind)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(drawn)
        if as_json:
            print_json(explained.data if isinstance(explained, Answer) else explained.to_json())
        else:
            Terminal().say(explained.text if isinstance(explained, Answer) else explained.text())
