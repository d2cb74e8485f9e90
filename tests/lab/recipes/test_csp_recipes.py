"""Tests of the models of the CSP paper's rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rifflemix.errors import InputError
from rifflemix.lab.recipes import Recipe, get_recipe
from rifflemix.mixers.csp import CSP
from rifflemix.models import create_model

MILLION = 1_000_000


def built(name: str) -> Any:
    recipe = get_recipe(name)
    return create_model(recipe.model, **recipe.model_settings)


def parameters(recipe: Recipe) -> int:
    with torch.device("meta"):
        return create_model(recipe.model, **recipe.model_settings).num_parameters()


def where_tokens_go(permutation: CSP, length: int) -> torch.Tensor:
    """Return the source (C,) of the first token of each channel.

    The source is counted in positions to the left.
    """
    places = torch.arange(length, dtype=torch.float32)
    v = places[None, :, None].repeat(1, 1, permutation.inner_dim)
    moved = permutation.permute(v, None)[0]
    return (-moved[0, 0]).long() % length


@pytest.mark.parametrize(("column", "tokens"), [("cifar10", 64), ("cifar100", 256)])
def test_shift_without_sort_has_one_head_per_token(column: str, tokens: int) -> None:
    model = built(f"csp/table3-{column}-shift")
    for block in model.blocks:
        steps = where_tokens_go(block.mixer, tokens).tolist()
        assert steps == [max(channel - 1, 0) % tokens for channel in range(512)]
        assert len(set(steps)) == tokens


def test_one_shift_for_each_head() -> None:
    """Check equation (3): the rows of head m move by C (m - 1) / D."""
    steps = where_tokens_go(built("csp/table1-cifar10-head_shift").blocks[3].mixer, 64)
    assert steps.tolist() == [512 // 64 * (channel // 64) for channel in range(512)]


def test_pairs_keep_the_stride_of_two() -> None:
    mixer = built("csp/table3-cifar10-csp").blocks[0].mixer
    assert mixer.groups.size == 2
    size, steps = mixer.size_and_steps(64)
    assert size == 2
    assert len(set(steps)) == 32


def test_mega_shifts_an_image_by_the_printed_steps() -> None:
    """Check c ceil(N / C) for N = 1,024 and C = 320 channels counted from 0, and no sort."""
    for block in built("csp/table4-image-mega_csp").blocks:
        steps = where_tokens_go(block.mixer.permutation, 1024).tolist()
        assert steps == [4 * channel % 1024 for channel in range(320)]
        assert max(steps) == 1020


@pytest.mark.parametrize(("column", "groups"), [("cifar10", 32), ("cifar100", 128)])
def test_group_sorting_has_the_groups_of_table_5_without_shift(column: str, groups: int) -> None:
    recipe = get_recipe(f"csp/table3-{column}-group_sort")
    model = built(recipe.name)
    assert (model.settings["pool"], model.num_patches) == ("mean", 2 * groups)
    v = torch.randn(2, model.num_patches, 512)
    expected = v.view(2, groups, 2, 512).sort(dim=2).values.view_as(v)
    for block in model.blocks:
        assert torch.equal(block.mixer.permute(v, None)[0], expected)
    whole = get_recipe(f"csp/table3-{column}-sort")
    assert recipe.printed == whole.printed
    assert built(whole.name).blocks[0].mixer.groups.count == 1


def test_table_5_sorts_all_tokens_of_imagenet() -> None:
    """Check the missing row: its reported accuracy is a result of Sliceformer with one group."""
    with pytest.raises(InputError, match="recipe"):
        get_recipe("csp/table3-imagenet-group_sort")


@pytest.mark.parametrize(
    ("column", "count", "wide"),
    [("cifar10", 6.38, 9.52), ("cifar100", 6.50, 9.65), ("imagenet", 18.50, 22.05)],
)
def test_parameter_counts_equal_the_paper(column: str, count: float, wide: float) -> None:
    extra = () if column == "imagenet" else ("group_sort",)
    counted = {
        row: round(parameters(get_recipe(f"csp/table3-{column}-{row}")) / MILLION, 2)
        for row in ("vit", "shift", "sort", *extra, "csp", "csp_wide")
    }
    small = dict.fromkeys(("shift", "sort", *extra, "csp"), count)
    assert counted == {"vit": wide, "csp_wide": wide, **small}


def test_top5_is_another_metric_of_the_same_run() -> None:
    top1 = get_recipe("csp/table3-cifar100-csp")
    top5 = get_recipe("csp/table3-cifar100-csp-top5")
    assert (top1.metric, top5.metric) == ("accuracy", "top5_accuracy")
    assert (top1.printed, top5.printed) == (59.16, 84.76)
    for field in ("task", "task_options", "model", "model_settings", "train"):
        assert getattr(top1, field) == getattr(top5, field)


# From MEGA's released commands: rate, batch, updates, dropout.
MEGA = {
    "listops": (1e-3, 64, 90_000, 0.1),
    "text": (4e-3, 50, 25_000, 0.1),
    "retrieval": (3e-3, 64, 91_960, 0.1),
    "image": (1e-2, 50, 180_000, 0.0),
    "pathfinder": (1e-2, 128, 250_000, 0.0),
    "pathx": (1e-2, 128, 125_000, 0.0),
}
# From Table 7 of the CSP paper; the notes give the updates that the paper leaves open.
MEGA_CSP = {
    "listops": (1e-3, 64, 90_000, 0.1),
    "text": (4e-3, 50, 25_000, 0.1),
    "retrieval": (6e-3, 64, 91_960, 0.1),
    "image": (1e-2, 50, 180_000, 0.0),
    "pathfinder": (3e-2, 128, 250_000, 0.1),
    "pathx": (1e-2, 480, 125_000, 0.5),
}


@pytest.mark.parametrize("row", ["mega", "mega_chunk", "mega_csp"])
@pytest.mark.parametrize("task", MEGA)
def test_mega_uses_the_settings_of_its_command(task: str, row: str) -> None:
    recipe = get_recipe(f"csp/table4-{task}-{row}")
    with torch.device("meta"):
        model = create_model(recipe.model, **recipe.model_settings)
    train = recipe.train
    found = (train.lr, train.batch_size, train.max_steps, model.settings["dropout"])
    assert found == (MEGA_CSP if row == "mega_csp" else MEGA)[task]
    drops = {m.p for m in model.modules() if isinstance(m, torch.nn.Dropout)}
    drops |= {block.mixer.layer_dropout for block in model.blocks}
    assert drops <= {0.0, found[3]}
    assert model.blocks[0].mixer.layer_dropout == found[3]
    assert train.schedule_steps is None
    assert train.decay_all  # fairseq's trainer passes one group of all parameters


# Training set sizes for the epochs of the paper.
SAMPLES = {
    "listops": (96_000, 60),
    "text": (25_000, 50),
    "retrieval": (147_086, 40),
    "image": (45_000, 200),
    "pathfinder": (160_000, 200),
}


@pytest.mark.parametrize("task", SAMPLES)
def test_mega_with_csp_trains_the_printed_epochs(task: str) -> None:
    train = get_recipe(f"csp/table4-{task}-mega_csp").train
    samples, epochs = SAMPLES[task]
    assert train.max_steps * train.batch_size / samples == pytest.approx(epochs, rel=0.001)


def test_decisions_are_noted() -> None:
    for task, words in {
        "retrieval": "updates",
        "pathfinder": "batch",
        "pathx": "batch",
    }.items():
        notes = get_recipe(f"csp/table4-{task}-mega_csp").notes
        assert any(note.startswith(f"{words} ") for note in notes)


@pytest.mark.parametrize(
    "name",
    [
        *(f"csp/table4-text-{row}" for row in ("mega", "mega_chunk", "mega_csp")),
        *(f"csp/table4-text-{row}" for row in ("etsmlp", "spade")),
        *(f"tost/table3-text-{row}" for row in ("tssa", "tssa-as_printed", "softmax")),
    ],
)
def test_reviews_of_megas_model_are_truncated_to_4000_bytes(name: str) -> None:
    """MEGA calls its data imdb-4000, and its models have 4,002 positions."""
    assert get_recipe(name).task_options == {"max_length": 4000}


@pytest.mark.parametrize(("task", "tokens"), [("listops", "1,024"), ("pathx", "4,096")])
def test_reach_of_megas_average_in_the_released_code_is_noted(task: str, tokens: str) -> None:
    notes = get_recipe(f"csp/table4-{task}-mega").notes
    assert any(f" {tokens} tokens" in note for note in notes)
    other = get_recipe("csp/table4-image-mega").notes
    assert not any(f" {tokens} tokens" in note for note in other)
