"""Word segmentation of the Penn Treebank."""

from pathlib import Path

import pytest

from rifflemix.errors import InputError
from rifflemix.lab.tasks import load_task

LINES = [f" the <unk> of no. {number} sat on {word}'s mat \n" for number in "123456" * 20
         for word in ("cat", "dog")]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("train", "valid", "test"):
        (tmp_path / f"ptb.{name}.txt").write_text("".join(LINES))
    return tmp_path


def test_labels_mark_the_first_character_of_a_word(folder: Path) -> None:
    task = load_task("ptb_segmentation", data_dir=folder, num_train=150)
    assert [len(task.split(name)) for name in ("train", "validation", "test")] == [150, 240, 240]
    assert (task.kind, task.classes) == ("tokens", ("inside", "start"))
    ids, labels = task.split("train")[0]
    assert "".join("xS"[label] for label in labels) == "SxxSSxSxxSSxxSxSxxxxSxx"
    assert task.inputs is not None
    assert task.inputs.encode([list("the?ofno.1satoncat'smat")])[0].equal(ids)
    counts = task.class_counts("test")
    assert counts is not None
    assert counts[1] == 240 * 9


def test_long_sentences_are_split(folder: Path) -> None:
    task = load_task("ptb_segmentation", data_dir=folder, num_train=150, max_length=10)
    assert len(task.split("test")[0][1]) == task.max_length == 10


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"ptb\.train\.txt"):
        load_task("ptb_segmentation", data_dir=tmp_path)
