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
_CROP_NOTE = "training images are cropped and mirrored as for Table 4; the paper does not state it"

# Table 3: preset and name.
_MIXERS = {
    "dense": "Dense",
    "butterfly_linear": "Butterfly-Linear",
    "butterfly_mlp": "Butterfly-MLP",
}

# Tables 4 and 8: layers and patch.
_VITS = {"cifar10": ((8, 4), (4, 4), (4, 2), (4, 1)), "cifar100": ((4, 4), (4, 2))}
_ATTENTIONS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "dense": ("Table 4", "Dense attention", {"mixer": "softmax"}),
    "butterfly": ("Table 4", "Butterfly attention", {"mixer": "butterfly"}),
    "random": (
        "Table 8",
        "Butterfly attention, tokens in random order",
        {"mixer": "butterfly", "mixer_options": {"token_order": "random"}},
    ),
}

# Table 7: (preset, layers) -> name.
_PATCH_ONLY = {
    ("c1", 7): "MLP-Mixer (c1), 7 layers",
    ("patch_only", 7): "Patch-Only, 7 layers",
    ("c2", 7): "MLP-Mixer (c2), 7 layers",
    ("c1", 10): "MLP-Mixer (c1), 10 layers",
    ("patch_only", 10): "Patch-Only, 10 layers",
    ("c2", 10): "MLP-Mixer (c2), 10 layers",
}

# Table 9: name; layers and patch.
_PARALLEL = {
    "baseline": "Baseline",
    "no_wout": "without W_out",
    "tp2": "Token-Parallel 2",
    "tp1": "Token-Parallel 1",
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
    return _on_images(
        "cifar10",
        name=f"dimension_mixer/table3-{mlp}-e{expansion}",
        table="Table 3",
        row=f"{_MIXERS[mlp]}, expansion {expansion}",
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
        model=f"dimmixer_vit_{data}_p{patch}_l{layers}",
        model_settings=settings,
        train=_images(data, epochs=300, lr=1e-4),
    )


def table7(data: str, kind: str, layers: int) -> Recipe:
    """Build an entry of Table 7: Patch-Only MLP-Mixer or an MLP-Mixer."""
    is_own = kind == "patch_only"
    return _on_images(
        data,
        name=f"dimension_mixer/table7-{data}-{kind}-l{layers}",
        table="Table 7",
        row=_PATCH_ONLY[kind, layers],
        model=f"patch_only_{data}_l{layers}" if is_own else f"mlp_mixer_{kind}_l{layers}",
        model_settings={} if is_own else {"num_classes": _CLASSES[data]},
        train=_images(data, epochs=200, lr=1e-3),
        notes=(_BEST_OF_3, _CROP_NOTE),
    )


def table9(layers: int, patch: int, kind: str) -> Recipe:
    """Build an entry of Table 9: token-parallel attention."""
    preset = f"dimmixer_vit_cifar10_p{patch}_l{layers}"
    is_baseline = kind == "baseline"
    model = preset if is_baseline else f"{preset}_{kind}"
    note = "" if is_baseline else model_card(model).note
    return _on_images(
        "cifar10",
        name=f"dimension_mixer/table9-p{patch}-l{layers}-{kind}",
        table="Table 9",
        row=f"{_PARALLEL[kind]}, {layers} layers, patch {patch}",
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
