"""Write the measured parts of the pages from the result files; no number there is typed.

In a page, a pair of comments says what stands between them:

    <!-- results: scaling, cpu, float32 -->
    <!-- /results -->

A short table of our mixers or operators (of `parallel` all of its tables), from the newest complete
result of that benchmark, device and type in benchmarks/results; with `16384/scaling` in place of
`scaling`, in benchmarks/results/16384. All rows are in CSV files beside the result, which this
writes too; with `files` in place of `results` the page has the links to them alone.

    <!-- comparison: compare-digits-tuned-2026-11-22.json -->
    <!-- /comparison -->

The command, the table and the notes of a `rifflemix compare`.

    <!-- demo -->
    <!-- /demo -->

The newest result in benchmarks/results/demo, and what the demo took on each machine there; with
`demo, in brief` only the columns that matter most, and a sentence that says what they mean.

After a benchmark, or a change of the tables: python benchmarks/write_pages.py
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rifflemix.lab.bench import describe_hardware
from rifflemix.lab.bench.read import read_result
from rifflemix.lab.bench.rows import PEER
from rifflemix.lab.bench.scaling_plot import scaling_plot
from rifflemix.lab.bench.tables import (
    PASS_TITLES,
    BenchTable,
    bench_notes,
    bench_tables,
    crossover_text,
)
from rifflemix.lab.comparison.differences import differences_from_softmax
from rifflemix.lab.comparison.notes import comparison_notes
from rifflemix.lab.comparison.plot import comparison_plot
from rifflemix.lab.comparison.table import (
    baseline_row,
    comparison_rows,
    is_slower,
    markdown_body,
    table_cells,
    table_headers,
)
from rifflemix.lab.comparison.tuning import markdown_tuning
from rifflemix.lab.report.units import format_duration
from rifflemix.lab.reproduction import load_results
from rifflemix.lab.reproduction.page import report_files
from rifflemix.mixers import HEADLINE, list_mixers
from rifflemix.text import bold, table_lines

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = tuple(ROOT / name for name in ("README.md", "docs/start.md", "docs/performance.md",
                                       "docs/comparing.md",
                                       "docs/learned-permutations.md",
                                       "docs/causal-permutations.md",
                                       "docs/scale.md"))  # fmt: skip
REPORT = ROOT / "docs" / "reproduced" / "report.md"
DEMO_PLOT = "docs/demo.png"
CURVES = "docs/performance.png"
"""Time against N, of the newest scaling on a CPU: our mixers and softmax."""
# Passes of the short tables, by benchmark; the CSV files have all.
_PASSES = {"models": "training_step"}
# What else to ask for to fill a folder, beside device and type.
_FEW = "--mixers csp,sliceformer,tssa,butterfly --peers"
_ASKED = {
    "small/models": "--shape 1,64,256,8 --shape 1,128,256,8 --shape 1,256,256,8 "
    f"{_FEW} --repeats 21 --threads 1 ",
    "vit/models": f"--model vit --layers 12 {_FEW} ",
}
_SAME = ("task", "model", "dim", "num_layers", "num_heads", "mixers", "seeds", "train")

_BENCHMARK = re.compile(
    r"(<!-- results: ([\w/-]+), (\w+), (\w+) -->\n).*?(<!-- /results -->)", flags=re.DOTALL
)
_FILES = re.compile(
    r"(<!-- files: ([\w/-]+), (\w+), (\w+) -->\n).*?(<!-- /files -->)", flags=re.DOTALL
)
_COMPARISON = re.compile(
    r"(<!-- comparison: ([\w.-]+) -->\n).*?(<!-- /comparison -->)", flags=re.DOTALL
)
_DEMO = re.compile(r"(<!-- demo -->\n).*?(<!-- /demo -->)", flags=re.DOTALL)
_BRIEF = re.compile(r"(<!-- demo, in brief -->\n).*?(<!-- /demo -->)", flags=re.DOTALL)
_LEFT_OUT = {"Seeds", "Validation accuracy, %", "Complexity"}


def filled(page: Path, text: str, results: Path = RESULTS) -> str:
    """The text of a page with every block written anew."""

    def benchmark(match: re.Match[str]) -> str:
        start, name, device, dtype, end = match.groups()
        return f"{start}\n{_benchmark(page, results, name, device, dtype)}{end}"

    def files(match: re.Match[str]) -> str:
        start, name, device, dtype, end = match.groups()
        return f"{start}{_files(page, results, name, device, dtype)}{end}"

    def comparison(match: re.Match[str]) -> str:
        start, name, end = match.groups()
        return f"{start}\n{_comparison(page, results / name)}\n{end}"

    def demo(match: re.Match[str]) -> str:
        return f"{match[1]}\n{_demo(page, results / 'demo')}\n{match[2]}"

    def brief(match: re.Match[str]) -> str:
        return f"{match[1]}\n{_in_brief(page, results / 'demo')}\n{match[2]}"

    blocks = (
        (_BENCHMARK, benchmark),
        (_FILES, files),
        (_COMPARISON, comparison),
        (_DEMO, demo),
        (_BRIEF, brief),
    )
    for block, write in blocks:
        text = block.sub(write, text)
    return text


def report() -> str:
    """The text of docs/reproduced/report.md."""
    found = load_results([RESULTS / "reproduce"])
    return report_files(found, REPORT.parent)["report.md"].decode()


def plots() -> dict[Path, bytes]:
    """The plots that the pages show, and those beside the results."""
    drawn = {}
    for path in RESULTS.rglob("scaling-*.json"):
        drawn[path.with_suffix(".png")] = scaling_plot(read_result(path))
    if path := newest(RESULTS, "scaling", "cpu", "float32"):
        drawn[ROOT / CURVES] = scaling_plot(_without_floor(of_ours(read_result(path))))
    if demos := by_time((RESULTS / "demo").glob("*.json")):
        drawn[ROOT / DEMO_PLOT] = comparison_plot(_read(demos[-1]))
    return drawn


def _without_floor(result: dict[str, Any]) -> dict[str, Any]:
    mixers = result["settings"]["mixers"]
    parts = {
        key: [entry for entry in result[key] if entry["name"] in mixers]
        for key in ("rows", "growth")
    }
    return result | parts


def newest(results: Path, benchmark: str, device: str, dtype: str) -> Path | None:
    """The newest complete result, by the time it was measured."""
    *folder, name = benchmark.split("/")
    found = [
        path
        for path in results.joinpath(*folder).glob("*.json")
        if _matches(_read(path), name, device, dtype)
    ]
    return by_time(found)[-1] if found else None


def _matches(result: dict[str, Any], benchmark: str, device: str, dtype: str) -> bool:
    if result.get("benchmark") != benchmark:  # another benchmark, or a comparison
        return False
    settings = result["settings"]
    return (
        result["status"] == "complete"
        and settings["device"].partition(":")[0] == device
        and settings["dtype"] == dtype
    )


def _benchmark(page: Path, results: Path, benchmark: str, device: str, dtype: str) -> str:
    path = newest(results, benchmark, device, dtype)
    source = _files(page, results, benchmark, device, dtype)
    if path is None:
        return source
    result = read_result(path)
    shown = bench_tables(result) if benchmark == "parallel" else [short_table(result)]
    parts = []
    for table in shown:
        lines = table_lines(table.headers, table.rows, range(1, len(table.headers)))
        parts += [bold(table.title), "", *lines, ""]
    return "\n".join([*parts, f"{bench_notes(result)[0]}.", source])


def _files(page: Path, results: Path, benchmark: str, device: str, dtype: str) -> str:
    path = newest(results, benchmark, device, dtype)
    if path is None:
        *folder, name = benchmark.split("/")
        out = "/".join(["benchmarks/results", *folder])
        asked = _ASKED.get(benchmark, "")
        options = f"{asked}--device {device} --dtype {dtype} --out {out}"
        return f"Not measured yet: `rifflemix bench {name} {options}`\n"
    every = ", ".join(_cited(page, file) for file in csv_tables(path, read_result(path)))
    return f"From {_cited(page, path)}. Every row: {every}.\n"


def short_table(result: Mapping[str, Any]) -> BenchTable:
    """Of our mixers, or of the operators' fastest forms at the first shape: training.

    Of models over several N it is inference.
    """
    tables = bench_tables(of_ours(result))
    if result["benchmark"] == "models" and tables[0].headers[1].startswith("N="):
        return tables[0]
    title = PASS_TITLES[_PASSES.get(result["benchmark"], "forward_backward")]
    times = {"scaling": f"{title}, ms (x softmax)"}.get(result["benchmark"], f": {title}")
    (table,) = (t for t in tables if t.title.endswith(times))
    return table


def of_ours(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result of the headline mixers, without packages; of an operator one shape and form.

    Packages' whole models stay: there is one beside ours, of the same size.
    """
    are_models = result["benchmark"] == "models"
    others = set(list_mixers()) - set(HEADLINE)

    def is_shown(entry: Mapping[str, Any]) -> bool:
        return (are_models or entry["kind"] != PEER) and entry["name"] not in others

    rows = [row for row in result["rows"] if is_shown(row)]
    if result["benchmark"] == "ops":
        rows = [row for row in rows if row["shape"] == rows[0]["shape"]]
        rows = list({row["name"]: row for row in rows}.values())  # the fastest comes last
    short = {**result, "rows": rows}
    if "growth" in result:
        short["growth"] = [entry for entry in result["growth"] if is_shown(entry)]
    return short


def csv_tables(path: Path, result: Mapping[str, Any]) -> dict[Path, str]:
    """The CSV files beside a result: a line a row and pass, and of scaling the growth."""
    tables = {
        path.with_suffix(".csv"): csv_text(line for row in result["rows"] for line in _flat(row))
    }
    if "growth" in result:
        growth = path.with_name(f"{path.stem}-growth.csv")
        tables[growth] = csv_text(map(_flat_growth, result["growth"]))
    return tables


def _flat(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    start = {key: row[key] for key in ("kind", "name", "backend")} | row["shape"]
    end = {"status": row["status"], "note": row["note"]}
    lines = []
    for name, timing in row["passes"].items() or {"": {}}.items():
        times = {f"{p}_ms": f"{1e3 * timing[p]:.5g}" for p in ("p20", "p50", "p80") if p in timing}
        ratios = {f"x {peer}": f"{ratio:.4g}" for peer, ratio in timing.get("ratios", {}).items()}
        memory = {"peak_memory_bytes": timing.get("peak_memory_bytes", "")}
        lines.append({**start, "pass": name, **times, **memory, **end, **ratios, **row["extra"]})
    return lines


def _flat_growth(entry: Mapping[str, Any]) -> dict[str, Any]:
    fit = entry["fit"] or {}
    return {
        **{key: entry[key] for key in ("kind", "name", "pass", "claimed_exponent")},
        **{key: fit.get(key) for key in ("exponent", "standard_error")},
        **{key: fit.get(key) for key in ("first_tokens", "last_tokens")},
        "contradicts_claim": entry["contradicts_claim"],
        "faster than softmax from": crossover_text(entry["crossover"]),
    }


def csv_text(lines: Iterable[Mapping[str, Any]]) -> str:
    """Lines under all headers that any of them has."""
    lines = list(lines)
    text = io.StringIO()
    headers = dict.fromkeys(key for line in lines for key in line)
    writer = csv.DictWriter(text, headers, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def all_tables() -> dict[Path, str]:
    """The CSV files of every result that a page shows."""
    tables: dict[Path, str] = {}
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for _, name, device, dtype, _ in [*_BENCHMARK.findall(text), *_FILES.findall(text)]:
            if path := newest(RESULTS, name, device, dtype):
                tables |= csv_tables(path, read_result(path))
    return tables


def _comparison(page: Path, path: Path) -> str:
    result = _read(path)
    return (
        f"```\n{result['command']}\n```\n\n{markdown_body(result, comparison_notes(result))}"
        f"{markdown_tuning(result)}\nFrom {_cited(page, path)}.\n"
    )


def _demo(page: Path, folder: Path) -> str:
    paths = by_time(folder.glob("*.json"))
    if not paths:
        return "Not measured yet: `make demo`\n"
    shown = _read(paths[-1])
    plot = _link(page, ROOT / DEMO_PLOT)
    return (
        f"What `make demo` printed, from {_cited(page, paths[-1])}:\n\n"
        f"{markdown_body(shown, comparison_notes(shown))}\n"
        f"![accuracy against speed, disk area is memory]({plot})\n\n{_machines(page, paths)}"
    )


def _in_brief(page: Path, folder: Path) -> str:
    """The demo's table for a reader in a hurry, its largest differences in words first."""
    paths = by_time(folder.glob("*.json"))
    if not paths:
        return "Not measured yet: `make demo`\n"
    shown = _read(paths[-1])
    rows = comparison_rows(shown)
    headers = table_headers(rows)
    kept = [column for column, header in enumerate(headers) if header not in _LEFT_OUT]
    cells = [
        [bold(line[c].text) if line[c].best else line[c].text for c in kept]
        for line in table_cells(rows)
    ]
    lines = table_lines([headers[c] for c in kept], cells, range(1, len(kept)))
    source = f"From {_cited(page, paths[-1])}; bold: no other mixer is significantly better."
    return f"{_meaning(shown)}\n\n" + "\n".join(lines) + f"\n\n{source}\n"


def _meaning(result: dict[str, Any]) -> str:
    """Who beats softmax attention in what was measured, by more than noise."""
    rows = comparison_rows(result)
    differences = differences_from_softmax(rows)
    shown = [d for d in differences if d.decision.is_shown]
    baseline = baseline_row(rows)
    assert baseline is not None
    groups = {
        "more accurate": [d.row for d in shown if not d.decision.is_loss],
        "less accurate": [d.row for d in shown if d.decision.is_loss],
        "no significant difference in accuracy": [d.row for d in differences if d not in shown],
        "faster with every seed": [row for row in rows if is_slower(baseline, row)],
        "slower with every seed": [row for row in rows if is_slower(row, baseline)],
    }
    said = [f"{words}: {', '.join(r.title for r in of)}" for words, of in groups.items() if of]
    seeds, length = len(result["seeds"]), result["task"]["max_length"]
    return (
        f"Compared with softmax attention, over {seeds} seeds and inputs of {length} tokens. "
        f"{'. '.join(words[0].upper() + words[1:] for words in said)}."
    )


def _machines(page: Path, paths: Sequence[Path]) -> str:
    """How long this demo makes one wait, on every machine that it was run on."""
    shown = _read(paths[-1])
    lines = ["| Machine | First row | Whole table | File |", "| --- | ---: | ---: | --- |"]
    for path in paths:
        result = _read(path)
        if all(result["config"][key] == shown["config"][key] for key in _SAME):
            waits = [format_duration(seconds) for seconds in _waits(result["runs"])]
            cells = [describe_hardware(result["environment"]), *waits, _cited(page, path)]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _waits(runs: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """Seconds from the start of the first run to the end of the first and of the last one."""
    ends = [datetime.fromisoformat(run["environment"]["time"]) for run in runs]
    first: float = runs[0]["wall_seconds"]
    return first, first + (ends[-1] - ends[0]).total_seconds()


def _cited(page: Path, path: Path) -> str:
    return f"[{path.name}]({_link(page, path)})"


def _link(page: Path, path: Path) -> str:
    return os.path.relpath(path, page.parent).replace(os.sep, "/")


def by_time(paths: Iterable[Path]) -> list[Path]:
    """Result files, the oldest measurement first."""
    return sorted(paths, key=lambda path: (_read(path)["environment"]["time"], path))


def _read(path: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return result


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(filled(path, path.read_text(encoding="utf-8")), encoding="utf-8")
    REPORT.write_text(report(), encoding="utf-8")
    for path, table in all_tables().items():
        path.write_text(table, encoding="utf-8")
    for path, image in plots().items():
        path.write_bytes(image)
