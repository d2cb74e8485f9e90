"""Judges of claims that checks in Python test."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from claims.base import FAILS, HOLDS, PART, UNDECIDED, Data, Judgement

from rifflemix.lab.comparison.statistics import paired_difference


def own_maps(data: Data) -> Judgement:
    """Judge whether no two channels of CSP share a map."""
    channels, count = data["channels"], data["maps"]["shift_and_pairs"]
    shows = f"{count} different maps among {channels} channels of {data['tokens']} tokens"
    return Judgement(HOLDS if count == channels else FAILS, shows)


def pairs_add_maps(data: Data) -> Judgement:
    """Judge whether pairs raise the number of maps from min(C, N) to C."""
    maps, channels, tokens = data["maps"], data["channels"], data["tokens"]
    shows = (
        f"{channels} channels of {tokens} tokens have {maps['shift']} different maps by shifts "
        f"alone and {maps['shift_and_pairs']} with pairs"
    )
    holds = maps["shift"] == min(channels, tokens) < maps["shift_and_pairs"] == channels
    return Judgement(HOLDS if holds else FAILS, shows)


def optimal(data: Data) -> Judgement:
    """Judge whether the maps of CSP solve the transport problem."""
    shows = (
        f"{data['equal']} of {data['compared']} maps of groups of "
        f"{', '.join(map(str, data['group_sizes']))} tokens are the optimal transport, found by "
        f"linear programming; the largest gap of the objective is {data['largest_gap']:.1g}"
    )
    return Judgement(HOLDS if data["equal"] == data["compared"] > 0 else FAILS, shows)


def converges(data: Data) -> Judgement:
    """Judge whether doubly stochastic maps approach CSP's maps as the temperature falls."""
    distance = data["distance"]
    listed = ", ".join(
        f"{d:.2g} at {t:g}" for t, d in zip(data["temperatures"], distance, strict=True)
    )
    shows = (
        f"largest difference of an entry after {data['iterations']:,} iterations, mean over "
        f"{data['maps']} maps, by temperature: {listed}"
    )
    falls = all(b < a for a, b in pairwise(distance))
    is_balanced = max(data["sums_from_1"]) < 1e-3
    return Judgement(HOLDS if falls and is_balanced and distance[-1] < 0.01 else FAILS, shows)


def shift_is_redundant(data: Data) -> Judgement:
    """Judge whether the shift changes nothing with one group, and something with more."""
    change = {int(k): max(values) for k, values in data["change_by_groups"].items()}
    listed = ", ".join(f"{value:.2g} with K = {k}" for k, value in change.items())
    shows = f"without its shift the output changes by this share of its size: {listed}"
    others = min(value for k, value in change.items() if k > 1)
    return Judgement(HOLDS if change[1] < 1e-9 and others > 1e-3 else FAILS, shows)


def third_of_parameters(data: Data) -> Judgement:
    """Judge the parameters of a layer: a third without the output map, more with it."""
    layer, maps = data["layer"], data["input_maps"]
    whole, inputs = layer["csp"] / layer["softmax"], maps["csp"] / maps["softmax"]
    shows = (
        f"{inputs:.3f} of the parameters of the query, key and value maps; {whole:.3f} with the "
        "output map (the printed model sizes include it)"
    )
    if inputs > 1 / 3 + 0.005:
        return Judgement(FAILS, shows)
    return Judgement(HOLDS if whole <= 1 / 3 + 0.005 else PART, shows)


def fewer_parameters(data: Data) -> Judgement:
    """Judge whether the models of Table 3 have the printed, smaller sizes."""
    pairs = {data_set: np.array(of) / 1e6 for data_set, of in data["models"].items()}
    printed = data["printed_millions"]
    listed = ", ".join(f"{of[0]:.2f} and {of[1]:.2f} M ({name})" for name, of in pairs.items())
    shows = f"CSP and ViT: {listed}"
    as_printed = all(np.allclose(of, printed[name], atol=0.006) for name, of in pairs.items())
    return Judgement(
        HOLDS if as_printed and all(a < b for a, b in pairs.values()) else FAILS, shows
    )


def only_the_largest(data: Data) -> Judgement:
    """Judge whether max-exchange moves two values of a channel and puts the largest first."""
    rows = data["tokens"]
    moved = {n: row["most_moved"] for n, row in rows.items()}
    first = min(row["largest_first"] for row in rows.values())
    shows = (
        f"at most {max(moved.values())} values of a channel move, with "
        f"{', '.join(moved)} tokens; the largest value comes first in {100 * first:.0f} % of the "
        "channels"
    )
    return Judgement(HOLDS if max(moved.values()) == 2 and first == 1.0 else FAILS, shows)


def whole_model_is_invariant(data: Data) -> Judgement:
    """Judge whether the logits of a ViT with Sliceformer depend on the order of patches."""
    ours, softmax = data["change"]["sliceformer"], data["change"]["softmax"]
    free, fixed = ours["without positions"], ours["with positions"]
    shows = (
        f"if the {data['patches']} patches of an image change places, the logits of a ViT with "
        f"Sliceformer change by {fixed:.2g} of their size, and by {free:.2g} without position "
        "embeddings, since the skip connections add tokens that are not sorted. Softmax attention "
        f"without position embeddings: {softmax['without positions']:.1g}"
    )
    return Judgement(HOLDS if fixed < 1e-5 else PART if free < 1e-5 else FAILS, shows)


def fewer_than_baselines(data: Data) -> Judgement:
    """Judge on which tasks Sliceformer has fewer parameters than every baseline."""
    tasks = data["tasks"]
    fewer = {
        task: sum(rows["ascending"] < count for row, count in rows.items() if row != "ascending")
        for task, rows in tasks.items()
    }
    whole = len(next(iter(tasks.values()))) - 1
    listed = ", ".join(
        f"{task} {count} (Sliceformer {tasks[task]['ascending']:,}, Transformer "
        f"{tasks[task]['softmax']:,})"
        for task, count in fewer.items()
    )
    shows = f"baselines of {whole} with more parameters, in the released sizes: {listed}"
    counts = list(fewer.values())
    if min(counts) == whole:
        return Judgement(HOLDS, shows)
    return Judgement(PART if max(counts) == whole else FAILS, shows)


def step_lowers(data: Data) -> Judgement:
    """Judge whether the operator with tied bases lowers the bound."""
    draws, lowered = data["draws"], data["lowered"]
    listed = ", ".join(f"{count} of {draws} at step size {step}" for step, count in lowered.items())
    shows = f"with random orthonormal bases and tokens the bound falls in {listed}"
    counts = list(lowered.values())
    verdict = HOLDS if min(counts) == draws else PART if max(counts) == draws else FAILS
    return Judgement(verdict, shows)


def foreground_has_a_head(data: Data) -> Judgement:
    """Judge whether one head takes the foreground and not the background."""
    best = max(data["group_difference"])
    listed = ", ".join(f"{100 * value:.0f}" for value in data["group_difference"])
    shows = (
        "share of foreground patches with the same likeliest head minus the share of background "
        f"patches, in points by layer, for the best head: {listed}. A head with all of the "
        "foreground and no background has 100"
    )
    return Judgement(HOLDS if best >= 0.8 else PART if best >= 0.5 else FAILS, shows)


def segments_better(data: Data) -> Judgement:
    """Judge the class token's maps as detectors of the foreground, paired over images."""
    areas = data["areas"]
    ours = dict(enumerate(areas["tssa"]))
    differences = [
        paired_difference(ours, dict(enumerate(areas[other]))) for other in ("xca", "softmax")
    ]
    listed = ", ".join(f"{mixer} {np.mean(of):.3f}" for mixer, of in areas.items())
    shows = (
        "area under the ROC curve of the class token's map as a detector of foreground patches, "
        f"mean over {data['images']} images: {listed}"
    )
    known = [difference for difference in differences if difference is not None]
    if any(difference.high < 0 for difference in known):
        return Judgement(FAILS, shows)
    return Judgement(HOLDS if all(d.low > 0 for d in known) else UNDECIDED, shows)


def equal_strides_do_not_mix(data: Data) -> Judgement:
    """Judge whether equal strides connect no more than one layer, and unequal strides all."""
    found = data["connected"]
    shows = (
        f"butterfly attention connects {100 * found['one']:.1f} % of the pairs in one layer, "
        f"{100 * found['equal']:.1f} % in two layers of equal stride and "
        f"{100 * found['unequal']:.1f} % in two of unequal stride"
    )
    holds = found["equal"] == found["one"] < 1.0 == found["unequal"]
    return Judgement(HOLDS if holds else FAILS, shows)


def quasi_global(data: Data) -> Judgement:
    """Judge how much weight of sorted attention goes to other blocks, and how many it reaches."""
    outside, reached = data["outside"], data["blocks_reached"]
    shows = (
        f"share of the weight outside a token's own block of {data['block_size']}, by layer: "
        f"{', '.join(f'{value:.2f}' for value in outside)}; share of the blocks that get at least "
        f"a tenth of equal weight: {', '.join(f'{value:.2f}' for value in reached)}. Local "
        "attention has 0 outside"
    )
    if min(outside) < 0.1:
        return Judgement(FAILS, shows)
    return Judgement(HOLDS if min(reached) > 0.5 else PART, shows)


def cheaper_when_long(data: Data) -> Judgement:
    """Judge whether butterfly attention saves time and memory, and more with more tokens."""
    ratios = {int(n): of["dense_over_butterfly"] for n, of in data["tokens"].items()}
    texts, holds = [], []
    for key, name in (("seconds", "processor time"), ("bytes", "peak memory")):
        values = [ratios[n][key] for n in sorted(ratios)]
        listed = ", ".join(f"{value:.2f}" for value in values)
        texts.append(f"{name} {listed}")
        holds.append(values[-1] > 1.2 and values[-1] > values[0])
    shows = (
        f"a training step with dense attention over one with butterfly attention, with "
        f"{', '.join(map(str, sorted(ratios)))} tokens: {'; '.join(texts)}. "
        "Attention here keeps no N x N weights, dense or not"
    )
    return Judgement(HOLDS if all(holds) else PART if any(holds) else FAILS, shows)


def printed_parameters(data: Data) -> Judgement:
    """Judge the counted parameters against the printed ones."""
    rows = data["rows"]
    other = [
        f"{name} {row['parameters']:,} (printed {row['printed']:,})"
        for name, row in rows.items()
        if abs(row["parameters"] / row["printed"] - 1) > 0.005
    ]
    shows = f"{len(rows) - len(other)} of {len(rows)} models have the printed count to 0.5 %"
    if other:
        shows += f"; not {', '.join(other)}"
    if not other:
        return Judgement(HOLDS, shows)
    return Judgement(PART if len(other) < len(rows) / 2 else FAILS, shows)
