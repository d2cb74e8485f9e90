"""Check that the reported values of recipes are the values in the papers.

printed.csv contains the values. Each line is one number: paper, table, row, column and metric name
the place of the recipe. `line` is a pattern at the start of a line in the paper's text. `place`
counts the decimal numbers after the pattern, so anyone with the texts can check the table. A new
built-in recipe adds its line.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

import rifflemix.lab.recipes
from rifflemix.lab.recipes import get_recipe, list_recipes

Place = tuple[str, str, str, str, str]
TABLE = Path(rifflemix.lab.recipes.__file__).with_name("printed.csv")
with TABLE.open(encoding="utf-8", newline="") as file:
    ENTRIES = list(csv.DictReader(file))
PAPERS = ("csp", "sliceformer", "tost", "dimension_mixer", "sinkhorn")
TEXTS = {"sinkhorn": "sparse_sinkhorn"}


def place_of(entry: dict[str, str]) -> Place:
    return (entry["paper"], entry["table"], entry["row"], entry["column"], entry["metric"])


def test_every_table_entry_is_listed_once() -> None:
    places = [place_of(entry) for entry in ENTRIES]
    assert len(places) == len(set(places))


def test_every_number_belongs_to_a_recipe() -> None:
    reported = {place_of(entry): float(entry["number"]) for entry in ENTRIES}
    found = {
        (recipe.name.split("/")[0], recipe.table, recipe.row, recipe.column, recipe.metric): (
            recipe.printed
        )
        for recipe in map(get_recipe, list_recipes())
        if recipe.printed is not None
    }
    assert found == reported


def numbers_of(lines: list[str], start: str) -> list[str]:
    """Find the decimal numbers that follow `start`.

    The first line that begins with `start` and has decimal numbers counts.
    """
    pattern = re.compile(start)
    for line in lines:
        match = pattern.match(line)
        numbers = re.findall(r"(?<![\w.])\d+\.\d+", line[match.end() :]) if match else []
        if numbers:
            return numbers
    raise AssertionError(f"no line begins with {start!r}")


@pytest.mark.parametrize("paper", PAPERS)
def test_the_table_is_the_papers_text(paper: str, papers: Path) -> None:
    text = (papers / f"{TEXTS.get(paper, paper)}.txt").read_text(encoding="utf-8")
    entries = [entry for entry in ENTRIES if entry["paper"] == paper]
    assert entries
    for entry in entries:
        numbers = numbers_of(text.splitlines(), entry["line"])
        assert numbers[int(entry["place"])] == entry["number"], (place_of(entry), numbers)
