"""rifflemix list: what there is."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from rifflemix.cli.commands import Commands
from rifflemix.cli.output import output_width, plain_table, print_json, show
from rifflemix.cli.recipe_costs import SORTS, show_costs
from rifflemix.errors import bad_argument
from rifflemix.lab.runs.options import DataDir, Device, Json, Option, Threads

app = Commands()
_WIDE = 120  # columns that leave room for papers
_FEW = 50  # names that are shown together
_LIMITS = (
    ("Exported for one length only", "one_length"),
    ("Not in ONNX", "no_onnx"),
    ("Another result where padding stands before tokens", "by_position"),
)


@app.callback(
    invoke_without_command=True,
    epilog="Examples:  rifflemix list   |   rifflemix list mixers   |   rifflemix list --json",
)
def names(context: typer.Context, json: Json = False) -> None:
    """List mixers, models, tasks and recipes; without a command, all their names."""
    if context.invoked_subcommand is not None:
        if json:
            what = context.invoked_subcommand
            raise bad_argument(
                "--json", f"its place after the list: list {what} --json", "it before"
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
    show("`rifflemix list mixers` tells more of each; so do the other lists.")


@app.command(
    epilog="Examples:  rifflemix list mixers   |   rifflemix list mixers --json",
)
def mixers(json: Json = False) -> None:
    """Mixers: paper, complexity, what each can do, parameters of one layer at C = 256."""
    from rifflemix.mixers.catalogue import mixer_entries

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
        show(f"Papers: in a terminal of {_WIDE} columns, or with --json.")


@app.command(epilog="Examples:  rifflemix list models   |   rifflemix list models --json")
def models(json: Json = False) -> None:
    """Models: named presets, their parameters, and what the paper prints."""
    from rifflemix.models.catalogue import model_entries

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
    match: Annotated[str | None, Option("Only names that contain this.", metavar="TEXT")] = None,
    cost: Annotated[
        bool, Option("Count each row's work, and estimate its time on this machine.")
    ] = False,
    sort: Annotated[
        str | None, Option(f"With --cost, the least first: {', '.join(SORTS)}.", metavar="KEY")
    ] = None,
    device: Device = "cpu",
    threads: Threads | None = None,
    json: Json = False,
) -> None:
    """Recipes: rows of the papers' tables, for `rifflemix reproduce`."""
    from rifflemix.lab.recipes import get_recipe, list_recipes

    found = [get_recipe(name) for name in list_recipes() if match is None or match in name]
    if not found:
        raise bad_argument("--match", "a part of a recipe's name", repr(match))
    if cost:
        show_costs(found, sort, device, threads, json)
        return
    if sort is not None:
        raise bad_argument("--sort", "--cost beside it", repr(sort))
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
    """Tasks: what they are, options with defaults, licence, and whether the data is at hand."""
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


def _some(listed: list[str]) -> str:
    """All names, or the first few of many."""
    return ", ".join(listed if len(listed) <= _FEW else [*listed[:4], "..."])


def _abilities(entry: dict[str, Any]) -> str:
    able = [what for what in ("causal", "streaming") if entry[what]]
    return ", ".join(able if entry["padding"] else [*able, "no padding"])


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "by its settings"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _options(options: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in options.items()) or "none"
