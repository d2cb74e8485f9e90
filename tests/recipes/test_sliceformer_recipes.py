"""Rows of the Sliceformer paper: what their models really are."""

from __future__ import annotations

import pytest
import torch

from rifflemix.models import create_model
from rifflemix.recipes import get_recipe, list_recipes


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
