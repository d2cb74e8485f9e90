"""docs/claims.md: the papers' claims, judged by the measurements in docs/data/claims.csv."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from claims.base import NOT_RUN, VERDICTS, Claim, Judgement, Runs, judged
from claims.claims import CLAIMS
from claims.evidence import DIGITS, MNIST
from claims.files import ACCURACY, PICTURES, SHOWN, stored
from paths import DOCS, link

PAGE = DOCS / "claims.md"
INTRODUCTION = """# Claims of the papers

Claims of five papers, tested on small models that were trained for minutes. A claim that does not
hold here can hold for the large models of the papers. The numbers are in
[claims.csv](data/claims.csv); [Analyze models](analysis.md) defines the measures.

| Verdict | Meaning |
| --- | --- |
| holds | the numbers agree with the claim |
| holds in part | the numbers agree with a part of the claim |
| does not hold here | the numbers contradict the claim |
| depends on the measure | effective rank, stable rank and s2/s1 (or the rank residual) disagree |
| within the noise | no difference is significant over the seeds |
| not run yet | no measurement exists |

Of {count} claims: {counts}.

`python docs/build/run_claims.py NAME` measures again, in the root of the repository with the data
files in the folder `data`. Two sets of models are trained first:

```
{digits}
{mnist}
```

They reach {reached}.
"""


def reached() -> str:
    """Write the validation accuracy of each small model."""
    scores = stored(ACCURACY) or {}
    runs = (
        f"on {run} " + ", ".join(f"{mixer} {100 * score:.0f} %" for mixer, score in of.items())
        for run, of in scores.items()
    )
    return "; ".join(runs) + " (validation accuracy)"


def by_paper() -> list[tuple[int, Claim, Judgement]]:
    """Number and judge all claims, and sort them by paper."""
    papers = list(dict.fromkeys(claim.paper for claim in CLAIMS))
    numbered = [(number, claim, judged(claim)) for number, claim in enumerate(CLAIMS, start=1)]
    return sorted(numbered, key=lambda entry: papers.index(entry[1].paper))


def summary(verdicts: Sequence[str]) -> str:
    """Count the verdicts in words: "4 hold, 1 does not hold here"."""
    counts = Counter(verdicts)
    texts = []
    for verdict in VERDICTS:
        if count := counts[verdict]:
            plural = verdict.replace("holds", "hold").replace("does", "do")
            plural = plural.replace("depends", "depend")
            texts.append(f"{count} {verdict if count == 1 else plural}")
    return ", ".join(texts)


def files() -> dict[Path, str]:
    """Return the page: one table per paper."""
    claims = by_paper()
    counts = summary([judgement.verdict for *_, judgement in claims])
    introduction = INTRODUCTION.format(
        digits=DIGITS, mnist=MNIST, reached=reached(), count=len(claims), counts=counts
    )
    parts = [introduction]
    for paper in dict.fromkeys(claim.paper for _, claim, _ in claims):
        lines = [_line(number, of, found) for number, of, found in claims if of.paper == paper]
        head = "| # | Claim | Evidence in the paper | Measured here | Verdict |"
        parts.append("\n".join([f"## {paper}\n", head, "| ---: | --- | --- | --- | --- |", *lines]))
        first = {of.evidence.name: (of, found) for _, of, found in reversed(claims)
                 if of.paper == paper and of.evidence.name in SHOWN}  # fmt: skip
        parts += [_picture(*of) for of in first.values()]
    missing = dict.fromkeys(
        claim.evidence.name for _, claim, _ in claims if stored(claim.evidence.name) is None
    )
    if missing:
        command = f"python docs/build/run_claims.py {' '.join(missing)}"
        parts.append(f"## Missing measurements\n\n```\n{command}\n```")
    return {PAGE: "\n\n".join(dict.fromkeys(part.strip() for part in parts)) + "\n"}


def _line(number: int, claim: Claim, judgement: Judgement) -> str:
    """Write a claim as an entry of the table, with an anchor."""
    is_run = stored(claim.evidence.name) is not None
    assert is_run or judgement.verdict == NOT_RUN
    measured = judgement.shows if is_run else _size(claim).strip()
    cells = (f'<a id="{number}"></a>{number}', claim.text, claim.shows, measured, judgement.verdict)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _picture(claim: Claim, judgement: Judgement) -> str:
    found = stored(claim.evidence.name)
    assert found is not None
    picture = link(PAGE, PICTURES / f"{claim.evidence.name}.png")
    alt = f"{found['title']}: {judgement.shows}"
    return f"![{alt}]({picture})\n\n{found['caption']}"


def _size(claim: Claim) -> str:
    """Describe the size of trainings that have not been run."""
    runs = claim.evidence
    if not isinstance(runs, Runs):
        return ""
    width = "" if runs.scale == 1 else f"{100 * runs.scale:g} % of the width, "
    return (
        f"{len(runs.rows)} entries with {len(runs.seeds)} seeds: {width}{runs.steps:,} steps of "
        f"{runs.batch_size} samples"
    )
