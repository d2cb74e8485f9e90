"""Speeds of runs that shared the machine are marked, or measured again alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rifflemix as rm
from rifflemix.errors import InputError
from rifflemix.files import read_json
from rifflemix.lab.comparison import collect_comparison, measure_apart, sharing
from rifflemix.lab.comparison.pages.notes import comparison_notes
from rifflemix.lab.comparison.pages.table import table_cells
from rifflemix.lab.comparison.plan import ComparePlan, reopen_comparison
from rifflemix.lab.comparison.rows import Table
from rifflemix.lab.experiments import Neighbors

TINY: dict[str, Any] = {
    "task_options": {"patch_size": 4}, "max_steps": 4, "batch_size": 16, "dim": 8,
    "num_layers": 1, "num_heads": 2, "threads": 1, "seeds": 2,
}  # fmt: skip


def crowd(number: int) -> Callable[[Neighbors], None]:
    return lambda neighbors: setattr(neighbors, "most", number)


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a comparison next to another training."""
    out = tmp_path_factory.mktemp("crowded") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Neighbors, "count", crowd(1))
        patch.setattr("rifflemix.lab.comparison.run.training_memory", lambda *_: 1_000)
        rm.compare("digits", ["identity", "softmax"], out=out, **TINY)
    return out


@pytest.fixture
def shared(crowded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ComparePlan:
    """Copy the comparison and keep the other training running."""
    monkeypatch.setattr(sharing, "_SECONDS", 0.01)
    monkeypatch.setattr(sharing, "_STEPS", 3)
    monkeypatch.setattr(Neighbors, "count", crowd(1))
    out = shutil.copytree(crowded, tmp_path / "out")
    return reopen_comparison(out, read_json(out / "config.json"))


def test_speed_on_a_shared_machine_is_marked_and_not_ranked(shared: ComparePlan) -> None:
    results = collect_comparison(shared)
    table = Table(results)
    one, other = table.rows
    assert [row.has_shared_speed for row in table.rows] == [True, True]
    assert not one.is_slower(other)
    assert not other.is_slower(one)
    assert all("shared" in row[4].text for row in table_cells(table))
    assert any("Identity" in note and "Speeds" in note for note in comparison_notes(table))
    assert [run.beside for run in results.runs] == [1, 1, 1, 1]


def test_speed_is_measured_again_without_other_runs(
    shared: ComparePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = collect_comparison(shared)
    measure_apart(shared)  # still not alone
    assert not (shared.out / "speed.json").exists()
    monkeypatch.setattr(Neighbors, "count", crowd(0))
    monkeypatch.setattr(sharing, "_SEEDS", 1)
    measure_apart(shared)
    results = collect_comparison(shared)
    assert not any(row.has_shared_speed for row in Table(results).rows)
    speeds = {run.folder: run.steps_per_second for run in results.runs}
    assert [speeds[f"{name}/seed1"] for name in ("identity", "softmax")] == [None, None]
    assert (speeds["identity/seed0"] or 0) > 0
    assert any("alone" in note for note in comparison_notes(Table(results)))
    assert [run.test for run in results.runs] == [run.test for run in before.runs]
    known = (shared.out / "speed.json").read_bytes()
    measure_apart(shared)
    assert (shared.out / "speed.json").read_bytes() == known
    assert rm.Comparison.load(shared.out).to_frame("run")["steps_per_second"].notna().sum() == 2


def test_a_speed_without_neighbors_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Neighbors, "count", crowd(0))
    rm.compare("digits", ["identity"], out=tmp_path, **{**TINY, "seeds": 1})
    plan = reopen_comparison(tmp_path, read_json(tmp_path / "config.json"))
    measure_apart(plan)
    assert not (tmp_path / "speed.json").exists()


@pytest.mark.parametrize("text", ["{", "[]", '{"identity/seed0": "fast"}'])
def test_a_damaged_file_of_speeds_is_named(text: str, shared: ComparePlan) -> None:
    (shared.out / "speed.json").write_text(text)
    with pytest.raises(InputError, match=r"speed\.json"):
        collect_comparison(shared)
