"""docs/claims.md: measurements and verdicts next to the claims that the page has by hand."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from charts import Curve, panels
from claims.base import ACCURACY, NOT_RUN, VERDICTS, Evidence, Judgement, Runs, judged, stored
from claims.claims import DIGITS, JUDGED, MNIST
from common import ASSETS, DOCS, link, listed

PAGE, COLLAPSE = DOCS / "claims.md", ASSETS / "collapse.svg"
_STACKS = {"no skip connections": "with norm", "skip connections": "with norm and skip"}
_ROW = re.compile(r'(\| <a id="(\d+)">\S+ \| (.*?) \| .*? \|) .*')


@dataclass(frozen=True)
class Claim:
    """One claim of the page; the text has the section of the paper that makes it."""

    number: int
    paper: str
    text: str

    @property
    def found(self) -> Judgement:
        """Verdict, and the numbers that it follows from."""
        return judged(*JUDGED[self.number])


def claims() -> list[Claim]:
    """Read the claims from the page, sorted by paper."""
    found, paper = [], ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            paper = line.removeprefix("## ")
        elif match := _ROW.match(line):
            found.append(Claim(int(match[2]), paper, match[3]))
    return found


def summary(verdicts: Iterable[str]) -> str:
    """Count the verdicts in words: "4 hold, 1 does not hold here"."""
    counts = Counter(verdicts)
    texts = []
    for verdict in VERDICTS:
        if count := counts[verdict]:
            plural = verdict.replace("holds", "hold").replace("does", "do")
            plural = plural.replace("depends", "depend")
            texts.append(f"{count} {verdict if count == 1 else plural}")
    return ", ".join(texts)


def verdict_cells(number: int) -> str:
    """Write the last two cells of a claim: the measurement and the verdict."""
    evidence, judge = JUDGED[number]
    found = judged(evidence, judge)
    measured = _size(evidence) if found.verdict == NOT_RUN else found.shows
    return " | ".join(cell.replace("|", r"\|") for cell in (measured, found.verdict))


def _size(evidence: Evidence) -> str:
    """Describe the size of trainings that have not been run."""
    if not isinstance(evidence, Runs):
        return ""
    width = "" if evidence.scale == 1 else f"{100 * evidence.scale:g} % of the width, "
    return (
        f"{len(evidence.rows)} entries with {len(evidence.seeds)} seeds: {width}"
        f"{evidence.steps:,} steps of {evidence.batch_size} samples"
    )


def files() -> dict[Path, str]:
    """Return the page with new measurements and verdicts."""
    text = PAGE.read_text(encoding="utf-8")
    page = _ROW.sub(lambda row: f"{row[1]} {verdict_cells(int(row[2]))} |", text)
    return {PAGE: page, COLLAPSE: collapse()}


def count(page: Path, _: list[str]) -> str:
    """Count the verdicts of all claims."""
    verdicts = [claim.found.verdict for claim in claims()]
    return f"Of {len(verdicts)} claims: {summary(verdicts)}."


def models(page: Path, _: list[str]) -> str:
    """Write the commands that train the small models, and their validation accuracies."""
    runs = (
        f"on {run} " + ", ".join(f"{mixer} {100 * score:.0f} %" for mixer, score in of.items())
        for run, of in (stored(ACCURACY) or {}).items()
    )
    return f"```\n{DIGITS}\n{MNIST}\n```\n\nThey reach {'; '.join(runs)} (validation accuracy)."


def _ranks() -> dict[str, dict[str, list[float]]]:
    """Return the effective rank over depth, by stack and mixer."""
    found: Any = stored("deep-collapse")
    models = found["data"]["models"]
    return {
        heading: {name: of["stacks"][stack]["effective"] for name, of in models.items()}
        for heading, stack in _STACKS.items()
    }


def collapse() -> str:
    """Draw the effective rank of tokens over depth, with and without skip connections."""
    drawn = {
        heading: [Curve(name, tuple(enumerate(ranks))) for name, ranks in by_mixer.items()]
        for heading, by_mixer in _ranks().items()
    }
    return panels("Effective rank of the tokens after each layer", drawn, "layers")


def picture(page: Path, _: list[str]) -> str:
    """Write the picture of the collapse with its finding as the text alternative."""
    without, skips = (
        listed([f"{name} {ranks[-1]:.1f}" for name, ranks in by_mixer.items()])
        for by_mixer in _ranks().values()
    )
    alt = (
        f"Effective rank after 24 layers: without skip connections {without}, "
        f"with skip connections {skips}."
    )
    return f"![{alt}]({link(page, COLLAPSE)})"


WRITERS = {
    "claims-count": count,
    "claims-models": models,
    "collapse": picture,
}
