"""Judges of claims that analyses and trainings test."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from claims.base import (
    DEPENDS,
    FAILS,
    HOLDS,
    PART,
    UNDECIDED,
    Data,
    Judgement,
    judgement,
    listed,
    with_settings,
)

from rifflemix.lab.comparison.statistics import LEVEL, Difference, holm, paired_difference

MEASURES = {
    "effective_rank": "effective rank",
    "stable_rank": "stable rank",
    "second_over_first": "s2/s1",
}
# The same measures of collapse, the level up to which a stack counts as collapsed, and digits.
LEVELS = {
    "effective": ("effective rank", 1.5, 1),
    "stable": ("stable rank", 1.1, 2),
    "second": ("s2/s1", 0.1, 3),
}


def of(data: Data, label: str) -> Any:
    """Read the results of one model."""
    return data["models"][label]


def agreed(verdicts: Sequence[str]) -> str:
    """Return the verdict of all measures, or "depends on the measure" if they differ."""
    return verdicts[0] if len(set(verdicts)) == 1 else DEPENDS


def all_ones(data: Data) -> Judgement:
    """Judge the smallest and largest singular value of all maps."""
    maps = [layer["map"] for layer in of(data, "csp")]
    if None in maps:
        return Judgement(FAILS, "the layers of the model have no map over tokens")
    least, most = min(m["smallest"] for m in maps), max(m["largest"] for m in maps)
    rank, tokens = min(m["stable_rank"] for m in maps), of(data, "csp")[0]["tokens"]
    shows = (
        f"the singular values of all maps of the trained layers are between {least:.6g} and "
        f"{most:.6g}; their stable rank is {rank:.1f} of {tokens}"
    )
    return judgement(shows, abs(least - 1) < 1e-9 and abs(most - 1) < 1e-9)


@with_settings
def slower_decay(data: Data, label: str, place: str = "before_projection") -> Judgement:
    """Compare the spectra of a model and of softmax attention.

    The verdict of a measure is "holds" if the model is above softmax in every layer, "does not
    hold here" if it is above in no layer, and "holds in part" otherwise.
    """
    pairs = list(zip(of(data, label), of(data, "softmax"), strict=True))
    verdicts, texts = [], []
    for key, name in MEASURES.items():
        values = [(ours[place][key], softmax[place][key]) for ours, softmax in pairs]
        wins = sum(ours > softmax for ours, softmax in values)
        verdicts.append(HOLDS if wins == len(values) else PART if wins else FAILS)
        texts.append(f"{name} {'; '.join(f'{a:.3g} and {b:.3g}' for a, b in values)}")
    measures = ". ".join(texts).replace("stable", "Stable")
    where = place.replace("_", " the output ")
    return Judgement(agreed(verdicts), f"{where}, {label} and softmax by layer: {measures}")


def theorem_1(data: Data) -> Judgement:
    """Judge the bound, and the equality in its proof."""
    found = of(data, "csp")["theorem_1"]
    ratios = [r / b for r, b in zip(found["residual"], found["bound"], strict=True)]
    change = max(found["change"])
    shows = (
        "the permutations change the distance of a channel from its center by at most "
        f"{change:.0e} of it (equation (12) of the proof: 0); the residual is at most its bound "
        f"at every depth. The bound is loose: after {len(ratios) - 1} layers the "
        f"residual is {ratios[-1]:.0e} of it"
    )
    return judgement(shows, max(ratios) <= 1 + 1e-9 and change <= 1e-9)


@with_settings
def collapses(data: Data, expected: str, kept: str, stacks: tuple[str, str]) -> Judgement:
    """Judge whether one stack collapses and the other does not, by each measure.

    Args:
        data: the measurement.
        expected: model that should collapse.
        kept: model that should not.
        stacks: the stack of each.
    """
    lost, own = of(data, expected)["stacks"][stacks[0]], of(data, kept)["stacks"][stacks[1]]
    verdicts, texts = [], []
    for key, (name, level, digits) in LEVELS.items():
        ours, theirs = own[key][-1], lost[key][-1]
        verdicts.append(FAILS if ours <= level else HOLDS if theirs <= level else PART)
        values = f"{ours:.{digits}f} and {theirs:.{digits}f}"
        texts.append(f"{name} {values}, collapsed up to {level}")
    names = f"{kept} and {expected}"
    if kept == expected:
        names = f"{kept} {stacks[1]} and {expected} {stacks[0]} alone"
    return Judgement(agreed(verdicts), f"{names}: {'; '.join(texts)}")


def low_risk(data: Data) -> Judgement:
    """Judge whether a stack of permutations keeps at least half of each measure of its input."""
    means = of(data, "sliceformer")["stacks"]["with norm"]
    names = {"residual": "rank residual"} | {key: name for key, (name, *_) in LEVELS.items()}
    kept = {name: means[key][-1] / means[key][0] for key, name in names.items()}
    shows = (
        "sorting the whole sequence permutes each channel, too. Share of its input's measure that "
        f"a stack of {len(means['residual']) - 1} sorts keeps: "
        + ", ".join(f"{name} {100 * share:.0f} %" for name, share in kept.items())
    )
    return Judgement(agreed([HOLDS if share >= 0.5 else FAILS for share in kept.values()]), shows)


def order_free(data: Data) -> Judgement:
    """Judge whether one layer's outputs depend on the order of its tokens."""
    change = max(layer["order_change"] for layer in of(data, "sliceformer"))
    other = np.mean([layer["order_change"] for layer in of(data, "csp")])
    shows = (
        f"the outputs of a layer change by {change:.1g} of their size if its input tokens are "
        f"reordered; CSP changes by {other:.2g}"
    )
    return judgement(shows, change < 1e-5 < other)


def slope_of(lengths: Sequence[float], values: Sequence[float]) -> float:
    """Fit the power of N by which values fall or rise."""
    return float(np.polyfit(np.log(lengths), np.log(values), 1)[0])


def noise_spread(data: Data) -> Judgement:
    """Judge the deviation of softmax weights of random vectors against their number."""
    tokens, deviation = data["noise"]["tokens"], data["noise"]["deviation"]
    slope = slope_of(tokens[-4:], deviation[-4:])
    shows = (
        f"{deviation[0]:.2g} with {tokens[0]} entries and {deviation[-1]:.2g} with {tokens[-1]}: "
        f"it falls as N to the power {slope:.2f}. A row with one weight of 1 has the power -0.5"
    )
    return judgement(shows, slope < -0.75)


def indistinguishable(data: Data) -> Judgement:
    """Judge whether the deviation of weights falls relative to their mean 1 / N."""
    noise, layers = data["noise"], of(data, "softmax")
    lengths = sorted(map(int, layers[0]["deviation"]))
    trained = [n * float(np.mean([x["deviation"][str(n)] for x in layers])) for n in lengths]
    random = [n * d for n, d in zip(noise["tokens"], noise["deviation"], strict=True)]
    slopes = slope_of(lengths, trained), slope_of(noise["tokens"][-4:], random[-4:])
    shows = (
        "deviation over the mean weight 1 / N (0 for equal weights): trained attention "
        f"{trained[0]:.2f} with {lengths[0]} tokens and {trained[-1]:.2f} with {lengths[-1]}, "
        f"random vectors {random[0]:.2f} with {noise['tokens'][0]} entries and {random[-1]:.2f} "
        f"with {noise['tokens'][-1]}"
    )
    return judgement(shows, max(slopes) < -0.25, min(slopes) < -0.25)


def doubly_stochastic(data: Data) -> Judgement:
    """Judge whether training brings the column sums of attention maps to 1."""
    curve = [float(np.mean(at["column_sums"])) for at in data["training"]["softmax"]]
    first, final = curve[0], curve[-1]
    shows = (
        f"column sums of softmax attention are {first:.2f} from 1 on average before training and "
        f"{final:.2f} after it"
    )
    return judgement(shows, final < min(first, 0.05), final < first)


def bound_falls(data: Data) -> Judgement:
    """Judge whether the variational bound falls from layer to layer."""
    values = [layer["bound"] for layer in of(data, "tssa")]
    falls, steps = sum(b < a for a, b in pairwise(values)), len(values) - 1
    shows = f"bound by layer, nats: {listed(values, '.3f')}; it falls {falls} of {steps} times"
    return judgement(shows, falls == steps, falls > steps / 2)


def operator_lowers(data: Data) -> Judgement:
    """Judge whether trained operators with a free output map lower the bound."""
    layers = of(data, "tssa")
    lower = sum(layer["bound_after"] < layer["bound"] for layer in layers)
    shows = f"{lower} of {len(layers)} trained operators lower the bound of their input"
    return judgement(shows, lower == len(layers), lower > 0)


def bound_is_above(data: Data) -> Judgement:
    """Judge the gap between the variational form and the coding rate, sample by sample."""
    layers = of(data, "tssa")
    least = min(layer["least_gap"] for layer in layers)
    gaps = [layer["gap"] for layer in layers]
    shows = (
        f"the gap is {min(gaps):.3f} to {max(gaps):.3f} nats by layer, and {least:.3f} in the "
        "sample with the smallest"
    )
    return judgement(shows, least >= -1e-9)


def incoherent(data: Data) -> Judgement:
    """Judge the angles between the bases of different heads."""
    layers = of(data, "tssa")
    between, random = np.mean([layer["between"] for layer in layers]), layers[0]["expected"]
    shows = f"mean |cosine| between heads {between:.3f}; random directions have {random:.3f}"
    return judgement(shows, between < 1.25 * random, between < 2 * random)


@with_settings
def connected(data: Data, label: str, after: int, share_before: float) -> Judgement:
    """Judge whether all pairs of tokens are connected after some layers, and not before.

    Args:
        data: the measurement.
        label: model.
        after: layers that must connect all pairs.
        share_before: largest share of pairs that fewer layers may connect.
    """
    shares = of(data, label)["connected_share"]
    shows = f"pairs of tokens connected after 1, 2, 3 layers: {listed(shares, '.0f', 100, ' %')}"
    before = max(shares[: after - 1], default=0.0)
    return judgement(shows, shares[after - 1] == 1.0 and before <= share_before)


@with_settings
def printed_macs(data: Data, name: str) -> Judgement:
    """Judge whether the counted multiply-accumulates are the printed ones."""
    found = of(data, name)
    millions, printed = found["macs"] / 1e6, found["printed_macs_millions"]
    shows = f"{millions:.2f} M multiply-accumulates, {found['parameters']:,} parameters"
    return judgement(shows, abs(millions / printed - 1) < 0.005)


def balanced(data: Data) -> Judgement:
    """Judge how far the sums of sorting matrices are from 1, by iterations."""
    errors = of(data, "sinkhorn")["sums_from_1"]
    one, few, many = errors["1"], errors["5"], errors["20"]
    shows = (
        f"row and column sums are {one:.2g} from 1 after one iteration, {few:.2g} after 5 and "
        f"{many:.2g} after 20"
    )
    falls = many < few < one
    return judgement(shows, falls and few < 0.05, falls)


def harder(data: Data) -> Judgement:
    """Judge the entropy of the rows of sorting matrices, by temperature."""
    softness = of(data, "sinkhorn")["softness"]
    each = ", ".join(f"{value:.2f} at {t}" for t, value in softness.items())
    ordered = [softness[t] for t in sorted(softness, key=float)]
    rises = all(b > a + 1e-6 for a, b in pairwise(ordered))
    return judgement(f"entropy of a row over the largest, by temperature: {each}", rises)


# Trainings with several seeds. Differences are paired over seeds, with the error of the test set
# and Holm's correction, as in `rifflemix compare`.

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


_ROUNDING = 0.005


def _scores(data: Data, row: str) -> dict[int, float]:
    return {int(seed): float(value) for seed, value in data["rows"][row]["test"].items()}


def advantage(data: Data, better: str, worse: str) -> Difference | None:
    """Compare two rows: positive if the first one is better, in the unit of the table.

    Accuracies have the error of the finite test set, too. Perplexities have at least the error of
    rounding to two digits, as papers print them.

    Returns:
        None if fewer than two seeds of both rows are finished, since the others diverged.
    """
    ours, theirs = (_scores(data, row) for row in (better, worse))
    if not ours or not theirs:
        return None
    if data["rows"][better]["unit"] != "%":  # lower is better
        return paired_difference(theirs, ours, _ROUNDING)
    shares = [np.mean(list(scores.values())) / 100 for scores in (ours, theirs)]
    variance = sum(share * (1 - share) for share in shares) / data["size"]["test_samples"]
    return paired_difference(ours, theirs, 100 * math.sqrt(variance))


def verdict_of(differences: Sequence[Difference | None]) -> str:
    """Judge whether differences are positive.

    Args:
        differences: one for each comparison; None if too few runs are finished.

    Returns:
        HOLDS if all are significantly positive, PART if some are. Otherwise FAILS if one is
        significantly negative, and UNDECIDED if no difference is significant.
    """
    known = [difference for difference in differences if difference is not None]
    corrected = holm([difference.probability for difference in known])
    means = [d.mean for d, p in zip(known, corrected, strict=True) if p < LEVEL]
    ahead = sum(mean > 0 for mean in means)
    if ahead:
        return HOLDS if ahead == len(differences) else PART
    return FAILS if any(mean < 0 for mean in means) else UNDECIDED


@with_settings
def is_better(data: Data, *pairs: tuple[str, str]) -> Judgement:
    """Judge whether the first row of each pair is better than the second."""
    found = {f"{a} over {b}": advantage(data, a, b) for a, b in pairs}
    return Judgement(verdict_of(list(found.values())), _shows(data, found))


@with_settings
def is_comparable(data: Data, *pairs: tuple[str, str]) -> Judgement:
    """Judge whether the first row of each pair is at most `MARGIN` points below the second."""
    found = {f"{a} minus {b}": advantage(data, a, b) for a, b in pairs}
    verdicts = {_above(d, -MARGIN) for d in found.values()}
    mixed = PART if HOLDS in verdicts else UNDECIDED
    verdict = verdicts.pop() if len(verdicts) == 1 else mixed
    shows = f"{_shows(data, found)}; comparable means at most {MARGIN:g} points less"
    return Judgement(verdict, shows)


def _above(difference: Difference | None, bound: float) -> str:
    """Judge whether a whole interval is above or below a bound."""
    if difference is None:
        return UNDECIDED
    return HOLDS if difference.low > bound else FAILS if difference.high < bound else UNDECIDED


@with_settings
def splitting_does_not_help(data: Data, dense: Sequence[str], split: Sequence[str]) -> Judgement:
    """Judge whether networks with split channels are no better than dense ones of equal size.

    The accuracy of a dense network of the same size is read from the line through the dense
    networks, over the logarithm of the number of parameters. One point is the margin.
    """
    scores = {row: _scores(data, row) for row in (*dense, *split)}
    size = {row: np.log(data["rows"][row]["parameters"]) for row in scores}
    excess = {}  # of the split networks, by seed
    for seed in set.intersection(*(set(of) for of in scores.values())):
        line = np.polyfit([size[row] for row in dense], [scores[r][seed] for r in dense], 1)
        gaps = [scores[row][seed] - np.polyval(line, size[row]) for row in split]
        excess[seed] = float(np.mean(gaps))
    found = paired_difference(excess, dict.fromkeys(excess, 0.0))
    shows = _shows(data, {"split networks minus dense ones of equal size, points:": found})
    opposite = {HOLDS: FAILS, FAILS: HOLDS, UNDECIDED: UNDECIDED}
    return Judgement(opposite[_above(found, 1.0)], shows)


def _shows(data: Data, found: Mapping[str, Difference | None]) -> str:
    """Write the size of the runs, the mean of each row, and differences with intervals."""
    rows = data["rows"]
    unit = next(iter(rows.values()))["unit"]
    means = ", ".join(f"{name} {_mean(row)}" for name, row in rows.items())
    word = "accuracy in %" if unit == "%" else unit
    intervals = (
        f"{name} {d.mean:+.2f} [{d.low:+.2f}, {d.high:+.2f}]"
        if d
        else f"{name} unknown, too few finished runs"
        for name, d in found.items()
    )
    return f"at {size_of(data)}: test {word} {means}; {'; '.join(intervals)}"


def _mean(row: Data) -> str:
    """Write the mean of a row over its finished runs, and the number that diverged."""
    values, lost = list(row["test"].values()), len(row["diverged"])
    mean = f"{np.mean(values):.2f}" if values else "unknown"
    return f"{mean} ({lost} diverged)" if lost else mean
