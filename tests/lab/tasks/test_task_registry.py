"""Tests of the registry: names, options and common arguments of all tasks."""

from __future__ import annotations

from pathlib import Path

import pytest

from rifflemix.errors import InputError
from rifflemix.lab.tasks import list_tasks, load_task, prepare_task, task_card, task_status

# Tasks that are built in or generated; all other tasks need files or a network.
RECALL = {
    "mqar", "in_context_recall", "noisy_recall", "fuzzy_recall", "selective_copying",
    "compression", "memorization", "copying", "induction", "needle", "state_tracking",
}  # fmt: skip
NEED_NOTHING = RECALL | {
    "digits",
    "listops",
    "pathfinder32",
    "pathfinder64",
    "pathfinder128",
    "pathfinder256",
    "pathx",
    "point_clouds",
    "sort",
    "seasonal",
    "digit_sets",
    "dna_motifs",
}


def test_names_of_tasks_are_listed_once() -> None:
    names = list_tasks()
    assert names[:4] == ["digits", "listops", "image", "cifar100"]
    assert len(set(names)) == len(names)
    assert set(names) >= NEED_NOTHING


def test_cards_mark_tasks_with_square_images() -> None:
    """Learned positions are resized for square images, but not for text of equal length."""
    cards = [task_card(name) for name in list_tasks()]
    drawn = {card.name for card in cards if card.name.startswith(("pathfinder", "pathx"))}
    # User arrays may be images or not.
    own = {"folder", "npz"}
    cut = {card.name for card in cards if "patch_size" in card.options} - own
    assert {card.name for card in cards if card.is_image} == drawn | cut
    assert len(drawn) == 5
    assert cut >= {"digits", "mnist", "image", "cifar100", "imagenet", "image_folder"}


def test_tasks_that_draw_their_data_have_a_seed_among_their_options() -> None:
    """Check `seed`, because commands must accept the options in results and configurations."""
    seeded = {name for name in list_tasks() if "seed" in task_card(name).options}
    assert seeded == NEED_NOTHING - {"digits"} | {"passages"}


@pytest.mark.parametrize("name", list_tasks())
def test_card_is_filled_in(name: str) -> None:
    card = task_card(name)
    assert card.name == name
    assert card.title
    assert card.source
    assert card.licence
    assert card.description
    assert card.needs_data == (name not in NEED_NOTHING)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        pytest.param("digit", {}, "'digit'.*digits", id="near name"),
        pytest.param("digits", {"patchsize": 2}, "'patchsize'.*patch_size", id="near option"),
        pytest.param("digits", {"patch_size": 3}, r"patch_size: .*\b1\b.*\b2\b.*\b4\b", id="size"),
        pytest.param("digits", {"patch_size": "2"}, "patch_size: .*got '2'", id="string"),
        pytest.param("digits", {"patch_size": True}, "patch_size: .*got True", id="bool"),
        pytest.param("digits", {"seed": -1}, r"seed: .*\b0\b", id="seed"),
        pytest.param("digits", {"data_dir": "/no/such"}, "data_dir: .*got '/no/such'", id="dir"),
        pytest.param("image", {"patch_size": 3}, "patch_size: .*got 3", id="image size"),
        pytest.param("image", {"color": "grey"}, "gray.*got 'grey'", id="color"),
        pytest.param("mnist", {"patch_size": 8}, "patch_size: .*got 8", id="mnist size"),
        pytest.param("text", {"max_length": 0}, r"max_length: .*\b1\b", id="text length"),
        pytest.param("listops", {"max_length": 501}, r"max_length: .*\b502\b", id="empty"),
        pytest.param("listops", {"num_train": 0}, r"num_train: .*\b1\b", id="no rows"),
        pytest.param("listops", {"max_args": 1}, r"max_args: .*\b2\b", id="args"),
        pytest.param("listops", {"max_depth": 1}, r"max_depth: .*\b2\b", id="depth"),
    ],
)
def test_bad_arguments_are_refused(name: str, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        load_task(name, **arguments)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["image", "text", "mnist"])
def test_missing_files_in_one_sentence(name: str, data: Path) -> None:
    with pytest.raises(InputError, match=r"https://.*--data-dir") as raised:
        load_task(name, data_dir=data)
    assert "\n" not in str(raised.value)
    status = task_status(name, data)
    assert not status.available
    assert str(data) in status.detail


@pytest.mark.parametrize("name", ["image", "text", "mnist"])
def test_status_without_files(name: str) -> None:
    status = task_status(name)
    assert not status.available
    assert "--data-dir" in status.detail


@pytest.mark.parametrize("name", ["digits", "listops"])
def test_status_of_tasks_without_files(name: str, data: Path) -> None:
    assert task_status(name).available
    assert task_status(name, data).available


def test_digits_need_no_preparation() -> None:
    assert prepare_task("digits") is None
