"""rifflemix list: mixers, models, tasks, recipes and analyses. rifflemix data. rifflemix doctor."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.text import Text

from rifflemix.cli.commands import Commands
from rifflemix.cli.options import parse_task_options
from rifflemix.cli.output import (
    DataProgress,
    output_width,
    plain_table,
    print_json,
    progress_console,
    show,
)
from rifflemix.cli.workers import SORTS, show_costs
from rifflemix.errors import bad_argument
from rifflemix.lab.runs.options import DataDir, Device, Json, Option, TaskOptions, Threads
from rifflemix.text import terminal_lines

DOCTOR_EPILOG = "Examples:  rifflemix doctor   |   rifflemix doctor --data-dir data --json"


def doctor(data_dir: DataDir | None = None, json: Json = False) -> None:
    """Check kernels, extras, devices, cache folder and data. Exit code 1 means a defect."""
    from rifflemix.lab.runs.doctor import BROKEN, examine

    findings = examine(data_dir)
    if json:
        print_json([asdict(finding) for finding in findings])
    else:
        rows = [(finding.name, finding.state, finding.detail) for finding in findings]
        show(plain_table(("What", "State", "Detail"), rows))
        for finding in findings:
            if finding.output:
                show(f"{finding.name}, output of the compiler:")
                show(Text(terminal_lines(finding.output)))
    if any(finding.state == BROKEN for finding in findings):
        raise typer.Exit(1)


app = Commands()
_WIDE = 120  # columns needed to show the papers
_FEW = 80  # largest number of names in one cell
_LIMITS = (
    ("Exported for one length only", "one_length"),
    ("Not in ONNX", "no_onnx"),
    ("Left padding changes the result", "by_position"),
)


@app.callback(
    invoke_without_command=True,
    epilog="Examples:  rifflemix list   |   rifflemix list mixers   |   rifflemix list --json",
)
def names(context: typer.Context, json: Json = False) -> None:
    """List mixers, models, tasks, recipes or analyses. Without a command, list all names."""
    if context.invoked_subcommand is not None:
        if json:
            what = context.invoked_subcommand
            raise bad_argument(
                "--json", f"the option after the list: list {what} --json", "it before the list"
            )
        return
    from rifflemix.lab.recipes import list_recipes
    from rifflemix.lab.tasks import list_tasks
    from rifflemix.mixers import list_mixers
    from rifflemix.models import list_models

    lists = {
        "mixers": list_mixers(),
        "models": list_models(),
        "tasks": list_tasks(),
        "recipes": list_recipes(),
    }
    if json:
        print_json(lists)
        return
    rows = [(what, len(listed), _some(listed)) for what, listed in lists.items()]
    show(plain_table(("List", "Number", "Names"), rows))
    show("`rifflemix list mixers` shows the details of mixers. The other lists work the same way.")


@app.command(
    epilog="Examples:  rifflemix list mixers   |   rifflemix list mixers --json",
)
def mixers(json: Json = False) -> None:
    """List mixers: paper, complexity, abilities, parameters of one layer at C = 256."""
    from rifflemix.mixers.registry import mixer_entries

    entries = mixer_entries()
    if json:
        print_json(entries)
        return
    headers = ["Name", "Complexity", "Can", "Parameters"]
    rows = [
        [entry["name"], entry["complexity"], _abilities(entry), f"{entry['parameters']:,}"]
        for entry in entries
    ]
    if output_width() >= _WIDE:
        headers.append("Paper")
        rows = [[*row, entry["paper"]] for row, entry in zip(rows, entries, strict=True)]
    show(plain_table(headers, rows))
    for what, limit in _LIMITS:
        limited = [entry["name"] for entry in entries if entry[limit]]
        if limited:
            show(f"{what}: {', '.join(limited)}. Why: --json, {limit}.")
    if output_width() < _WIDE:
        show(f"Use a terminal of {_WIDE} columns or --json to see the papers.")


@app.command(epilog="Examples:  rifflemix list models   |   rifflemix list models --json")
def models(json: Json = False) -> None:
    """List models: named presets, their parameters, and the parameters that the paper reports."""
    from rifflemix.models.registry import model_entries

    entries = model_entries()
    if json:
        print_json(entries)
        return
    headers = ("Name", "What it is", "Inputs", "Parameters", "Printed", "Difference")
    keys = ("name", "title", "inputs", "parameters", "printed", "difference")
    show(plain_table(headers, [[_cell(entry[key]) for key in keys] for entry in entries]))


@app.command(
    epilog="Examples:  rifflemix list recipes   |   rifflemix list recipes --json   |   "
    "rifflemix list recipes --cost --match table5-listops --sort time"
)
def recipes(
    match: Annotated[
        str | None, Option("Show only names that contain this text.", metavar="TEXT")
    ] = None,
    cost: Annotated[
        bool, Option("Count the work of each recipe and estimate its time on this machine.")
    ] = False,
    sort: Annotated[
        str | None,
        Option(f"With --cost, sort by {', '.join(SORTS)}; the smallest first.", metavar="KEY"),
    ] = None,
    device: Device = "cpu",
    threads: Threads | None = None,
    json: Json = False,
) -> None:
    """List recipes: entries of the papers' tables, for `rifflemix reproduce`."""
    from rifflemix.lab.recipes import get_recipe, usable_recipes

    found = [get_recipe(name) for name in usable_recipes() if match is None or match in name]
    if not found:
        raise bad_argument("--match", "a part of a recipe's name", repr(match))
    if cost:
        show_costs(found, sort, device, threads, json)
        return
    if sort is not None:
        raise bad_argument("--sort", "--cost next to it", repr(sort))
    entries = [recipe.to_dict() for recipe in found]
    if json:
        print_json(entries)
        return
    headers = ("Name", "Row", "Column", "Printed", "Task", "Model", "Steps")
    rows = [
        (
            entry["name"],
            f"{entry['table']}: {entry['row']}",
            entry["column"],
            "" if entry["printed"] is None else f"{entry['printed']:g} {entry['unit']}",
            entry["task"],
            entry["model"],
            f"{entry['train']['max_steps']:,}",
        )
        for entry in entries
    ]
    show(plain_table(headers, rows))


@app.command(epilog="Examples:  rifflemix list tasks   |   rifflemix list tasks --data-dir data")
def tasks(data_dir: DataDir | None = None, json: Json = False) -> None:
    """List tasks: description, options with defaults, license, and whether data is available."""
    from rifflemix.lab.tasks import task_card, task_status, usable_tasks

    entries: list[dict[str, Any]] = []
    for name in usable_tasks():
        card, status = task_card(name), task_status(name, data_dir)
        entries.append(
            {
                "name": name,
                "title": card.title,
                "description": card.description,
                "source": card.source,
                "licence": card.licence,
                "needs_data": card.needs_data,
                "options": dict(card.options),
                "available": status.available,
                "detail": status.detail,
            }
        )
    if json:
        print_json(entries)
        return
    rows = [
        (entry["name"], entry["description"], _options(entry["options"]), entry["detail"])
        for entry in entries
    ]
    show(plain_table(("Name", "Description", "Options", "Data"), rows))


@app.command(epilog="Examples:  rifflemix list analyses   |   rifflemix list analyses --json")
def analyses(json: Json = False) -> None:
    """List analyses: title, and figure of the paper, for `rifflemix analyze`."""
    from rifflemix.lab.analysis import get_analysis, usable_analyses

    found = [get_analysis(name) for name in usable_analyses()]
    if json:
        print_json([{"name": of.name, "title": of.title, "source": of.source} for of in found])
        return
    rows = [(of.name, of.title, of.source) for of in found]
    show(plain_table(("Name", "Title", "Source"), rows))


def _some(listed: list[str]) -> str:
    """Return all names, or the first four of many."""
    return ", ".join(listed if len(listed) <= _FEW else [*listed[:4], "..."])


def _abilities(entry: dict[str, Any]) -> str:
    able = [what for what in ("causal", "streaming") if entry[what]]
    return ", ".join(able if entry["padding"] else [*able, "no padding"])


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "depends on settings"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _options(options: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in options.items()) or "none"


data_app = Commands(help="Find and prepare data.")


@data_app.command("list", epilog="Examples:  rifflemix data list --data-dir data")
def list_data(data_dir: DataDir | None = None, json: Json = False) -> None:
    """List for every task whether its data is available, with path, source and license."""
    from rifflemix.lab.tasks import task_card, task_status, usable_tasks

    entries = [
        {
            "name": name,
            "available": (status := task_status(name, data_dir)).available,
            "detail": status.detail,
            "source": task_card(name).source,
            "licence": task_card(name).licence,
        }
        for name in usable_tasks()
    ]
    if json:
        print_json(entries)
        return
    rows = [
        (e["name"], "yes" if e["available"] else "no", e["detail"], e["source"], e["licence"])
        for e in entries
    ]
    show(plain_table(("Task", "Available", "Found", "Source", "License"), rows))


@data_app.command(
    epilog="Examples:  rifflemix data prepare image --data-dir data   |   "
    "rifflemix data prepare pathfinder32 --max-samples 20000"
)
def prepare(
    task: Annotated[str, typer.Argument(help="Task; see `rifflemix list tasks`.")],
    data_dir: DataDir | None = None,
    task_option: TaskOptions | None = None,
    max_samples: Annotated[
        int | None, Option("Largest number of samples per split; all if unset.")
    ] = None,
    json: Json = False,
) -> None:
    """Read, verify, decode or generate the data of a task. Later commands then start at once."""
    from rifflemix.lab.tasks import prepare_task

    options = parse_task_options(task_option, task)
    if max_samples is not None:
        options["max_samples"] = max_samples
    with DataProgress(progress_console()) as progress:
        folder = prepare_task(task, data_dir=data_dir, progress=progress, **options)
    if json:
        print_json({"task": task, "folder": None if folder is None else str(folder)})
        return
    show(f"{task}: ready" + ("" if folder is None else f" in {folder}"))
