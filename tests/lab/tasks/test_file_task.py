"""Check that a task with files needs one class only: registry, cache, report, refusals."""

from __future__ import annotations

import lzma
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from rifflemix.errors import InputError
from rifflemix.lab.comparison import default_budget, default_mixers, default_model
from rifflemix.lab.tasks import (
    Budget,
    Task,
    TaskCard,
    load_task,
    prepare_task,
    registry,
    task_status,
)
from rifflemix.lab.tasks.core.base import Progress
from rifflemix.lab.tasks.core.builder import Request, check_integer
from rifflemix.lab.tasks.data_io.file_task import FileTask, Form, Options, Paths
from rifflemix.lab.tasks.data_io.files import Array, Arrays, Source
from rifflemix.lab.tasks.data_io.safe_readers import read_lines
from rifflemix.lab.tasks.data_io.splits import RaggedSplit, ragged_rows, to_ragged_parts

FILES = {part: f"words.{part}" for part in ("train", "validation", "test")}
WHOLE = "words.all"


def read(paths: Paths, progress: Progress) -> Arrays:
    progress("reading words", 0, None)
    return to_ragged_parts(
        {p: [(row, len(row) % 2) for _, row in read_lines(path)] for p, path in paths.items()}
    )


def read_whole(paths: Paths, progress: Progress) -> Arrays:
    return read(dict.fromkeys(FILES, paths["all"]), progress)


class Words(FileTask):
    """Classify words as odd or even."""

    card = TaskCard(
        name="words",
        title="Words",
        source="this test",
        licence="none",
        description="Odd words and even ones.",
        needs_data=True,
        options={"max_length": 8},
        budget=Budget(batch_size=2),
    )
    get_it = "words.* from https://example.org"

    def check(self, options: Options) -> None:
        check_integer(options, "max_length", 1)

    def forms(self, options: Options) -> Sequence[Form]:
        return (
            Form("{train} and others", FILES, read, (".", "words"), ("", ".xz")),
            Form(WHOLE, {"all": (WHOLE, "WORDS")}, read_whole, note="the same words thrice"),
        )

    def why_not(self, data_dir: Path, options: Options) -> str:
        return "a zip is not read" if (data_dir / "words.zip").exists() else ""

    def build(self, request: Request, source: Source, arrays: Mapping[str, Array]) -> Task:
        rows = {part: ragged_rows(arrays, f"{part}_") for part in FILES}
        return Task(
            name=self.card.name,
            options=dict(request.options),
            input_kind="tokens",
            vocab_size=257,
            num_features=None,
            num_classes=2,
            max_length=8,
            padding=True,
            split_note="",
            data_source=source.description,
            splits={
                part: RaggedSplit((own,), np.arange(len(own)), 8, 1) for part, own in rows.items()
            },
        )


@pytest.fixture(autouse=True)
def one_registry_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._TASKS, "words", Words())


def write(folder: Path, *names: str) -> None:
    folder.mkdir(exist_ok=True)
    for name in names:
        content = f"{name}\nto\n".encode()
        (folder / name).write_bytes(lzma.compress(content) if name.endswith(".xz") else content)


def test_comparison_needs_only_the_card() -> None:
    assert default_budget("words").batch_size == 2
    assert default_model("words") == "encoder"
    assert "csp" in default_mixers("words")


def test_files_are_decoded_once_and_cached(data: Path, cache: Path) -> None:
    write(data, *FILES.values())
    before = task_status("words", data)
    assert before.available
    assert re.search(rf"words\.train\b.*{data}", before.detail)
    folder = prepare_task("words", data_dir=data)
    assert folder is not None
    assert folder.parent == cache / "words"
    stamps = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    task = load_task("words", data_dir=data)
    assert bytes(task.split("test")[0][0] - 1) == b"words.te"
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == stamps
    assert task_status("words", data).detail != before.detail


def test_files_are_decoded_again_after_a_change(data: Path) -> None:
    write(data, *FILES.values())
    first = prepare_task("words", data_dir=data)
    (data / "words.test").write_text("other words\n")
    assert prepare_task("words", data_dir=data) != first
    assert len(load_task("words", data_dir=data).split("test")) == 1


@pytest.mark.parametrize("folder", [".", "words"])
def test_other_folders_and_endings(folder: str, data: Path) -> None:
    write(data / folder, "words.train.xz", "words.validation", "words.test.xz")
    task = load_task("words", data_dir=data)
    assert task.data_source.startswith("words.train.xz ")
    assert bytes(task.split("train")[0][0] - 1) == b"words.train.xz"[:8]


@pytest.mark.parametrize("name", [WHOLE, "WORDS"])
def test_other_file_format_and_its_note(name: str, data: Path) -> None:
    write(data, name)
    assert load_task("words", data_dir=data).data_source == f"{WHOLE} (the same words thrice)"
    write(data, *FILES.values())
    assert load_task("words", data_dir=data).data_source.startswith("words.train ")


def test_complete_format_is_used_if_another_is_incomplete(data: Path) -> None:
    write(data, "words.train", WHOLE)
    assert load_task("words", data_dir=data).data_source.startswith(WHOLE)


def test_missing_file_of_a_set_is_named(data: Path) -> None:
    write(data, "words.train", "words.test")
    with pytest.raises(InputError) as raised:
        load_task("words", data_dir=data)
    assert str(raised.value).startswith(f"{data / 'words.validation'}: ")
    status = task_status("words", data)
    assert (status.available, status.detail) == (False, str(raised.value))


def test_missing_data_is_reported(data: Path) -> None:
    assert "--data-dir" in task_status("words").detail
    assert re.search(rf"Words\b.*{data}", task_status("words", data).detail)
    (data / "words.zip").touch()
    with pytest.raises(InputError) as raised:
        load_task("words", data_dir=data)
    parts = ("task words: ", str(data), "zip", "https://example.org", "--data-dir")
    files = ("words.train[.xz]", "words.validation[.xz]", "words.test[.xz]", "words.all", "WORDS")
    expected = ".*".join(map(re.escape, parts + files))
    assert re.match(expected, str(raised.value))
    for call in (load_task, prepare_task):
        with pytest.raises(InputError, match="--data-dir"):
            call("words")


def test_options_are_checked_before_files_are_looked_for(data: Path) -> None:
    for call in (load_task, prepare_task):
        with pytest.raises(InputError, match=r"max_length: .*\b1\b.*got 0\b"):
            call("words", data_dir=data, max_length=0)


def test_damage_is_named(data: Path) -> None:
    write(data, *FILES.values())
    (data / "words.test").rename(data / "words.test.xz")
    with pytest.raises(InputError, match=r"words\.test\.xz:"):
        load_task("words", data_dir=data)
    assert task_status("words", data).available


class Fetched(Words):
    """The same task with downloaded files."""

    def remote_source(self, options: Options) -> Source:
        def fetch(progress: Progress) -> Arrays:
            return to_ragged_parts({part: [(b"far", 1)] for part in FILES})

        return Source("words of afar", "afar", fetch)


def test_files_are_downloaded_once(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setitem(registry._TASKS, "words", Fetched())
    before = task_status("words").detail
    assert re.search("--data-dir.*words of afar", before)
    assert prepare_task("words") == cache / "words" / "afar"
    assert re.match("words of afar, ", task_status("words").detail)
    assert load_task("words").data_source == "words of afar"
