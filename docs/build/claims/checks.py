"""Claims of CSP, Sliceformer and butterfly attention that need no training.

Each claim has a function that measures and returns JSON values, and a judge of these values. The
argument `make` builds a layer as `rm.create_mixer` does; tests pass wrong layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, product
from typing import Any

import torch
from claims.base import Data, Judgement, judgement, listed
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

import rifflemix as rm
from rifflemix.lab.analysis import Call, permutation_of, trace
from rifflemix.lab.analysis.kinds.measures import distinct_permutations
from rifflemix.lab.analysis.kinds.pattern import reach_after, reach_of
from rifflemix.lab.analysis.trace import undisturbed

Make = Callable[..., Any]


def call_of(layer: nn.Module, x: Tensor) -> Call:
    """Run one layer on tokens (B, N, C) and record the call."""
    ((call,),) = trace(layer, [x])
    return call


def index_of(layer: nn.Module, x: Tensor) -> Tensor:
    """(B, N, C) source of every value of a permutation layer."""
    index = permutation_of(call_of(layer, x))
    assert index is not None, "the layer permutes its values"
    return index


def noise(*shape: int, seed: int = 0) -> Tensor:
    """Normal float64 numbers, the same in every call."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def heads(make: Make = rm.create_mixer, tokens: int = 64, channels: int = 512) -> dict[str, Any]:
    """Count the different maps among the channels of CSP, for each of its two steps.

    Source: CSP, sections 3.2 and 3.2.2.
    """
    variants: dict[str, dict[str, Any]] = {
        "shift": {"group_size": 1},
        "pairs": {"group_size": 2, "shift": "none"},
        "shift_and_pairs": {},
        "whole_sort": {"num_groups": 1, "shift": "none"},
    }
    torch.manual_seed(0)
    found = {}
    for name, options in variants.items():
        layer = make("csp", channels, max_length=tokens, **options).double()
        counts = distinct_permutations(index_of(layer, noise(4, tokens, channels)))[0]
        found[name] = int(counts.min())
    return {"tokens": tokens, "channels": channels, "maps": found}


def own_maps(data: Data) -> Judgement:
    channels, count = data["channels"], data["maps"]["shift_and_pairs"]
    shows = f"{count} different maps among {channels} channels of {data['tokens']} tokens"
    return judgement(shows, count == channels)


def pairs_add_maps(data: Data) -> Judgement:
    """Judge whether pairs raise the number of maps from min(C, N) to C."""
    maps, channels, tokens = data["maps"], data["channels"], data["tokens"]
    shows = (
        f"{channels} channels of {tokens} tokens have {maps['shift']} different maps by shifts "
        f"alone and {maps['shift_and_pairs']} with pairs"
    )
    holds = maps["shift"] == min(channels, tokens) < maps["shift_and_pairs"] == channels
    return judgement(shows, holds)


def transport(
    make: Make = rm.create_mixer, group_sizes: Sequence[int] = (2, 4, 8), tokens: int = 32
) -> dict[str, Any]:
    """Compare every map of CSP with the optimal transport to the reference channel of its group.

    `linear_sum_assignment` of scipy solves the transport problem.

    Source: CSP, appendix B, equations (18) to (20).
    """
    channels, compared, equal, gap = 16, 0, 0, 0.0
    torch.manual_seed(0)
    for size in group_sizes:
        layer = make("csp", channels, max_length=tokens, group_size=size).double()
        for reference, shifted, chosen in _groups(layer, noise(2, tokens, channels), size):
            optimal = linear_sum_assignment(-torch.outer(reference, shifted).numpy())[1]
            compared += 1
            equal += bool((torch.as_tensor(optimal) == chosen).all())
            best, ours = (float(reference @ shifted[of]) for of in (optimal, chosen))
            gap = max(gap, best - ours)
    return {
        "group_sizes": list(group_sizes),
        "compared": compared,
        "equal": equal,
        "largest_gap": gap,
    }


def _values(layer: Any, x: Tensor) -> Tensor:
    with undisturbed(layer):
        values: Tensor = layer.value(x)
    return values


def _groups(layer: Any, x: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield the reference, the shifted channel and the chosen order of every group."""
    values, index = _values(layer, x), index_of(layer, x)
    length = values.shape[1]
    for sample, channel in product(range(len(x)), range(1, values.shape[2])):
        step = layer.size_and_steps(length)[1][channel]
        reference, own = values[sample, :, 0], values[sample, :, channel].roll(step)
        place_of = {(n - step) % length: n for n in range(length)}  # of a token after the shift
        for first in range(0, length, size):
            group = slice(first, first + size)
            chosen = [place_of[int(token)] - first for token in index[sample, group, channel]]
            yield reference[group], own[group], torch.tensor(chosen) % size


def optimal(data: Data) -> Judgement:
    shows = (
        f"{data['equal']} of {data['compared']} maps of groups of {listed(data['group_sizes'])} "
        "tokens are the optimal transport, found by linear programming; the largest gap of the "
        f"objective is {data['largest_gap']:.1g}"
    )
    return judgement(shows, data["equal"] == data["compared"] > 0)


TEMPERATURES = (1.0, 0.1, 0.01, 0.001, 0.0001)


def entropic(
    make: Make = rm.create_mixer, size: int = 4, iterations: int = 20_000
) -> dict[str, Any]:
    """Compare the doubly stochastic maps of equation (9) with the maps of CSP, by temperature.

    The distance is the mean over maps of the largest difference of an entry.

    Source: CSP, equation (9) and theorem 2.
    """
    tokens, channels = 16, 8
    torch.manual_seed(0)
    layer = make("csp", channels, max_length=tokens, group_size=size).double()
    groups = list(_groups(layer, noise(2, tokens, channels), size))
    scores = torch.stack([torch.outer(reference, shifted) for reference, shifted, _ in groups])
    maps = torch.stack([torch.eye(size, dtype=torch.float64)[chosen] for *_, chosen in groups])
    distances, errors = [], []
    for temperature in TEMPERATURES:
        soft = rm.ops.sinkhorn(scores / temperature, iterations)
        distances.append(float((soft - maps).abs().amax((1, 2)).mean()))
        errors.append(float((soft.sum(-1) - 1).abs().max()))
    return {
        "temperatures": list(TEMPERATURES),
        "distance": distances,
        "sums_from_1": errors,
        "maps": len(maps),
        "iterations": iterations,
    }


def converges(data: Data) -> Judgement:
    """Judge whether doubly stochastic maps approach CSP's maps as the temperature falls."""
    distance = data["distance"]
    pairs = zip(data["temperatures"], distance, strict=True)
    shows = (
        f"largest difference of an entry after {data['iterations']:,} iterations, mean over "
        f"{data['maps']} maps, by temperature: {', '.join(f'{d:.2g} at {t:g}' for t, d in pairs)}"
    )
    falls = all(b < a for a, b in pairwise(distance))
    return judgement(shows, falls and max(data["sums_from_1"]) < 1e-3 and distance[-1] < 0.01)


def redundant_shift(make: Make = rm.create_mixer) -> dict[str, Any]:
    """Measure how much the output of CSP changes if the shift is left out, by number of groups.

    The layers of a pair have equal weights. The change is relative to the output.

    Source: CSP, section 3.2.2, the special case K = 1.
    """
    tokens, channels = 32, 16
    change = {}
    for groups in (1, 2, 16):
        outputs = []
        for shift in ("linear", "power", "none"):
            torch.manual_seed(0)
            layer = make("csp", channels, max_length=tokens, num_groups=groups, shift=shift)
            outputs.append(call_of(layer.double(), noise(2, tokens, channels)).y)
        size = outputs[-1].norm()
        change[str(groups)] = [float((y - outputs[-1]).norm() / size) for y in outputs[:-1]]
    return {"shifts": ["linear", "power"], "change_by_groups": change}


def shift_is_redundant(data: Data) -> Judgement:
    """Judge whether the shift changes nothing with one group, and something with more."""
    change = {int(k): max(values) for k, values in data["change_by_groups"].items()}
    each = ", ".join(f"{value:.2g} with K = {k}" for k, value in change.items())
    shows = f"without its shift the output changes by this share of its size: {each}"
    others = min(value for k, value in change.items() if k > 1)
    return judgement(shows, change[1] < 1e-9 and others > 1e-3)


def exchange(make: Make = rm.create_mixer) -> dict[str, Any]:
    """Count the values that max-exchange moves in a channel, and check that it moves the largest.

    Source: Sliceformer, section 3.3.
    """
    torch.manual_seed(0)
    found: dict[str, dict[str, Any]] = {}
    for tokens in (16, 64, 256):
        layer = make("sliceformer", 32, max_length=tokens, variant="max_exchange").double()
        x = noise(4, tokens, 32)
        index, values = index_of(layer, x), _values(layer, x)
        moved = (index != torch.arange(tokens)[None, :, None]).sum(1)
        permuted = values.gather(1, index)
        found[str(tokens)] = {
            "most_moved": int(moved.max()),
            "largest_first": float((permuted[:, 0] == values.amax(1)).double().mean()),
        }
    return {"tokens": found}


def only_the_largest(data: Data) -> Judgement:
    """Judge whether max-exchange moves two values of a channel and puts the largest first."""
    rows = data["tokens"]
    most = max(row["most_moved"] for row in rows.values())
    first = min(row["largest_first"] for row in rows.values())
    shows = (
        f"at most {most} values of a channel move, with {', '.join(rows)} tokens; the largest "
        f"value comes first in {100 * first:.0f} % of the channels"
    )
    return judgement(shows, most == 2 and first == 1.0)


def whole_vit(
    models: Callable[[str], Any] = lambda mixer: rm.create_model("vit_cifar10", mixer=mixer),
) -> dict[str, Any]:
    """Measure how much the logits of a ViT change if the patches of its images change places.

    Fresh weights, since the question is one of structure. Without positions: the learned
    positions are zero. The patches of the two mixers change places in the same way.

    Source: Sliceformer, section 4.
    """
    images = noise(4, 3, 32, 32).float()
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0))
    patches = images.unfold(2, 4, 4).unfold(3, 4, 4).flatten(2, 3)  # (4, 3, 64, 4, 4)
    moved = patches[:, :, order].unflatten(2, (8, 8)).transpose(3, 4).reshape(images.shape)
    change: dict[str, dict[str, float]] = {}
    for mixer in ("sliceformer", "softmax"):
        torch.manual_seed(0)
        model = models(mixer).double()
        change[mixer] = {}
        for name in ("with positions", "without positions"):
            if name == "without positions":
                nn.init.zeros_(model.positions.table)
            with undisturbed(model):
                before, after = model(images.double()), model(moved.double())
            change[mixer][name] = float((after - before).norm() / before.norm())
    return {"change": change, "patches": 64}


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
    return judgement(shows, fixed < 1e-5, free < 1e-5)


def repeated_butterfly(make: Make = rm.create_mixer) -> dict[str, Any]:
    """Measure which pairs of tokens two butterfly layers connect, with equal and unequal strides.

    Source: Dimension Mixer, Figure 4: (aa) and (ab).
    """
    tokens, found = 64, {}
    for name, strides in (("one", (0,)), ("equal", (0, 0)), ("unequal", (0, 1))):
        layers = [
            make("butterfly", 16, num_heads=2, max_length=tokens, layer_index=i, num_layers=2)
            for i in strides
        ]
        x = noise(1, tokens, 16)
        reached = reach_after([reach_of(call_of(layer.double(), x)) for layer in layers])
        found[name] = float(reached[-1].mean())
    return {"tokens": tokens, "connected": found}


def equal_strides_do_not_mix(data: Data) -> Judgement:
    """Judge whether equal strides connect no more than one layer, and unequal strides all."""
    found = data["connected"]
    shows = (
        f"butterfly attention connects {100 * found['one']:.1f} % of the pairs in one layer, "
        f"{100 * found['equal']:.1f} % in two layers of equal stride and "
        f"{100 * found['unequal']:.1f} % in two of unequal stride"
    )
    return judgement(shows, found["equal"] == found["one"] < 1.0 == found["unequal"])
