"""Judges of claims that trainings with several seeds test.

Differences are paired over seeds, with the error of the test set and Holm's correction, as in
`rifflemix compare`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from claims.base import FAILS, HOLDS, PART, UNDECIDED, Data, Judge, Judgement

from rifflemix.lab.comparison.statistics import LEVEL, Difference, holm, paired_difference

MARGIN = 2.0
"""Points of accuracy that "comparable" allows; the papers' own losses are 1.5 or less."""
_HIGHER_IS_BETTER = ("%",)


def size_of(data: Data) -> str:
    """Describe the size of the runs next to the paper's."""
    size = data["size"]
    parts = [f"{size['steps']:,} of {size['steps_of_the_paper']:,} steps"]
    if size["scale"] != 1:
        parts.insert(0, f"{100 * size['scale']:g} % of the width")
    if size["batch_size"] != size["batch_size_of_the_paper"]:
        parts.append(f"batches of {size['batch_size']} (paper: {size['batch_size_of_the_paper']})")
    return f"{', '.join(parts)}, {len(size['seeds'])} seeds"


def advantage(data: Data, better: str, worse: str) -> Difference | None:
    """Compare two rows: positive if the first one is better, in the unit of the table.

    Returns:
        None if fewer than two seeds of both rows are finished, since the others diverged.
    """
    ours, theirs = (_scores(data, row) for row in (better, worse))
    if not ours or not theirs:
        return None
    if data["rows"][better]["unit"] not in _HIGHER_IS_BETTER:
        ours, theirs = theirs, ours
    return paired_difference(ours, theirs, _sampling_error(data, better, worse))


def _scores(data: Data, row: str) -> dict[int, float]:
    return {int(seed): float(value) for seed, value in data["rows"][row]["test"].items()}


def _sampling_error(data: Data, *rows: str) -> float:
    """Standard error of a difference of accuracies, in points; 0 for other metrics."""
    if data["rows"][rows[0]]["unit"] != "%":
        return 0.0
    shares = [np.mean(list(_scores(data, row).values())) / 100 for row in rows]
    variance = sum(share * (1 - share) for share in shares) / data["size"]["test_samples"]
    return 100 * math.sqrt(variance)


def verdict_of(differences: Sequence[Difference | None], need: int | None = None) -> str:
    """Judge whether differences are positive.

    Args:
        differences: one for each comparison; None if too few runs are finished.
        need: comparisons that suffice; all if None.

    Returns:
        HOLDS if enough are significantly positive, PART if some are. Otherwise FAILS if one is
        significantly negative, and UNDECIDED if no difference is significant.
    """
    need = len(differences) if need is None else need
    known = [difference for difference in differences if difference is not None]
    corrected = holm([difference.probability for difference in known])
    signs = [
        np.sign(difference.mean) if probability < LEVEL else 0
        for difference, probability in zip(known, corrected, strict=True)
    ]
    ahead, behind = sum(s > 0 for s in signs), sum(s < 0 for s in signs)
    if ahead >= need:
        return HOLDS
    if ahead:
        return PART
    return FAILS if behind else UNDECIDED


def is_better(*pairs: tuple[str, str], need: int | None = None) -> Judge:
    """Make a judge: the first row of each pair is better than the second."""

    def judge(data: Data) -> Judgement:
        differences = [advantage(data, *pair) for pair in pairs]
        texts = [
            f"{better} over {worse} {_interval(d)}"
            for (better, worse), d in zip(pairs, differences, strict=True)
        ]
        return Judgement(verdict_of(differences, need), _shows(data, texts))

    return judge


def is_comparable(*pairs: tuple[str, str]) -> Judge:
    """Make a judge: the first row of each pair is at most `MARGIN` points below the second."""

    def judge(data: Data) -> Judgement:
        differences = [advantage(data, *pair) for pair in pairs]
        verdicts = [_within_margin(d) for d in differences]
        texts = [
            f"{row} minus {baseline} {_interval(d)}"
            for (row, baseline), d in zip(pairs, differences, strict=True)
        ]
        texts.append(f"comparable means at most {MARGIN:g} points less")
        return Judgement(_common(verdicts), _shows(data, texts))

    return judge


def _interval(d: Difference | None) -> str:
    if d is None:
        return "unknown, too few finished runs"
    return f"{d.mean:+.2f} [{d.low:+.2f}, {d.high:+.2f}]"


def _within_margin(d: Difference | None) -> str:
    if d is None:
        return UNDECIDED
    return HOLDS if d.low > -MARGIN else FAILS if d.high < -MARGIN else UNDECIDED


def _common(verdicts: Sequence[str]) -> str:
    if len(set(verdicts)) == 1:
        return verdicts[0]
    return PART if HOLDS in verdicts else UNDECIDED


def splitting_does_not_help(dense: Sequence[str], split: Sequence[str]) -> Judge:
    """Make a judge: networks with split channels are no better than dense ones of equal size.

    The accuracy of a dense network of the same size is read from the line through the dense
    networks, over the logarithm of the number of parameters. One point is the margin.
    """

    def judge(data: Data) -> Judgement:
        rows, excess = data["rows"], {}
        sizes = np.log([rows[row]["parameters"] for row in dense])
        finished = [_scores(data, row).keys() for row in (*dense, *split)]
        for seed in set.intersection(*map(set, finished)):
            line = np.polyfit(sizes, [_scores(data, row)[seed] for row in dense], 1)
            above = [
                _scores(data, row)[seed] - np.polyval(line, np.log(rows[row]["parameters"]))
                for row in split
            ]
            excess[seed] = float(np.mean(above))
        found = paired_difference(excess, dict.fromkeys(excess, 0.0))
        text = f"split networks minus dense ones of equal size, points: {_interval(found)}"
        if found is None:
            return Judgement(UNDECIDED, _shows(data, [text]))
        verdict = HOLDS if found.high < 1 else FAILS if found.low > 1 else UNDECIDED
        return Judgement(verdict, _shows(data, [text]))

    return judge


def _shows(data: Data, texts: Sequence[str]) -> str:
    rows: Mapping[str, Data] = data["rows"]
    unit = next(iter(rows.values()))["unit"]
    means = ", ".join(f"{name} {_mean(row)}" for name, row in rows.items())
    word = "accuracy in %" if unit == "%" else unit
    return f"at {size_of(data)}: test {word} {means}; {'; '.join(texts)}"


def _mean(row: Data) -> str:
    """Write the mean of a row over its finished runs, and the number that diverged."""
    values, lost = list(row["test"].values()), len(row["diverged"])
    mean = f"{np.mean(values):.2f}" if values else "unknown"
    return f"{mean} ({lost} diverged)" if lost else mean
