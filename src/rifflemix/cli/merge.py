"""rifflemix merge: comparisons put together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rifflemix.cli.commands import parse_path
from rifflemix.cli.compare import terminal_table
from rifflemix.cli.output import print_json, show
from rifflemix.cli.suite import show_suite
from rifflemix.lab.runs.options import Json, Option

EPILOG = """Examples:

  rifflemix merge runs/monday runs/tuesday --out runs/both

The folders may differ in mixers or in seeds; task, data, model and budget must be the same.
Of a suite they may differ in tasks, too.
"""


def merge(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Results folders of `rifflemix compare`, all or none of a suite.",
            parser=parse_path,
        ),
    ],
    out: Annotated[Path, Option("Folder for the table of all.", metavar="PATH")],
    json: Json = False,
) -> None:
    """Put finished comparisons into one table; their runs stay where they are."""
    from rifflemix.lab.comparison.merging import merge_comparisons
    from rifflemix.lab.comparison.merging_suites import is_suite, merge_suites
    from rifflemix.lab.comparison.notes import bold_note, softmax_note

    if any(is_suite(run) for run in runs):
        made = merge_suites(runs, out)
        tasks = {name: comparison.results for name, comparison in made.comparisons.items()}
        show_suite(made.results, tasks, out, json)
        return
    results = merge_comparisons(runs, out).results
    if json:
        print_json(results)
        return
    show(terminal_table(results))
    show(bold_note(results))
    show(softmax_note(results))
    show(f"Written to {out}: results.json, table.md, plot.png, report.html")
