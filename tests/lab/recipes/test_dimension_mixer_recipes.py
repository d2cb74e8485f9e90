"""Tests of Dimension Mixer: the curriculum of Table 6 and the CIFAR statistics of its code."""

from __future__ import annotations

import re

import pytest

from rifflemix.lab.recipes import get_recipe, list_recipes
from rifflemix.lab.tasks import load_task
from rifflemix.lab.tasks.images import cifar
from rifflemix.lab.tasks.images.pixels import scale_of
from rifflemix.lab.tasks.synthetic.pathfinder import CURRICULUM

STEPS = ("32", "64", "128-d5-g1", "128-d5-g2", "128-d14", "128-d20", "128")


def test_table6_has_the_seven_steps_in_their_order() -> None:
    names = [n for n in list_recipes() if n.startswith("dimension_mixer/table6-")]
    assert names == [f"dimension_mixer/table6-{step}" for step in STEPS]
    assert tuple(CURRICULUM) == STEPS
    assert [get_recipe(name).printed for name in names] == [
        69.17, 80.99, 71.84, 75.05, 75.46, 76.41, 76.72
    ]  # fmt: skip


@pytest.mark.parametrize("step", STEPS)
def test_step_generates_the_images_of_its_row(step: str) -> None:
    recipe = get_recipe(f"dimension_mixer/table6-{step}")
    assert (recipe.task, dict(recipe.task_options)) == CURRICULUM[step]
    assert not any("2.5" in note for note in recipe.notes)
    words = re.match(
        r"(\d+), contour (\d+)(?:, (\d+) distractors, gaps? ([\d and]+))?$", recipe.row
    )
    assert words is not None
    size, contour, distractors, gaps = words.groups()
    task = load_task(recipe.task, num_train=1, num_validation=1, num_test=1, **recipe.task_options)
    assert task.max_length == int(size) ** 2
    assert task.options["contour_length"] == int(contour)
    if distractors is not None:
        wanted = [float(gap) for gap in gaps.split(" and ")]
        assert task.options["num_distractors"] == int(distractors)
        assert task.options["gap"] == (wanted if len(wanted) > 1 else wanted[0])


STATISTICS = {
    "image": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2009, 0.1984, 0.2023)),
}
SCALES = {
    "image": (cifar._SCALES["rgb"], cifar._PER_IMAGE_10),
    "cifar100": (cifar._SCALE_100, cifar._PER_IMAGE_100),
}


@pytest.mark.parametrize("task", STATISTICS)
def test_images_are_normalised_as_in_the_released_code(task: str) -> None:
    recipes = [get_recipe(n) for n in list_recipes() if n.startswith("dimension_mixer/")]
    # The Image task of Table 5 uses gray pixels as tokens.
    rows = [r for r in recipes if r.task == task and r.table != "Table 5"]
    assert len(rows) > 10
    for recipe in rows:
        scale = scale_of(recipe.task_options, *SCALES[task])
        assert (scale.mean, scale.std) == STATISTICS[task]


@pytest.mark.parametrize("name", ["table6-32", "table6-128", "table5-pathx-butterfly"])
def test_curriculum_to_path_x_uses_the_adamw_of_the_model(name: str) -> None:
    """The paper changes rate, schedule and decay; eps and the decayed weights stay the same."""
    train = get_recipe(f"dimension_mixer/{name}").train
    assert (train.lr, train.weight_decay, train.decay_all) == (3e-4, 1e-3, True)
    assert train.eps == get_recipe("dimension_mixer/table5-pathfinder-butterfly").train.eps == 1e-6
