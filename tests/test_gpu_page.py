"""docs/performance.md matches the GPU results."""

from __future__ import annotations

import re
from typing import Any

import pytest

from document_scripts import REPOSITORY, load_script

store = load_script("benchmarks/store.py")
PAGE = (REPOSITORY / "docs" / "performance.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", store.names("device-times-*"))
def test_device_times_are_of_one_machine_and_relative_to_a_copy(name: str) -> None:
    content = store.load(name).content
    assert content["environment"]["hardware"]["gpu"]
    copies: dict[Any, float] = {}
    for row in content["rows"]:
        copy = copies.setdefault((tuple(row["shape"]), row["dtype"]), row["median"])
        assert row["x_copy"] == pytest.approx(row["median"] / copy)
        assert row["bandwidth"] is None or 0 < row["bandwidth"] <= 1.05


@pytest.mark.parametrize("name", store.names("layer-times-*"))
def test_layer_times_are_relative_to_softmax(name: str) -> None:
    rows = store.load(name).content["rows"]
    softmax = {row["tokens"]: row for row in rows if row["name"] == "softmax"}
    for row in rows:
        for kind in ("forward", "forward_backward"):
            ratio = row[kind]["median"] / softmax[row["tokens"]][kind]["median"]
            assert row[kind]["x_softmax"] == pytest.approx(ratio)


def test_a_layer_on_the_page_is_the_median_of_its_timings() -> None:
    (name,) = set(re.findall(r"\[(scaling-[\w-]+-h200)\]", PAGE))
    (row,) = (
        row
        for row in store.load(name).content["rows"]
        if row["name"] == "csp" and row["shape"]["tokens"] == 4096
    )
    table = PAGE.partition("<!-- gpu-layers: forward -->")[2].partition("<!-- /gpu-layers -->")[0]
    headers, line = (
        re.findall(rf"^\| {start} .*$", table, re.M)[0].split(" | ") for start in ("ms", "csp")
    )
    median = f"{1e3 * row['passes']['forward']['p50']:.3g}"
    assert line[headers.index("N=4,096, Python")].startswith(f"{median} (")
