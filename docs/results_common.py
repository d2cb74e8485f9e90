"""What the questions of docs/results.md share: the answer's parts, result files, words."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import write_mixers

RESULTS = Path(__file__).resolve().parents[1] / "benchmarks" / "results"
pages = write_mixers.pages_writer()


@dataclass(frozen=True)
class Answer:
    """One question of the page.

    Attributes:
        question: the heading.
        says: the answer in words.
        name: of the files of picture and table.
        picture: SVG, or the path of a picture that another script draws.
        table: lines of the CSV file.
        sources: the result files.
        commands: what made them.
        shown: a short table in Markdown, to stand below the picture.
    """

    question: str
    says: str
    name: str
    picture: str
    table: list[dict[str, Any]]
    sources: Sequence[Path]
    commands: Sequence[str]
    shown: str = ""


def by_time(pattern: str) -> list[Path]:
    """The result files of this pattern, the oldest first."""
    found: list[Path] = pages.by_time(RESULTS.glob(pattern))
    return found


@functools.cache
def read(path: Path) -> dict[str, Any]:
    """A result file."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def scores(path: Path, row: Any) -> dict[str, Any]:
    """A line of a table: a mixer in a comparison."""
    line = {"result": path.stem, "mixer": row.name, "title": row.title, "metric": row.metric}
    for split in ("test", "validation"):
        score = getattr(row, split)
        line |= {split: score.mean, f"{split}_std": "" if score.std is None else score.std}
    return line | {
        "seeds": row.test.n,
        "steps_per_second": row.steps_per_second,
        "peak_memory_bytes": row.peak_memory_bytes,
        "parameters": row.parameters,
    }


def task_title(results: Mapping[str, Any]) -> str:
    """A comparison's task and length, and whether it was tuned."""
    tuned = ", tuned" if "tuning" in results else ""
    return f"{results['task']['title']}, N = {results['task']['max_length']}{tuned}"


def listed(names: Sequence[str]) -> str:
    """Names in a sentence."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
