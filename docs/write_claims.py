"""Write docs/claims.md: the papers' claims, held against analyses of models trained here.

No number there is typed: they come from the files in docs/claims, which `rifflemix analyze` wrote.

    python docs/write_claims.py                 the page, from the files that are there
    python docs/write_claims.py LOOKS RUNS      take the files from folders of analyses and of
                                                runs first
"""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from claims_judges import FAILS, HOLDS, PART
from claims_list import CLAIMS, Claim

FOLDER = Path(__file__).resolve().parent
PAGE, FILES = FOLDER / "claims.md", FOLDER / "claims"
DIGITS = (
    "rifflemix compare --task digits",
    "--mixers softmax,csp,sliceformer,tssa,butterfly,sinkhorn,shift=csp,exchange=sliceformer",
    "--mixer-option exchange.variant=max_exchange --mixer-option shift.group_size=1",
    "--dim 32 --layers 4 --max-steps 500 --batch-size 32 --seeds 1 --threads 1 --keep-weights",
    "--out runs/digits",
)
MNIST = (
    "rifflemix compare --plugin docs/claims_models.py --model small_tost",
    "--task mnist --task-option layout=image --task-option max_samples=4000 --data-dir data",
    "--mixers tssa,xca,softmax --dim 32 --layers 4 --max-steps 1000 --batch-size 32 --lr 2e-3",
    "--seeds 1 --threads 1 --keep-weights --out runs/mnist",
)
INTRODUCTION = """# The papers' claims, tested

Claims of five papers, each with the command that tests it, what the paper shows, what our models
show, and a verdict. `python docs/write_claims.py` writes this page from the files in
[claims](claims), which `rifflemix analyze` wrote; [analysis.md](analysis.md) defines the measures.

Our models were trained for minutes on a CPU, or have fresh weights; those of the papers were
trained for days on ImageNet-1k and other data. A claim that does not hold here may hold there: the
verdict is on these checkpoints, and the number beside it says how far off they are. Training:

```
{digits}
{mnist}
```

What they reached: {reached}.
"""


def stored(claim: Claim) -> dict[str, Any]:
    """The analysis that a claim is tested by."""
    text = (FILES / f"{claim.look}-{claim.kind}.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def reached() -> str:
    """The validation accuracy of each checkpoint."""
    scores = json.loads((FILES / "accuracy.json").read_text(encoding="utf-8"))
    runs = (
        f"{run} " + ", ".join(f"{mixer} {100 * score:.0f} %" for mixer, score in of.items())
        for run, of in scores.items()
    )
    return "; ".join(runs) + " (validation accuracy)"


def page() -> str:
    """The whole page."""
    judged = [(claim, *claim.judge(stored(claim)["data"])) for claim in CLAIMS]
    counts = Counter(verdict for _, verdict, _ in judged)
    summary = f"{counts[HOLDS]} hold, {counts[PART]} hold in part, {counts[FAILS]} do not hold here"
    parts = [
        INTRODUCTION.format(digits=" ".join(DIGITS), mnist=" ".join(MNIST), reached=reached()),
        f"Of {len(CLAIMS)} claims: {summary}.\n",
        "| Claim | Verdict |\n| --- | --- |",
    ]
    parts[-1] += "".join(
        f"\n| [{number}](#{number}) {claim.paper}: {claim.says} | {verdict} |"
        for number, (claim, verdict, _) in enumerate(judged, start=1)
    )
    paper, shown = "", set()
    for number, (claim, verdict, ours) in enumerate(judged, start=1):
        if claim.paper != paper:
            paper = claim.paper
            parts.append(f"\n## {paper}")
        parts.append(_section(number, claim, verdict, ours, shown))
    return "\n".join(parts) + "\n"


def _section(number: int, claim: Claim, verdict: str, ours: str, shown: set[str]) -> str:
    analysis = stored(claim)
    name = f"{claim.look}-{claim.kind}"
    picture = f"claims/{name}.png"
    lines = [
        f'\n<a id="{number}"></a>\n**{number}. {claim.says}**\n',
        f"- The paper shows: {claim.shows}.",
        f"- Ours shows: {ours}.",
        f"- Verdict: **{verdict}**.",
        f"- `{analysis['environment']['command']}` ([numbers](claims/{name}.json), "
        f"[picture]({picture}))",
    ]
    if name not in shown:
        shown.add(name)
        lines.append(f"\n![{analysis['title']}]({picture})\n\n> {analysis['caption']}")
    return "\n".join(lines)


def take(looks: Path, runs: Path) -> None:
    """Copy what the claims need from folders of analyses and runs.

    Tables, which repeat the numbers, stay there.
    """
    FILES.mkdir(exist_ok=True)
    scores = {}
    for run in ("digits", "mnist"):
        results = json.loads((runs / run / "results.json").read_text(encoding="utf-8"))
        scores[run] = {one["mixer"]: one["validation"]["accuracy"] for one in results["runs"]}
    (FILES / "accuracy.json").write_text(json.dumps(scores, indent=1) + "\n", encoding="utf-8")
    for look, kind in sorted({(claim.look, claim.kind) for claim in CLAIMS}):
        analysis = json.loads((looks / look / f"{kind}.json").read_text(encoding="utf-8"))
        kept = {key: value for key, value in analysis.items() if key not in ("rows", "headers")}
        for layers in kept["data"].get("models", {}).values():
            for layer in layers if isinstance(layers, list) else ():
                layer.pop("displacements", None)  # the picture has them
        text = json.dumps(kept, indent=1) + "\n"
        (FILES / f"{look}-{kind}.json").write_text(text, encoding="utf-8")
        shutil.copyfile(looks / look / f"{kind}.png", FILES / f"{look}-{kind}.png")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        take(Path(sys.argv[1]), Path(sys.argv[2]))
    PAGE.write_text(page(), encoding="utf-8")
