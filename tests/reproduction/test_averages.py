"""Averages of the CSP paper's Table 4: printed as printed, ours where a whole row was run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rifflemix.recipes import get_recipe, list_recipes
from rifflemix.recipes.mega import PAPER
from rifflemix.reproduction.averages import Average, printed_averages
from rifflemix.reproduction.page import report_files
from rifflemix.reproduction.tables import paper_tables
from small_recipes import made_up

ROWS = [
    recipe
    for recipe in map(get_recipe, list_recipes())
    if (recipe.paper, recipe.table) == (PAPER, "Table 4")
]
AVERAGES = printed_averages(PAPER, "Table 4")


def test_every_row_has_one() -> None:
    assert {recipe.row for recipe in ROWS} == set(AVERAGES)
    assert printed_averages(PAPER, "Table 3") == {}


@pytest.mark.parametrize("row", AVERAGES)
def test_printed_averages_are_those_of_the_printed_numbers(row: str) -> None:
    """To the paper's rounding; a FAIL beside numbers counts as chance, 50 %, in one row only."""
    numbers = [recipe.printed for recipe in ROWS if recipe.row == row]
    # The one printed average that is not of its row.
    expected = 51.48 if row == "SinkhornTrans" else AVERAGES[row].printed
    assert AVERAGES[row].of(numbers) == pytest.approx(expected, abs=0.0051)


def test_printed_averages_stand_in_the_paper(papers: Path) -> None:
    text = (papers / "csp.txt").read_text(encoding="utf-8")
    for row, average in AVERAGES.items():
        name = re.escape(row)
        line = re.search(rf"^\w*\t{name} \(.*\t([\d.]+)\t?$", text, re.MULTILINE)
        assert line is not None, row
        assert float(line[1]) == average.printed


def runs(row: str, values: dict[str, float]) -> list[tuple[Path, dict]]:
    return [
        (
            Path(f"{recipe.column}.json"),
            made_up(recipe=recipe, ours=values[recipe.column], steps_planned=100),
        )
        for recipe in ROWS
        if recipe.row == row and recipe.column in values
    ]


OURS = {"ListOps": 40.0, "Text": 80.0, "Image": 90.0, "Pathfinder": 92.0}


def test_ours_is_averaged_like_the_printed() -> None:
    table = next(t for t in paper_tables(runs("CCNN", OURS)) if t.title == f"{PAPER}: Table 4")
    # Two columns that say FAIL count as 50; the runs made 8 steps of many and are marked.
    assert table.averages["CCNN"] == ("68.02", f"{(302 + 100) / 6:.2f}*")
    assert table.averages["MEGA"] == ("88.21", "")


def test_ours_needs_the_whole_row() -> None:
    but_one = {column: value for column, value in OURS.items() if column != "Image"}
    table = next(t for t in paper_tables(runs("CCNN", but_one)) if t.title == f"{PAPER}: Table 4")
    assert table.averages["CCNN"] == ("68.02", "")


def test_reports_have_the_column(tmp_path: Path) -> None:
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
    assert Average(0.0).of([1.0, 2.0, 6.0]) == 3.0
