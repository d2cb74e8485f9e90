"""Measure the Text models of the Long Range Arena next to the reported values."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from rifflemix.errors import InputError
from rifflemix.lab.bench import lra
from rifflemix.lab.bench.lra import LENGTHS, PRINTED
from rifflemix.lab.bench.rows import Shape
from rifflemix.lab.bench.runner import Settings
from rifflemix.lab.bench.tables import bench_tables
from rifflemix.lab.recipes import csp


def test_printed_values_are_in_the_paper(papers: Path) -> None:
    lines = (papers / "sliceformer.txt").read_text(encoding="utf-8").splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("Model | Training speed"))
    found = {}
    for line in lines[first + 3 : first + 3 + len(PRINTED)]:
        title, *cells = (cell.strip() for cell in line.rstrip("| ").split("|"))
        found[re.sub(r" \[\d+\]", "", title)] = [
            None if cell == "OOM" else float(cell) for cell in cells
        ]
    measures = ("training_step", "forward", "memory")
    ours = {r["title"]: [v for m in measures for v in r[m].values()] for r in PRINTED.values()}
    assert ours == found


def test_rows_equal_table_2() -> None:
    assert set(PRINTED) == {*csp.TRANSFORMERS, "sliceformer"}
    assert all(len(row["memory"]) == len(LENGTHS) for row in PRINTED.values())


@pytest.mark.parametrize("name", PRINTED)
def test_models_accept_the_measured_lengths(name: str) -> None:
    with torch.device("meta"):
        model = lra._model(name, Shape(2, 3072, 256, 4))
    assert model.settings["max_length"] == 3072
    assert (len(model.blocks), model.settings["dim"]) == (4, 256)
    assert model.blocks[0].mixer.card.name == name


@pytest.mark.slow
def test_measured_values_are_next_to_the_printed_values() -> None:
    result = lra.run((64,), batch=1, mixers=["sliceformer"], settings=Settings(repeats=1))
    json.dumps(result, allow_nan=False)
    assert [row["status"] for row in result["rows"]] == ["measured"] * 2
    # Copy the rows as if they had been measured at the paper's length too.
    at_1k = [{**row, "shape": {**row["shape"], "tokens": 1024}} for row in result["rows"]]
    result["rows"] += at_1k
    assert [row["name"] for row in result["rows"][:2]] == ["softmax", "sliceformer"]
    tables = bench_tables(result)
    assert len(tables) == 3
    for table, figures in zip(tables, ((27.49, 32.79), (41.54, 43.73), (11.64, 5.61)), strict=True):
        assert table.headers[2:] == ["N=64", "N=1,024"]
        for row, figure in zip(table.rows, figures, strict=True):
            assert len(row) == len(table.headers)
            assert row[2].endswith(" / -")
            assert row[3].endswith(f" / {figure:.2f}")
            assert float(row[3].split()[0].replace(",", "")) > 0
    speed = result["rows"][-1]["passes"]["training_step"]["p50"]
    assert 1 / speed == pytest.approx(float(tables[0].rows[1][3].split()[0]), rel=0.05)


def test_out_of_memory_entries_of_the_paper_are_none() -> None:
    assert PRINTED["softmax"]["training_step"] == {
        "1024": 27.49,
        "2048": 9.45,
        "3072": 4.73,
        "4096": None,
    }


@pytest.mark.parametrize(
    ("arguments", "words"),
    [({"mixers": ["tssa"]}, "mixers"), ({"tokens": ()}, "tokens"), ({"tokens": (8, 8)}, "tokens")],
)
def test_bad_arguments_are_refused(arguments: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        lra.run(**arguments)
