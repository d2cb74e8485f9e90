"""Tests of the runner on made-up candidates: measured and skipped rows and their notes."""

from __future__ import annotations

import json
import re
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch

from rifflemix.errors import InputError
from rifflemix.lab.bench.gate import Check
from rifflemix.lab.bench.rows import FORMAT, Shape, new_file, result_name, timing
from rifflemix.lab.bench.runner import Built, Candidate, Group, Hooks, Settings, run_benchmark

SHAPE = Shape(1, 8, 4, 2)
QUICK = Settings(repeats=2, max_seconds=5.0)
QUICK_LIMIT = Settings(repeats=1, max_seconds=1.0)


def sleeper(name: str, seconds: float = 0.001, **changes: Any) -> Candidate:
    def build(shape: Shape) -> Built:
        return Built({"forward": lambda: time.sleep(seconds)})

    return replace(Candidate("layer", name, None, build), **changes)


def run(
    candidates: list[Candidate],
    shapes: tuple[Shape, ...] = (SHAPE,),
    settings: Settings = QUICK,
    **hooks: Any,
) -> Any:
    groups = [Group(shape, candidates, (("layer", "unit"),)) for shape in shapes]
    return run_benchmark("scaling", groups, settings, {"note": "x"}, hooks=Hooks(**hooks))


def by_name(result: dict[str, Any]) -> dict[str, Any]:
    return {row["name"]: row for row in result["rows"]}


def must_not_run(*_: object) -> Any:
    raise AssertionError("a row with a failed check was built")


def test_measured_rows_have_quantiles_memory_and_ratios() -> None:
    result = run([sleeper("unit", 0.002), sleeper("other", 0.008)])
    json.dumps(result, allow_nan=False)
    assert result["status"] == "complete"
    assert result["format"] == FORMAT
    assert result["settings"] == {
        "dtype": "float32", "device": "cpu", "repeats": 2, "max_seconds": 5.0, "note": "x",
    }  # fmt: skip
    rows = by_name(result)
    forward = rows["other"]["passes"]["forward"]
    assert len(forward["seconds"]) == 2
    assert 0.008 <= forward["p20"] <= forward["p50"] <= forward["p80"]  # a busy machine is slower
    assert forward["peak_memory_bytes"] == 0
    assert forward["ratios"]["unit"] == pytest.approx(
        forward["p50"] / rows["unit"]["passes"]["forward"]["p50"]
    )


def failing_gate(shape: Shape) -> list[Check]:
    return [Check("truth", str(shape), 0.5, 0.1, passed=False)]


def crash(shape: Shape) -> Any:
    raise ZeroDivisionError("boom")


def refuse(shape: Shape) -> Any:
    raise InputError("too long for me")


def exhaust(shape: Shape) -> Any:
    raise torch.OutOfMemoryError("no room")


@pytest.mark.parametrize(
    ("changes", "status", "note"),
    [
        ({"gate": failing_gate, "build": must_not_run}, "failed",
         r"truth .*\b0\.5\b.*\b0\.1$"),
        ({"gate": crash, "build": must_not_run}, "failed", "ZeroDivisionError: boom"),
        ({"build": crash}, "failed", "ZeroDivisionError: boom"),
        ({"build": refuse}, "left out", "too long for me"),
        ({"build": exhaust}, "left out", "memory"),
        ({"gate": refuse, "build": must_not_run}, "left out", "too long for me"),
    ],
    ids=["gate fails", "gate crashes", "crashes", "refuses", "out of memory", "gate refuses"],
)  # fmt: skip
def test_failed_measurements_are_reported_and_others_continue(
    changes: dict[str, Any], status: str, note: str
) -> None:
    result = run([sleeper("unit"), sleeper("odd one", **changes), sleeper("last")])
    rows = by_name(result)
    assert rows["odd one"]["status"] == status
    assert re.search(note, rows["odd one"]["note"])
    assert rows["odd one"]["passes"] == {}
    assert rows["unit"]["status"] == rows["last"]["status"] == "measured"
    assert result["status"] == "complete"


def test_point_over_the_time_limit_ends_early_and_longer_points_are_skipped() -> None:
    made: Counter[int] = Counter()

    def build(shape: Shape) -> Built:
        made[shape.tokens] += 1
        return Built({"forward": lambda: time.sleep(1e-3 if shape.tokens == 8 else 60.0)})

    shapes = tuple(replace(SHAPE, tokens=n) for n in (8, 16, 32))
    start = time.monotonic()
    result = run([Candidate("layer", "slow", None, build), sleeper("unit")], shapes, QUICK_LIMIT)
    assert time.monotonic() - start < 20
    slow = [row for row in result["rows"] if row["name"] == "slow"]
    measured, cut, longer = slow
    assert (measured["status"], measured["note"]) == ("measured", "")
    assert cut["status"] == longer["status"] == "left out"
    assert re.search(r"forward\b.*\b0\.5 s\b.*\b1 s\b", cut["note"])
    assert re.match("16 tokens ", longer["note"])
    assert made == {8: 1, 16: 1}
    assert all(row["status"] == "measured" for row in result["rows"] if row["name"] == "unit")


def test_point_over_the_time_limit_is_skipped_if_it_cannot_be_interrupted() -> None:
    with ThreadPoolExecutor() as pool:  # only the main thread is interrupted
        result = pool.submit(run, [sleeper("slow", 0.6)], (SHAPE,), QUICK_LIMIT).result()
    assert " 0.5 s" in by_name(result)["slow"]["note"]


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone grants memory it does not have")
def test_out_of_memory_is_reported_and_the_benchmark_continues() -> None:
    kept: list[torch.Tensor] = []

    def build(shape: Shape) -> Built:
        def grow() -> None:  # untouched pages use no memory: a failure is harmless
            kept.extend(torch.empty(2**30, dtype=torch.uint8) for _ in range(4096))

        return Built({"forward": grow})

    result = run([Candidate("layer", "huge", None, build), sleeper("unit")])
    kept.clear()
    assert "memory" in by_name(result)["huge"]["note"]
    assert by_name(result)["unit"]["status"] == "measured"


def test_stopping_before_a_shape_keeps_the_shapes_before() -> None:
    told: list[str] = []
    shapes = (SHAPE, replace(SHAPE, tokens=16))
    result = run(
        [sleeper("unit"), sleeper("other")],
        shapes,
        progress=lambda done, total, text: told.append(text),
        should_stop=lambda: "unit at (1, 16, 4)" in told,
    )
    assert result["status"] == "partial"
    assert [row["status"] for row in result["rows"]] == ["measured"] * 2 + ["stopped"] * 2
    assert all(row["passes"] for row in result["rows"][:2])


def test_stopping_while_timing_keeps_the_times_so_far() -> None:
    polls: list[str] = []
    told: list[str] = []

    def stop() -> bool:
        if told[-1].startswith("timing"):
            polls.append("timing")
        return len(polls) > 3  # two calls in the first turn, one in the second

    result = run(
        [sleeper("unit"), sleeper("other")],
        progress=lambda done, total, text: told.append(text),
        should_stop=stop,
    )
    taken = [len(row["passes"]["forward"]["seconds"]) for row in result["rows"]]
    assert taken == [2, 1]
    assert result["status"] == "partial"
    assert result["rows"][1]["status"] == "stopped"


def test_status_callback_is_optional() -> None:
    groups = [Group(SHAPE, [sleeper("unit")], (("layer", "unit"),))]
    assert run_benchmark("scaling", groups, QUICK_LIMIT, {})["status"] == "complete"


def test_results_are_saved_after_every_shape() -> None:
    saved: list[dict[str, Any]] = []
    shapes = (SHAPE, replace(SHAPE, tokens=16))
    result = run([sleeper("unit")], shapes, save=saved.append)
    assert [(len(r["rows"]), r["status"]) for r in saved] == [(1, "partial"), (2, "complete")]
    assert saved[-1] == result


def test_progress_counts_points() -> None:
    told: list[tuple[int, int, str]] = []
    run([sleeper("unit"), sleeper("b", backend="cpu")], progress=lambda *now: told.append(now))
    assert told == [
        (0, 2, "unit at (1, 8, 4)"), (1, 2, "b (cpu) at (1, 8, 4)"), (2, 2, "timing at (1, 8, 4)"),
    ]  # fmt: skip


def test_fast_backend_has_its_ratio_to_eager() -> None:
    result = run([sleeper("op", 0.008, backend="eager"), sleeper("op", 0.002, backend="cpu")])
    eager, fast = (row["passes"]["forward"] for row in result["rows"])
    assert "eager" not in eager["ratios"]
    assert fast["ratios"]["eager"] == fast["p50"] / eager["p50"]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"dtype": "int8"}, "dtype"),
        ({"device": "tpu"}, "device"),
        ({"repeats": 0}, "repeats"),
        ({"max_seconds": 0.0}, "max_seconds"),
        ({"max_seconds": float("nan")}, "max_seconds"),
    ],
)
def test_settings_are_checked(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        Settings(**changes)


def test_quantiles_interpolate() -> None:
    found = timing([4.0, 1.0, 2.0, 3.0, 5.0, 6.0], 7)
    assert (found.p20, found.p50, found.p80) == (2.0, 3.5, 5.0)
    assert found.seconds == [4.0, 1.0, 2.0, 3.0, 5.0, 6.0]


def test_files_are_named_by_benchmark_date_and_hardware(tmp_path: Any) -> None:
    result = {
        "benchmark": "ops",
        "settings": {"device": "cpu"},
        "environment": {
            "time": "2025-01-02T13:14:15+00:00",
            "hardware": {"cpu": "AMD EPYC (TM)", "cores": 2, "threads": 1, "gpu": None},
        },
    }
    name = result_name(result)
    assert name == "ops-20250102-131415-amd-epyc-tm-2-cores-1-threads"
    first = new_file(tmp_path, name)
    assert first.name == f"{name}.json"
    first.touch()
    assert new_file(tmp_path, name).name == f"{name}-2.json"
