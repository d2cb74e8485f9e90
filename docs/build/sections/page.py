"""docs/results.md and docs/result-files.md, with their pictures and tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from claims.base import VERDICTS
from claims.page import by_paper, summary
from paths import ASSETS, DATA, DOCS, link
from sections import accuracy, conversion, host, reproduced, speed, suite
from sections.common import Section
from store import csv_text

from rifflemix.text import table_lines

PAGE = DOCS / "results.md"
FILES = DOCS / "result-files.md"
INTRODUCTION = """# Results

Measurements of rifflemix, as answers to six questions. They ran on two CPU cores unless a section
names other hardware. Each section links its numbers as CSV.
[Result files and commands](result-files.md) lists the command of each result.

!!! note "Statistics"

    Values are means ± standard deviations over seeds. Two mixers are compared seed by seed with a
    moderated t test at a level of 5 %, corrected for the number of comparisons (Holm).
    "Significant" and filled circles refer to this test. The validation split chooses weights and
    settings. The test split is evaluated once. [More](comparing.md#statistics).
"""
_FILES = """# Result files and commands

These commands wrote the results of [Results](results.md). `python docs/build/build.py results`
writes both pages from [benchmarks/results](../benchmarks/README.md#results).
"""


def questions() -> dict[str, list[Section]]:
    """Return the sections of each question, in the order of the page."""
    return {
        "Which mixer?": [suite.which_mixer(), accuracy.every_mixer()],
        "How fast?": [speed.speed(), speed.decoding()],
        "How much memory?": [speed.memory()],
        "Do reported values reproduce?": [reproduced.printed(), claims()],
        "What does a converted model lose?": [conversion.conversion()],
        "Where do mixers fail?": [host.one_host()],
    }


def claims() -> Section:
    """Count the verdicts of docs/claims.md by paper."""
    judged = by_paper()
    counts: dict[str, dict[str, int]] = {}
    for _, claim, judgement in judged:
        of = counts.setdefault(claim.paper, dict.fromkeys(VERDICTS, 0))
        of[judgement.verdict] += 1
    text = (
        f"Of {len(judged)} claims on small models, "
        f"{summary([judgement.verdict for *_, judgement in judged])}: [all claims](claims.md)."
    )
    table = [
        {"claim": number, "paper": claim.paper, "says": claim.text, "verdict": judgement.verdict}
        for number, claim, judgement in judged
    ]
    shown = [verdict for verdict in VERDICTS if any(of[verdict] for of in counts.values())]
    rows = [[paper, *(str(of[verdict] or "") for verdict in shown)] for paper, of in counts.items()]
    below = "\n".join(table_lines(["Paper", *shown], rows, range(1, len(shown) + 1)))
    return Section("Claims", text, "verdicts", "", table, [],
                   ["python docs/build/build.py claims"], below)  # fmt: skip


def files() -> dict[Path, str]:
    """Return {path: text} of both pages, the pictures and the tables."""
    found = questions()
    parts = [INTRODUCTION]
    for question, sections in found.items():
        parts += [f"\n## {question}\n", *map(_section, sections)]
    every = [section for sections in found.values() for section in sections]
    texts = {PAGE: "".join(parts), FILES: _FILES + "".join(map(_sources, every))}
    for section in every:
        texts[DATA / f"{section.name}.csv"] = _csv(section.table)
        if section.picture.startswith("<"):
            texts[ASSETS / f"{section.name}.svg"] = section.picture
    return texts


def _section(section: Section) -> str:
    parts = [f"### {section.title}", section.text]
    if section.picture:
        drawn = section.picture.startswith("<")
        picture = f"assets/{section.name}.svg" if drawn else f"assets/{section.picture}"
        finding = section.text.partition("\n")[0].removeprefix("- ").partition(". ")[0]
        parts.append(f"![{finding.removesuffix('.')}.]({picture})")
    parts += [section.below, f"Table: [{section.name}.csv](data/{section.name}.csv)."]
    return "\n" + "\n\n".join(filter(None, parts)) + "\n"


def _sources(section: Section) -> str:
    commands = "\n".join(dict.fromkeys(section.commands))
    names = "\n".join(f"- [{of.name}]({link(FILES, of.path)})" for of in section.sources)
    return f"\n## {section.title}\n\n{names or '- [claims](claims.md)'}\n\n```\n{commands}\n```\n"


def _csv(lines: Iterable[Mapping[str, Any]]) -> str:
    """Format numbers in six digits: no measurement is more precise."""
    return csv_text(
        {key: f"{value:.6g}" if isinstance(value, float) else value for key, value in line.items()}
        for line in lines
    )
