"""Check that the pages agree with the results and that each result shows learning."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import fake_bench
import pytest

from document_scripts import REPOSITORY, load_script
from rifflemix.json_values import decode
from rifflemix.lab.bench.rows import LAYER, PEER
from rifflemix.lab.comparison.records import Results
from rifflemix.lab.comparison.rows import Table
from rifflemix.lab.report.units import format_duration

store = load_script("benchmarks/store.py")
bench = load_script("docs/build/blocks/speed.py")
PAGES = {page.name: page for page in (REPOSITORY / "docs").glob("*.md")}


# Read the tables again without the code that writes them.

BLOCK = re.compile(r"<!-- (?:results|comparison): .*?<!-- /(?:results|comparison) -->", re.DOTALL)
TABLE = re.compile(r"(?:^\*\*(.*)\*\*\n\n)?((?:^\|.*\n)+)", re.MULTILINE)
CITED = re.compile(r"From \[([^\]]*)\]\(([^)]*\.csv)\)\.")
SHAPE = ("batch", "tokens", "channels", "heads")
PASSES = {
    "forward": "forward",
    "forward and backward": "forward_backward",
    "training step": "training_step",
}


def cells(line: str) -> list[str]:
    return [cell.strip().strip("*") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def cited_blocks(name: str) -> list[tuple[dict[str, Any], list[tuple[str, list[list[str]]]]]]:
    """Return the cited result and the titled tables of each block."""
    blocks = []
    for block in BLOCK.findall(PAGES[name].read_text(encoding="utf-8")):
        cited = CITED.search(block)
        assert cited is not None
        result = store.load(cited[1])
        assert (PAGES[name].parent / cited[2]).resolve() == result.path
        tables = [
            (title, [cells(line) for line in lines.splitlines()])
            for title, lines in TABLE.findall(block)
        ]
        blocks.append((result.content, tables))
    return blocks


def number(text: str) -> float:
    return float(re.match(r"[\d,.]+(?:e-\d+)?", text)[0].replace(",", ""))  # type: ignore[index]


def is_shown(text: str, value: float) -> bool:
    """Check that a text begins with a value in three significant digits."""
    return number(text) == pytest.approx(value, rel=6e-3)


def kind_and_name(text: str, benchmark: str) -> tuple[str, str]:
    name = text.removesuffix(" (package)")
    ours = {"scaling": LAYER, "layers": LAYER, "ops": "operator", "models": "model"}[benchmark]
    return (PEER if name != text else ours), name


def check_by_tokens(
    table: list[list[str]], benchmark: str, name: str, rows: dict[Any, Any]
) -> None:
    header, _, *lines = table
    tokens = [int(cell.removeprefix("N=").replace(",", "")) for cell in header[1:]]
    for line in lines:
        for n, cell in zip(tokens, line[1:], strict=True):
            row = rows[*kind_and_name(line[0], benchmark), None, n]
            if name not in row["passes"]:
                assert cell == row["status"]
                continue
            timing = row["passes"][name]
            assert is_shown(cell, 1e3 * timing["p50"]), (line[0], n)
            ratio = re.search(r"\((.*)\)", cell)
            if ratio:
                assert is_shown(ratio[1], timing["ratios"]["softmax"])


def check_pass(title: str, table: list[list[str]], benchmark: str, rows: list[Any]) -> None:
    shape, _, name = title.rpartition(": ")
    header, _, *lines = table
    for line in lines:
        shown = dict(zip(header, line, strict=True))
        key = kind_and_name(shown["Name"], benchmark)
        backend = None if shown.get("Backend", "-") == "-" else shown["Backend"]
        forms = [
            row
            for row in rows
            if (row["kind"], row["name"]) == key
            and [int(n) for n in re.findall(r"\d+", shape)] == list(row["shape"].values())
        ]
        fastest = min(forms, key=lambda row: row["passes"][PASSES[name]]["p50"])
        assert fastest["backend"] == backend
        assert is_shown(shown["p50, ms"], 1e3 * fastest["passes"][PASSES[name]]["p50"])
        if "Samples/s" in shown:
            assert is_shown(shown["Samples/s"], fastest["extra"]["samples_per_second"])
        if benchmark == "models":
            assert number(shown["Parameters"]) == fastest["extra"]["parameters"]


HEADLINE = {"softmax", "csp", "sliceformer", "tssa", "butterfly"}
OURS = HEADLINE | {"token_parallel", "sinkhorn"}


def test_times_on_the_page_are_those_of_the_files() -> None:
    blocks = cited_blocks("performance.md")
    shown = [file["benchmark"] for file, _ in blocks]
    assert shown[:2] == ["scaling", "models"]
    assert set(shown[2:]) <= {"models"}  # the vision transformer, and small inputs
    for file, ((title, table),) in blocks:
        benchmark, rows = file["benchmark"], file["rows"]
        names = {line[0] for line in table[2:] if not line[0].endswith(" (package)")}
        assert HEADLINE <= names - {"two linear maps", "no mixer"} <= OURS
        name, by_tokens, _ = title.partition(", ms (x softmax)")
        if by_tokens:
            at = {(r["kind"], r["name"], r["backend"], r["shape"]["tokens"]): r for r in rows}
            check_by_tokens(table, benchmark, PASSES[name], at)
        else:
            check_pass(title, table, benchmark, rows)


def test_the_page_of_performance_is_short() -> None:
    assert len(PAGES["performance.md"].read_text(encoding="utf-8").splitlines()) <= 200


# Stored results.

COMPARISONS = [*store.names("compare-*"), *store.names("demo/*")]
CHANCE = {"image": 10.0, "listops": 18.0, "sick": 57.0, "sst": 50.0, "text": 50.0}
"""Upper bounds for the accuracy of the majority-class baseline, in percent."""


@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons_that_are_kept_show_learning(name: str) -> None:
    results = store.load(name).content
    assert results["status"] == "complete"
    assert not Table(decode(Results, results)).nothing_learned


@pytest.mark.parametrize("name", store.names("reproduce/*"))
def test_reproductions_that_are_kept_have_gone_a_third_of_the_way(name: str) -> None:
    results = store.load(name).content
    assert results["unit"] == "%"
    chance = CHANCE[results["task"]["name"]]
    printed = results["printed"]
    if not results["is_reduced"]:
        return  # in full: failure to learn is a result, as docs/results.md states
    enough = 5.0 if printed is None else (printed - chance) / 3
    assert results["ours"] - chance >= enough


def test_the_demo_shows_its_waits_on_every_machine() -> None:
    text = PAGES["start.md"].read_text(encoding="utf-8")
    for name in store.names("demo/*"):
        runs = store.load(name).content["runs"]
        first = runs[0]["wall_seconds"]
        start, end = (datetime.fromisoformat(runs[i]["environment"]["time"]) for i in (0, -1))
        waits = [format_duration(s) for s in (first, first + (end - start).total_seconds())]
        assert f" threads | {' | '.join(waits)} | [{name}](" in text


# The writer.


def test_whole_models_keep_their_packages_and_baselines_go() -> None:
    names = ["softmax", "tssa", "linformer"]
    made = fake_bench.scaling(names, peers=("timm",), tokens=(64, 256))
    made |= {"benchmark": "models", "peers": []}
    for row in made["rows"]:
        row["kind"] = {"layer": "model"}.get(row["kind"], row["kind"])
    table = bench.short_table(made)
    assert table.title.startswith("forward, ms ")
    assert [row[0] for row in table.rows] == ["softmax", "tssa", "timm (package)"]
