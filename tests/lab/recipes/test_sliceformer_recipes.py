"""Tests of rows of the Sliceformer paper: models, sizes, training and notes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rifflemix.lab.recipes import Recipe, get_recipe, list_recipes
from rifflemix.lab.train.optim import learning_rate
from rifflemix.models import create_model


@pytest.mark.parametrize(
    ("name", "row", "count"),
    [
        ("cifar10", "vit", 9.52),
        ("cifar10", "ascending", 6.38),
        ("cifar10-p2", "vit", 9.60),
        ("cifar10-p2", "max_exchange", 6.46),
        ("cifar10-p2", "ascending", 6.46),
    ],
)
def test_both_patch_sizes_of_cifar10(name: str, row: str, count: float) -> None:
    recipe = get_recipe(f"sliceformer/table4-{name}-{row}")
    with torch.device("meta"):
        model = create_model(recipe.model, **recipe.model_settings)
    patch = 2 if name.endswith("p2") else 4
    assert model.num_patches == (32 // patch) ** 2
    assert round(model.num_parameters() / 1e6, 2) == count
    assert any(note.startswith(f"patches of {patch}") for note in recipe.notes)


SORTED_ROWS = ("table4", "table5", "table6")


def test_notes_separate_stated_from_inferred_settings() -> None:
    names = [
        name
        for name in list_recipes()
        if name.startswith(tuple(f"sliceformer/{table}" for table in SORTED_ROWS))
        and name.endswith(("max_exchange", "interleave", "ascending"))
    ]
    assert len(names) == 3 * 6 + 2 + 2
    for name in names:
        starts = [note.partition(":")[0] for note in get_recipe(name).notes]
        assert {"certain", "inferred"} <= set(starts), name


@pytest.mark.parametrize("table", SORTED_ROWS)
def test_a_table_of_two_sliceformers_prints_two_variants(table: str) -> None:
    """Table V reports max-exchange, Tables IV and VI report interleave; all report ascending."""
    rows = [get_recipe(n) for n in list_recipes() if n.startswith(f"sliceformer/{table}")]
    printed = {r.name.rpartition("-")[2] for r in rows if r.printed is not None}
    other = "max_exchange" if table == "table5" else "interleave"
    assert printed - {"vit", "transformer", "graphormer"} == {other, "ascending"}


@pytest.mark.parametrize("data", ["dogs", "mnist", "cifar10", "cifar10-p2", "cifar100", "tiny"])
def test_interleave_of_images_has_the_finest_runs_first(data: str) -> None:
    recipe = get_recipe(f"sliceformer/table4-{data}-interleave")
    model = create_model(recipe.model, **recipe.model_settings)
    heads = 6 if data == "tiny" else 8  # DeiT-S has 6
    for index, block in enumerate(reversed(model.blocks)):
        run = max(1, 64 // 2**index)
        head = [column // run % 2 == 1 for column in range(64)]
        assert block.mixer.descending.tolist() == head * heads
    assert not model.blocks[-1].mixer.descending.any()


def test_interleave_of_molecules_has_the_coarsest_runs_first() -> None:
    recipe = get_recipe("sliceformer/table6-pcqm4m-interleave")
    model = create_model(recipe.model, **{**recipe.model_settings, "dim": 96, "num_heads": 4})
    assert not model.blocks[0].attention.descending.any()
    for index, block in enumerate(model.blocks[1:], start=1):
        expected = [c // max(1, 24 // 2**index) % 2 == 1 for c in range(24)] * 4
        assert block.attention.descending.tolist() == expected


def size_of(name: str) -> int:
    recipe = get_recipe(name)
    with torch.device("meta"):
        return int(create_model(recipe.model, **recipe.model_settings).num_parameters())


@pytest.mark.parametrize("task", ["listops", "text", "retrieval", "image", "pathfinder"])
def test_size_notes_exist_if_a_row_is_larger_than_the_transformer(task: str) -> None:
    for name, baseline in (
        *((f"sliceformer/table2-{task}-{v}", f"sliceformer/table2-{task}-softmax")
          for v in ("ascending", "interleave", "max_exchange")),
        (f"csp/table4-{task}", f"csp/table4-{task}-softmax"),
    ):  # fmt: skip
        size, of_transformer = size_of(name), size_of(baseline)
        notes = [note for note in get_recipe(name).notes if "parameters" in note]
        assert bool(notes) == (size > of_transformer), name
        if notes:
            assert f"{size:,}" in notes[0]
            assert f"{of_transformer:,}" in notes[0]


@pytest.mark.parametrize(
    ("task", "layers", "dim", "inner"),
    [("pathfinder", 4, 320, 320), ("image", 6, 96, 48)],
)
def test_a_transformer_of_sliceformers_size_differs_in_the_mixer_only(
    task: str, layers: int, dim: int, inner: int
) -> None:
    own = get_recipe(f"sliceformer/table2-{task}-ascending")
    other = get_recipe(f"sliceformer/table2-{task}-softmax-sliceformer_size")
    assert_same_but_mixer(own, other)
    assert other.model_settings["mixer"] == "softmax"
    assert (other.model_settings["num_layers"], other.model_settings["dim"]) == (layers, dim)
    assert size_of(other.name) - size_of(own.name) == 2 * layers * dim * inner


@pytest.mark.parametrize(
    ("task", "layers", "dim", "inner"),
    [("pathfinder", 4, 32, 16), ("image", 1, 128, 64)],
)
def test_a_sliceformer_of_the_transformers_size_differs_in_the_mixer_only(
    task: str, layers: int, dim: int, inner: int
) -> None:
    transformer = get_recipe(f"sliceformer/table2-{task}-softmax")
    other = get_recipe(f"sliceformer/table2-{task}-ascending-transformer_size")
    assert_same_but_mixer(transformer, other)
    assert other.model_settings["mixer"] == "sliceformer"
    assert (other.model_settings["num_layers"], other.model_settings["dim"]) == (layers, dim)
    assert size_of(transformer.name) - size_of(other.name) == 2 * layers * dim * inner


def assert_same_but_mixer(one: Recipe, other: Recipe) -> None:
    settings = [
        {key: value for key, value in r.model_settings.items() if not key.startswith("mixer")}
        for r in (one, other)
    ]
    assert settings[0] == settings[1]
    assert (one.train, one.task, one.task_options) == (other.train, other.task, other.task_options)
    assert other.printed is None
    assert one.model == other.model


def test_photographs_train_as_released() -> None:
    recipe = get_recipe("sliceformer/table4-dogs-ascending")
    epoch = 25_000 * 8 // 10 // 64
    train = recipe.train
    assert (train.max_steps, train.milestones) == (300 * epoch, (250 * epoch,))
    assert (train.lr, train.optimizer, train.decay_factor) == (3e-5, "adam", 0.1)
    with torch.device("meta"):
        model = create_model(recipe.model, **recipe.model_settings)
    assert (model.settings["dropout"], model.settings["embedding_dropout"]) == (0.0, 0.0)
    assert round(model.num_parameters() / 1e6, 2) == 1.11


@pytest.mark.parametrize(
    ("data", "augment"),
    [("mnist", "crop_flip"), ("tiny", "crop_flip"), ("dogs", "resized_crop_flip")],
)
def test_training_images_change_as_released(data: str, augment: str) -> None:
    recipe = get_recipe(f"sliceformer/table4-{data}-vit")
    assert recipe.task_options["augment"] == augment


def test_reviews_train_as_released() -> None:
    """The original trainer divides the rate by ten at the start of epoch 12, counted from 1."""
    train = get_recipe("sliceformer/table5-imdb-ascending").train
    epoch = train.max_steps // 30
    rates = [learning_rate(train, step) for step in (0, 11 * epoch - 1, 11 * epoch)]
    assert rates == pytest.approx([1e-4, 1e-4, 1e-5])


def test_positions_of_reviews_equal_the_released_code() -> None:
    """Check sines and cosines side by side, with the first token at position 1."""
    model = create_model("imdb_classifier")
    table = model.positions.table
    position, channel = np.arange(1, 513)[:, None], np.arange(256)
    angles = position / 10_000 ** (2 * (channel // 2) / 256)
    expected = np.where(channel % 2 == 0, np.sin(angles), np.cos(angles))
    torch.testing.assert_close(table.double(), torch.from_numpy(expected), atol=1e-6, rtol=0)


def test_molecules_decay_as_released() -> None:
    train = get_recipe("sliceformer/table6-pcqm4m-graphormer").train
    assert (train.weight_decay, train.decay_all, train.clip_norm) == (0.01, True, 5.0)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sliceformer/table6-pcqm4m-graphormer", "has two processes"),
        ("sliceformer/table5-imdb-ascending", "overwrites"),
        ("sliceformer/table6-pcqm4m-ascending", "padding of a batch with the nodes"),
        ("sliceformer/table6-pcqm4m-interleave", "padding of a batch with the nodes"),
        ("sliceformer/table4-dogs-vit", "squeezes"),
        ("sliceformer/table4-cifar10-vit", "best on the test split"),
        ("csp/table3-cifar100-csp", "best on the test split"),
        ("sliceformer/table4-cifar100-ascending", "runs of 300 epochs"),
    ],
)
def test_differences_from_the_released_code_are_noted(name: str, words: str) -> None:
    assert any(words in note for note in get_recipe(name).notes)
