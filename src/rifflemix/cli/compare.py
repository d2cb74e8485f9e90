"""rifflemix compare: train several mixers. merge: combine comparisons. train: one mixer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from rifflemix.cli import options
from rifflemix.cli.commands import parse_path
from rifflemix.cli.options import compare_config, one_or_many
from rifflemix.cli.output import (
    DataProgress,
    StopRequest,
    plain_table,
    print_json,
    progress_console,
    show,
    tell,
)
from rifflemix.cli.suite import compare_suite, show_suite
from rifflemix.cli.workers import (
    check_workers,
    compare_forecasts,
    has_gpus,
    kept_options,
    run_with_live_table,
    show_forecasts,
    tell_rest,
    thread_default,
    train_with_workers,
    worker_count,
)
from rifflemix.errors import EXIT_INTERRUPTED, InputError, bad_argument
from rifflemix.lab.report.live import plain, text_table
from rifflemix.lab.runs.options import (
    Json,
    OneSeed,
    Option,
    Out,
    RunOptions,
    Seed,
    Task,
    WorkerOptions,
    is_main_process,
)

if TYPE_CHECKING:
    from rifflemix.lab.comparison import CompareConfig
    from rifflemix.lab.comparison.rows import Table as ComparisonTable
    from rifflemix.lab.comparison.single import SingleResults


EPILOG = """Examples:

  rifflemix compare --task digits --out runs/digits

  rifflemix compare --task digits --mixers csp,tssa,softmax --seeds 3 --out runs/three

  rifflemix compare --task image --data-dir data --max-steps 200 --out runs/image

  rifflemix compare --task digits --mixers csp,csp-4=csp --mixer-option csp-4.num_groups=4 --out a

  rifflemix compare --task digits --lr 1e-3,3e-3,1e-2 --seeds 3 --out runs/tuned

  rifflemix compare --task digits --lr 1e-3,3e-3,1e-2 --stop-early --workers 2 --out runs/halved

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
            "Names separated by commas; LABEL=NAME adds a mixer with other options; all means "
            "every mixer. If unset: softmax and the mixers of the five papers."
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        Option("Number of seeds 0, 1, ..., or a list of them; 1 if unset.", metavar="NUMBER"),
    ] = None,
    seed: OneSeed = None,
    config: Annotated[
        Path | None,
        Option("File with settings. Options on the command line win.", metavar="FILE.toml"),
    ] = None,
    suite: Annotated[
        str | None,
        Option(
            "Set of tasks in place of --task: lra-small, lra-small-smoke, recall-small, mad-small, "
            "recall, mad.",
            metavar="NAME",
        ),
    ] = None,
    tasks: Annotated[
        str | None,
        Option("Tasks of the suite, separated by commas; all if unset.", metavar="NAMES"),
    ] = None,
    stop_early: Annotated[
        bool, Option("Stop the worse half of several --lr values at rungs; see the page on tuning.")
    ] = False,
    run: RunOptions,
    pool: WorkerOptions,
    json: Json = False,
) -> None:
    """Train every mixer with the same backbone, data, budget and seeds, and write one table.

    Writes results.json, table.md, plot.png and report.html to --out. A suite has one folder per
    task and one page for all tasks.
    """
    from rifflemix.lab.comparison import collect_comparison, measure_apart, plan_comparison
    from rifflemix.lab.comparison.pages.files import write_comparison_files
    from rifflemix.lab.comparison.rows import Table as ComparisonTable
    from rifflemix.lab.runs.environment import gpus_elsewhere
    from rifflemix.lab.runs.options import is_main_process
    from rifflemix.lab.runs.status import check_tracker

    check_tracker(run.tracker)
    check_workers(pool)
    seeds = one_or_many(seeds, seed)
    if suite is not None:
        others = {"task": task, "config": config}
        compare_suite(suite, tasks, out, mixers, seeds, stop_early, run, pool, others, json)
        return
    if tasks is not None:
        raise bad_argument("--tasks", "--suite next to it", "none", "use --task for one task")
    given = _choices(task, mixers, seeds, run, config)
    if stop_early:
        given.settings["stop_early"] = True
    if "threads" not in given.settings:
        run = replace(run, threads=thread_default(pool, run.threads, out))
    with gpus_elsewhere(has_gpus(pool)):
        chosen = compare_config(given.task, given.mixers, given.seeds, run, given.settings)
    with DataProgress(progress_console()) as progress:
        plan = plan_comparison(chosen, out, data_dir=given.data_dir, progress=progress)
    if given.is_default:
        _tell_default(given.task, tuple(given.mixers))
    if pool.dry_run:
        show_forecasts(compare_forecasts([plan], pool), worker_count(pool), as_json=json)
        return
    is_stopped = train_with_workers(
        plan.out, [plan], pool, plan.config.threads or 1, given.data_dir, kept_options(run)
    )
    if is_stopped is None:
        results, is_stopped = run_with_live_table(plan, run, pool)
    else:
        if not is_stopped and pool.slurm is None:
            measure_apart(plan)
        results = collect_comparison(plan)
    if is_main_process():
        table = ComparisonTable(results)
        write_comparison_files(plan.out, table)
        show_comparison(table, plan.out, json)
    results.check_any_finished()
    tell_rest(pool, results.status, is_stopped=is_stopped)


@dataclass(frozen=True)
class _Choices:
    """Choices from options and a file. `settings` are the other settings of the file."""

    task: str
    mixers: dict[str, str]
    is_default: bool  # no mixers in the options or in the file
    seeds: tuple[int, ...]
    data_dir: Path | None
    settings: dict[str, Any]


def _choices(
    task: str | None,
    mixers: str | None,
    seeds: str | None,
    run: RunOptions,
    file: Path | None,
) -> _Choices:
    from rifflemix.lab.comparison.choices import chosen_mixers, chosen_seeds, read_config
    from rifflemix.lab.tasks import task_card
    from rifflemix.mixers.registry import ALL

    of_file = {} if file is None else read_config(file)
    task = task or of_file.pop("task", None)
    if task is None:
        raise InputError("Missing option '--task', here or in --config; see `rifflemix list tasks`")
    of_file.pop("task", None)
    mixers_of_file, seeds_of_file = of_file.pop("mixers", None), of_file.pop("seeds", 1)
    data_dir_of_file = of_file.pop("data_dir", None)
    of_task = {
        **of_file.get("task_options", {}),
        **options.parse_task_options(run.task_option, task),
    }
    card = task_card(task).for_options(of_task)
    names, _ = chosen_mixers(mixers_of_file, card)
    if mixers is not None:
        chosen, _ = chosen_mixers(options.parse_mixers(mixers), card)
        known = ALL if mixers_of_file is None else mixers_of_file
        not_chosen = chosen_mixers(known, card)[0].keys() - chosen.keys()
        of_mixers = of_file.pop("mixer_options", {})
        of_file["mixer_options"] = {k: v for k, v in of_mixers.items() if k not in not_chosen}
        names = chosen
    return _Choices(
        task,
        names,
        mixers is None and mixers_of_file is None,
        chosen_seeds(seeds_of_file) if seeds is None else options.parse_seeds(seeds),
        Path(data_dir_of_file) if run.data_dir is None and data_dir_of_file else run.data_dir,
        of_file,
    )


def _tell_default(task: str, names: tuple[str, ...]) -> None:
    """Print the default mixers, and those that do not fit the task."""
    from rifflemix.lab.comparison.defaults import takes_graphs
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


def show_comparison(table: ComparisonTable, out: Path, as_json: bool) -> None:
    """Print the table and its main notes, or results.json."""
    from rifflemix.json_values import encode
    from rifflemix.lab.comparison.pages.notes import bold_note, partial_note, softmax_note

    if as_json:
        print_json(encode(table.results))
    else:
        show(terminal_table(table))
        show(bold_note(table))
        show(softmax_note(table))
        show(f"Written to {out}: results.json, table.md, plot.png, report.html")
    if not table.results.is_complete:
        tell(progress_console(), partial_note(table.results))


def terminal_table(table: ComparisonTable) -> Table:
    """Build the table for a terminal."""
    from rifflemix.lab.comparison.pages.table import table_cells, table_headers

    headers = table_headers(table)
    cells = ((plain(c.text, is_bold=c.best) for c in row) for row in table_cells(table))
    inner = range(1, len(headers) - 1)
    return text_table(headers, cells, title=table.results.task.title, right=inner)


MERGE_EPILOG = """Examples:

  rifflemix merge runs/monday runs/tuesday --out runs/both

The folders can differ in mixers or in seeds. Task, data, model and budget must be equal. Folders of
a suite can also differ in tasks.
"""


def merge(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Folders of `rifflemix compare`: comparisons only, or suites only.",
            parser=parse_path,
        ),
    ],
    out: Annotated[Path, Option("Folder for the combined table.", metavar="PATH")],
    json: Json = False,
) -> None:
    """Combine finished comparisons in one table. The runs stay in their folders."""
    from rifflemix.lab.comparison.merging import merge_comparisons
    from rifflemix.lab.comparison.suites.merging import is_suite, merge_suites
    from rifflemix.lab.comparison.suites.report import SuiteReport

    if any(is_suite(run) for run in runs):
        suite = merge_suites(runs, out)
        show_suite(suite.record, SuiteReport(suite.tables), out, json)
    else:
        show_comparison(merge_comparisons(runs, out).table, out, json)


TRAIN_EPILOG = """Examples:

  rifflemix train --task digits --mixer tssa --out runs/tssa

  rifflemix train --task digits --task-option patch_size=2 --mixer csp --seed 7 --out runs/csp

Ctrl-C stops after the current step; the same command continues from there.
"""


def train(
    *,
    task: Task,
    mixer: Annotated[str, Option("Mixer; see `rifflemix list mixers`.")],
    out: Out,
    seed: Seed = 0,
    run: RunOptions,
    json: Json = False,
) -> None:
    """Train one mixer on one task. The same command resumes the run in --out."""
    from rifflemix.json_values import encode

    config = compare_config(task, {mixer: mixer}, (seed,), run)
    if config.tuned:
        raise bad_argument("--lr", "one number", run.lr, "compare tries several")
    results = _run(config, out, run)
    if is_main_process():
        if json:
            print_json(encode(results))
        else:
            _show(config, out, results)
    if not results.result.finished:
        tell(progress_console(), "stopped; run the same command to continue")
        raise typer.Exit(EXIT_INTERRUPTED)


def _run(config: CompareConfig, out: Path, options: RunOptions) -> SingleResults:
    from rifflemix.lab.comparison import plan_single, train_single
    from rifflemix.lab.experiments import write_launch
    from rifflemix.lab.report.live import live_progress
    from rifflemix.lab.runs.status import check_tracker
    from rifflemix.mixers import mixer_card

    check_tracker(options.tracker)
    console = progress_console()
    with DataProgress(console) as progress:
        plan = plan_single(config, out, data_dir=options.data_dir, progress=progress)
    if is_main_process():
        write_launch(out, options.data_dir, kept_options(options))
    mixer = config.mixers[0]
    live = live_progress(console, {mixer: mixer_card(mixer).title}, config.seeds)
    with live, StopRequest(live.note) as stop:
        return train_single(
            plan,
            on_status=live.update,
            should_stop=stop,
            tracker=options.tracker,
            keep_weights=options.keep_weights,
        )


def _show(config: CompareConfig, out: Path, results: SingleResults) -> None:
    from rifflemix.lab.report.units import format_bytes, format_duration, format_metric, format_rate

    result, metric = results.result, results.protocol.metric
    rows = [("steps", f"{result.step} of {result.max_steps}")]
    if result.best_value is not None:
        best = format_metric(metric, result.best_value)
        words = metric.replace("_", " ")
        rows.append((f"best validation {words}", f"{best} at step {result.best_step}"))
    rows += [
        (f"test {name.replace('_', ' ')}", format_metric(name, value))
        for name, value in (result.test or {}).items()
        if name != "loss"
    ]
    if result.steps_per_second is not None:
        rows.append(("steps/s", format_rate(result.steps_per_second)))
    if results.peak_memory_bytes is not None:
        rows.append(("peak memory", format_bytes(results.peak_memory_bytes)))
    rows += [
        ("parameters", f"{result.parameters:,}"),
        ("wall time", format_duration(results.wall_seconds)),
        ("written to", str(out)),
    ]
    show(plain_table((config.mixers[0], config.task), rows))
