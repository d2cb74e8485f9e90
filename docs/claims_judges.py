"""How the numbers of an analysis decide each of the papers' claims in claims_list.py.

A judge takes an analysis's data to the verdict and to what ours shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np

HOLDS, PART, FAILS = "holds", "holds in part", "does not hold here"
Data = Mapping[str, Any]
Judge = Callable[[Data], tuple[str, str]]


def of(data: Data, label: str) -> Any:
    """What an analysis holds of one model."""
    return data["models"][label]


def mean_of(layers: list[Data], key: str) -> float:
    """A number's mean over layers."""
    return float(np.mean([layer[key] for layer in layers]))


def full_rank(data: Data) -> tuple[str, str]:
    layers = of(data, "csp")
    least = min(layer["map_effective_rank"] for layer in layers)
    tokens = layers[0]["tokens"]
    ours = f"every map of the trained layers has effective rank {least:.1f} of {tokens}"
    return (HOLDS if least > tokens - 1e-6 else FAILS), ours


def slower_decay(label: str) -> Judge:
    def judge(data: Data) -> tuple[str, str]:
        ours, softmax = of(data, label), of(data, "softmax")
        pairs = [
            (a["effective_rank"], b["effective_rank"]) for a, b in zip(ours, softmax, strict=True)
        ]
        wins = sum(a > b for a, b in pairs)
        listed = "; ".join(f"{a:.1f} and {b:.1f}" for a, b in pairs)
        text = f"effective rank of the outputs by layer, {label} and softmax: {listed}"
        return (HOLDS if wins == len(pairs) else PART if wins else FAILS), text

    return judge


def theorem_1(data: Data) -> tuple[str, str]:
    found = of(data, "csp")["theorem_1"]
    ratios = [r / b for r, b in zip(found["residual"], found["bound"], strict=True)]
    ours = (
        f"at every depth the residual is at most its bound; after {len(ratios) - 1} layers it is "
        f"{ratios[-1]:.0e} of it"
    )
    return (HOLDS if max(ratios) <= 1 + 1e-9 else FAILS), ours


def last(data: Data, label: str, stack: str = "with norm") -> tuple[float, float]:
    """Residual and effective rank after the last layer."""
    means = of(data, label)["stacks"][stack]
    return means["residual"][-1], means["effective"][-1]


def no_collapse(data: Data) -> tuple[str, str]:
    (_, csp), (_, softmax) = last(data, "csp"), last(data, "softmax")
    ours = f"effective rank {csp:.1f} with CSP and {softmax:.1f} with softmax attention"
    return (HOLDS if csp > 10 * softmax else PART if csp > softmax else FAILS), ours


def alone(data: Data) -> tuple[str, str]:
    (residual, csp), (_, softmax) = (last(data, m, "mixers alone") for m in ("csp", "softmax"))
    ours = (
        f"effective rank {csp:.1f} with CSP and {softmax:.1f} with softmax attention, and CSP's "
        f"residual is {residual:.1e} of the tokens' size: what differs between tokens fades "
        "against the biases of the output maps, which theorem 1 leaves out"
    )
    return (HOLDS if csp > 10 * softmax else PART if csp > 2 * softmax else FAILS), ours


def hidden_collapse(data: Data) -> tuple[str, str]:
    (residual, rank), (_, csp) = last(data, "sliceformer"), last(data, "csp")
    ours = (
        f"the whole-sequence sort, a permutation as well, keeps a residual of {residual:.2f} while "
        f"its effective rank falls to {rank:.1f}, where CSP with pairs keeps {csp:.1f}: the "
        "published measure says no collapse, the spectrum says otherwise"
    )
    return (HOLDS if rank > 0.5 * csp else PART if residual > 0.5 else FAILS), ours


def skips_save_softmax(data: Data) -> tuple[str, str]:
    stacks = {name: last(data, "softmax", name)[1] for name in ("with norm", "with norm and skip")}
    alone, skip = stacks.values()
    ours = f"softmax attention: effective rank {alone:.1f} without skips, {skip:.1f} with them"
    return (HOLDS if alone < 1.5 < 0.5 * skip else PART), ours


def distinct_maps(data: Data) -> tuple[str, str]:
    layers = of(data, "csp")
    distinct, channels = mean_of(layers, "distinct"), layers[0]["channels"]
    ours = f"{distinct:.1f} different permutations among {channels} channels"
    return (HOLDS if distinct > 0.9 * channels else PART), ours


def order_free(data: Data) -> tuple[str, str]:
    change = max(layer["order_change"] for layer in of(data, "sliceformer"))
    other = mean_of(of(data, "csp"), "order_change")
    ours = (
        f"a layer's outputs change by {change:.1g} of their size when its input tokens are "
        f"reordered; CSP's by {other:.2g}"
    )
    return (HOLDS if change < 1e-5 else FAILS), ours


def exchange_is_local(data: Data) -> tuple[str, str]:
    layers = of(data, "exchange")
    share = mean_of(layers, "moved_share")
    ours = f"max-exchange moves {100 * share:.1f} % of the values, the sort "
    ours += f"{100 * mean_of(of(data, 'sliceformer'), 'moved_share'):.1f} %"
    return (HOLDS if share < 0.1 else PART), ours


def noise_spread(data: Data) -> tuple[str, str]:
    tokens, deviation = data["noise"]["tokens"], data["noise"]["deviation"]
    slope = float(np.polyfit(np.log(tokens[-4:]), np.log(deviation[-4:]), 1)[0])
    ours = (
        f"{deviation[0]:.2g} at {tokens[0]} entries, {deviation[-1]:.2g} at {tokens[-1]}: it falls "
        f"as N to the power {slope:.2f}"
    )
    return (HOLDS if slope < -0.5 else FAILS), ours


def trained_spread(data: Data) -> tuple[str, str]:
    layers = of(data, "softmax")
    lengths = sorted(map(int, layers[0]["deviation"]))
    ends = [float(np.mean([x["deviation"][str(n)] for x in layers])) for n in lengths]
    falls = all(a > b for a, b in pairwise(ends))
    ours = f"{ends[0]:.2g} with {lengths[0]} tokens, {ends[-1]:.2g} with {lengths[-1]}"
    return (HOLDS if falls else PART if ends[-1] < ends[0] else FAILS), ours


def doubly_stochastic(data: Data) -> tuple[str, str]:
    curve = [float(np.mean(at["column_sums"])) for at in data["training"]["softmax"]]
    first, last = curve[0], curve[-1]
    ours = (
        f"column sums of softmax attention lie {first:.2f} from 1 on average before training and "
        f"{last:.2f} after it"
    )
    verdict = HOLDS if last < 0.05 and last <= first else PART if last < max(0.15, first) else FAILS
    return verdict, ours


def bound_falls(data: Data) -> tuple[str, str]:
    values = [layer["bound"] for layer in of(data, "tssa")]
    falls = sum(b < a for a, b in pairwise(values))
    listed = ", ".join(f"{value:.3f}" for value in values)
    ours = f"bound by layer, nats: {listed}; it falls {falls} of {len(values) - 1} times"
    steps = len(values) - 1
    return (HOLDS if falls == steps else PART if falls > steps / 2 else FAILS), ours


def operator_lowers(data: Data) -> tuple[str, str]:
    layers = of(data, "tssa")
    lower = sum(layer["bound_after"] < layer["bound"] for layer in layers)
    ours = f"{lower} of {len(layers)} trained operators lower the bound of their own input"
    return (HOLDS if lower == len(layers) else PART if lower else FAILS), ours


def bound_is_above(data: Data) -> tuple[str, str]:
    gaps = [layer["gap"] for layer in of(data, "tssa")]
    ours = f"the gap is {min(gaps):.3f} to {max(gaps):.3f} nats, never below 0"
    return (HOLDS if min(gaps) >= -1e-9 else FAILS), ours


def tokens_cluster(data: Data) -> tuple[str, str]:
    layers = of(data, "tssa")
    heads = len(layers[0]["head_share"])
    share = min(layer["entropy"] for layer in layers) / np.log(heads)
    ours = (
        f"a token's distribution over {heads} heads keeps at least {100 * share:.1f} % of the "
        "largest entropy: it hardly chooses"
    )
    if share < 0.7:
        ours = f"the entropy of a token over the heads falls to {100 * share:.0f} % of the largest"
    return (HOLDS if share < 0.7 else PART if share < 0.9 else FAILS), ours


def incoherent(data: Data) -> tuple[str, str]:
    layers = of(data, "tssa")
    between, random = mean_of(layers, "between"), layers[0]["expected"]
    ours = f"mean |cosine| between heads {between:.3f}; random directions have {random:.3f}"
    return (HOLDS if between < 1.25 * random else PART if between < 2 * random else FAILS), ours


def sharper_maps(data: Data) -> tuple[str, str]:
    found = {name: of(data, name)[-2]["entropy"] for name in ("tssa", "xca", "softmax")}
    listed = ", ".join(f"{name} {value:.3f}" for name, value in found.items())
    ours = (
        f"entropy of the maps over that of equal weights: {listed}; all three pick a few patches "
        "at the stroke or beside it, none outlines the digit"
    )
    is_sharper = found["tssa"] < min(found["xca"], found["softmax"]) - 0.05  # one seed differs less
    return (PART if is_sharper else FAILS), ours


def connected(label: str, after: int, share: float) -> Judge:
    def judge(data: Data) -> tuple[str, str]:
        shares = of(data, label)["connected_share"]
        listed = ", ".join(f"{100 * s:.0f} %" for s in shares)
        ours = f"pairs of tokens connected after 1, 2, 3 layers: {listed}"
        return (HOLDS if shares[after - 1] >= share else FAILS), ours

    return judge


def never_connected(data: Data) -> tuple[str, str]:
    shares = of(data, "local")["connected_share"]
    ours = f"equal blocks in all layers connect {100 * shares[-1]:.0f} % of the pairs, after 1 or 3"
    return (HOLDS if shares[-1] < 1.0 and shares[0] == shares[-1] else FAILS), ours


def printed_macs(name: str) -> Judge:
    def judge(data: Data) -> tuple[str, str]:
        found = of(data, name)
        millions, printed = found["macs"] / 1e6, found["printed_macs_millions"]
        ours = f"{millions:.2f} M multiply-accumulates, {found['parameters']:,} parameters"
        return (HOLDS if abs(millions / printed - 1) < 0.005 else FAILS), ours

    return judge


def balanced(data: Data) -> tuple[str, str]:
    errors = of(data, "sinkhorn")["sums_from_1"]
    ours = (
        f"row and column sums lie {errors['1']:.2g} from 1 after one iteration, {errors['5']:.2g} "
        f"after 5, {errors['20']:.2g} after 20"
    )
    few, many = errors["5"], errors["20"]
    return (HOLDS if few < 0.05 else PART if many < few < errors["1"] else FAILS), ours


def harder(data: Data) -> tuple[str, str]:
    softness = of(data, "sinkhorn")["softness"]
    values = list(softness.values())
    listed = ", ".join(f"{value:.2f} at {t}" for t, value in softness.items())
    ours = f"entropy of a row over the largest, by temperature: {listed}"
    return (HOLDS if values == sorted(values) else FAILS), ours
