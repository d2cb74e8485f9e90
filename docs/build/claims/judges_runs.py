"""Judges of claims that trainings with several seeds test.

Differences are paired over seeds, with the error of the test set and Holm's correction, as in
`rifflemix compare`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from claims.base import FAILS, HOLDS, PART, UNDECIDED, Data, Judge, Judgement

from rifflemix.lab.comparison.statistics import LEVEL, Difference, holm, paired_difference

MARGIN = 2.0
"""Points of accuracy that "comparable" allows; the papers' own losses are 1.5 or less."""


def size_of(data: Data) -> str:
    """Describe the size of the runs next to the paper's."""
    size = data["size"]
    parts = [f"{size['steps']:,} of {size['steps_of_the_paper']:,} steps"]
    if size["scale"] != 1:
        parts.insert(0, f"{100 * size['scale']:g} % of the width")
    if size["batch_size"] != size["batch_size_of_the_paper"]:
        parts.append(f"batches of {size['batch_size']} (paper: {size['batch_size_of_the_paper']})")
    return f"{', '.join(parts)}, {len(size['seeds'])} seeds"


def _scores(data: Data, row: str) -> dict[int, float]:
    return {int(seed): float(value) for seed, value in data["rows"][row]["test"].items()}


def advantage(data: Data, better: str, worse: str) -> Difference | None:
    """Compare two rows: positive if the first one is better, in the unit of the table.

    Accuracies have the error of the finite test set, too.

    Returns:
        None if fewer than two seeds of both rows are finished, since the others diverged.
    """
    ours, theirs = (_scores(data, row) for row in (better, worse))
    if not ours or not theirs:
        return None
    if data["rows"][better]["unit"] != "%":  # lower is better
        return paired_difference(theirs, ours, 0.0)
    shares = [np.mean(list(scores.values())) / 100 for scores in (ours, theirs)]
    variance = sum(share * (1 - share) for share in shares) / data["size"]["test_samples"]
    return paired_difference(ours, theirs, 100 * math.sqrt(variance))


def verdict_of(differences: Sequence[Difference | None], need: int | None = None) -> str:
    """Judge whether differences are positive.

    Args:
        differences: one for each comparison; None if too few runs are finished.
        need: comparisons that suffice; all if None.

    Returns:
        HOLDS if enough are significantly positive, PART if some are. Otherwise FAILS if one is
        significantly negative, and UNDECIDED if no difference is significant.
    """
    known = [difference for difference in differences if difference is not None]
    corrected = holm([difference.probability for difference in known])
    means = [d.mean for d, p in zip(known, corrected, strict=True) if p < LEVEL]
    ahead = sum(mean > 0 for mean in means)
    if ahead:
        return HOLDS if ahead >= (need or len(differences)) else PART
    return FAILS if any(mean < 0 for mean in means) else UNDECIDED


def is_better(*pairs: tuple[str, str], need: int | None = None) -> Judge:
    """Make a judge: the first row of each pair is better than the second."""

    def judge(data: Data) -> Judgement:
        found = {f"{a} over {b}": advantage(data, a, b) for a, b in pairs}
        texts = [f"{pair} {_interval(d)}" for pair, d in found.items()]
        return Judgement(verdict_of(list(found.values()), need), _shows(data, texts))

    return judge


def is_comparable(*pairs: tuple[str, str]) -> Judge:
    """Make a judge: the first row of each pair is at most `MARGIN` points below the second."""

    def judge(data: Data) -> Judgement:
        found = {f"{a} minus {b}": advantage(data, a, b) for a, b in pairs}
        verdicts = {_above(d, -MARGIN) for d in found.values()}
        mixed = PART if HOLDS in verdicts else UNDECIDED
        verdict = verdicts.pop() if len(verdicts) == 1 else mixed
        texts = [f"{pair} {_interval(d)}" for pair, d in found.items()]
        texts.append(f"comparable means at most {MARGIN:g} points less")
        return Judgement(verdict, _shows(data, texts))

    return judge


def _above(difference: Difference | None, bound: float) -> str:
    """Judge whether a whole interval is above or below a bound."""
    if difference is None:
        return UNDECIDED
    return HOLDS if difference.low > bound else FAILS if difference.high < bound else UNDECIDED


def splitting_does_not_help(dense: Sequence[str], split: Sequence[str]) -> Judge:
    """Make a judge: networks with split channels are no better than dense ones of equal size.

    The accuracy of a dense network of the same size is read from the line through the dense
    networks, over the logarithm of the number of parameters. One point is the margin.
    """

    def judge(data: Data) -> Judgement:
        rows = data["rows"]
        scores = {row: _scores(data, row) for row in (*dense, *split)}
        size = {row: np.log(rows[row]["parameters"]) for row in scores}
        excess = {}  # of the split networks, by seed
        for seed in set.intersection(*(set(of) for of in scores.values())):
            line = np.polyfit([size[row] for row in dense], [scores[r][seed] for r in dense], 1)
            gaps = [scores[row][seed] - np.polyval(line, size[row]) for row in split]
            excess[seed] = float(np.mean(gaps))
        found = paired_difference(excess, dict.fromkeys(excess, 0.0))
        text = f"split networks minus dense ones of equal size, points: {_interval(found)}"
        opposite = {HOLDS: FAILS, FAILS: HOLDS, UNDECIDED: UNDECIDED}
        return Judgement(opposite[_above(found, 1.0)], _shows(data, [text]))

    return judge


def _interval(d: Difference | None) -> str:
    if d is None:
        return "unknown, too few finished runs"
    return f"{d.mean:+.2f} [{d.low:+.2f}, {d.high:+.2f}]"


def _shows(data: Data, texts: Sequence[str]) -> str:
    rows = data["rows"]
    unit = next(iter(rows.values()))["unit"]
    means = ", ".join(f"{name} {_mean(row)}" for name, row in rows.items())
    word = "accuracy in %" if unit == "%" else unit
    return f"at {size_of(data)}: test {word} {means}; {'; '.join(texts)}"


def _mean(row: Data) -> str:
    """Write the mean of a row over its finished runs, and the number that diverged."""
    values, lost = list(row["test"].values()), len(row["diverged"])
    mean = f"{np.mean(values):.2f}" if values else "unknown"
    return f"{mean} ({lost} diverged)" if lost else mean
