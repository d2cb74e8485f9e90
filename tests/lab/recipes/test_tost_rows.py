"""Build the rows of the ToST paper's tables as models and check their parts."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

from rifflemix.lab.recipes import get_recipe
from rifflemix.lab.train.optim import learning_rate
from rifflemix.mixers.baselines.s4 import S4
from rifflemix.mixers.baselines.softmax import SoftmaxAttention
from rifflemix.mixers.tssa import TSSA
from rifflemix.models import create_model
from rifflemix.nn.positions import SinusoidalPositions

TEXTS = ("listops", "text", "retrieval")
MEGA = (*TEXTS, "image")
TASKS = (*MEGA, "pathfinder")


def built(name: str) -> Any:
    recipe = get_recipe(f"tost/{name}")
    with torch.device("meta"):
        return create_model(recipe.model, **recipe.model_settings)


# Layers (with weights), dim, heads, MLP, head: from Table 7 of the paper and MEGA's code.
TABLE7 = {
    "listops": (6, 1, 512, 8, 2048, 2048),
    "text": (4, 4, 256, 4, 1024, 1024),
    "retrieval": (6, 6, 128, 4, 512, 512),
    "image": (8, 8, 64, 8, 128, 128),
    "pathfinder": (2, 2, 64, 2, 128, 128),
}
REGISTERED = TABLE7 | {
    "retrieval": (4, 4, 128, 4, 512, 512),
    "image": (1, 1, 64, 8, 128, 128),
    "pathfinder": (1, 1, 128, 4, 128, 256),
}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    ("row", "sizes", "mixer"),
    [
        ("tssa", TABLE7, TSSA),
        ("tssa-as_printed", TABLE7, TSSA),
        ("softmax", REGISTERED, SoftmaxAttention),
    ],
)
def test_sizes_of_the_long_range_rows(
    task: str, row: str, sizes: dict[str, tuple[int, ...]], mixer: type[nn.Module]
) -> None:
    model = built(f"table3-{task}-{row}")
    layers, weights, dim, heads, mlp, head = sizes[task]
    assert (model.num_layers, len(model.blocks)) == (layers, weights)
    for block in model.blocks:
        assert type(block.mixer) is mixer
        assert (block.mixer.dim, block.mixer.num_heads) == (dim, heads)
        assert block.mlp.fc1.out_features == mlp
    assert model.head[0].out_features == head


def is_mega_host(model: Any, task: str) -> bool:
    """Check everything around the blocks of MEGA's transformer."""
    is_text = task in TEXTS
    return (
        isinstance(model.positions, SinusoidalPositions)
        and model.embedding_scale == model.blocks[0].mixer.dim ** 0.5
        and model.pool.kind == ("cls" if is_text else "mean")
        and isinstance(model.head[1][1], nn.GELU)
        and model.head[0].bias is not None
        and model.head[2].bias is None
        and all(block.mlp.hidden_drop.p == 0.0 for block in model.blocks)
    )


@pytest.mark.parametrize("task", MEGA)
def test_tost_rows_have_post_norm_blocks_in_megas_model(task: str) -> None:
    model = built(f"table3-{task}-tssa")
    assert is_mega_host(model, task)
    assert all(block.is_post_norm for block in model.blocks)
    assert isinstance(model.embedding_norm, nn.LayerNorm)
    assert isinstance(model.norm, nn.Identity)
    assert model.drop.p == model.head[1][0].p == (0.0 if task == "image" else 0.1)


@pytest.mark.parametrize("task", MEGA)
def test_rows_as_printed_have_pre_norm_blocks(task: str) -> None:
    model = built(f"table3-{task}-tssa-as_printed")
    assert is_mega_host(model, task)
    assert not any(block.is_post_norm for block in model.blocks)
    assert isinstance(model.embedding_norm, nn.Identity)
    assert isinstance(model.norm, nn.LayerNorm)


def test_pathfinder_uses_skyformers_model() -> None:
    """Check pre-norm as in the release and post-norm as in Table 7."""
    released, printed = (built(f"table3-pathfinder-tssa{end}") for end in ("", "-as_printed"))
    assert not any(block.is_post_norm for block in released.blocks)
    assert all(block.is_post_norm for block in printed.blocks)
    for model in (released, printed):
        assert model.pool.kind == "length_mean"
        assert (model.padding, model.padding_id) == ("max_length", 0)
        assert isinstance(model.head[1][1], nn.ReLU)
        assert model.embedding_scale is None


@pytest.mark.parametrize("task", TASKS)
def test_the_transformer_row_is_megas(task: str) -> None:
    model, recipe = built(f"table3-{task}-softmax"), get_recipe(f"tost/table3-{task}-softmax")
    assert is_mega_host(model, task)
    assert all(block.is_post_norm for block in model.blocks)
    assert isinstance(model.embedding_norm, nn.LayerNorm)
    assert re.search("MEGA.*Transformer", recipe.notes[0])
    assert all(block.mixer.qkv.bias is not None for block in model.blocks)
    assert any("float16" in note for note in recipe.notes)
    assert any("one layer" in note for note in recipe.notes) == (task == "listops")


def test_only_the_models_that_mega_initializes_like_bert_are() -> None:
    for row in ("tssa", "softmax"):
        inits = {t: get_recipe(f"tost/table3-{t}-{row}").model_settings.get("init") for t in MEGA}
        assert inits == {"listops": "bert", "text": "bert", "retrieval": None, "image": None}


@pytest.mark.parametrize("task", TASKS)
def test_both_readings_of_the_paper_train_equally(task: str) -> None:
    own, printed = (get_recipe(f"tost/table3-{task}-tssa{end}") for end in ("", "-as_printed"))
    assert own.train == printed.train
    assert own.printed == printed.printed
    steps = {
        "listops": 90_000, "text": 25_000, "retrieval": 91_960, "image": 180_000,
        "pathfinder": 200_000,
    }  # fmt: skip
    assert own.train.max_steps == steps[task]


@pytest.mark.parametrize("task", TASKS)
def test_s4_blocks_contain_only_s4(task: str) -> None:
    model = built(f"table3-{task}-s4")
    layers, dim, kind = {
        "listops": (8, 128, "batch"),
        "text": (6, 256, "batch"),
        "retrieval": (6, 256, "batch"),
        "image": (6, 512, "layer"),
        "pathfinder": (6, 256, "batch"),
    }[task]
    assert len(model.blocks) == layers
    for block in model.blocks:
        assert (type(block.mixer), block.mixer.dim, block.norm.kind) == (S4, dim, kind)
        assert block.mixer.bidirectional
        assert block.mixer.A_imag.shape == (dim, 32)
        assert {name.split(".")[0] for name, _ in block.named_parameters()} == {"mixer", "norm"}
        assert block.is_post_norm is (task in ("listops", "image"))


@pytest.mark.parametrize("text", ["owt", "lambada", "wikitext", "ptb"])
def test_language_rows_follow_the_released_schedules(text: str) -> None:
    rows = {
        name: get_recipe(f"tost/table4-{text}-{name}").train
        for name in ("gpt2_base", "tost_lm_base", "tost_lm_medium", "tost_lm_large")
    }
    assert {n: (t.max_steps, t.batch_size) for n, t in rows.items()} == {
        "gpt2_base": (920_000, 1_280),
        "tost_lm_base": (600_000, 480),
        "tost_lm_medium": (600_000, 480),
        "tost_lm_large": (600_000, 480),
    }
    assert all(t.batch_size % t.accumulation == 0 for t in rows.values())
    recipe = get_recipe(f"tost/table4-{text}-gpt2_base")
    assert recipe.task == "openwebtext"
    assert recipe.metric == ("loss" if text == "owt" else f"{text}_loss")


@pytest.mark.parametrize("model", ["tost_tiny_16", "tost_medium_16", "xcit_small_16"])
def test_imagenet_rows_train_the_papers_400_epochs(model: str) -> None:
    recipe = get_recipe(f"tost/table2-imagenet-{model}")
    assert recipe.train.max_steps == 400 * (1_281_167 // 2_048)
    assert learning_rate(recipe.train, recipe.train.max_steps) == recipe.train.min_lr
    assert any("repeated augmentation" in note for note in recipe.notes)


def test_fine_tuned_rows_decay_every_parameter() -> None:
    """The original code passes all parameters to AdamW as one group."""
    rows = [get_recipe(f"tost/table2-{data}-tost_tiny_16") for data in ("cifar10", "pets")]
    assert [(r.train.weight_decay, r.train.decay_all) for r in rows] == [(0.01, True)] * 2


@pytest.mark.parametrize("model", ["tost_small_16", "tost_medium_16", "xcit_small_16"])
@pytest.mark.parametrize("data", ["cifar10", "cifar100", "flowers102", "pets"])
def test_fine_tuned_rows_read_pixels_as_their_weights_do(data: str, model: str) -> None:
    """The original code scales all data by ImageNet's mean and deviation, without drop path."""
    row = get_recipe(f"tost/table2-{data}-{model}")
    assert row.model_settings["drop_path"] == 0.0
    small = data.startswith("cifar")
    assert row.task_options.get("statistics") == ("imagenet" if small else None)
