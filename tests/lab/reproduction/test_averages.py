"""Tests of the averages in tables: reported values, and ours for complete rows."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from rifflemix.lab.recipes import (
    Recipe,
    dimension_mixer,
    get_recipe,
    list_recipes,
    sliceformer,
    tost,
)
from rifflemix.lab.recipes.mega import PAPER
from rifflemix.lab.reproduction import Reproduction
from rifflemix.lab.reproduction.agreement import Average, printed_averages
from rifflemix.lab.reproduction.page import report_files
from rifflemix.lab.reproduction.tables import paper_tables
from small_recipes import made_up, record_of

TABLES = {
    "csp": (PAPER, "Table 4"),
    "sliceformer": (sliceformer.PAPER, "Table II"),
    "tost": (tost.PAPER, "Table 3"),
    "dimension_mixer": (dimension_mixer.PAPER, "Table 5"),
}


@functools.cache
def rows_of(paper: str, table: str) -> list[Recipe]:
    recipes = map(get_recipe, list_recipes())
    return [recipe for recipe in recipes if (recipe.paper, recipe.table) == (paper, table)]


ROWS = rows_of(PAPER, "Table 4")
# Rows that we add to the rows of the paper.
OWN = re.compile("black pixels seen|in the table's host|norms as printed|'s size")


@pytest.mark.parametrize("of", TABLES)
def test_every_row_has_a_printed_average(of: str) -> None:
    rows = {recipe.row for recipe in rows_of(*TABLES[of]) if not OWN.search(recipe.row)}
    assert rows == set(printed_averages(*TABLES[of]))
    assert printed_averages(PAPER, "Table 3") == {}


@pytest.mark.parametrize(
    ("of", "row"), [(of, row) for of, table in TABLES.items() for row in printed_averages(*table)]
)
def test_printed_averages_equal_the_mean_of_the_printed_numbers(of: str, row: str) -> None:
    """Check to the paper's precision, rounded or truncated."""
    average = printed_averages(*TABLES[of])[row]
    numbers = {r.column: r.printed for r in rows_of(*TABLES[of]) if r.row == row}
    # One average does not match its row, in both papers that print it.
    expected = 51.48 if row == "SinkhornTrans" else average.printed
    one_decimal = of == "dimension_mixer" and row == "Flash-Attn."
    assert average.average(numbers) == pytest.approx(expected, abs=0.051 if one_decimal else 0.01)


@pytest.mark.parametrize("of", TABLES)
def test_printed_averages_are_in_the_paper(papers: Path, of: str) -> None:
    """Find each average after the numbers of its row, in order, with an optional Path-X value."""
    text = (papers / f"{of}.txt").read_text(encoding="utf-8")
    place = 0
    for row, average in printed_averages(*TABLES[of]).items():
        numbers = [r.printed for r in rows_of(*TABLES[of]) if r.row == row and r.column != "Path-X"]
        wanted = [*numbers, average.printed]
        pattern = r"[^\d\n]+(?:[\d.]+|FAIL)?[^\d\n]*".join(rf"\b{n:g}0*(?!\d)" for n in wanted)
        line = re.compile(pattern).search(text, place if of != "csp" else 0)
        assert line is not None, row
        place = line.end()


def runs(row: str, values: dict[str, float]) -> list[tuple[Path, Reproduction]]:
    return [
        (
            Path(f"{recipe.column}.json"),
            record_of(made_up(recipe=recipe, ours=values[recipe.column], steps_planned=100)),
        )
        for recipe in ROWS
        if recipe.row == row and recipe.column in values
    ]


OURS = {"ListOps": 40.0, "Text": 80.0, "Image": 90.0, "Pathfinder": 92.0}


def test_reproduced_values_are_averaged_as_in_the_paper() -> None:
    table = next(t for t in paper_tables(runs("CCNN", OURS)) if t.title == f"{PAPER}: Table 4")
    # Two columns with FAIL count as 50; the runs made 8 of 100 steps and are marked.
    assert table.averages["CCNN"] == ("68.02", f"{(302 + 100) / 6:.2f}*")
    assert table.averages["MEGA"] == ("88.21", "")


def test_reproduced_average_needs_every_task() -> None:
    but_one = {column: value for column, value in OURS.items() if column != "Image"}
    table = next(t for t in paper_tables(runs("CCNN", but_one)) if t.title == f"{PAPER}: Table 4")
    assert table.averages["CCNN"] == ("68.02", "")


def test_reports_have_a_column_of_averages(tmp_path: Path) -> None:
    files = report_files(runs("CCNN", OURS), tmp_path)
    lines = files["report.md"].decode().split("\n## ")
    table = next(part for part in lines if part.startswith(f"{PAPER}: Table 4")).splitlines()
    header, row = table[2], next(line for line in table if line.startswith("| CCNN |"))
    assert header.endswith("| Average, % |")
    assert row.endswith("| 68.02 / **67.00**\\* |")
    assert header.count("|") == row.count("|")
    other = next(part for part in lines if part.startswith(f"{PAPER}: Table 3")).splitlines()
    assert "Average" not in other[2]
    assert "Average, %" in files["report.html"].decode()


def test_an_average_without_chance_is_a_mean() -> None:
    numbers = {"ListOps": 1.0, "Text": 2.0, "Image": 6.0}
    assert Average(0.0).average(numbers) == 3.0
    assert Average(0.0, without=("Image",)).average(numbers) == 1.5
