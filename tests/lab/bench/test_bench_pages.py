"""Check that the pages agree with the result files and that each file shows learning."""

from __future__ import annotations

import csv
import json
import re
import statistics
from pathlib import Path
from typing import Any

import fake_bench
import pytest

from document_scripts import load_script
from rifflemix.errors import InputError
from rifflemix.lab.bench.read import read_result
from rifflemix.lab.bench.rows import FORMAT, LAYER, PEER
from rifflemix.lab.comparison.table import comparison_rows, nothing_learned

REPOSITORY = Path(__file__).resolve().parents[3]
RESULTS = REPOSITORY / "benchmarks" / "results"

WRITER = load_script("benchmarks/write_pages.py")
PAGES: dict[str, Path] = {page.name: page for page in WRITER.PAGES}


@pytest.mark.parametrize("name", PAGES)
def test_the_pages_are_what_the_files_say(name: str) -> None:
    text = PAGES[name].read_text(encoding="utf-8")
    assert WRITER.filled(PAGES[name], text) == text, "run: python benchmarks/write_pages.py"


def test_the_report_of_reproductions_is_what_the_files_say() -> None:
    text = WRITER.REPORT.read_text(encoding="utf-8")
    assert WRITER.report() == text, "run: python benchmarks/write_pages.py"


# Read the tables again without the code that writes them.

BLOCK = re.compile(r"<!-- (?:results|comparison): .*?<!-- /(?:results|comparison) -->", re.DOTALL)
TABLE = re.compile(r"(?:^\*\*(.*)\*\*\n\n)?((?:^\|.*\n)+)", re.MULTILINE)
CITED = re.compile(r"From \[[^\]]*\]\(([^)]*\.json)\)\.")
SHAPE = ("batch", "tokens", "channels", "heads")
PASSES = {
    "forward": "forward",
    "forward and backward": "forward_backward",
    "training step": "training_step",
}


def cells(line: str) -> list[str]:
    return [cell.strip().strip("*") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def cited_blocks(name: str) -> list[tuple[dict[str, Any], list[tuple[str, list[list[str]]]]]]:
    """Return the cited file and the titled tables of each block."""
    blocks = []
    for block in BLOCK.findall(PAGES[name].read_text(encoding="utf-8")):
        cited = CITED.search(block)
        if cited is None:
            assert "`rifflemix bench" in block
            continue
        file = json.loads((PAGES[name].parent / cited[1]).read_text(encoding="utf-8"))
        tables = [
            (title, [cells(line) for line in lines.splitlines()])
            for title, lines in TABLE.findall(block)
        ]
        blocks.append((file, tables))
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


def test_a_page_of_performance_is_short() -> None:
    assert len(PAGES["performance.md"].read_text(encoding="utf-8").splitlines()) <= 150


TABLES = WRITER.all_tables()


@pytest.mark.parametrize("path", TABLES, ids=lambda p: p.stem)
def test_csv_files_are_what_the_results_say(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == TABLES[path], "run: python benchmarks/write_pages.py"


@pytest.mark.parametrize("path", [p for p in TABLES if not p.stem.endswith("growth")], ids=str)
def test_every_timing_has_a_line_of_its_own(path: Path) -> None:
    """Parse the table independently; a mixer and a package may have the same name."""
    result = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    with path.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    shown = {
        (*(line[key] for key in ("kind", "name", "backend", *SHAPE)), line["pass"]): line
        for line in lines
    }
    assert len(shown) == len(lines)
    count = 0
    for row in result["rows"]:
        key = (row["kind"], row["name"], row["backend"] or "", *map(str, row["shape"].values()))
        for name, timing in row["passes"].items():
            line = shown[*key, name]
            assert float(line["p50_ms"]) == pytest.approx(1e3 * timing["p50"], rel=1e-4)
            assert int(line["peak_memory_bytes"]) == timing["peak_memory_bytes"]
            for peer, ratio in timing["ratios"].items():
                assert float(line[f"x {peer}"]) == pytest.approx(ratio, rel=1e-3)
            count += 1
        if not row["passes"]:
            assert shown[*key, ""]["note"] == row["note"]
            count += 1
    assert count == len(lines)


def test_comparisons_on_the_page_are_the_means_of_their_runs() -> None:
    blocks = cited_blocks("comparing.md")
    assert blocks
    for file, ((_, (header, _, *lines)), *_) in blocks:
        assert [line[0] for line in lines] == [mixer["title"] for mixer in file["mixers"]]
        for line, mixer in zip(lines, file["mixers"], strict=True):
            runs = [run for run in file["runs"] if run["mixer"] == mixer["name"]]
            shown = dict(zip(header, line, strict=True))
            for split in ("test", "validation"):
                mean = statistics.fmean(100 * run[split]["accuracy"] for run in runs)
                text = shown[f"{split.capitalize()} accuracy, %"]
                assert number(text) == pytest.approx(mean, abs=0.0051)
            speed = statistics.median(run["steps_per_second"] for run in runs)
            assert is_shown(shown["Steps/s (vs softmax)"], speed)
            assert {number(shown["Parameters"])} == {run["parameters"] for run in runs}


# Stored results.

COMPARISONS = sorted([*RESULTS.glob("compare-*.json"), *(RESULTS / "demo").glob("*.json")])
CHANCE = {"image": 10.0, "listops": 18.0, "sick": 57.0, "sst": 50.0, "text": 50.0}
"""Upper bounds for the accuracy of the majority-class baseline, in percent."""


@pytest.mark.parametrize("path", COMPARISONS, ids=lambda p: p.stem)
def test_comparisons_that_are_kept_show_learning(path: Path) -> None:
    results = json.loads(path.read_text(encoding="utf-8"))
    assert results["status"] == "complete"
    assert not nothing_learned(comparison_rows(results))


@pytest.mark.parametrize(
    "path", sorted((RESULTS / "reproduce").glob("*.json")), ids=lambda p: p.stem
)
def test_reproductions_that_are_kept_have_gone_a_third_of_the_way(path: Path) -> None:
    results = json.loads(path.read_text(encoding="utf-8"))
    assert results["unit"] == "%"
    chance = CHANCE[results["task"]["name"]]
    printed = results["printed"]
    if not results["is_reduced"]:
        return  # in full: failure to learn is a result, as docs/results.md states
    enough = 5.0 if printed is None else (printed - chance) / 3
    assert results["ours"] - chance >= enough


# Formats.


def test_growth_of_the_first_format_is_computed_anew(tmp_path: Path) -> None:
    """Check old files, because they mixed up a mixer and a package of the same name."""
    (path,) = (p for p in RESULTS.glob("scaling-20261122-*.json"))
    raw = json.loads(path.read_text(encoding="utf-8"))
    assert raw["format"] == "rifflemix.bench/1"
    result = read_result(path)
    assert result["format"] == FORMAT
    before, after = (
        {(e["kind"], e["name"], e["pass"]): e for e in growth}
        for growth in (raw["growth"], result["growth"])
    )
    assert before.keys() == after.keys()
    wrong = {key[:2] for key in before if before[key] != after[key]}
    assert wrong == {(LAYER, "linformer"), (PEER, "linformer")}
    ours, theirs = (after[kind, "linformer", "forward"] for kind in (LAYER, PEER))
    assert ours["fit"] != theirs["fit"]
    assert (ours["claimed_exponent"], theirs["claimed_exponent"]) == (1.0, None)
    again = tmp_path / "again.json"
    again.write_text(json.dumps(result), encoding="utf-8")
    assert read_result(again) == result


def test_what_no_benchmark_wrote_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    for content in ('{"format": "rifflemix.compare/1"}', "[]"):
        path.write_text(content, encoding="utf-8")
        with pytest.raises(InputError, match="`rifflemix bench`"):
            read_result(path)


# The writer.


def result(
    time: str, *, status: str = "complete", device: str = "cpu", seconds: float = 0.25
) -> dict[str, Any]:
    timing = {
        "seconds": [seconds], "p20": seconds, "p50": seconds, "p80": seconds,
        "peak_memory_bytes": 1, "ratios": {},
    }  # fmt: skip
    shape = {"batch": 1, "tokens": 8, "channels": 4, "heads": 2}
    row = {
        "kind": "operator", "name": "copy", "backend": None, "shape": shape, "status": "measured",
        "note": "", "gate": [], "passes": {"forward_backward": timing}, "extra": {},
    }  # fmt: skip
    hardware = {"cpu": "a cpu", "cores": 2, "threads": 1, "gpu": None}
    return {
        "format": FORMAT, "benchmark": "ops", "status": status, "wall_seconds": 1.0, "rows": [row],
        "settings": {"device": device, "dtype": "float32"},
        "environment": {
            "time": time, "hardware": hardware, "libraries": {"torch": "2"}, "git_commit": None,
            "git_dirty": None, "command": "rifflemix bench ops",
        },
    }  # fmt: skip


EMPTY = "# Title\n<!-- results: ops, cpu, float32 -->\nold 123\n<!-- /results -->\nend\n"


def test_the_newest_complete_result_is_shown(tmp_path: Path) -> None:
    files = {
        "old": result("2025-01-01T00:00:00", seconds=0.1),
        "new": result("2025-01-02T00:00:00", seconds=0.2),
        "partial": result("2025-01-03T00:00:00", status="partial", seconds=0.3),
        "gpu": result("2025-01-03T00:00:00", device="cuda:0", seconds=0.4),
    }
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    page = WRITER.filled(tmp_path / "page.md", EMPTY, tmp_path)
    assert "| copy | 200 |" in page
    assert "old 123" not in page
    assert "new.json" in page
    assert page.startswith("# Title\n<!-- results: ops, cpu, float32 -->\n")
    assert page.endswith("<!-- /results -->\nend\n")
    assert WRITER.filled(tmp_path / "page.md", page, tmp_path) == page


def test_whole_models_keep_their_packages_and_baselines_go() -> None:
    names = ["softmax", "tssa", "linformer"]
    made = fake_bench.scaling(names, peers=("timm",), tokens=(64, 256))
    made |= {"benchmark": "models", "peers": []}
    for row in made["rows"]:
        row["kind"] = {"layer": "model"}.get(row["kind"], row["kind"])
    table = WRITER.short_table(made)
    assert table.title.startswith("forward, ms ")
    assert [row[0] for row in table.rows] == ["softmax", "tssa", "timm (package)"]


@pytest.mark.parametrize(
    ("block", "asked"),
    [
        ("vit/models", "--model vit --layers 12 "),
        ("small/models", "--shape 1,64,256,8 --shape 1,128,256,8 "),
    ],
)
def test_a_folder_that_needs_options_says_which(block: str, asked: str, tmp_path: Path) -> None:
    empty = f"<!-- results: {block}, cpu, float32 -->\n<!-- /results -->\n"
    page = WRITER.filled(tmp_path / "page.md", empty, tmp_path)
    assert f": `rifflemix bench models {asked}" in page
    assert page.count(f"--out benchmarks/results/{block.partition('/')[0]}`") == 1


def test_without_a_result_the_command_stands_there(tmp_path: Path) -> None:
    page = WRITER.filled(tmp_path / "page.md", EMPTY, tmp_path)
    assert ": `rifflemix bench ops --device cpu --dtype float32" in page


def test_the_demo_is_shown_with_its_waits_on_every_machine(tmp_path: Path) -> None:
    source = json.loads((RESULTS / "compare-digits-2026-11-20.json").read_text(encoding="utf-8"))
    (tmp_path / "demo").mkdir()
    empty = "<!-- demo -->\n<!-- /demo -->"
    page = tmp_path / "page.md"
    assert ": `make demo`" in WRITER.filled(page, empty, tmp_path)
    other = json.loads(json.dumps(source))
    other["environment"]["hardware"]["cpu"] = "a slow one"
    for run in other["runs"]:
        run["wall_seconds"] *= 2
    longer = json.loads(json.dumps(source))
    longer["environment"]["hardware"]["cpu"] = "of another demo"
    longer["config"]["train"]["max_steps"] = 1
    for name, content in {"one": source, "other": other, "longer": longer}.items():
        content["environment"]["time"] = f"2026-01-0{len(name) % 5 + 1}T00:00:00+00:00"
        (tmp_path / "demo" / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    text = WRITER.filled(page, empty, tmp_path)
    ends = [run["environment"]["time"] for run in source["runs"]]
    assert ends == sorted(ends)
    first = source["runs"][0]["wall_seconds"]
    assert f"| AMD EPYC, 2 cores, 2 threads | {first:.0f} s | " in text
    assert f"| a slow one, 2 cores, 2 threads | {2 * first:.0f} s | " in text
    assert "of another demo" not in text
    assert re.search(r"\| Butterfly attention \| 2 \| \**93\.94", text)
