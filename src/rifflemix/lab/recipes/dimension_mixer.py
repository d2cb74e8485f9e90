"""Recipes of the Dimension Mixer paper: Tables 3, 4 and 7 to 9, and Figure 7."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from rifflemix.lab.recipes import images
from rifflemix.lab.recipes.base import Recipe
from rifflemix.lab.recipes.dimension_mixer_lra import PAPER, TABLES_5_AND_6
from rifflemix.lab.train import TrainConfig
from rifflemix.models import model_card

_CLASSES = {"cifar10": 10, "cifar100": 100}
_BATCH = {"cifar10": 64, "cifar100": 128}
_SPLIT_NOTE = "a tenth of the training images choose the model; the paper trains on all of them"
_BEST_OF_3 = "the printed number is the best of 3 runs"
_BATCH_NOTE = "batches of 64 as in Table 4 on CIFAR-10; the paper prints no batch for Table 3"
_TABLE_4_NOTE = (
    "trained as Table 4, the source of the baseline; the paper prints no training for Table 9"
)
_RESNET_NOTE = (
    "SGD with a rate of 0.1, a decay of 5e-4, batches of 64 and 200 epochs as in the released "
    "code; the paper prints no training for Figure 7"
)
_CROP_NOTE = "training images are cropped and mirrored as for Table 4; the paper does not say"

# Table 3: preset, name, mean accuracy with expansion 1 and with expansion 2.
_MIXERS: dict[str, tuple[str, tuple[float, float]]] = {
    "dense": ("Dense", (83.83, 84.07)),
    "butterfly_linear": ("Butterfly-Linear", (82.45, 83.49)),
    "butterfly_mlp": ("Butterfly-MLP", (82.68, 83.70)),
}

# Tables 4 and 8: layers and patch; dense, butterfly, and butterfly with random token order.
_VITS: dict[str, dict[tuple[int, int], tuple[float, float, float]]] = {
    "cifar10": {
        (8, 4): (81.90, 84.69, 82.41),
        (4, 4): (81.04, 83.68, 81.86),
        (4, 2): (78.35, 80.80, 77.41),
        (4, 1): (65.65, 73.96, 70.65),
    },
    "cifar100": {(4, 4): (53.92, 57.02, 54.96), (4, 2): (50.03, 53.29, 49.31)},
}
_ATTENTIONS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "dense": ("Table 4", "Dense attention", {"mixer": "softmax"}),
    "butterfly": ("Table 4", "Butterfly attention", {"mixer": "butterfly"}),
    "random": (
        "Table 8",
        "Butterfly attention, tokens in random order",
        {"mixer": "butterfly", "mixer_options": {"token_order": "random"}},
    ),
}

# Table 7: (preset, layers) -> name, accuracy on CIFAR-10 and CIFAR-100.
_PATCH_ONLY: dict[tuple[str, int], tuple[str, tuple[float, float]]] = {
    ("c1", 7): ("MLP-Mixer (c1), 7 layers", (83.81, 57.37)),
    ("patch_only", 7): ("Patch-Only, 7 layers", (84.66, 55.55)),
    ("c2", 7): ("MLP-Mixer (c2), 7 layers", (84.16, 58.38)),
    ("c1", 10): ("MLP-Mixer (c1), 10 layers", (83.03, 56.34)),
    ("patch_only", 10): ("Patch-Only, 10 layers", (85.49, 56.29)),
    ("c2", 10): ("MLP-Mixer (c2), 10 layers", (84.20, 57.81)),
}

# Table 9: name, accuracy on CIFAR-10 for (layers, patch) = (8, 4), (4, 4), (4, 2).
_PARALLEL: dict[str, tuple[str, tuple[float, float, float]]] = {
    "baseline": ("Baseline", (81.90, 81.04, 78.35)),
    "no_wout": ("without W_out", (81.02, 80.74, 77.89)),
    "tp2": ("Token-Parallel 2", (81.57, 81.42, 76.95)),
    "tp1": ("Token-Parallel 1", (82.18, 81.59, 76.83)),
}
_PARALLEL_SIZES = ((8, 4), (4, 4), (4, 2))

_RESNETS = (
    "dense_20_p16",
    "conv_mix_20_p32",
    "block_mix_20_p32",
    "block_mix_17_p32",
    "dense_20_p32",
    "block_mix_20_p64",
    "conv_mix_20_p64",
    "dense_23_p32",
    "conv_mix_23_p64",
    "block_mix_23_p64",
)


def _images(data: str, epochs: int, lr: float) -> TrainConfig:
    """Configure Adam with a cosine over epochs of 50,000 images."""
    epoch = 50_000 // _BATCH[data]
    return TrainConfig(
        max_steps=epochs * epoch,
        batch_size=_BATCH[data],
        optimizer="adam",
        lr=lr,
        schedule="cosine",
        schedule_interval=epoch,
        eval_every=epoch,
    )


def _on_images(data: str, **fields: Any) -> Recipe:
    """Build a CIFAR recipe with the normalization of the released code."""
    of = images.DATA[data]
    return Recipe(
        paper=PAPER,
        column=of.title,
        task=of.task,
        task_options={**of.options, "statistics": "per_image"},
        notes=(_SPLIT_NOTE, *fields.pop("notes", ())),
        **fields,
    )


def table3(mlp: str, expansion: int) -> Recipe:
    """Build an entry of Table 3: dense or butterfly MLPs in MLP-Mixer."""
    words, printed = _MIXERS[mlp]
    return _on_images(
        "cifar10",
        name=f"dimension_mixer/table3-{mlp}-e{expansion}",
        table="Table 3",
        row=f"{words}, expansion {expansion}",
        printed=printed[expansion - 1],
        model=f"mlp_mixer_{mlp}_e{expansion}",
        train=_images("cifar10", epochs=200, lr=1e-3),
        notes=("the printed number is the mean of 8 seeds", _BATCH_NOTE, _CROP_NOTE),
    )


def attention(data: str, layers: int, patch: int, kind: str) -> Recipe:
    """Build an entry of Table 4 or 8 (random token order)."""
    table, words, settings = _ATTENTIONS[kind]
    return _on_images(
        data,
        name=f"dimension_mixer/table{table[-1]}-{data}-p{patch}-l{layers}-{kind}",
        table=table,
        row=f"{words}, {layers} layers, patch {patch}",
        printed=_VITS[data][layers, patch][list(_ATTENTIONS).index(kind)],
        model=f"dimmixer_vit_{data}_p{patch}_l{layers}",
        model_settings=settings,
        train=_images(data, epochs=300, lr=1e-4),
    )


def table7(data: str, kind: str, layers: int) -> Recipe:
    """Build an entry of Table 7: Patch-Only MLP-Mixer or an MLP-Mixer."""
    words, printed = _PATCH_ONLY[kind, layers]
    is_own = kind == "patch_only"
    return _on_images(
        data,
        name=f"dimension_mixer/table7-{data}-{kind}-l{layers}",
        table="Table 7",
        row=words,
        printed=printed[list(_CLASSES).index(data)],
        model=f"patch_only_{data}_l{layers}" if is_own else f"mlp_mixer_{kind}_l{layers}",
        model_settings={} if is_own else {"num_classes": _CLASSES[data]},
        train=_images(data, epochs=200, lr=1e-3),
        notes=(_BEST_OF_3, _CROP_NOTE),
    )


def table9(layers: int, patch: int, kind: str) -> Recipe:
    """Build an entry of Table 9: token-parallel attention."""
    words, printed = _PARALLEL[kind]
    preset = f"dimmixer_vit_cifar10_p{patch}_l{layers}"
    is_baseline = kind == "baseline"
    model = preset if is_baseline else f"{preset}_{kind}"
    note = "" if is_baseline else model_card(model).note
    return _on_images(
        "cifar10",
        name=f"dimension_mixer/table9-p{patch}-l{layers}-{kind}",
        table="Table 9",
        row=f"{words}, {layers} layers, patch {patch}",
        printed=printed[_PARALLEL_SIZES.index((layers, patch))],
        model=model,
        model_settings={"mixer": "softmax"} if is_baseline else {},
        train=_images("cifar10", epochs=300, lr=1e-4),
        notes=(_BEST_OF_3, _TABLE_4_NOTE, *((note,) if note else ())),
    )


def figure7(name: str) -> Recipe:
    """Build a point of Figure 7: grouped convolutions in a small ResNet."""
    kind, depth, planes = name.rsplit("_", 2)
    words = f"{kind.replace('_', '-')}, depth {depth}, {planes[1:]} planes"
    return _on_images(
        "cifar10",
        name=f"dimension_mixer/figure7-{name}",
        table="Figure 7",
        row=f"ResNet, {words}",
        printed=None,
        model=f"resnet_{name}",
        train=replace(
            _images("cifar10", epochs=200, lr=0.1),
            optimizer="sgd",
            weight_decay=5e-4,
            decay_all=True,
        ),
        notes=("a figure: no numbers are printed", "best of 3 runs there", _RESNET_NOTE),
    )


_ALL: tuple[Callable[[], Recipe], ...] = (
    *(partial(table3, mlp, expansion) for expansion in (1, 2) for mlp in _MIXERS),
    *(
        partial(attention, data, *size, kind)
        for kind in _ATTENTIONS
        for data, sizes in _VITS.items()
        for size in sizes
    ),
    *TABLES_5_AND_6,
    *(partial(table7, data, *key) for data in _CLASSES for key in _PATCH_ONLY),
    *(partial(table9, *size, kind) for size in _PARALLEL_SIZES for kind in _PARALLEL),
    *(partial(figure7, name) for name in _RESNETS),
)

RECIPES: dict[str, Callable[[], Recipe]] = {make().name: make for make in _ALL}
