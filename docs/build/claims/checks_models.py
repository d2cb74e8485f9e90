"""Claims of whole models that need no further training: a measurement and a judge of each."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from claims.base import FAILS, HOLDS, UNDECIDED, Data, Judgement, judgement, listed
from claims.checks import Make, noise
from common import DATA
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score
from store import csv_lines
from torch import Tensor, nn

import rifflemix as rm
from rifflemix.compat import shapes_only
from rifflemix.lab.analysis import Subject, View, find_subjects, matrix_of, trace
from rifflemix.lab.analysis.kinds.cls_attention import class_attention
from rifflemix.lab.analysis.kinds.membership import layer_memberships
from rifflemix.lab.analysis.kinds.rate import bound_in, nearest_orthonormal
from rifflemix.lab.comparison.statistics import paired_difference
from rifflemix.lab.recipes import get_recipe
from rifflemix.lab.reproduction.cost import shapes_of
from rifflemix.lab.runs.build_for_task import fit_model
from rifflemix.lab.runs.measure import peak_memory, processor_seconds
from rifflemix.plugins.loading import load_plugin

FILES, RUNS = Path("data"), Path("runs")
PLUGIN = Path(__file__).resolve().parent / "models.py"


def parameters_of(name: str) -> int:
    """Count the parameters of a recipe's model, without its data."""
    recipe = get_recipe(name)
    with shapes_only():
        model = fit_model(recipe.model, shapes_of(recipe), recipe.model_settings, 0)
        return sum(parameter.numel() for parameter in model.parameters())


_PRINTED = {"cifar10": [6.38, 9.52], "cifar100": [6.50, 9.65], "imagenet": [18.50, 22.05]}


def csp_parameters(make: Make = rm.create_mixer) -> dict[str, Any]:
    """Count the parameters of CSP and of attention, for a layer and for the models of Table 3.

    Source: CSP, section 3.2.1 and Table 3.
    """
    layers = {
        name: {key: p.numel() for key, p in make(name, 512, num_heads=8).named_parameters()}
        for name in ("csp", "softmax")
    }
    counts = {name: sum(of.values()) for name, of in layers.items()}
    output = sum(count for key, count in layers["csp"].items() if key.startswith("proj."))
    models = {
        data: [parameters_of(f"csp/table3-{data}-{row}") for row in ("csp", "vit")]
        for data in _PRINTED
    }
    return {
        "layer": counts,
        "input_maps": {"csp": counts["csp"] - output, "softmax": layers["softmax"]["qkv.weight"]},
        "models": models,
        "printed_millions": _PRINTED,
    }


def third_of_parameters(data: Data) -> Judgement:
    """Judge the parameters of a layer: a third without the output map, more with it."""
    layer, maps = data["layer"], data["input_maps"]
    whole, inputs = layer["csp"] / layer["softmax"], maps["csp"] / maps["softmax"]
    shows = (
        f"{inputs:.3f} of the parameters of the query, key and value maps; {whole:.3f} with the "
        "output map (the printed model sizes include it)"
    )
    third = 1 / 3 + 0.005
    return judgement(shows, max(whole, inputs) <= third, inputs <= third)


def fewer_parameters(data: Data) -> Judgement:
    """Judge whether the models of Table 3 have the printed, smaller sizes."""
    pairs = {data_set: np.array(of) / 1e6 for data_set, of in data["models"].items()}
    printed = data["printed_millions"]
    each = ", ".join(f"{of[0]:.2f} and {of[1]:.2f} M ({name})" for name, of in pairs.items())
    as_printed = all(np.allclose(of, printed[name], atol=0.006) for name, of in pairs.items())
    return judgement(f"CSP and ViT: {each}", as_printed and all(a < b for a, b in pairs.values()))


_LRA = ("listops", "text", "retrieval", "image", "pathfinder")
_BASELINES = (
    "softmax", "local", "linear", "reformer", "sinkformer", "sparse_transformer", "sinkhorn",
    "linformer", "performer", "synthesizer", "longformer", "bigbird", "cosformer",
)  # fmt: skip


def sliceformer_parameters() -> dict[str, Any]:
    """Count the parameters of Sliceformer and of all baselines of Table II, task by task.

    Source: Sliceformer, section 4.1 and Table II, at the sizes of the released code.
    """
    rows = ("ascending", *_BASELINES)
    return {
        "tasks": {
            task: {row: parameters_of(f"sliceformer/table2-{task}-{row}") for row in rows}
            for task in _LRA
        }
    }


def fewer_than_baselines(data: Data) -> Judgement:
    """Judge on which tasks Sliceformer has fewer parameters than every baseline."""
    tasks = data["tasks"]
    fewer = {
        task: sum(rows["ascending"] < count for row, count in rows.items() if row != "ascending")
        for task, rows in tasks.items()
    }
    whole = len(next(iter(tasks.values()))) - 1
    each = ", ".join(
        f"{task} {count} (Sliceformer {tasks[task]['ascending']:,}, Transformer "
        f"{tasks[task]['softmax']:,})"
        for task, count in fewer.items()
    )
    shows = f"baselines of {whole} with more parameters, in the released sizes: {each}"
    return judgement(shows, min(fewer.values()) == whole, max(fewer.values()) == whole)


def dimension_parameters() -> dict[str, Any]:
    """Count the parameters of the models of Tables 3, 4 and 9, next to the printed counts.

    Source: Dimension Mixer, Tables 3, 4 and 9.
    """
    rows = {
        line["row"]: {
            "parameters": parameters_of(f"dimension_mixer/{line['row']}"),
            "printed": int(line["parameters"]),
        }
        for line in csv_lines(DATA / "dimension-mixer-parameters.csv")
    }
    return {"rows": rows}


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
    return judgement(shows, not other, len(other) < len(rows) / 2)


def model_of(row: str, **changes: Any) -> nn.Module:
    """Build the model of a row of Dimension Mixer."""
    recipe = get_recipe(f"dimension_mixer/{row}")
    return rm.create_model(recipe.model, **recipe.model_settings, **changes)


def butterfly_cost(models: Callable[[str], nn.Module] = model_of, batch: int = 8) -> dict[str, Any]:
    """Measure a training step of ViTs with dense and butterfly attention, by patch size.

    Processor time of one thread, and the peak of the memory that the step allocates.

    Source: Dimension Mixer, Table 4, 4 layers on CIFAR-10.
    """
    cpu, found = torch.device("cpu"), {}
    for patch in (4, 2, 1):
        cost: dict[str, dict[str, float]] = {}
        for kind in ("dense", "butterfly"):
            model = models(f"table4-cifar10-p{patch}-l4-{kind}").train()
            images = noise(batch, 3, 32, 32).float()

            def step(model: nn.Module = model, images: Tensor = images) -> None:
                model(images).square().mean().backward()

            step()
            cost[kind] = {"seconds": processor_seconds(step), "bytes": peak_memory(step, cpu)}
        ratio = {key: cost["dense"][key] / cost["butterfly"][key] for key in cost["dense"]}
        found[str((32 // patch) ** 2)] = {"cost": cost, "dense_over_butterfly": ratio}
    return {"batch": batch, "tokens": found}


def cheaper_when_long(data: Data) -> Judgement:
    """Judge whether butterfly attention saves time and memory, and more with more tokens."""
    ratios = {int(n): of["dense_over_butterfly"] for n, of in data["tokens"].items()}
    texts, holds = [], []
    for key, name in (("seconds", "processor time"), ("bytes", "peak memory")):
        values = [ratios[n][key] for n in sorted(ratios)]
        texts.append(f"{name} {listed(values, '.2f')}")
        holds.append(values[-1] > 1.2 and values[-1] > values[0])
    shows = (
        f"a training step with dense attention over one with butterfly attention, with "
        f"{listed(sorted(ratios))} tokens: {'; '.join(texts)}. "
        "Attention here keeps no N x N weights, dense or not"
    )
    return judgement(shows, all(holds), any(holds))


def tied_step(make: Make = rm.create_mixer) -> dict[str, Any]:
    """Measure how the operator of equation (10) changes the bound, with W_O tied to the bases.

    The bases are orthonormal. The memberships of the input are kept after the step.

    Source: ToST, section 3.2, equation (10).
    """
    steps, draws, lowered = (0.1, 0.5, 1.0), 20, {}
    layer = make("tssa", 32, num_heads=4).double()
    for step in steps:
        count = 0
        for draw in range(draws):
            torch.manual_seed(draw)
            bases = nearest_orthonormal(torch.randn(4, 8, 32, dtype=torch.float64))
            with torch.no_grad():
                layer.in_proj.weight.copy_(bases.flatten(0, 1))
                layer.in_proj.bias.zero_()
                layer.out_proj.weight.copy_(bases.flatten(0, 1).T)
                layer.out_proj.bias.zero_()
                x = noise(1, 48, 32, seed=draw)
                membership = layer.membership(x).double()
                before, after = (
                    float(bound_in(bases, of, membership)) for of in (x, x + step * layer(x))
                )
            count += after < before
        lowered[str(step)] = count
    return {"draws": draws, "lowered": lowered}


def step_lowers(data: Data) -> Judgement:
    """Judge whether the operator with tied bases lowers the bound."""
    draws, lowered = data["draws"], data["lowered"]
    each = ", ".join(f"{count} of {draws} at step size {step}" for step, count in lowered.items())
    shows = f"with random orthonormal bases and tokens the bound falls in {each}"
    return judgement(shows, min(lowered.values()) == draws, max(lowered.values()) == draws)


def foreground() -> dict[str, Any]:
    """Compare memberships and class-token maps with the digit that an image shows.

    A patch is foreground if one of its pixels is brighter than half. Memberships: the share of
    foreground patches with a certain likeliest head minus the share of background patches, for
    the head with the largest difference. Class token: area under the ROC curve of the
    penultimate layer's mean map as a detector of foreground patches, image by image.

    Source: ToST, Figures 4b, 5, 9 and 10.
    """
    load_plugin(PLUGIN)
    view = View(samples=128, batch_size=128, data_dir=FILES)
    subjects = {subject.label: subject for subject in find_subjects(RUNS / "mnist", view)}
    ink = _ink(next(iter(subjects.values())))
    groups = []
    for layer in layer_memberships(subjects["tssa"]):
        likeliest = layer.first[..., -ink.shape[1] :].argmax(1).numpy()
        groups.append(group_difference(likeliest, ink, layer.first.shape[1]))
    areas = {
        mixer: roc_areas(class_attention(subjects[mixer])[-2].first.mean(1).numpy(), ink).tolist()
        for mixer in ("tssa", "xca", "softmax")
    }
    return {"images": len(ink), "group_difference": groups, "areas": areas}


def _ink(subject: Subject) -> NDArray[np.bool_]:
    """(B, patches) whether a patch of the batch has a bright pixel; patches are 4 x 4."""
    images: Tensor = subject.batches[0]["inputs"]
    low, high = images.amin(), images.amax()
    bright = (images - low) / (high - low) > 0.5
    patches = bright.unfold(2, 4, 4).unfold(3, 4, 4)
    inked: NDArray[np.bool_] = patches.flatten(-2).any(-1).any(1).flatten(1).numpy()
    return inked


def group_difference(likeliest: NDArray[np.int64], ink: NDArray[np.bool_], heads: int) -> float:
    """Largest share of foreground tokens in one head minus the share of background tokens."""
    return max(
        float((likeliest[ink] == head).mean() - (likeliest[~ink] == head).mean())
        for head in range(heads)
    )


def roc_areas(maps: NDArray[np.float64], ink: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Area under the ROC curve of each map (B, patches): 0.5 by chance, 1 for a perfect map."""
    has_both = ink.any(1) & ~ink.all(1)
    pairs = zip(ink[has_both], maps[has_both], strict=True)
    return np.array([roc_auc_score(inked, weights) for inked, weights in pairs])


def foreground_has_a_head(data: Data) -> Judgement:
    """Judge whether one head takes the foreground and not the background."""
    best = max(data["group_difference"])
    shows = (
        "share of foreground patches with the same likeliest head minus the share of background "
        "patches, in points by layer, for the best head: "
        f"{listed(data['group_difference'], '.0f', 100)}. A head with all of the foreground and "
        "no background has 100"
    )
    return judgement(shows, best >= 0.8, best >= 0.5)


def segments_better(data: Data) -> Judgement:
    """Judge the class token's maps as detectors of the foreground, paired over images."""
    areas = {mixer: dict(enumerate(of)) for mixer, of in data["areas"].items()}
    found = [paired_difference(areas["tssa"], areas[other]) for other in ("xca", "softmax")]
    each = ", ".join(f"{mixer} {np.mean(of):.3f}" for mixer, of in data["areas"].items())
    shows = (
        "area under the ROC curve of the class token's map as a detector of foreground patches, "
        f"mean over {data['images']} images: {each}"
    )
    known = [difference for difference in found if difference is not None]
    if any(difference.high < 0 for difference in known):
        return Judgement(FAILS, shows)
    return Judgement(HOLDS if all(d.low > 0 for d in known) else UNDECIDED, shows)


def sinkhorn_reach() -> dict[str, Any]:
    """Measure how much attention weight of sparse Sinkhorn attention goes to other blocks.

    Source: Sparse Sinkhorn Attention, section 3.
    """
    view = View(samples=16)
    (subject,) = [s for s in find_subjects(RUNS / "digits", view) if s.label == "sinkhorn"]
    return weight_outside(subject)


def weight_outside(subject: Subject) -> dict[str, Any]:
    """Measure the weight outside a token's own block, and the blocks that it reaches."""
    outside: dict[str, list[float]] = {}
    reached: dict[str, list[float]] = {}
    for call in chain(*trace(subject.model, subject.batches)):
        matrix: Any = matrix_of(call)
        size, length = call.module.block_size, call.x.shape[1]
        block = torch.arange(length) // size
        total = matrix.sum(-1)
        share = (matrix * (block[:, None] != block)).sum(-1) / total
        outside.setdefault(call.name, []).append(float(share.mean()))
        # A block counts if it gets over a tenth of its share of equal weights.
        sums = matrix.unflatten(-1, (-1, size)).sum(-1).amax(1) / total.amax(1).unsqueeze(-1)
        is_reached = (sums > 0.1 * size / length).double()
        reached.setdefault(call.name, []).append(float(is_reached.mean()))
    return {
        "block_size": size,
        "outside": [float(np.mean(of)) for of in outside.values()],
        "blocks_reached": [float(np.mean(of)) for of in reached.values()],
    }


def quasi_global(data: Data) -> Judgement:
    """Judge how much weight of sorted attention goes to other blocks, and how many it reaches."""
    outside, reached = data["outside"], data["blocks_reached"]
    shows = (
        f"share of the weight outside a token's own block of {data['block_size']}, by layer: "
        f"{listed(outside, '.2f')}; share of the blocks that get at least a tenth of equal "
        f"weight: {listed(reached, '.2f')}. Local attention has 0 outside"
    )
    leaves = min(outside) >= 0.1
    return judgement(shows, leaves and min(reached) > 0.5, leaves)
