"""The numbers that recipes print beside ours are those of the papers' own texts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rifflemix.recipes import get_recipe, list_recipes


def lra_rows(text: str) -> list[tuple[str, list[float]]]:
    """Lines with a name and at least five numbers: (line, numbers from the first to the last)."""
    rows = []
    for line in text.splitlines():
        plain = re.sub(r"</?u>|\\[a-z]+\{[^}]*\}|\[\d+\]|\([^)]*\)|\$[^$]*\$", " ", line)
        numbers = [float(n) for n in re.findall(r"(?<![\w.])\d+\.\d\d(?![\w.])", plain)]
        if len(numbers) >= 5:
            rows.append((line, numbers))
    return rows


@pytest.mark.parametrize(
    ("paper", "table", "columns"),
    [
        ("csp", "Table 4", ("ListOps", "Text", "Retrieval", "Image", "Pathfinder")),
        ("sliceformer", "Table II", ("ListOps", "Text", "Retrieval", "Image", "Pathfinder")),
        ("dimension_mixer", "Table 5", ("ListOps", "Text", "Retrieval", "Image", "Pathfinder")),
    ],
)
def test_lra_rows_stand_in_the_paper(
    paper: str, table: str, columns: tuple[str, ...], papers: Path
) -> None:
    rows = [numbers for _, numbers in lra_rows((papers / f"{paper}.txt").read_text())]
    recipes = [get_recipe(n) for n in list_recipes() if n.startswith(f"{paper}/")]
    printed: dict[str, dict[str, float | None]] = {}
    for recipe in recipes:
        if recipe.table == table:
            printed.setdefault(recipe.row, {})[recipe.column] = recipe.printed
    assert printed
    for row, values in printed.items():
        wanted = [values[column] for column in columns]
        assert any(numbers[:5] == wanted for numbers in rows), f"{row}: {wanted}"
