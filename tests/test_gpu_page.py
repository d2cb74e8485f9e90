"""docs/gpu.md matches the GPU result files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from document_scripts import load_script

REPOSITORY = Path(__file__).resolve().parents[1]
PAGE = REPOSITORY / "docs" / "gpu.md"
RESULTS = REPOSITORY / "benchmarks" / "results"


def test_the_page_is_what_the_files_say() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert load_script("docs/write_gpu.py").filled(text) == text, "run: python docs/write_gpu.py"


@pytest.mark.parametrize("path", sorted(RESULTS.glob("device-times-*.json")), ids=lambda p: p.stem)
def test_device_times_are_of_one_machine_and_against_a_copy(path: Path) -> None:
    result = json.loads(path.read_text(encoding="utf-8"))
    assert result["format"] == "rifflemix.device-times/1"
    assert result["environment"]["hardware"]["gpu"]
    rows = {row["name"]: row for row in result["rows"]}
    copy = rows["copy"]["median"]
    for row in rows.values():
        assert min(row["seconds"]) <= row["median"] <= max(row["seconds"])
        assert row["x_copy"] == pytest.approx(row["median"] / copy)
        assert row["bandwidth"] is None or 0 < row["bandwidth"] <= 1.05


@pytest.mark.parametrize("path", sorted(RESULTS.glob("layer-times-*.json")), ids=lambda p: p.stem)
def test_layer_times_are_beside_softmax(path: Path) -> None:
    result = json.loads(path.read_text(encoding="utf-8"))
    assert result["format"] == "rifflemix.layer-times/1"
    softmax = {row["tokens"]: row for row in result["rows"] if row["name"] == "softmax"}
    for row in result["rows"]:
        for name in ("forward", "forward_backward"):
            timed, beside = row[name], softmax[row["tokens"]][name]
            assert timed["median"] == sorted(timed["seconds"])[len(timed["seconds"]) // 2]
            assert timed["x_softmax"] == pytest.approx(timed["median"] / beside["median"])


def test_a_layer_on_the_page_is_the_median_of_its_timings() -> None:
    text = PAGE.read_text(encoding="utf-8")
    (path,) = re.findall(r"and \[(scaling-\S+?\.json)\]", text)
    result = json.loads((RESULTS / path).read_text(encoding="utf-8"))
    (row,) = (
        row for row in result["rows"] if row["name"] == "csp" and row["shape"]["tokens"] == 4096
    )
    seconds = sorted(row["passes"]["forward"]["seconds"])
    (line,) = re.findall(
        r"^\| csp \| (.*) \|$",
        text.partition("| forward, ms")[2].partition("forward and backward, ms")[0],
        re.M,
    )
    assert line.split(" | ")[1].endswith(f"-> {1e3 * seconds[len(seconds) // 2]:.3g}")
