"""Recipes of the Dimension Mixer paper: Tables 3 to 9, and Figure 7."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from rifflemix.lab.recipes import csp, lra
from rifflemix.lab.recipes.base import Recipe
from rifflemix.lab.tasks.synthetic.pathfinder import CURRICULUM
from rifflemix.lab.train import TrainConfig
from rifflemix.models import model_card

PAPER = "Sapkota and Bhattarai, Dimension Mixer"

# Table 5: name, mixer options.
_LRA: dict[str, tuple[str, dict[str, Any]]] = {
    "softmax": ("Standard", {}),
    "flash": ("Flash-Attn.", {}),
    "reformer": (
        "Reformer",
        {"num_hashes": 2, "chunk_size": 64, "compat": "hf", "out_bias": True},
    ),
    "linformer": (
        "Linformer",
        {"projected_length": 256, "share_heads": False, "keep_positions": True},
    ),
    "performer": (
        "Performer",
        {"num_features": 256, "scale_exponent": 0.5, "padded_keys": "zero"},
    ),
    "nystromformer": (
        "Nystromformer",
        {"num_landmarks": 128, "conv_kernel": 35, "landmarks": "all", "pinv_init": "batch"},
    ),
    "butterfly": ("Butterfly", {}),
}
_LRA_TASKS = ("listops", "text", "retrieval", "image", "pathfinder")
_LRA_IMAGES = ("image", "pathfinder")
# Mixers with attention dropout in the released code: softmax, and butterfly built from softmax.
_DROPS_WEIGHTS = ("softmax", "flash", "butterfly")

# Further recipes for Table 5: mixers of other papers in the host model of the table.
_LRA_BESIDE: dict[str, str] = {
    "csp": "CSP",
    "sliceformer": "Sliceformer",
    "tssa": "Token statistics (TSSA)",
    "sinkhorn": "Sparse Sinkhorn attention",
}

# Table 6: image size and name of each step of the curriculum. The first two steps and
# the last step use data of the Long Range Arena; the paper generates the other four data sets.
_CURRICULUM: dict[str, tuple[int, str]] = {
    "32": (32, "32, contour 14"),
    "64": (64, "64, contour 9"),
    "128-d5-g1": (128, "128, contour 14, 5 distractors, gap 1"),
    "128-d5-g2": (128, "128, contour 14, 5 distractors, gap 2"),
    "128-d14": (128, "128, contour 14, 14 distractors, gaps 2 and 3"),
    "128-d20": (128, "128, contour 14, 20 distractors, gaps 2 and 3"),
    "128": (128, "128, contour 14"),
}


def table5(task: str, mixer: str) -> Recipe:
    """Build an entry of Table 5 with Nystromformer's PyTorch host model."""
    words, options = _LRA[mixer]
    title, task_name, task_options = lra.TASKS[task]
    exact = "softmax" if mixer == "flash" else mixer
    settings: dict[str, Any] = {**lra.nystrom_settings(task), "mixer": exact}
    if options:
        settings["mixer_options"] = options
    if mixer not in _DROPS_WEIGHTS:
        settings["attention_dropout"] = 0.0
    return Recipe(
        name=f"dimension_mixer/table5-{task}-{mixer}",
        paper=PAPER,
        table="Table 5",
        row=words,
        column=title,
        task=task_name,
        task_options={"max_length": 4000} if task == "text" else task_options,
        model="encoder",
        model_settings=settings,
        train=lra.NYSTROM_TRAIN[task],
    )


def table5_all_pixels(task: str, mixer: str) -> Recipe:
    """Build a recipe like `table5` without masked black pixels."""
    hidden = table5(task, mixer)
    return replace(
        hidden,
        name=f"{hidden.name}-all-pixels",
        row=f"{hidden.row}, black pixels seen",
        model_settings={**hidden.model_settings, "padding_id": None},
    )


def table5_beside(task: str, mixer: str) -> Recipe:
    """Build a Table 5 recipe with the mixer of another paper."""
    butterfly = table5(task, "butterfly")
    return replace(
        butterfly,
        name=f"dimension_mixer/table5-{task}-{mixer}",
        row=f"{_LRA_BESIDE[mixer]}, in the table's host",
        model_settings={
            **butterfly.model_settings,
            "mixer": mixer,
            "attention_dropout": 0.0,
        },
    )


def table5_pathx() -> Recipe:
    """Build the last entry of Table 6: butterfly attention on Path-X."""
    title, task, options = lra.TASKS["pathx"]
    return replace(
        table6("128"),
        name="dimension_mixer/table5-pathx-butterfly",
        table="Table 5",
        row="Butterfly",
        column=title,
        task=task,
        task_options=options,
    )


def table6(step: str) -> Recipe:
    """Build an entry of Table 6: a step of the Path-X curriculum."""
    size, words = _CURRICULUM[step]
    task, options = CURRICULUM[step]
    return Recipe(
        name=f"dimension_mixer/table6-{step}",
        paper=PAPER,
        table="Table 6",
        row=words,
        column="Pathfinder",
        task=task,
        task_options=options,
        model="encoder",
        model_settings={
            **lra.nystrom_settings("pathfinder"),
            "mixer": "butterfly",
            "mixer_options": {"block_size": size},
            "num_layers": 4,
            "num_heads": 4,
            "residual_dropout": 0.0,
            "max_length": size**2,
        },
        train=TrainConfig(
            max_steps=62_400,
            batch_size=256,
            accumulation=8 if size == 128 else 1,
            lr=3e-4,
            eps=1e-6,
            weight_decay=1e-3,
            decay_all=True,  # the code passes all parameters to AdamW as one group
            schedule="cosine",
            eval_every=1_248,
        ),
    )


TABLES_5_AND_6: tuple[Callable[[], Recipe], ...] = (
    *(partial(table5, task, mixer) for mixer in _LRA for task in _LRA_TASKS),
    *(
        partial(table5_all_pixels, task, mixer)
        for mixer in _LRA
        if mixer != "flash"
        for task in _LRA_IMAGES
    ),
    *(partial(table5_beside, task, mixer) for mixer in _LRA_BESIDE for task in _LRA_TASKS),
    table5_pathx,
    *(partial(table6, step) for step in _CURRICULUM),
)


_CLASSES = {"cifar10": 10, "cifar100": 100}
_BATCH = {"cifar10": 64, "cifar100": 128}

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
    (preset, layers): f"{name}, {layers} layers"
    for layers in (7, 10)
    for preset, name in (
        ("c1", "MLP-Mixer (c1)"), ("patch_only", "Patch-Only"), ("c2", "MLP-Mixer (c2)")
    )
}  # fmt: skip

# Table 9: name; layers and patch.
_PARALLEL = {
    "baseline": "Baseline",
    "no_wout": "without W_out",
    "tp2": "Token-Parallel 2",
    "tp1": "Token-Parallel 1",
}
_PARALLEL_SIZES = ((8, 4), (4, 4), (4, 2))

_RESNETS = (
    "dense_20_p16", "conv_mix_20_p32", "block_mix_20_p32", "block_mix_17_p32", "dense_20_p32",
    "block_mix_20_p64", "conv_mix_20_p64", "dense_23_p32", "conv_mix_23_p64", "block_mix_23_p64",
)  # fmt: skip


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
    of = csp.DATA[data]
    return Recipe(
        paper=PAPER,
        column=of.title,
        task=of.task,
        task_options={**of.options, "statistics": "per_image"},
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
        notes=(note,) if note else (),
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
