"""rifflemix compare: the main job."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from rifflemix.cli import options
from rifflemix.cli.data import DataProgress
from rifflemix.cli.interrupt import EXIT_INTERRUPTED, StopRequest
from rifflemix.cli.output import print_json, progress_console, show
from rifflemix.cli.settings import compare_config
from rifflemix.runs.options import Json, Option, Out, RunOptions, Task

if TYPE_CHECKING:
    from rifflemix.comparison import ComparePlan

EPILOG = """Examples:

  rifflemix compare --task digits --out runs/digits

  rifflemix compare --task digits --mixers csp,tssa,softmax --seeds 3 --out runs/three

  rifflemix compare --task image --data-dir data --max-steps 200 --out runs/image

  rifflemix compare --task digits --mixers csp,csp-4=csp --mixer-option csp-4.num_groups=4 --out a

  rifflemix compare --task csv --data my.csv --input text --label y --out runs/mine

Ctrl-C stops after the current step; the same command continues from there.
"""


def compare(
    *,
    task: Task,
    out: Out,
    mixers: Annotated[
        str | None,
        Option("Names, or LABEL=NAME for one more setting, with commas between; all if unset."),
    ] = None,
    seeds: Annotated[
        str, Option("Number of seeds 0, 1, ..., or a list of them.", metavar="NUMBER")
    ] = "1",
    run: RunOptions,
    json: Json = False,
) -> None:
    """Train every mixer on the same backbone, data, budget and seeds; write one fair table.

    Writes results.json, table.md, plot.png and report.html to --out.
    """
    from rifflemix.comparison import check_any_finished, default_mixers, plan_comparison
    from rifflemix.comparison.files import write_comparison_files
    from rifflemix.comparison.notes import partial_note

    chosen = options.parse_seeds(seeds)
    if mixers is None:
        names = {name: name for name in default_mixers(task)}
        _tell_left_out(task, tuple(names))
    else:
        names = options.parse_mixers(mixers)
    config = compare_config(task, names, chosen, run)
    with DataProgress(progress_console()) as progress:
        plan = plan_comparison(config, out, data_dir=run.data_dir, progress=progress)
    results = _run(plan)
    write_comparison_files(plan.out, results)
    if json:
        print_json(results)
    else:
        _show(plan.out, results)
    check_any_finished(results)
    if results["status"] != "complete":
        progress_console().print(partial_note(results), soft_wrap=True)
        raise typer.Exit(EXIT_INTERRUPTED)


def _tell_left_out(task: str, names: tuple[str, ...]) -> None:
    """Say which mixers are left out by default, and why."""
    from rifflemix.comparison.config import takes_graphs
    from rifflemix.mixers import mixer_card, usable_mixers
    from rifflemix.tasks import task_card

    left_out = ", ".join(mixer_card(name).title for name in usable_mixers() if name not in names)
    if not left_out:
        return
    if takes_graphs(task_card(task)):
        reason = f"needs a backbone for graphs, which takes only {' and '.join(names)}; left out"
    else:
        reason = "predicts tokens from those before them; left out, since they look ahead"
    progress_console().print(f"task {task} {reason}: {left_out}", soft_wrap=True)


def _run(plan: ComparePlan) -> dict[str, Any]:
    from rifflemix.comparison import run_comparison, title_of
    from rifflemix.report.live import live_progress

    titles = {name: title_of(plan.config, name) for name in plan.config.mixers}
    live = live_progress(progress_console(), titles, plan.config.seeds)

    with live, StopRequest(live.note) as stop:
        return run_comparison(plan, on_status=live.update, should_stop=stop)


def terminal_table(results: Mapping[str, Any]) -> Table:
    """The table for a terminal."""
    from rifflemix.comparison.table import comparison_rows, table_cells, table_headers

    rows = comparison_rows(results)
    table = Table(box=SIMPLE_HEAD, title=Text(results["task"]["title"]))
    headers = table_headers(rows)
    for index, header in enumerate(headers):
        inner = 0 < index < len(headers) - 1
        table.add_column(header, justify="right" if inner else "left", overflow="fold")
    for cells in table_cells(rows):
        table.add_row(*(Text(c.text, style="bold" if c.best else "") for c in cells))
    return table


def _show(out: Path, results: dict[str, Any]) -> None:
    from rifflemix.comparison.notes import bold_note, softmax_note

    show(terminal_table(results))
    show(bold_note(results))
    show(softmax_note(results))
    show(f"Written to {out}: results.json, table.md, plot.png, report.html")
