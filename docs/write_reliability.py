"""Write the figures of docs/reliability.md from what `make attack` and `make sanitize` left.

    python docs/write_reliability.py

The files are in benchmarks/results/attack: attack.json and sanitize-*.json.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
RESULTS = FOLDER.parent / "benchmarks" / "results" / "attack"
PAGE = FOLDER / "reliability.md"
_SANITIZERS = {
    "address": "AddressSanitizer and UndefinedBehaviorSanitizer",
    "thread": "ThreadSanitizer",
}


def attack_lines(figures: Mapping[str, Any]) -> Iterable[str]:
    """A row for each file of tests: what it counted, and how its tests ended."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    ends: dict[str, Counter[str]] = defaultdict(Counter)
    seconds: Counter[str] = Counter()
    for test in figures["tests"]:
        counts[test["file"]].update(test.get("attack", {}))
        ends[test["file"]][test["outcome"]] += 1
        seconds[test["file"]] += test.get("seconds", 0.0)
    used = sum(test.get("cpu_seconds", 0.0) for test in figures["tests"])
    machine = figures["environment"]
    yield (
        f"[attack.json](../benchmarks/results/attack/attack.json): {figures['times']:g} x the "
        f"cases of continuous integration, seed {figures['seed']}, {machine['time'][:10]}, "
        f"{used / 60:.1f} CPU minutes beside those of the commands that were started, "
        f"torch {machine['libraries']['torch']}, "
        f"commit {str(machine['git_commit'])[:12]}."
    )
    yield ""
    yield "| Tests | Tried | Passed | Failed | Skipped | Seconds |"
    yield "| --- | --- | ---: | ---: | ---: | ---: |"
    for file in sorted(ends):
        tried = ", ".join(f"{number:,} {what}" for what, number in sorted(counts[file].items()))
        end = ends[file]
        yield (
            f"| [{file}](../tests/attack/{file}) | {tried} | {end['passed']} | {end['failed']} "
            f"| {end['skipped']} | {seconds[file]:.0f} |"
        )


def sanitizer_lines(results: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    yield "| Sanitizer | Tests | Reports | Seconds |"
    yield "| --- | --- | ---: | ---: |"
    for result in results:
        yield (
            f"| {_SANITIZERS[result['sanitizer']]} | {result['tests']} "
            f"| {len(result['reports'])} | {result['seconds']} |"
        )


def block() -> str:
    figures = json.loads((RESULTS / "attack.json").read_text(encoding="utf-8"))
    found = [
        json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(RESULTS.glob("sanitize-*.json"))
    ]
    return "\n".join((*attack_lines(figures), "", *sanitizer_lines(found)))


def filled(page: str) -> str:
    """The page with its figures written anew."""
    place = re.compile(r"(<!-- results attack -->\n).*?(<!-- /results -->)", flags=re.DOTALL)
    return place.sub(lambda match: f"{match[1]}\n{block()}\n\n{match[2]}", page)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
