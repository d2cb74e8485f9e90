"""rifflemix list recipes --cost: what each row would take, before it is run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rifflemix.cli.data import DataProgress
from rifflemix.cli.options import parse_threads
from rifflemix.cli.output import plain_table, print_json, progress_console, show
from rifflemix.errors import check_choice

if TYPE_CHECKING:
    from rifflemix.lab.recipes import Recipe

SORTS = {
    "tokens": "tokens_in_all",
    "flops": "flops_in_all",
    "memory": "peak_bytes",
    "time": "seconds",
}
"""What `--sort` takes -> the entry that it sorts by."""


def show_costs(
    recipes: Sequence[Recipe], sort: str | None, device: str, threads: int | None, json: bool
) -> None:
    """Count the work of recipes, calibrate the machine, and print both as a table or JSON."""
    from rifflemix.lab.reproduction.cost import calibrate, recipe_costs
    from rifflemix.lab.runs.device import check_device, resolve_device, using_threads

    if sort is not None:
        check_choice("--sort", sort, tuple(SORTS))
    device = resolve_device(device)
    check_device(device)
    with using_threads(parse_threads(threads)):
        speed = calibrate(device)
    with DataProgress(progress_console()) as progress:
        entries = list(
            recipe_costs(recipes, speed, lambda *done: progress("counting recipes", *done))
        )
    if sort is not None:
        entries.sort(key=lambda entry: entry[SORTS[sort]])
    if json:
        print_json(entries)
        return
    headers = ("Name", "Steps", "Tokens a step", "Tokens", "FLOPs", "Memory", "Step", "Time")
    show(plain_table(headers, map(_row, entries)))
    show(
        "Estimates of training alone, with this machine to itself: evaluations and "
        "loading data come on top. FLOPs are those of products of matrices, convolutions and "
        "attention; Fourier transforms (s4, s5, mega ...) and sorts have none. Tokens of whole "
        "images are their pixels."
    )


def _row(entry: dict[str, float]) -> tuple[str, ...]:
    from rifflemix.lab.report.units import format_bytes, format_count, format_duration, format_rate

    return (
        str(entry["name"]),
        format_count(int(entry["steps"])),
        format_count(int(entry["tokens"])),
        f"{entry['tokens_in_all']:.2g}",
        f"{entry['flops_in_all']:.2g}",
        format_bytes(entry["peak_bytes"]),
        f"{format_rate(entry['seconds_per_step'])} s",
        format_duration(entry["seconds"]),
    )
