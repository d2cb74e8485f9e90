"""Tests of tasks from data sets of Hugging Face."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_user_files import sizes

import rifflemix as rm
from rifflemix.errors import InputWarning

RANDOM = np.random.default_rng(11)


class Rows:
    """Data set with only the methods that rifflemix reads."""

    def __init__(self, **columns: list[Any]) -> None:
        self.columns = columns
        self.column_names = list(columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, name: str) -> list[Any]:
        return self.columns[name]


def rows(count: int, label: Callable[[int], Any] = lambda i: i % 2) -> Rows:
    words = RANDOM.integers(0, 9, (count, 5)).tolist()
    return Rows(
        text=[f"{i} {w}" for i, w in enumerate(words)], label=[label(i) for i in range(count)]
    )


def test_a_data_set_of_the_library() -> None:
    datasets = pytest.importorskip("datasets")
    labels = datasets.ClassLabel(names=["calm", "loud"])
    data = datasets.Dataset.from_dict(
        {"x": [[float(i), 1.0] for i in range(20)], "y": [i % 2 for i in range(20)]},
        features=datasets.Features(x=datasets.Sequence(datasets.Value("float32")), y=labels),
    )
    task = rm.Task.from_datasets(data, input="x", label="y")
    assert (task.num_features, task.max_length, sizes(task)) == (1, 2, [12, 4, 4])
    both = datasets.DatasetDict(train=data, test=data.select(range(6)))
    with pytest.warns(InputWarning, match="task datasets: .*6 of test"):
        assert sizes(rm.Task.from_datasets(both, input="x", label="y")) == [16, 4, 6]


def test_unknown_class_of_a_data_set() -> None:
    """-1 is not a class of a ClassLabel, but it is a normal number in other columns."""
    data = rows(20, lambda i: i % 2 if i else -1)
    assert rm.Task.from_datasets(data, input="text", label="label").num_classes == 3
    data.features = {"label": SimpleNamespace(int2str=str)}  # type: ignore[attr-defined]
    with pytest.raises(rm.InputError, match=r"got -1\b .none.*\b0\b"):
        rm.Task.from_datasets(data, input="text", label="label")


@pytest.mark.parametrize(("mode", "channels"), [("P", 3), ("1", 1), ("F", 1), ("RGBA", 4)])
def test_images_of_every_mode(mode: str, channels: int) -> None:
    """Check that palette images are read as colors and not as palette indices."""
    image = pytest.importorskip("PIL.Image")
    pixels = RANDOM.integers(0, 256, (20, 8, 8, 3), dtype=np.uint8)
    images = [image.fromarray(part).convert(mode) for part in pixels]
    data = Rows(picture=images, y=[i % 2 for i in range(20)])
    task = rm.Task.from_datasets(data, input="picture", label="y", patch_size=1)
    assert (task.num_features, task.max_length) == (channels, 64)
    if mode == "P":
        colours = np.stack([np.asarray(picture.convert("RGB")) for picture in images])
        same = rm.Task.from_arrays(colours, [i % 2 for i in range(20)], patch_size=1)
        assert same.split("train")[0][0].equal(task.split("train")[0][0])


def test_hidden_labels_cause_a_drawn_test_split() -> None:
    data = {"train": rows(50), "validation": rows(10), "test": rows(9, lambda i: -1)}
    task = rm.Task.from_datasets(data, input="text", label="label")
    assert sizes(task) == [40, 10, 10]
    assert re.search(r"\btest\b[^,]* 20 %", task.split_note)


WRONG_SETS = {
    "column": ({"train": rows(9)}, "'words'", {"input": "words"}),
    "split": ({"train": rows(9), "more": rows(9)}, "'more'", {}),
    "no train": ({"test": rows(9)}, "train.*got test", {}),
    "no data set": ([1, 2], "data:", {}),
    "empty": ({}, "data: .*DatasetDict", {}),
    "label read": ({"train": rows(9)}, "input: .*got 'label'", {"input": "label"}),
    "stream": (
        {"train": SimpleNamespace(column_names=["text"])},
        "data: .*got SimpleNamespace",
        {},
    ),
}


@pytest.mark.parametrize(("data", "message", "options"), WRONG_SETS.values(), ids=WRONG_SETS)
def test_wrong_data_sets_are_refused(data: Any, message: str, options: dict[str, Any]) -> None:
    with pytest.raises(rm.InputError, match=message):
        rm.Task.from_datasets(data, **{"input": "text", "label": "label", **options})


def test_the_hub_is_read_at_one_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def load_dataset(name: str, config: str | None, revision: str) -> Any:
        asked.append((name, config, revision))
        if name == "nobody/gone":
            raise ConnectionError("Couldn't reach the hub\nmore lines")
        return {"train": rows(30)}

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    commit = "0123456789abcdef" * 2 + "01234567"
    options: dict[str, Any] = {"input": "text", "label": "label"}
    task = rm.Task.from_hf("nobody/songs", revision=commit, config="small", **options)
    assert asked == [("nobody/songs", "small", commit)]
    assert (task.name, sizes(task)) == ("songs", [18, 6, 6])
    assert task.options["revision"] == commit
    assert re.match(r"nobody/songs\b.*\b01234567\b", task.data_source)
    for revision in ("main", commit[:8], None):
        with pytest.raises(rm.InputError, match=r"revision: .*\b40\b"):
            rm.Task.from_hf("nobody/songs", revision=revision, **options)
    with pytest.raises(rm.InputError, match="nobody/gone") as e:
        rm.Task.from_hf("nobody/gone", revision=commit, **options)
    assert "\n" not in str(e.value)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(rm.InputError, match="datasets"):
        rm.Task.from_hf("nobody/songs", revision=commit, **options)
