"""Write docs/claims.md: the papers' claims, judged by measurements made here.

docs/run_claims.py writes the files in docs/claims. All numbers of the page come from them.

    python docs/write_claims.py
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from claims_base import FILES, NOT_RUN, VERDICTS, Claim, Judgement, Runs, judged, stored
from claims_evidence import DIGITS, MNIST
from claims_list import CLAIMS

PAGE = Path(__file__).resolve().parent / "claims.md"
INTRODUCTION = """# The papers' claims, tested

Claims of five papers. Each has the command that tests it, the paper's evidence, the numbers
measured here, and a verdict. `python docs/run_claims.py NAME` measures and
`python docs/write_claims.py` writes this page from the files in [claims](claims).
[analysis.md](analysis.md) defines the measures. Run all commands in the root of the repository,
with the data files in the folder `data`.

| Verdict | Meaning |
| --- | --- |
| holds | the numbers agree with the claim |
| holds in part | they agree with a part of it |
| does not hold here | they contradict it |
| depends on the measure | effective rank, stable rank, s2/s1 (or the rank residual) disagree |
| within the noise | no difference is significant over the seeds |
| not run yet | no measurement exists; the command makes it |

The models here are small and trained for minutes, or have fresh weights. The papers trained for
days on ImageNet-1k and other data. A claim that does not hold here may hold there. Trainings state
their size next to the verdict. Two sets of small models are trained for the analyses:

```
{digits}
{mnist}
```

They reach {reached}.
"""


def reached() -> str:
    """Write the validation accuracy of each small model."""
    scores = json.loads((FILES / "accuracy.json").read_text(encoding="utf-8"))
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


def page() -> str:
    """Write the whole page."""
    claims = by_paper()
    counts = summary([judgement.verdict for *_, judgement in claims])
    table = "\n".join(
        f"| [{number}](#{number}) {claim.paper}: {claim.text} | {judgement.verdict} |"
        for number, claim, judgement in claims
    )
    parts = [
        INTRODUCTION.format(digits=DIGITS, mnist=MNIST, reached=reached()),
        f"Of {len(claims)} claims: {counts}.\n",
        f"| Claim | Verdict |\n| --- | --- |\n{table}",
        *_missing(claims),
    ]
    paper, shown = "", set[str]()
    for number, claim, judgement in claims:
        if claim.paper != paper:
            paper = claim.paper
            parts.append(f"\n## {paper}")
        parts.append(_section(number, claim, judgement, shown))
    return "\n".join(parts) + "\n"


def _missing(claims: Sequence[tuple[int, Claim, Judgement]]) -> list[str]:
    """Write one command for everything that is not run yet."""
    names = [claim.evidence.name for _, claim, _ in claims if stored(claim.evidence) is None]
    if not names:
        return []
    command = f"python docs/run_claims.py {' '.join(dict.fromkeys(names))}"
    return [f"\nThis command makes all missing measurements, or continues:\n\n```\n{command}\n```"]


def _section(number: int, claim: Claim, judgement: Judgement, shown: set[str]) -> str:
    found, name = stored(claim.evidence), claim.evidence.name
    lines = [
        f'\n<a id="{number}"></a>\n**{number}. {claim.text}**\n',
        f"- The paper shows: {claim.shows}.",
    ]
    if found is None:
        assert judgement.verdict == NOT_RUN
        lines += [f"- Verdict: **{NOT_RUN}**.", f"- `{claim.evidence.command}`{_size(claim)}"]
        return "\n".join(lines)
    lines += [
        f"- Measured: {judgement.shows}.",
        f"- Verdict: **{judgement.verdict}**.",
        f"- `{claim.evidence.command}` ([numbers](claims/{name}.json))",
    ]
    picture = (claim.picture or claim.evidence).name
    if (FILES / f"{picture}.png").is_file() and picture not in shown:
        shown.add(picture)
        drawn = json.loads((FILES / f"{picture}.json").read_text(encoding="utf-8"))
        lines.append(f"\n![{drawn['title']}](claims/{picture}.png)\n\n> {drawn['caption']}")
    return "\n".join(lines)


def _size(claim: Claim) -> str:
    """Describe the size of trainings that have not been run."""
    runs = claim.evidence
    if not isinstance(runs, Runs):
        return ""
    width = "" if runs.scale == 1 else f"{100 * runs.scale:g} % of the width, "
    return (
        f" trains {len(runs.rows)} rows with {len(runs.seeds)} seeds: {width}{runs.steps:,} steps "
        f"of {runs.batch_size} samples"
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
