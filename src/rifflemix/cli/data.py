"""rifflemix data: what data is at hand, and the slow part of loading ahead of time."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from rifflemix.cli.options import DataDir, Json, TaskOptions, parse_task_options
from rifflemix.cli.output import plain_table, print_json, progress_console, show

app = typer.Typer(help="Find and prepare data.")


@app.command("list", epilog="Examples:  rifflemix data list --data-dir data")
def list_data(data_dir: DataDir = None, json: Json = False) -> None:
    """For every task: whether its data is at hand, where, where it comes from, the licence."""
    from rifflemix.tasks import list_tasks, task_card, task_status

    entries = [
        {
            "name": name,
            "available": (status := task_status(name, data_dir)).available,
            "detail": status.detail,
            "source": task_card(name).source,
            "licence": task_card(name).licence,
        }
        for name in list_tasks()
    ]
    if json:
        print_json(entries)
        return
    rows = [
        (e["name"], "yes" if e["available"] else "no", e["detail"], e["source"], e["licence"])
        for e in entries
    ]
    show(plain_table(("Task", "At hand", "Found", "Source", "Licence"), rows))


@app.command(
    epilog="Examples:  rifflemix data prepare image --data-dir data   |   "
    "rifflemix data prepare listops --task-option max_length=500"
)
def prepare(
    task: Annotated[str, typer.Argument(help="Task; see `rifflemix list tasks`.")],
    data_dir: DataDir = None,
    task_option: TaskOptions = None,
    json: Json = False,
) -> None:
    """Read, verify, decode or generate a task's data, so that later commands start at once."""
    from rifflemix.tasks import prepare_task

    options = parse_task_options(task_option, task)
    with DataProgress(progress_console()) as progress:
        folder = prepare_task(task, data_dir=data_dir, progress=progress, **options)
    if json:
        print_json({"task": task, "folder": None if folder is None else str(folder)})
        return
    show(f"{task}: ready" + ("" if folder is None else f" in {folder}"))


class DataProgress:
    """A status line on a terminal, nothing elsewhere: called with what, done, total."""

    def __init__(self, console: Console) -> None:
        self._status = console.status("loading data")

    def __enter__(self) -> DataProgress:
        """Start to show."""
        self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop to show."""
        self._status.stop()

    def __call__(self, what: str, done: int, total: int | None) -> None:
        """Show how far the work has come."""
        of = "" if total is None else f" of {total:,}"
        self._status.update(f"{what}: {done:,}{of}")
