"""Accuracy against length and state size: numbers, table, plots and page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_comparison import comparison, table_of

import rifflemix as rm
from rifflemix.errors import InputError
from rifflemix.lab.comparison.pages.ability_plots import length_figure, state_figure
from rifflemix.lab.comparison.pages.files import comparison_files
from rifflemix.lab.comparison.pages.table import (
    all_lengths,
    length_cells,
    length_headers,
    scores_by_length,
    table_cells,
    table_headers,
)

TINY: dict[str, Any] = {
    "max_steps": 2, "batch_size": 8, "dim": 8, "num_layers": 1, "num_heads": 2, "threads": 1,
    "device": "cpu",
}  # fmt: skip


def with_lengths(seeds: int = 3) -> dict[str, Any]:
    results = comparison(mixers=2, seeds=seeds)
    results["task"]["options"]["length"] = 64
    for run in results["runs"]:
        run["test"]["length_256_accuracy"] = 0.25
        run["test"]["length_128_accuracy"] = 0.5 + 0.1 * run["seed"]
    return results


def test_intervals_are_of_students_distribution() -> None:
    results = table_of(with_lengths()).results
    assert all_lengths(results) == [64, 128, 256]
    found = scores_by_length(results)["csp"]
    assert [one.length for one in found] == [64, 128, 256]
    assert found[1].mean == pytest.approx(0.6)
    # Half of the interval: 4.3027 x 0.1 / sqrt(3).
    assert found[1].low == pytest.approx(0.6 - 0.24841, abs=1e-4)
    assert found[1].high == pytest.approx(0.6 + 0.24841, abs=1e-4)
    assert (found[2].low, found[2].high) == (0.25, 0.25)


def test_one_seed_has_no_interval() -> None:
    table = table_of(with_lengths(seeds=1))
    assert length_headers(table) == ["Mixer", "64 tokens", "128 tokens", "256 tokens"]
    assert [cells[2] for cells in length_cells(table)] == ["50.0", "50.0"]


def test_pages_have_a_table_and_a_plot_of_lengths() -> None:
    files = comparison_files(table_of(with_lengths()))
    assert files["lengths.png"].startswith(b"\x89PNG")
    assert b"256 tokens" in files["table.md"]
    assert b"256 tokens" in files["report.html"]
    plain = comparison_files(table_of(comparison(mixers=2)))
    assert set(plain) == {"table.md", "plot.png", "report.html"}


def test_lines_of_the_plot_show_the_means() -> None:
    axes = length_figure(table_of(with_lengths())).axes[0]
    lines = [line for line in axes.lines if len(line.get_xdata()) == 3]
    assert list(lines[0].get_xdata()) == [64, 128, 256]
    assert list(lines[0].get_ydata())[1:] == pytest.approx([60, 25])


def test_state_size_is_a_column_if_it_differs() -> None:
    results = comparison(mixers=3)
    assert "State, numbers" not in table_headers(table_of(results))
    for size, entry in zip((4096, 96, 96), results["mixers"], strict=True):
        entry["state_size"] = size
    table = table_of(results)
    at = table_headers(table).index("State, numbers")
    cells = [row[at] for row in table_cells(table)]
    assert [(cell.text, cell.best) for cell in cells] == [
        ("4,096", False), ("96", True), ("96", True),
    ]  # fmt: skip
    assert {"state.png", "report.html"} <= set(comparison_files(table))
    assert len(state_figure(table).axes[0].get_legend().get_texts()) == 3


def test_comparisons_measure_states_and_lengths(tmp_path: Path) -> None:
    options = {"num_train": 20, "num_validation": 8, "num_test": 8, "length": 16}
    found = rm.compare(
        "copying",
        ["softmax", "linear"],
        out=tmp_path / "out",
        task_options={**options, "test_lengths": [32, 64]},
        **TINY,
    )
    frame = found.to_frame().set_index("mixer")
    assert frame["state_size"].to_dict() == {"softmax": 2 * 8 * 64, "linear": 2 * 16 + 8}
    assert (tmp_path / "out" / "lengths.png").exists()
    assert (tmp_path / "out" / "state.png").exists()
    assert len(found.plot("length").axes) == len(found.plot("state").axes) == 1
    with pytest.raises(InputError, match="against"):
        found.plot("time")
    short = rm.compare("copying", ["linear"], task_options=options, **TINY)
    with pytest.raises(InputError, match="against"):
        short.plot("length")
