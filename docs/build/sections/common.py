"""Parts that the sections of docs/results.md share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from store import Result

from rifflemix.lab.comparison.rows import Row


@dataclass(frozen=True)
class Section:
    """One section of the page.

    Attributes:
        title: heading.
        text: text above the picture; its first sentence is the finding and the alt text.
        name: file name of the picture and the table.
        picture: SVG text, or the name of a picture in docs/assets.
        table: lines of the CSV file.
        sources: results that the numbers come from.
        commands: commands that wrote the results.
        below: Markdown below the picture.
    """

    title: str
    text: str
    name: str
    picture: str
    table: Sequence[Mapping[str, Any]]
    sources: Sequence[Result]
    commands: Sequence[str]
    below: str = ""


def scores(name: str, row: Row) -> dict[str, Any]:
    """Return a line of a table: the scores of one mixer in a comparison."""
    line = {"result": name, "mixer": row.name, "title": row.title, "metric": row.metric}
    for split in ("test", "validation"):
        score = getattr(row, split)
        line |= {split: score.mean, f"{split}_std": "" if score.std is None else score.std}
    return line | {
        "seeds": row.test.n,
        "steps_per_second": row.steps_per_second,
        "peak_memory_bytes": row.peak_memory_bytes,
        "parameters": row.parameters,
    }


def task_title(content: Mapping[str, Any]) -> str:
    """Return the task and length of a comparison, and whether it was tuned."""
    tuned = ", tuned" if "tuning" in content else ""
    return f"{content['task']['title']}, N = {content['task']['max_length']}{tuned}"
