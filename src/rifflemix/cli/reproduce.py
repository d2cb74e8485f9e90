"""rifflemix reproduce: a row of a paper's table, the printed number beside ours."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rifflemix.cli.data import DataProgress
from rifflemix.cli.interrupt import EXIT_INTERRUPTED, StopRequest
from rifflemix.cli.output import plain_table, print_json, progress_console, show, tell
from rifflemix.errors import bad_argument
from rifflemix.lab.runs.options import Json, Option, Out, ReproduceOptions

if TYPE_CHECKING:
    from rifflemix.lab.reproduction import ReproducePlan

_CONTINUE = "run the same command to continue"

EPILOG = """Examples:

  rifflemix reproduce csp/table4-image --data-dir data --out runs/csp-image

  rifflemix reproduce csp/table4-image --data-dir data --max-steps 200 --scale 0.5 --out runs/small

  rifflemix reproduce sinkhorn/table1-sort-b32 --budget 30 --out runs/sort

  rifflemix reproduce dimension_mixer/table6-64 --start-from runs/px32 --out runs/px64

--max-steps shortens the schedule with the run; --budget and Ctrl-C stop cleanly, and the
same command continues. The budget includes the preparation of data. Results say how much of the
paper's run was made.
"""


def reproduce(
    recipe: Annotated[str, typer.Argument(help="PAPER/ROW; see `rifflemix list recipes`.")],
    out: Out,
    run: ReproduceOptions,
    budget: Annotated[
        float | None,
        Option(
            "Stop after so long, data preparation included; to be continued.", metavar="MINUTES"
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Train a row of a paper's table and print the paper's number beside ours."""
    time_is_up = _time_limit(budget)
    from rifflemix.lab.recipes import get_recipe
    from rifflemix.lab.reproduction import plan_reproduction
    from rifflemix.lab.runs.processes import is_main_process
    from rifflemix.lab.tasks import PreparationStopped

    chosen = get_recipe(recipe)
    try:
        with DataProgress(progress_console(), time_is_up) as progress:
            plan = plan_reproduction(chosen, out, run, progress=progress)
    except PreparationStopped as error:
        progress_console().print(f"stopped, {error}; {_CONTINUE}", soft_wrap=True)
        if json and is_main_process():
            print_json({"recipe": chosen.name, "status": "partial", "data": str(error)})
        return
    results, interrupted = _run(plan, time_is_up)
    if is_main_process():
        _tell(plan, results, json)
    if interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)


def _tell(plan: ReproducePlan, results: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(results)
    else:
        _show(plan, results)
    if results["status"] != "complete":
        tell(progress_console(), f"stopped; {_CONTINUE}")


def _time_limit(minutes: float | None) -> Callable[[], bool]:
    """Return a function that is True after some minutes from now."""
    if minutes is None:
        return lambda: False
    if not minutes > 0:
        raise bad_argument("budget", "minutes over 0", minutes)
    end = time.monotonic() + 60.0 * minutes
    return lambda: time.monotonic() >= end


def _run(plan: ReproducePlan, time_is_up: Callable[[], bool]) -> tuple[dict[str, Any], bool]:
    from rifflemix.lab.report.live import live_progress
    from rifflemix.lab.reproduction import run_reproduction

    recipe = plan.recipe
    live = live_progress(progress_console(), {recipe.name: recipe.row}, (plan.seed,))
    with live, StopRequest(live.note) as stop:
        results = run_reproduction(
            plan, on_status=live.update, should_stop=stop, time_is_up=time_is_up
        )
        return results, stop() and results["status"] != "complete"


def _show(plan: ReproducePlan, results: dict[str, Any]) -> None:
    from rifflemix.lab.reproduction.tables import summary_rows

    show(plain_table((plan.recipe.name, plan.recipe.paper), summary_rows(results)))
    show(f"Written to {plan.out}/results.json")
