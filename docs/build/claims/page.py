"""docs/claims.md: measurements and verdicts next to the claims that the page has by hand."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from claims.base import (
    ACCURACY,
    NOT_RUN,
    PICTURES,
    VERDICTS,
    Evidence,
    Judgement,
    Runs,
    judged,
    stored,
)  # fmt: skip
from claims.claims import DIGITS, JUDGED, MNIST, PAGE, Claim, claims
from common import link

_ROW = re.compile(r'(\| <a id="(\d+)">\S+ \| .*? \| .*? \|) .*')


def by_paper() -> list[tuple[Claim, Judgement]]:
    """Judge all claims, sorted by paper."""
    return [(claim, judged(claim.evidence, claim.judge)) for claim in claims()]


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
    return {PAGE: _ROW.sub(lambda row: f"{row[1]} {verdict_cells(int(row[2]))} |", text)}


def count(page: Path, _: list[str]) -> str:
    """Count the verdicts of all claims."""
    verdicts = [found.verdict for _, found in by_paper()]
    return f"Of {len(verdicts)} claims: {summary(verdicts)}."


def models(page: Path, _: list[str]) -> str:
    """Write the commands that train the small models, and their validation accuracies."""
    runs = (
        f"on {run} " + ", ".join(f"{mixer} {100 * score:.0f} %" for mixer, score in of.items())
        for run, of in (stored(ACCURACY) or {}).items()
    )
    return f"```\n{DIGITS}\n{MNIST}\n```\n\nThey reach {'; '.join(runs)} (validation accuracy)."


def picture(page: Path, names: list[str]) -> str:
    """Write the picture of an analysis with its caption: NAME."""
    (name,) = names
    found = stored(name)
    assert found is not None
    claim = next(claim for claim in claims() if claim.evidence.name == name)
    alt = f"{found['title']}: {judged(claim.evidence, claim.judge).shows}"
    return f"![{alt}]({link(page, PICTURES / f'{name}.png')})\n\n{found['caption']}"


def missing(page: Path, _: list[str]) -> str:
    """Write the command that measures missing evidence."""
    names = dict.fromkeys(c.evidence.name for c in claims() if stored(c.evidence.name) is None)
    command = f"```\npython docs/build/run_claims.py {' '.join(names)}\n```"
    return command if names else "No measurement is missing."


WRITERS = {
    "claims-count": count,
    "claims-models": models,
    "claims-picture": picture,
    "claims-missing": missing,
}
