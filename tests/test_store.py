"""Stored results: CSV files return the entries of the raw files."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from document_scripts import load_script


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModuleType]:
    module = load_script("benchmarks/store.py")
    monkeypatch.setattr(module, "FOLDER", tmp_path / "results")
    for cached in (module.load, module._lines_by_name):
        cached.cache_clear()
    yield module
    for cached in (module.load, module._lines_by_name):
        cached.cache_clear()


ENVIRONMENT = {
    "command": "rifflemix compare",
    "time": "2026-01-01T00:00:00+00:00",
    "git_commit": "0123456789abcdef",
    "git_dirty": False,
    "hardware": {"cpu": "a cpu", "cores": 2, "threads": 1, "gpu": None},
    "plugins": {"docs/a.py": "b"},
}


def run(mixer: str, seed: int, **entries: Any) -> dict[str, Any]:
    points = [{"step": 4 * n, "loss": 1.0 / (n + 1)} for n in range(300)]
    return {
        "mixer": mixer,
        "seed": seed,
        "folder": f"{mixer}/seed{seed}",
        "wall_seconds": 1.23456789012345,
        "validation": {"step": 4, "accuracy": 0.1 + 0.2},
        "test": {"accuracy": 1 / 3},
        "settings": {"lr": 0.001, "mixer.option": "3"},
        "train_curve": points,
        "validation_curve": [{"step": 4, "accuracy": 0.25, "loss": 2.0}],
        "environment": ENVIRONMENT | {"time": "2026-01-01T00:01:00+00:00"},
        "sha256": "0" * 64,
        **entries,
    }


def comparison() -> dict[str, Any]:
    return {
        "format": "rifflemix.compare/1",
        "status": "complete",
        "command": "rifflemix compare",
        "config": {"mixers": ["a"], "data": "f00"},
        "task": {"name": "digits", "fingerprint": "f00"},
        "environment": ENVIRONMENT,
        "mixers": [{"name": "a", "title": 'A, "b"\nc', "note": "", "values": [1, None, True]}],
        "runs": [run("a", 0), run("a", 1)],
        "failed_runs": [],
        "tuning": {"grid": {"lr": [0.1]}, "trials": [run("a", 2)], "failed_trials": []},
        "sha256": "0" * 64,
    }


def test_a_comparison_survives_storage(store: ModuleType) -> None:
    raw = comparison()
    store.keep("one", raw)
    found = store.load("one")
    assert found.path == store.FOLDER / "accuracy.csv"
    for entry in (raw, *raw["runs"], *raw["tuning"]["trials"]):
        del entry["sha256"]
    for entry in (*raw["runs"], *raw["tuning"]["trials"]):
        assert entry.pop("wall_seconds") == 1.23456789012345
    for entry in raw["runs"]:
        del entry["train_curve"]
    for entry in raw["tuning"]["trials"]:  # trials have no curves
        entry |= {"train_curve": [], "validation_curve": []}
    content = json.loads(json.dumps(found.content))
    for entry in content["runs"]:
        curve = entry.pop("train_curve")
        assert store.POINTS - 2 < len(curve) <= store.POINTS
        assert (curve[0]["step"], curve[-1]["step"]) == (0, 4 * 299)
    for entry in (*content["runs"], *content["tuning"]["trials"]):
        assert entry.pop("wall_seconds") == 1.2345679
    assert content == raw


def test_every_line_has_its_command_commit_and_data(store: ModuleType) -> None:
    store.keep("one", comparison())
    with (store.FOLDER / "accuracy.csv").open(encoding="utf-8", newline="") as text:
        shown, *_ = csv.DictReader(text)
    assert (shown["command"], shown["commit"]) == ("rifflemix compare", "0123456789ab")
    assert (shown["task"], shown["data_hash"]) == ("digits", "f00")


def test_a_result_replaces_the_one_of_its_name(store: ModuleType) -> None:
    store.keep("one", comparison())
    store.keep("two", comparison())
    changed = comparison()
    changed["runs"] = changed["runs"][:1]
    store.keep("one", changed)
    assert len(store.load("one").content["runs"]) == 1
    assert len(store.load("two").content["runs"]) == 2
    assert store.names() == ["one", "two"]


def test_single_timings_are_not_stored(store: ModuleType) -> None:
    passes = {"forward": {"seconds": [1.0, 2.0], "p50": 1.5, "ratios": {"two linear maps": 2.0}}}
    bench = {
        "format": "rifflemix.bench/2", "benchmark": "scaling", "environment": ENVIRONMENT,
        "rows": [{"name": "csp", "kind": "layer", "gate": [{}], "passes": passes}], "growth": [],
    }  # fmt: skip
    store.keep("scaling-1", bench)
    found = store.newest("scaling-*")
    assert found.path.name == "scaling.csv"
    (row,) = found.content["rows"]
    assert row["passes"]["forward"] == {"p50": 1.5, "ratios": {"two linear maps": 2.0}}
    assert "gate" not in row
    assert found.content["growth"] == []
    packed = {
        "format": "rifflemix.packed/1",
        "rows": [{"times": {"a": [1.0]}, "seconds": {"a": 1}}],
    }
    store.keep("packed", packed)
    assert store.load("packed").content["rows"] == [{"seconds": {"a": 1}}]


def test_curves_keep_their_best_point(store: ModuleType) -> None:
    points = [{"step": n, "accuracy": float(n == 555), "loss": 1.0} for n in range(1000)]
    kept = store.thinned(points)
    assert len(kept) <= store.POINTS
    assert [point["step"] for point in kept if point["accuracy"]] == [555]


def test_raw_files_are_collected(
    store: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collect = load_script("benchmarks/collect.py")
    monkeypatch.setattr(collect, "keep", store.keep)
    folder = tmp_path / "runs" / "row"
    folder.mkdir(parents=True)
    (folder / "results.json").write_text(json.dumps(comparison()), encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["collect.py", "--group", "g", str(folder / "results.json")])
    collect.main()
    assert store.names() == ["g/row"]
    (folder / "results.json").write_text('{"format": "other"}', encoding="utf-8")
    with pytest.raises(SystemExit):
        collect.main()
