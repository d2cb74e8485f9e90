"""rifflemix compare: the main job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from rifflemix.cli import options
from rifflemix.cli.data import DataProgress
from rifflemix.cli.interrupt import EXIT_INTERRUPTED
from rifflemix.cli.output import print_json, progress_console, show, tell
from rifflemix.cli.settings import compare_config
from rifflemix.cli.shown import run_shown
from rifflemix.cli.suite import compare_suite
from rifflemix.errors import InputError, bad_argument
from rifflemix.lab.report.terminal import plain, text_table
from rifflemix.lab.runs.options import Json, Option, Out, RunOptions, Task

EPILOG = """Examples:

  rifflemix compare --task digits --out runs/digits

  rifflemix compare --task digits --mixers csp,tssa,softmax --seeds 3 --out runs/three

  rifflemix compare --task image --data-dir data --max-steps 200 --out runs/image

  rifflemix compare --task digits --mixers csp,csp-4=csp --mixer-option csp-4.num_groups=4 --out a

  rifflemix compare --task digits --lr 1e-3,3e-3,1e-2 --seeds 3 --out runs/tuned

  rifflemix compare --config runs/tuned/config.toml --out runs/again

  rifflemix compare --task csv --data my.csv --input text --label y --out runs/mine

  rifflemix compare --suite lra-small --data-dir data --out runs/small

  rifflemix compare --suite lra-small-smoke --tasks listops --mixers tssa,softmax --out runs/smoke

Ctrl-C stops after the current step; the same command continues from there.
"""


def compare(
    *,
    task: Task | None = None,
    out: Out,
    mixers: Annotated[
        str | None,
        Option(
            "Names, or LABEL=NAME for one more setting, with commas between; all: every mixer. "
            "If unset: softmax and the mixers of the five papers."
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        Option("Number of seeds 0, 1, ..., or a list of them; 1 if unset.", metavar="NUMBER"),
    ] = None,
    config: Annotated[
        Path | None,
        Option("File with these choices; options on the command line win.", metavar="FILE.toml"),
    ] = None,
    suite: Annotated[
        str | None,
        Option("Set of tasks in place of --task: lra-small, lra-small-smoke.", metavar="NAME"),
    ] = None,
    tasks: Annotated[
        str | None, Option("Of the suite, with commas between; all if unset.", metavar="NAMES")
    ] = None,
    run: RunOptions,
    json: Json = False,
) -> None:
    """Train every mixer on the same backbone, data, budget and seeds; write one fair table.

    Writes results.json, table.md, plot.png and report.html to --out; of a suite, one folder a task
    and one page over all.
    """
    from rifflemix.lab.comparison import check_any_finished, plan_comparison
    from rifflemix.lab.comparison.files import write_comparison_files
    from rifflemix.lab.runs.processes import is_main_process
    from rifflemix.lab.runs.trackers import check_tracker

    check_tracker(run.tracker)
    if suite is not None:
        compare_suite(suite, tasks, out, mixers, seeds, run, {"task": task, "config": config}, json)
        return
    if tasks is not None:
        raise bad_argument("--tasks", "a --suite that they are of", "none", "--task names one task")
    given = _choices(task, mixers, seeds, run.data_dir, config)
    chosen = compare_config(given.task, given.mixers, given.seeds, run, given.settings)
    with DataProgress(progress_console()) as progress:
        plan = plan_comparison(chosen, out, data_dir=given.data_dir, progress=progress)
    if given.is_default:
        _tell_default(given.task, tuple(given.mixers))
    results, _ = run_shown(plan, run)
    if is_main_process():
        write_comparison_files(plan.out, results)
        _tell(plan.out, results, json)
    check_any_finished(results)
    if results["status"] != "complete":
        raise typer.Exit(EXIT_INTERRUPTED)


def _tell(out: Path, results: dict[str, Any], as_json: bool) -> None:
    from rifflemix.lab.comparison.notes import partial_note

    if as_json:
        print_json(results)
    else:
        _show(out, results)
    if results["status"] != "complete":
        tell(progress_console(), partial_note(results))


@dataclass(frozen=True)
class _Choices:
    """The choices of options and of a file; `settings` are the other settings of the file."""

    task: str
    mixers: dict[str, str]
    is_default: bool  # neither the options nor the file name mixers
    seeds: tuple[int, ...]
    data_dir: Path | None
    settings: dict[str, Any]


def _choices(
    task: str | None,
    mixers: str | None,
    seeds: str | None,
    data_dir: Path | None,
    file: Path | None,
) -> _Choices:
    from rifflemix.lab.comparison.choices import chosen_mixers, chosen_seeds
    from rifflemix.lab.comparison.toml_file import read_config
    from rifflemix.mixers.named import ALL

    of_file = {} if file is None else read_config(file)
    task = task or of_file.pop("task", None)
    if task is None:
        raise InputError("Missing option '--task', here or in --config; see `rifflemix list tasks`")
    of_file.pop("task", None)
    mixers_of_file, seeds_of_file = of_file.pop("mixers", None), of_file.pop("seeds", 1)
    data_dir_of_file = of_file.pop("data_dir", None)
    names, _ = chosen_mixers(mixers_of_file, task)
    if mixers is not None:
        chosen, _ = chosen_mixers(options.parse_mixers(mixers), task)
        known = ALL if mixers_of_file is None else mixers_of_file
        not_chosen = chosen_mixers(known, task)[0].keys() - chosen.keys()
        of_mixers = of_file.pop("mixer_options", {})
        of_file["mixer_options"] = {k: v for k, v in of_mixers.items() if k not in not_chosen}
        names = chosen
    return _Choices(
        task,
        names,
        mixers is None and mixers_of_file is None,
        chosen_seeds(seeds_of_file) if seeds is None else options.parse_seeds(seeds),
        Path(data_dir_of_file) if data_dir is None and data_dir_of_file else data_dir,
        of_file,
    )


def _tell_default(task: str, names: tuple[str, ...]) -> None:
    """Print the default mixers, and which of them do not fit the task."""
    from rifflemix.lab.comparison.config import takes_graphs
    from rifflemix.lab.tasks import task_card
    from rifflemix.mixers import HEADLINE

    console = progress_console()
    every = "`--mixers all` trains every mixer that fits the task"
    tell(console, f"mixers: {', '.join(names)}; {every}")
    left_out = ", ".join(name for name in HEADLINE if name not in names)
    if left_out:
        if takes_graphs(task_card(task)):
            reason = f"has graphs, and the backbone for graphs takes only {' and '.join(names)}"
        else:
            reason = "predicts each token from the tokens before it and needs causal mixers"
        tell(console, f"task {task} {reason}; left out: {left_out}")


def terminal_table(results: Mapping[str, Any]) -> Table:
    """The table for a terminal."""
    from rifflemix.lab.comparison.table import comparison_rows, table_cells, table_headers

    rows = comparison_rows(results)
    headers = table_headers(rows)
    cells = ((plain(c.text, is_bold=c.best) for c in row) for row in table_cells(rows))
    inner = range(1, len(headers) - 1)
    return text_table(headers, cells, title=results["task"]["title"], right=inner)


def _show(out: Path, results: dict[str, Any]) -> None:
    from rifflemix.lab.comparison.notes import bold_note, softmax_note

    show(terminal_table(results))
    show(bold_note(results))
    show(softmax_note(results))
    show(f"Written to {out}: results.json, table.md, plot.png, report.html")
