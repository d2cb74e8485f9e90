"""Tests of rows with reported time and memory, measured on the paper's model."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rifflemix.errors import InputError
from rifflemix.lab.bench import published
from rifflemix.lab.bench.runner import Settings
from rifflemix.lab.bench.tables import bench_tables
from rifflemix.lab.recipes import get_recipe
from rifflemix.models import model_card

QUICK = Settings(repeats=1, max_seconds=20.0)
ROW = "dimension_mixer/table4-cifar10-p4-l4-"


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return published.run([f"{ROW}dense", f"{ROW}butterfly"], batch=2, settings=QUICK)


def test_rows_are_measured_and_checked(result: dict[str, Any]) -> None:
    json.dumps(result, allow_nan=False)
    assert [row["name"] for row in result["rows"]] == [f"{ROW}dense", f"{ROW}butterfly"]
    for row in result["rows"]:
        assert (row["status"], row["note"]) == ("measured", "")
        assert [check["against"] for check in row["gate"]] == ["eager operators"]
        assert row["passes"]["training_step"]["p50"] > row["passes"]["forward"]["p50"] > 0
        assert row["shape"] == {"batch": 2, "tokens": 64, "channels": 128, "heads": 8}
        assert row["extra"]["parameters"] > 600_000
        assert row["extra"]["steps_per_second"] > 0


def test_other_batches_have_no_printed_values(result: dict[str, Any]) -> None:
    assert not any("printed_seconds" in row["extra"] for row in result["rows"])
    tables = bench_tables(result)
    assert not any("Paper's, ms" in table.headers for table in tables)


def test_printed_values_are_next_to_measured_values(result: dict[str, Any]) -> None:
    for row in result["rows"]:
        row = {**row, "extra": {**row["extra"], "printed_seconds": 9.34e-3}}
        row["extra"]["printed_memory_bytes"] = 304 * 2**20
        table = bench_tables({**result, "rows": [row]})[1]
        cells = dict(zip(table.headers, table.rows[0], strict=True))
        assert cells["Paper's, ms"] == "9.34"
        assert cells["Paper's memory"].startswith("304")


def test_batch_of_the_paper_shows_the_printed_values() -> None:
    recipe = get_recipe(f"{ROW}dense")
    shape = published._shape(recipe, recipe.train.batch_size)
    assert (shape.batch, shape.tokens) == (64, 64)
    extra = published._subject(recipe, shape.batch).extra
    assert extra["printed_seconds"] == pytest.approx(9.34e-3)
    assert extra["printed_memory_bytes"] == 304 * 2**20


def test_every_printed_value_has_a_recipe() -> None:
    for name in published.PRINTED:
        recipe = get_recipe(name)
        assert model_card(recipe.model).inputs == "images"
        assert recipe.table == "Table 4"


def test_printed_values_are_in_the_papers_text(papers: Path) -> None:
    lines = (papers / "dimension_mixer.txt").read_text(encoding="utf-8").splitlines()
    cells = {line.split("\t")[0]: line.split("\t")[1:] for line in lines}
    times = [float(cell.split()[-1]) for cell in cells["Accuracy (†) Time (ms)"]]
    memory = [int(re.sub(r"\D", "", cell)) for cell in cells["Memory (MiB)"]]
    assert list(published.PRINTED.values()) == list(zip(times, memory, strict=True))


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: published.run(["csp/table4-image"]), "'csp/table4-image'"),
        (lambda: published.run([f"{ROW}dens"]), f"{ROW}"),
        (lambda: published.run(batch=0), r"batch: .*\b1\b"),
    ],
    ids=["no figures", "misspelt", "batch"],
)
def test_bad_settings_are_named(call: Any, named: str) -> None:
    with pytest.raises(InputError, match=named):
        call()
