"""The runner on made-up candidates: what is measured, what is not, and what is said of it."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from rifflemix.bench.gate import Check
from rifflemix.bench.rows import FORMAT, Shape, new_file, result_name, timing
from rifflemix.bench.runner import Built, Candidate, Group, Hooks, Settings, run_benchmark
from rifflemix.errors import InputError

SHAPE = Shape(1, 8, 4, 2)
QUICK = Settings(repeats=2, max_seconds=5.0)


def sleeper(name: str, seconds: float = 0.001, **changes: Any) -> Candidate:
    def build(shape: Shape) -> Built:
        return Built({"forward": lambda: time.sleep(seconds)})

    return replace(Candidate("layer", name, None, build), **changes)


def run(candidates: list[Candidate], shapes: tuple[Shape, ...] = (SHAPE,), **hooks: Any) -> Any:
    groups = [Group(shape, candidates, (("layer", "unit"),)) for shape in shapes]
    return run_benchmark("scaling", groups, QUICK, {"note": "x"}, hooks=Hooks(**hooks))


def by_name(result: dict[str, Any]) -> dict[str, Any]:
    return {row["name"]: row for row in result["rows"]}


def must_not_run(*_: object) -> Any:
    raise AssertionError("a row whose gate failed was built")


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
    assert 0.008 <= forward["p20"] <= forward["p50"] <= forward["p80"] < 0.1
    assert forward["peak_memory_bytes"] == 0
    assert forward["ratios"]["unit"] == pytest.approx(
        forward["p50"] / rows["unit"]["passes"]["forward"]["p50"]
    )
    assert 2 < forward["ratios"]["unit"] < 8


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
         "error against truth is 0.5, more than 0.1"),
        ({"gate": crash, "build": must_not_run}, "failed", "ZeroDivisionError: boom"),
        ({"build": crash}, "failed", "ZeroDivisionError: boom"),
        ({"build": refuse}, "left out", "too long for me"),
        ({"build": exhaust}, "left out", "out of memory"),
        ({"obstacle": lambda shape: "odd", "build": must_not_run}, "left out", "odd"),
    ],
    ids=["gate fails", "gate crashes", "crashes", "refuses", "out of memory", "obstacle"],
)  # fmt: skip
def test_what_cannot_be_measured_is_said_and_the_rest_goes_on(
    changes: dict[str, Any], status: str, note: str
) -> None:
    result = run([sleeper("unit"), sleeper("odd one", **changes), sleeper("last")])
    rows = by_name(result)
    assert (rows["odd one"]["status"], rows["odd one"]["note"]) == (status, note)
    assert rows["odd one"]["passes"] == {}
    assert rows["unit"]["status"] == rows["last"]["status"] == "measured"
    assert result["status"] == "complete"


def costly(name: str, seconds: Callable[[int], float], calls: Counter[int]) -> Candidate:
    def build(shape: Shape) -> Built:
        def call() -> None:
            calls[shape.tokens] += 1
            time.sleep(seconds(shape.tokens))

        return Built({"forward": call})

    return Candidate("layer", name, None, build)


def test_points_beyond_the_limit_are_never_tried() -> None:
    calls: Counter[int] = Counter()
    quadratic = costly("quadratic", lambda n: 0.02 * (n / 256) ** 2, calls)
    shapes = tuple(replace(SHAPE, tokens=n) for n in (256, 512, 65536))
    result = run([sleeper("unit"), quadratic], shapes)
    rows = [row for row in result["rows"] if row["name"] == "quadratic"]
    assert [row["status"] for row in rows] == ["measured", "measured", "left out"]
    assert "the limit is 5 s" in rows[2]["note"]
    assert max(calls) <= 4096


def test_a_single_long_shape_is_judged_by_shorter_ones() -> None:
    calls: Counter[int] = Counter()
    candidates = [sleeper("unit"), costly("quadratic", lambda n: 1e-3 * (n / 256) ** 2, calls)]
    row = by_name(run(candidates, (replace(SHAPE, tokens=65536),)))["quadratic"]
    assert row["status"] == "left out"
    assert sorted(calls) == [256, 1024, 4096]


def test_a_cheap_long_shape_is_measured() -> None:
    calls: Counter[int] = Counter()
    candidates = [sleeper("unit"), costly("linear", lambda n: 1e-6 * n, calls)]
    row = by_name(run(candidates, (replace(SHAPE, tokens=65536),)))["linear"]
    assert row["status"] == "measured"


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


def test_a_fast_form_has_its_ratio_to_the_eager_one() -> None:
    result = run([sleeper("op", 0.008, backend="eager"), sleeper("op", 0.002, backend="cpu")])
    eager, fast = (row["passes"]["forward"]["ratios"] for row in result["rows"])
    assert "eager" not in eager
    assert 0.1 < fast["eager"] < 0.6


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
