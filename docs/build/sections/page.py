"""docs/results.md and docs/result-files.md, with their pictures and tables."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pandas as pd
from claims.base import NOT_RUN, VERDICTS
from claims.page import claims
from common import ASSETS, DATA, DOCS, Section, link
from sections import accuracy, reproduced, speed

from rifflemix.text import table_lines

PAGE = DOCS / "results.md"
FILES = DOCS / "result-files.md"


def verdicts() -> Section:
    """Count the verdicts of docs/claims.md by paper."""
    table = [
        {"claim": of.number, "paper": of.paper, "says": of.text, "verdict": of.found.verdict}
        for of in claims()
    ]
    counts = Counter((line["paper"], line["verdict"]) for line in table)
    found = [line["verdict"] for line in table]
    headers = ["Paper", *(verdict for verdict in VERDICTS if verdict in found)]
    rows = [
        [paper, *(counts[paper, verdict] or "" for verdict in headers[1:])]
        for paper in dict.fromkeys(line["paper"] for line in table)
    ]
    tested = [verdict for verdict in found if verdict != NOT_RUN]
    return Section(
        "Claims",
        f"Of {len(tested)} claims that were tested on small models, {found.count('holds')} hold: "
        "[all claims](claims.md).",
        "verdicts",
        table,
        [],
        commands=["python docs/build/build.py claims"],
        below="\n".join(table_lines(headers, rows, range(1, len(headers)))),
    )


# Question -> writers of its sections. The pages have the text before the first question by hand.
QUESTIONS = {
    "Which mixer?": (accuracy.which_mixer, accuracy.every_mixer),
    "How fast?": (speed.speed, speed.decoding),
    "How much memory?": (speed.memory,),
    "Do reported values reproduce?": (reproduced.printed, verdicts),
    "What does a converted model lose?": (
        accuracy.conversion,
        accuracy.vision_transformer,
        accuracy.recall,
    ),
    "Where do mixers fail?": (reproduced.listops,),
}


def files() -> dict[Path, str]:
    """Return {path: text} of both pages, the pictures and the tables."""
    parts, sources, texts = [], [], {}
    for question, writers in QUESTIONS.items():
        parts.append(f"\n## {question}\n")
        for section in (writer() for writer in writers):
            parts.append(_section(section))
            sources.append(_sources(section))
            texts[DATA / f"{section.name}.csv"] = pd.DataFrame(section.table).to_csv(
                index=False, float_format="%.6g", lineterminator="\n"
            )  # no measurement has more than six digits
            if section.picture.startswith("<"):
                texts[ASSETS / f"{section.name}.svg"] = section.picture
    for page, found in ((PAGE, parts), (FILES, sources)):
        introduction = page.read_text(encoding="utf-8").partition("\n## ")[0]
        texts[page] = introduction + "".join(found)
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
    commands = section.commands or [of.content["command"] for of in section.sources]
    lines = "\n".join(dict.fromkeys(commands))
    names = "\n".join(f"- [{of.name}]({link(FILES, of.path)})" for of in section.sources)
    return f"\n## {section.title}\n\n{names or '- [claims](claims.md)'}\n\n```\n{lines}\n```\n"
