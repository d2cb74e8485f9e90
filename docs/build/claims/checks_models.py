"""Measurements of whole models: their parameters, and the models that claims train."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from claims.checks import Make, noise
from numpy.typing import NDArray
from torch import Tensor, nn

import rifflemix as rm
from rifflemix.compat import shapes_only
from rifflemix.lab.analysis import Subject, View, find_subjects, matrix_of, trace
from rifflemix.lab.analysis.kinds.cls_attention import class_attention
from rifflemix.lab.analysis.kinds.membership import layer_memberships
from rifflemix.lab.analysis.kinds.rate import bound_in, nearest_orthonormal
from rifflemix.lab.recipes import Recipe, get_recipe
from rifflemix.lab.reproduction.cost import shapes_of
from rifflemix.lab.runs.build_for_task import fit_model
from rifflemix.lab.runs.measure import peak_memory, processor_seconds
from rifflemix.mixers.sinkhorn import Sinkhorn
from rifflemix.plugins.loading import load_plugin

DATA, RUNS = Path("data"), Path("runs")
PLUGIN = Path(__file__).resolve().parent / "models.py"


def parameters_of(recipe: Recipe) -> int:
    """Count the parameters of a recipe's model, without its data."""
    with shapes_only():
        model = fit_model(recipe.model, shapes_of(recipe), recipe.model_settings, 0)
        return sum(parameter.numel() for parameter in model.parameters())


def csp_parameters(make: Make = rm.create_mixer) -> dict[str, Any]:
    """Count the parameters of CSP and of attention, for a layer and for the models of Table 3.

    Source: CSP, section 3.2.1 and Table 3.
    """
    layers = {name: dict(make(name, 512, num_heads=8).named_parameters()) for name in _MIXERS}
    csp, softmax = layers["csp"], layers["softmax"]
    output = sum(p.numel() for name, p in csp.items() if name.startswith("proj."))
    counts = {name: sum(p.numel() for p in of.values()) for name, of in layers.items()}
    weights = {name: p.numel() for name, p in softmax.items() if name == "qkv.weight"}
    models = {
        data: [parameters_of(get_recipe(f"csp/table3-{data}-{row}")) for row in ("csp", "vit")]
        for data in _PRINTED
    }
    return {
        "layer": counts,
        "input_maps": {"csp": counts["csp"] - output, "softmax": weights["qkv.weight"]},
        "models": models,
        "printed_millions": _PRINTED,
    }


_MIXERS = ("csp", "softmax")
_PRINTED = {"cifar10": [6.38, 9.52], "cifar100": [6.50, 9.65], "imagenet": [18.50, 22.05]}
_LRA = ("listops", "text", "retrieval", "image", "pathfinder")
_BASELINES = (
    "softmax", "local", "linear", "reformer", "sinkformer", "sparse_transformer", "sinkhorn",
    "linformer", "performer", "synthesizer", "longformer", "bigbird", "cosformer",
)  # fmt: skip


def sliceformer_parameters() -> dict[str, Any]:
    """Count the parameters of Sliceformer and of all baselines of Table II, task by task.

    Source: Sliceformer, section 4.1 and Table II, at the sizes of the released code.
    """
    tasks = {
        task: {
            row: parameters_of(get_recipe(f"sliceformer/table2-{task}-{row}"))
            for row in ("ascending", *_BASELINES)
        }
        for task in _LRA
    }
    return {"tasks": tasks}


def dimension_parameters() -> dict[str, Any]:
    """Count the parameters of the models of Tables 3, 4 and 9, next to the printed counts.

    Source: Dimension Mixer, Tables 3, 4 and 9.
    """
    rows = {
        row: {
            "parameters": parameters_of(get_recipe(f"dimension_mixer/{row}")),
            "printed": printed,
        }
        for row, printed in _DIMENSION.items()
    }
    return {"rows": rows}


_DIMENSION: Mapping[str, float] = {
    "table3-dense-e1": 351_680,
    "table3-butterfly_linear-e1": 140_960,
    "table3-butterfly_mlp-e1": 143_550,
    "table3-dense-e2": 615_290,
    "table3-butterfly_linear-e2": 193_860,
    "table3-butterfly_mlp-e2": 197_750,
    **{f"table4-cifar10-p4-l8-{kind}": 1_148_000 for kind in ("dense", "butterfly")},
    **{f"table4-cifar10-p4-l4-{kind}": 618_000 for kind in ("dense", "butterfly")},
    **{f"table4-cifar10-p2-l4-{kind}": 299_000 for kind in ("dense", "butterfly")},
    **{f"table4-cifar10-p1-l4-{kind}": 779_000 for kind in ("dense", "butterfly")},
    **{f"table4-cifar100-p4-l4-{kind}": 1_355_000 for kind in ("dense", "butterfly")},
    **{f"table4-cifar100-p2-l4-{kind}": 1_773_000 for kind in ("dense", "butterfly")},
    "table9-p4-l8-no_wout": 1_060_000,
    "table9-p4-l8-tp2": 721_000,
    "table9-p4-l8-tp1": 689_000,
    "table9-p4-l4-no_wout": 552_000,
    "table9-p4-l4-tp2": 405_000,
    "table9-p4-l4-tp1": 389_000,
    "table9-p2-l4-no_wout": 282_000,
    "table9-p2-l4-tp2": 245_000,
    "table9-p2-l4-tp1": 241_000,
}


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
            cost[kind] = {
                "seconds": processor_seconds(step),
                "bytes": peak_memory(step, cpu),
            }
        ratio = {key: cost["dense"][key] / cost["butterfly"][key] for key in cost["dense"]}
        found[str((32 // patch) ** 2)] = {"cost": cost, "dense_over_butterfly": ratio}
    return {"batch": batch, "tokens": found}


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


def foreground() -> dict[str, Any]:
    """Compare memberships and class-token maps with the digit that an image shows.

    A patch is foreground if one of its pixels is brighter than half. Memberships: the share of
    foreground patches with a certain likeliest head minus the share of background patches, for
    the head with the largest difference. Class token: area under the ROC curve of the
    penultimate layer's mean map as a detector of foreground patches, image by image.

    Source: ToST, Figures 4b, 5, 9 and 10.
    """
    load_plugin(PLUGIN)
    view = View(samples=128, batch_size=128, data_dir=DATA)
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
    shares = [
        float((likeliest[ink] == head).mean() - (likeliest[~ink] == head).mean())
        for head in range(heads)
    ]
    return max(shares)


def roc_areas(maps: NDArray[np.float64], ink: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Area under the ROC curve of each map (B, patches): 0.5 by chance, 1 for a perfect map."""
    areas = []
    for weights, inked in zip(maps, ink, strict=True):
        if inked.all() or not inked.any():
            continue
        front, back = weights[inked][:, None], weights[~inked][None, :]
        areas.append((front > back).mean() + 0.5 * (front == back).mean())
    return np.array(areas)


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
    size = 0
    for calls in trace(subject.model, subject.batches):
        for call in calls:
            matrix = matrix_of(call)
            assert isinstance(call.module, Sinkhorn)
            assert matrix is not None
            size, length = call.module.block_size, call.x.shape[1]
            block = torch.arange(length) // size
            other = block[:, None] != block[None, :]
            total = matrix.sum(-1)
            outside.setdefault(call.name, []).append(
                float(((matrix * other).sum(-1) / total).mean())
            )
            # A block counts if it gets over a tenth of its share of equal weights.
            sums = matrix.unflatten(-1, (-1, size)).sum(-1).amax(1) / total.amax(1).unsqueeze(-1)
            share = (sums > 0.1 * size / length).double().mean()
            reached.setdefault(call.name, []).append(float(share))
    return {
        "block_size": size,
        "outside": [float(np.mean(of)) for of in outside.values()],
        "blocks_reached": [float(np.mean(of)) for of in reached.values()],
    }
