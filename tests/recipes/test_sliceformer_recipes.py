"""Rows of the Sliceformer paper: what their models really are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rifflemix.models import create_model
from rifflemix.recipes import get_recipe, list_recipes
from rifflemix.train.schedules import learning_rate


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


def test_guessed_variants_are_said_to_be_guessed() -> None:
    guessed = [
        name
        for name in list_recipes()
        if name.startswith(("sliceformer/table4", "sliceformer/table5", "sliceformer/table6"))
        and name.endswith(("max_exchange", "ascending"))
    ]
    assert len(guessed) == 16
    for name in guessed:
        assert any("is a guess" in note for note in get_recipe(name).notes)


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
    """Its trainer divides the rate by ten as epoch 12 begins, the first being 1."""
    train = get_recipe("sliceformer/table5-imdb-ascending").train
    epoch = train.max_steps // 30
    rates = [learning_rate(train, step) for step in (0, 11 * epoch - 1, 11 * epoch)]
    assert rates == pytest.approx([1e-4, 1e-4, 1e-5])


def test_positions_of_reviews_are_those_of_the_release() -> None:
    """Sines and cosines side by side, the first token at position 1."""
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
        ("sliceformer/table5-imdb-ascending", "draws the fixed sinusoids anew"),
        ("sliceformer/table6-pcqm4m-ascending", "padding of a batch with the nodes"),
        ("sliceformer/table6-pcqm4m-max_exchange", "padding of a batch with the nodes"),
        ("sliceformer/table4-dogs-vit", "squeezes whole photographs"),
        ("sliceformer/table4-cifar10-vit", "best on the test split"),
        ("csp/table3-cifar100-csp", "best on the test split"),
        ("sliceformer/table4-cifar100-ascending", "runs of 300 epochs"),
    ],
)
def test_where_the_release_is_another_is_said(name: str, words: str) -> None:
    assert any(words in note for note in get_recipe(name).notes)
