"""rifflemix list: what there is."""

from __future__ import annotations

from typing import Any

from rifflemix.cli.commands import Commands
from rifflemix.cli.output import plain_table, print_json, show
from rifflemix.runs.options import DataDir, Json

app = Commands(help="List mixers, models, tasks and recipes.")


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
    headers = ("Name", "Paper", "Complexity", "Causal", "Padding", "Streaming", "Parameters")
    keys = ("name", "paper", "complexity", "causal", "padding", "streaming", "parameters")
    show(plain_table(headers, [[_cell(entry[key]) for key in keys] for entry in entries]))


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


@app.command(epilog="Examples:  rifflemix list recipes   |   rifflemix list recipes --json")
def recipes(json: Json = False) -> None:
    """Recipes: rows of the papers' tables, for `rifflemix reproduce`."""
    from rifflemix.recipes import get_recipe, list_recipes

    entries = [get_recipe(name).to_dict() for name in list_recipes()]
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
    from rifflemix.tasks import task_card, task_status, usable_tasks

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


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "by its settings"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _options(options: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in options.items()) or "none"
