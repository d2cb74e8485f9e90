"""Questions of docs/results.md about forms that no paper has: causal, in groups, split."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from results_common import Answer, by_time, read, scores, task_title
from results_parallel import told
from results_pictures import Mark, Point, Row, dots, scatter

from rifflemix.lab.comparison.table import comparison_rows


def text() -> Answer:
    """Causal mixers as language models: bits of a byte against steps per second."""
    sources = by_time("text-*.json")
    table: list[dict[str, Any]] = []
    drawn, said = {}, []
    for path in sources:
        title = read(path)["task"]["title"]
        lines = _bits(path)
        table += lines
        drawn[title] = [
            Point(line["mixer"], line["steps_per_second"], line["bits_per_byte"],
                  line["bits_per_byte_std"]) for line in lines
        ]  # fmt: skip
        ordered = sorted(lines, key=lambda line: float(line["bits_per_byte"]))
        words = (f"{line['mixer']} {line['bits_per_byte']:.2f}" for line in ordered)
        said.append(f"{title}: {', '.join(words)}")
    length = read(sources[0])["task"]["max_length"]
    says = (
        f"Bits per byte of the test text; fewer are better; means of {table[0]['seeds']} seeds. "
        f"{'. '.join(said)}. Small models with windows of {length} bytes after a short training, "
        "each with the learning rate that validation chose: this shows who learns soon, not who "
        "is best in the end. Bars are standard deviations; other work shared the machine, so "
        "speeds are rough. [More](causal-permutations.md#against-other-causal-mixers)."
    )
    picture = scatter("Bits per byte over training steps per second", drawn)
    return Answer("Which causal mixer models text best, and how fast?", says, "text", picture,
                  table, sources, [read(path)["command"] for path in sources])  # fmt: skip


def _bits(path: Path) -> list[dict[str, Any]]:
    lines = []
    results = read(path)
    for row in comparison_rows(results):
        bits = [run["test"]["bits_per_byte"] for run in results["runs"] if run["mixer"] == row.name]
        measured = {
            "bits_per_byte": statistics.fmean(bits),
            "bits_per_byte_std": statistics.stdev(bits),
        }
        lines.append({**scores(path, row), **measured, "tuned": row.tuned})
    return lines


def grouped() -> Answer:
    """Token statistics in strided groups against those of the whole sequence."""
    sources = by_time("grouped-*.json")
    drawn: list[Row] = []
    table: list[dict[str, Any]] = []
    said = []
    for path in sources:
        results = read(path)
        rows = {row.name: row for row in comparison_rows(results)}
        drawn.append(Row(f"{task_title(results)}, {len(results['seeds'])} seeds"))
        for name, row in rows.items():
            assert row.test is not None
            spread = row.test.std or 0.0
            low, mean, high = (100 * (row.test.mean + step * spread) for step in (-1, 0, 1))
            drawn.append(Row(name, (Mark(mean, "main", low, high),), str(row.test)))
            table.append(scores(path, row))
        groups, whole = rows["grouped"].test, rows["tssa"].test
        assert groups is not None
        assert whole is not None
        gain = groups.difference(whole)
        assert gain is not None
        chance = rows["tssa"].chance or 0.0
        learned = "" if whole.is_above(chance) or groups.is_above(chance) else ", nothing learned"
        said.append(
            f"{results['task']['title']} {100 * gain.mean:+.2f} points "
            f"({100 * gain.low:+.1f} to {100 * gain.high:+.1f}{learned})"
        )
    says = (
        "Test accuracy of `grouped` minus `tssa`, at equal parameters and multiply-adds, "
        f"with the 95 % interval over seeds: {'; '.join(said)}. Bars are standard deviations."
    )
    return Answer("Are token statistics of groups better than of the whole?", says, "grouped",
                  dots("Test accuracy, %", drawn), table, sources,
                  [read(path)["command"] for path in sources])  # fmt: skip


def sharding() -> Answer:
    """A sequence over several processes."""
    path = by_time("parallel-*.json")[-1]
    result = read(path)
    says, picture, table = told(result)
    return Answer("What does splitting a sequence save, and send?", says, "sharding", picture,
                  table, [path], [result["command"]])  # fmt: skip
