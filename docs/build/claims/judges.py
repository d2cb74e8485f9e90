"""Judges of claims that analyses test."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from claims.base import DEPENDS, FAILS, HOLDS, PART, Data, Judge, Judgement, judgement, listed

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


def slower_decay(label: str, place: str = "before_projection") -> Judge:
    """Make a judge that compares the spectra of a model and of softmax attention.

    The verdict of a measure is "holds" if the model is above softmax in every layer, "does not
    hold here" if it is above in no layer, and "holds in part" otherwise.
    """

    def judge(data: Data) -> Judgement:
        pairs = list(zip(of(data, label), of(data, "softmax"), strict=True))
        verdicts, texts = [], []
        for key, name in MEASURES.items():
            values = [(ours[place][key], softmax[place][key]) for ours, softmax in pairs]
            wins = sum(ours > softmax for ours, softmax in values)
            verdicts.append(HOLDS if wins == len(values) else PART if wins else FAILS)
            each = "; ".join(f"{ours:.3g} and {softmax:.3g}" for ours, softmax in values)
            texts.append(f"{name} {each}")
        measures = ". ".join(texts).replace("stable", "Stable")
        where = place.replace("_", " the output ")
        return Judgement(agreed(verdicts), f"{where}, {label} and softmax by layer: {measures}")

    return judge


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


def collapses(expected: str, kept: str, stacks: tuple[str, str]) -> Judge:
    """Make a judge: one stack collapses and the other does not, by each measure.

    Args:
        expected: model that should collapse.
        kept: model that should not.
        stacks: the stack of each.
    """

    def judge(data: Data) -> Judgement:
        lost, own = of(data, expected)["stacks"][stacks[0]], of(data, kept)["stacks"][stacks[1]]
        verdicts, texts = [], []
        for key, (name, level, digits) in LEVELS.items():
            ours, theirs = own[key][-1], lost[key][-1]
            both = ours > level >= theirs
            verdicts.append(HOLDS if both else PART if ours > level else FAILS)
            values = f"{ours:.{digits}f} and {theirs:.{digits}f}"
            texts.append(f"{name} {values}, collapsed up to {level}")
        names = f"{kept} and {expected}"
        if kept == expected:
            names = f"{kept} {stacks[1]} and {expected} {stacks[0]} alone"
        return Judgement(agreed(verdicts), f"{names}: {'; '.join(texts)}")

    return judge


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


def connected(label: str, after: int, share_before: float) -> Judge:
    """Make a judge: all pairs of tokens are connected after some layers, and not before.

    Args:
        label: model.
        after: layers that must connect all pairs.
        share_before: largest share of pairs that fewer layers may connect.
    """

    def judge(data: Data) -> Judgement:
        shares = of(data, label)["connected_share"]
        each = listed(shares, ".0f", 100, " %")
        before = max(shares[: after - 1], default=0.0)
        return judgement(
            f"pairs of tokens connected after 1, 2, 3 layers: {each}",
            shares[after - 1] == 1.0 and before <= share_before,
        )

    return judge


def printed_macs(name: str) -> Judge:
    """Make a judge: the counted multiply-accumulates are the printed ones."""

    def judge(data: Data) -> Judgement:
        found = of(data, name)
        millions, printed = found["macs"] / 1e6, found["printed_macs_millions"]
        shows = f"{millions:.2f} M multiply-accumulates, {found['parameters']:,} parameters"
        return judgement(shows, abs(millions / printed - 1) < 0.005)

    return judge


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
