"""`nbsr predict`: what a trained model says of the rows of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nbsr_platform.base.terminal import Terminal
from nbsr_platform.cli.options import CodeFolder, HomeFolder, Tracking
from nbsr_platform.cli.shared import clear_errors
from nbsr_platform.trials.home import Home


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
    code: CodeFolder = None,
    home: HomeFolder = None,
    tracking: Tracking = None,
) -> None:
    """Ask a trained model about new rows: label, probabilities, depth, vacuity, whether it abstains, and its path."""
    with clear_errors():
        from nbsr_platform.inspect.named_trial import named_trial
        from nbsr_platform.inspect.stored_model import stored_model
        from nbsr_platform.serving.predictions import predict_file

        place = Home.of(home)
        served = stored_model(place, named_trial(place, run, model), tracking, code)
        found = predict_file(served, source, out, keep)
        console, use = Terminal(), served.config
        for what, names in {"does not use": found.ignored, "misses": found.absent}.items():
            if names:
                more = f" and {len(names) - MOST_NAMED:,} more" if len(names) > MOST_NAMED else ""
                console.say(f"columns that the model {what}: {', '.join(names[:MOST_NAMED])}{more}")
        console.say(
            f"exits below {'none' if use.eta is None else f'{use.eta:.4g} nats'}, abstains above a vacuity of "
            f"{'1: never' if use.max_vacuity is None else f'{use.max_vacuity:.4g}'}, as the trial was judged",
            head="thresholds",
        )
        if found.unanswered or found.noted:
            console.say(
                f"not answered: {found.unanswered:,}, answered though strange: {found.noted:,}; `note` says why",
                head="warning",
                style="yellow",
            )
        console.say(f"{found.rows:,}, of which {found.abstained:,} abstained", head="answers")
        console.say(str(out), head="file")


MOST_NAMED = 8
