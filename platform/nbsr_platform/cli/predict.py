"""`nbsr predict`: what a trained model says of the rows of a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nbsr_platform.base.terminal import Terminal
from nbsr_platform.cli.options import Budget, CodeFolder, Encoding, HomeFolder, Separator, Tracking, separator_named
from nbsr_platform.cli.shared import clear_errors
from nbsr_platform.trials.home import Home

if TYPE_CHECKING:
    from nbsr_platform.serving.served_model import ModelConfig


def predict(
    run: Annotated[
        str, typer.Argument(help="An MLflow run id, a trial key, or a study's file or name.", show_default=False)
    ],
    source: Annotated[
        Path, typer.Argument(metavar="FILE", help="A CSV or Parquet file, a question per row.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="CSV file to write, an answer per row.", show_default=False)],
    model: Annotated[
        str | None, typer.Option(help="Of a study, whose first seed to ask; its only NBSR by default.")
    ] = None,
    keep: Annotated[
        list[str], typer.Option(metavar="COLUMN", help="Column of FILE to begin each answer with; may be repeated.")
    ] = [],  # noqa: B006
    budget: Budget = None,
    separator: Separator = None,
    encoding: Encoding = None,
    code: CodeFolder = None,
    home: HomeFolder = None,
    tracking: Tracking = None,
) -> None:
    """Ask a trained model about new rows: label, probabilities, depth, vacuity, whether it abstains, and its path."""
    with clear_errors():
        from nbsr_platform.inspect.named_trial import named_trial
        from nbsr_platform.inspect.stored_model import stored_format, stored_model
        from nbsr_platform.serving.predictions import predict_file

        place = Home.of(home)
        key = named_trial(place, run, model)
        served, known = stored_model(place, key, tracking, code), stored_format(place, key, tracking)
        found = predict_file(
            served,
            source,
            out,
            keep,
            separator=separator_named(separator) or known["separator"],
            encoding=encoding or known["encoding"],
            options=None if budget is None else {"budget": budget},
        )
        console = Terminal()
        for what, names in {"does not use": found.ignored, "misses": found.absent}.items():
            if names:
                more = f" and {len(names) - MOST_NAMED:,} more" if len(names) > MOST_NAMED else ""
                console.say(f"columns that the model {what}: {', '.join(names[:MOST_NAMED])}{more}")
        console.say(f"{_thresholds(served.config)}, as the trial was judged", head="thresholds")
        if found.unanswered or found.noted:
            console.say(
                f"not answered: {found.unanswered:,}, answered though strange: {found.noted:,}; `note` says why",
                head="warning",
                style="yellow",
            )
        console.say(f"{found.rows:,}, of which {found.abstained:,} abstained", head="answers")
        console.say(str(out), head="file")


def _thresholds(use: ModelConfig) -> str:
    """How the model is used, in words."""
    exits = "never exits early" if use.eta is None else f"exits below {use.eta:.4g} nats"
    if use.max_doubt is not None:
        return f"{exits}, abstains below a confidence of {1 - use.max_doubt:.4g}"
    if use.max_vacuity is None:
        return f"{exits}, never abstains"
    return f"{exits}, abstains above a vacuity of {use.max_vacuity:.4g}"


MOST_NAMED = 8
