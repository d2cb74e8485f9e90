"""Recipes of the Dimension Mixer paper: Tables 3 to 9 and Figure 7."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from rifflemix.models import model_card
from rifflemix.recipes import images, lra
from rifflemix.recipes.base import Recipe
from rifflemix.tasks.pathfinder.pathfinder import CURRICULUM
from rifflemix.train import TrainConfig

PAPER = "Sapkota and Bhattarai, Dimension Mixer"

_CLASSES = {"cifar10": 10, "cifar100": 100}
_BATCH = {"cifar10": 64, "cifar100": 128}
_SPLIT_NOTE = "a tenth of the training images choose the model; the paper trains on all of them"
_BEST_OF_3 = "the printed number is the best of 3 runs"
_CROP_NOTE = "training images are cropped and mirrored as for Table 4; the paper does not say"

# Table 3: preset's name, words, mean accuracy of expansion 1 and of expansion 2.
_MIXERS: dict[str, tuple[str, tuple[float, float]]] = {
    "dense": ("Dense", (83.83, 84.07)),
    "butterfly_linear": ("Butterfly-Linear", (82.45, 83.49)),
    "butterfly_mlp": ("Butterfly-MLP", (82.68, 83.70)),
}

# Tables 4 and 8: layers and patch; dense, butterfly and butterfly with tokens in random order.
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

# Table 5: words, options in the released host; ListOps, Text, Retrieval, Image, Pathfinder.
_LRA: dict[str, tuple[str, dict[str, Any], tuple[float, ...]]] = {
    "softmax": ("Standard", {}, (37.10, 65.02, 79.35, 38.20, 74.16)),
    "flash": ("Flash-Attn.", {}, (37.6, 63.9, 81.4, 43.5, 72.7)),
    "reformer": (
        "Reformer",
        {"num_hashes": 2, "chunk_size": 64, "compat": "hf", "out_bias": True},
        (19.05, 64.88, 78.64, 43.29, 69.36),
    ),
    "linformer": (
        "Linformer",
        {"projected_length": 256, "share_heads": False, "keep_positions": True},
        (37.25, 55.91, 79.37, 37.84, 67.60),
    ),
    "performer": (
        "Performer",
        {"num_features": 256, "scale_exponent": 0.5, "padded_keys": "zero"},
        (18.80, 63.81, 78.62, 37.07, 69.87),
    ),
    "nystromformer": (
        "Nystromformer",
        {"num_landmarks": 128, "conv_kernel": 35, "landmarks": "all", "pinv_init": "batch"},
        (37.15, 65.52, 79.56, 41.58, 70.94),
    ),
    "butterfly": ("Butterfly", {}, (37.05, 65.25, 81.32, 44.02, 71.12)),
}
_LRA_TASKS = ("listops", "text", "retrieval", "image", "pathfinder")
_LRA_IMAGES = ("image", "pathfinder")
# The released host drops weights of softmax attention only; butterfly attention is made of it.
_DROPS_WEIGHTS = ("softmax", "flash", "butterfly")
_LRA_NOTES: dict[str, tuple[str, ...]] = {
    "flash": (
        "quoted from FlashAttention; exact attention, the same function as the row Standard, by "
        "torch's fused kernels where the device has them",
    ),
    "reformer": ("the code draws new rotations at every call, ours stay",),
    "performer": (
        "as in the code, queries and keys are scaled twice, and padding, as zero keys, counts in "
        "the sum of the weights",
    ),
    "linformer": ("the code's projection is one for all layers, ours one for each",),
    "nystromformer": ("the paper does not print the number of landmarks; the code has 32 to 256",),
    "butterfly": (
        "no code is released for this table: blocks of sqrt(N) in the quoted rows' host",
    ),
}

# Rows beside Table 5: mixers of the other papers in its host.
_LRA_BESIDE: dict[str, str] = {
    "csp": "CSP",
    "sliceformer": "Sliceformer",
    "tssa": "Token statistics (TSSA)",
    "sinkhorn": "Sparse Sinkhorn attention",
}

# Table 6: size, words, accuracy of each step of the curriculum. The first two and the last are
# the Long Range Arena's own sets; the paper generates the four between.
_CURRICULUM: dict[str, tuple[int, str, float]] = {
    "32": (32, "32, contour 14", 69.17),
    "64": (64, "64, contour 9", 80.99),
    "128-d5-g1": (128, "128, contour 14, 5 distractors, gap 1", 71.84),
    "128-d5-g2": (128, "128, contour 14, 5 distractors, gap 2", 75.05),
    "128-d14": (128, "128, contour 14, 14 distractors, gaps 2 and 3", 75.46),
    "128-d20": (128, "128, contour 14, 20 distractors, gaps 2 and 3", 76.41),
    "128": (128, "128, contour 14", 76.72),
}
_CHAIN_NOTE = (
    "the paper starts each row of the table from the weights of the row above: --start-from"
)

# Table 7: words, CIFAR-10 and CIFAR-100; presets by layers.
_PATCH_ONLY: dict[tuple[str, int], tuple[str, tuple[float, float]]] = {
    ("c1", 7): ("MLP-Mixer (c1), 7 layers", (83.81, 57.37)),
    ("patch_only", 7): ("Patch-Only, 7 layers", (84.66, 55.55)),
    ("c2", 7): ("MLP-Mixer (c2), 7 layers", (84.16, 58.38)),
    ("c1", 10): ("MLP-Mixer (c1), 10 layers", (83.03, 56.34)),
    ("patch_only", 10): ("Patch-Only, 10 layers", (85.49, 56.29)),
    ("c2", 10): ("MLP-Mixer (c2), 10 layers", (84.20, 57.81)),
}

# Table 9: words; accuracies of (layers, patch) = (8, 4), (4, 4), (4, 2); CIFAR-10.
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
    """Adam with a cosine over epochs of 50,000 images."""
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
    """A recipe on CIFAR, normalised by the statistics of the released code, for both data sets."""
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
    """A row of Table 3: dense, butterfly-linear or butterfly MLPs in an MLP-Mixer."""
    words, printed = _MIXERS[mlp]
    return _on_images(
        "cifar10",
        name=f"dimension_mixer/table3-{mlp}-e{expansion}",
        table="Table 3",
        row=f"{words}, expansion {expansion}",
        printed=printed[expansion - 1],
        model=f"mlp_mixer_{mlp}_e{expansion}",
        train=_images("cifar10", epochs=200, lr=1e-3),
        notes=("the printed number is the mean of 8 seeds", _CROP_NOTE),
    )


def attention(data: str, layers: int, patch: int, kind: str) -> Recipe:
    """An entry of Table 4, or of the random rows of Table 8."""
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


def table5(task: str, mixer: str) -> Recipe:
    """A row of Table 5 in the PyTorch host of Nystromformer."""
    words, options, printed = _LRA[mixer]
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
        printed=printed[_LRA_TASKS.index(task)],
        task=task_name,
        task_options={"max_length": 4000} if task == "text" else task_options,
        model="encoder",
        model_settings=settings,
        train=lra.NYSTROM_TRAIN[task],
        notes=(*lra.nystrom_notes(task), *_LRA_NOTES.get(mixer, ())),
    )


def table5_all_pixels(task: str, mixer: str) -> Recipe:
    """A row of Table 5 whose model sees black pixels, which the paper's hides."""
    hidden = table5(task, mixer)
    return replace(
        hidden,
        name=f"{hidden.name}-all-pixels",
        row=f"{hidden.row}, black pixels seen",
        printed=None,
        model_settings={**hidden.model_settings, "padding_id": None},
        notes=(
            f"no row of the paper: {hidden.name} with the black pixels that its host hides",
            *_LRA_NOTES.get(mixer, ()),
        ),
    )


def table5_beside(task: str, mixer: str) -> Recipe:
    """A mixer of another paper in the host of Table 5, trained as its rows are."""
    butterfly = table5(task, "butterfly")
    return replace(
        butterfly,
        name=f"dimension_mixer/table5-{task}-{mixer}",
        row=f"{_LRA_BESIDE[mixer]}, in the table's host",
        printed=None,
        model_settings={
            **butterfly.model_settings,
            "mixer": mixer,
            "attention_dropout": 0.0,
        },
        notes=(
            f"no row of the paper: {mixer} as it is by default, in the host of its rows",
            *lra.nystrom_notes(task),
        ),
    )


def table5_pathx() -> Recipe:
    """Butterfly attention on Path-X: the last row of Table 6."""
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
    """A row of Table 6: a step on the way to Path-X."""
    size, words, printed = _CURRICULUM[step]
    task, options = CURRICULUM[step]
    return Recipe(
        name=f"dimension_mixer/table6-{step}",
        paper=PAPER,
        table="Table 6",
        row=words,
        column="Pathfinder",
        printed=printed,
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
            decay_all=True,  # the host hands all parameters to AdamW as one group
            schedule="cosine",
            eval_every=1_248,
        ),
        notes=(
            _CHAIN_NOTE,
            "batch and updates are those of Pathfinder in Table 5; the paper prints none",
        ),
    )


def table7(data: str, kind: str, layers: int) -> Recipe:
    """An entry of Table 7: Patch-Only MLP-Mixer beside two MLP-Mixers."""
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
    """An entry of Table 9: token-parallel attention."""
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
        notes=(_BEST_OF_3, *((note,) if note else ())),
    )


def figure7(name: str) -> Recipe:
    """A point of Figure 7: grouped convolutions in a small ResNet."""
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
        notes=("a figure: no numbers are printed", "best of 3 runs there"),
    )


_ALL: tuple[Callable[[], Recipe], ...] = (
    *(partial(table3, mlp, expansion) for expansion in (1, 2) for mlp in _MIXERS),
    *(
        partial(attention, data, *size, kind)
        for kind in _ATTENTIONS
        for data, sizes in _VITS.items()
        for size in sizes
    ),
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
    *(partial(table7, data, *key) for data in _CLASSES for key in _PATCH_ONLY),
    *(partial(table9, *size, kind) for size in _PARALLEL_SIZES for kind in _PARALLEL),
    *(partial(figure7, name) for name in _RESNETS),
)

RECIPES: dict[str, Callable[[], Recipe]] = {make().name: make for make in _ALL}
