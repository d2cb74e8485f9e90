"""Tests of ListOps: the generator, its cache, the Long Range Arena's files."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from listops_files import write_tsv

from rifflemix.errors import InputError
from rifflemix.lab.tasks import Task, load_task, prepare_task, task_status
from rifflemix.lab.tasks.core.base import SPLITS
from rifflemix.lab.tasks.synthetic import listops
from rifflemix.lab.tasks.synthetic.grammar import TOKENS, evaluate
from rifflemix.lab.tasks.synthetic.listops import FILES

SHORT = {"min_length": 3, "max_length": 40, "num_train": 60, "num_validation": 20, "num_test": 20}


def rows(task: Task, name: str) -> list[tuple[bytes, int]]:
    return [(bytes(tokens.tolist()), label) for tokens, label in task.split(name)]


def test_samples_are_expressions_with_their_values() -> None:
    task = load_task("listops", **SHORT)
    assert (task.vocab_size, task.num_classes, task.max_length) == (16, 10, 40)
    for name in SPLITS:
        samples = rows(task, name)
        assert len(samples) == SHORT[f"num_{name}"]
        for tokens, label in samples:
            assert 3 < len(tokens) < 40
            assert evaluate(tokens) == label


def test_lengths_of_the_long_range_arena_by_default() -> None:
    task = load_task("listops", num_train=40, num_validation=3, num_test=3)
    lengths = [len(tokens) for tokens, _ in rows(task, "train")]
    assert min(lengths) > 500
    assert max(lengths) < 2000
    assert task.options["max_depth"] == task.options["max_args"] == 10


@pytest.mark.parametrize("shard", [250, 4000])
def test_expressions_are_unique(shard: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listops, "_SHARD", shard)
    # Short lengths have few expressions: 400 of four tokens and 4,000 of five tokens.
    counts = {"num_train": 2000, "num_validation": 300, "num_test": 300}
    task = load_task("listops", min_length=3, max_length=6, **counts)
    tokens = [row for name in SPLITS for row, _ in rows(task, name)]
    assert len(tokens) == len(set(tokens)) == 2600


def test_too_few_expressions_for_the_request() -> None:
    with pytest.raises(InputError, match=r"num_test: .*\d+.*got 400") as raised:
        load_task("listops", min_length=3, max_length=5, num_test=400)
    assert "\n" not in str(raised.value)


def test_impossible_length_is_refused() -> None:
    with pytest.raises(InputError, match=r"num_test: .*\b0\b"):
        load_task("listops", min_length=100, max_length=200, max_depth=2)


def test_seed_determines_the_expressions() -> None:
    first, again, other = (load_task("listops", seed=seed, **SHORT) for seed in (3, 3, 2**63))
    assert first.fingerprint() == again.fingerprint()
    assert not set(rows(first, "train")) & set(rows(other, "train"))


def test_expressions_are_fixed() -> None:
    # Published results name the seed, so a seed must always give the same expressions.
    task = load_task("listops", **SHORT)
    text = " ".join(TOKENS[token] for token in rows(task, "train")[0][0])
    assert text == "[MAX 7 6 9 6 1 5 2 ]"
    assert task.fingerprint() == "837e9f331d028e76a43e7da93494d21e"


def test_fewer_samples_are_the_first_of_more() -> None:
    few = load_task("listops", **SHORT)
    many = load_task("listops", **{**SHORT, "num_train": 90, "num_test": 50})
    assert rows(few, "train") == rows(many, "train")[:60]
    assert rows(few, "test") == rows(many, "test")[:20]
    assert rows(few, "validation") == rows(many, "validation")


def test_generation_resumes(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listops, "_SHARD", 25)
    straight = load_task("listops", **SHORT)
    assert straight.fingerprint() == "a14118e6a4acb50275c365af5c717ddb"
    folder = prepare_task("listops", **SHORT)
    assert folder is not None
    assert folder.is_relative_to(cache)
    assert sorted(path.name for path in folder.iterdir()) == [
        "test-00000",
        *(f"train-{number:05d}" for number in range(3)),
        "validation-00000",
    ]
    shutil.rmtree(folder)

    def stop(what: str, done: int, total: int | None) -> None:
        if "train" in what and done >= 25:
            raise KeyboardInterrupt

    monkeypatch.setattr(listops, "_REPORT_EVERY", 25)
    with pytest.raises(KeyboardInterrupt):
        load_task("listops", progress=stop, **SHORT)
    kept = sorted(path.name for path in folder.iterdir())
    assert kept == ["test-00000", "train-00000", "validation-00000"]

    def only_the_rest(what: str, done: int, total: int | None) -> None:
        assert "train" in what
        assert done >= 25

    resumed = load_task("listops", progress=only_the_rest, **SHORT)
    assert resumed.fingerprint() == straight.fingerprint()


def test_without_a_cache_the_data_stays_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = load_task("listops", **SHORT)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RIFFLEMIX_CACHE", str(tmp_path / "file"))
    assert load_task("listops", **SHORT).fingerprint() == kept.fingerprint()


def test_files_are_read_as_they_were_written(data: Path) -> None:
    task = load_task("listops", **SHORT)
    write_tsv(task, data)
    assert sorted(path.name for path in data.iterdir()) == sorted(FILES.values())
    first = (data / "basic_val.tsv").read_bytes().split(b"\r\n")
    assert first[0] == b"Source\tTarget"
    assert first[1].startswith(b"( ( ")
    read = load_task("listops", data_dir=data)
    for name in SPLITS:
        assert rows(read, name) == rows(task, name)
    assert "basic" in read.data_source
    assert "basic" in task_status("listops", data).detail
    assert len(load_task("listops", data_dir=data, num_train=7).split("train")) == 7


def test_data_dir_is_never_written_to(data: Path) -> None:
    load_task("listops", data_dir=data, **SHORT)
    assert list(data.iterdir()) == []


@pytest.mark.parametrize("folder", ["listops-1000", "lra_release/listops-1000"])
def test_files_in_the_folders_of_the_archive(data: Path, folder: str) -> None:
    task = load_task("listops", **SHORT)
    write_tsv(task, data / folder)
    assert rows(load_task("listops", data_dir=data), "test") == rows(task, "test")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        pytest.param("( ( ( [MAX 2 ) 3 ) ] )\t3", None, id="sound"),
        pytest.param("( ( ( [MAX 2 ) 3 ) ] )\t4", "target", id="wrong target"),
        pytest.param("( ( ( [MAX 2 ) 3 ) ] )", "target", id="no target"),
        pytest.param("( ( ( [MAX 2 ) 3 ) ] )\tx", "target", id="target no number"),
        pytest.param("( ( ( [AVG 2 ) 3 ) ] )\t3", "ListOps", id="operator"),
        pytest.param("( ( ( [MAX 2 ) 33 ) ] )\t3", "ListOps", id="two digits"),
        pytest.param("( ( ( [MAX 2 ) 3 )\t3", "expression", id="cut short"),
        pytest.param("( ( [MAX ] ] )\t3", "expression", id="no arguments"),
        pytest.param("2 ) ]\t3", "expression", id="bracket too many"),
        pytest.param("", "ListOps", id="empty line"),
    ],
)
def test_invalid_lines_are_refused(data: Path, line: str, message: str | None) -> None:
    for name in FILES.values():
        (data / name).write_text(f"Source\tTarget\n{line}\n")
    if message is None:
        assert load_task("listops", data_dir=data).split("train")[0][1] == 3
        return
    with pytest.raises(InputError, match=rf"basic_\w+\.tsv: .*line 2: .*{message}"):
        load_task("listops", data_dir=data)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({"max_length": 10}, r"max_length: .*\d+.*got 10", id="long"),
        pytest.param({"num_train": 61}, r"num_train: .*\b60\b", id="rows"),
        pytest.param({"max_depth": 4}, "max_depth: .*got 4", id="grammar"),
    ],
)
def test_options_that_do_not_fit_the_files(
    data: Path, options: dict[str, int], message: str
) -> None:
    write_tsv(load_task("listops", **SHORT), data)
    with pytest.raises(InputError, match=message):
        load_task("listops", data_dir=data, **options)


def test_files_without_header_and_missing_files(data: Path) -> None:
    (data / "basic_train.tsv").write_text("( ( ( [MAX 2 ) 3 ) ] )\t3\n")
    with pytest.raises(InputError, match=r"basic_val\.tsv:"):
        load_task("listops", data_dir=data)
    status = task_status("listops", data)
    assert not status.available
    assert "basic_val.tsv" in status.detail
    for name in FILES.values():
        (data / name).write_text("( ( ( [MAX 2 ) 3 ) ] )\t3\n")
    with pytest.raises(InputError, match=r"basic_train\.tsv"):
        load_task("listops", data_dir=data)


def test_truncated_file(data: Path) -> None:
    write_tsv(load_task("listops", **SHORT), data)
    content = (data / "basic_train.tsv").read_bytes()
    (data / "basic_train.tsv").write_bytes(content[: len(content) - 12])
    with pytest.raises(InputError, match=r"basic_train\.tsv:"):
        load_task("listops", data_dir=data)


def test_a_changed_file_is_read_again(data: Path) -> None:
    for name in FILES.values():
        (data / name).write_text("Source\tTarget\n( ( ( [MAX 2 ) 3 ) ] )\t3\n")
    assert load_task("listops", data_dir=data).split("train")[0][1] == 3
    (data / "basic_train.tsv").write_text("Source\tTarget\n( ( ( [MIN 2 ) 9 ) ] )\t2\n1\t1\n")
    assert load_task("listops", data_dir=data).split("train")[0][1] == 2


def test_sample_of_real_lines_is_read(data: Path, shared_data: Path) -> None:
    for name in FILES.values():
        shutil.copy(shared_data / "listops_format_sample.tsv", data / name)
    task = load_task("listops", data_dir=data)
    assert len(task.split("test")) == 13
    tokens, label = task.split("test")[0]
    assert label == 7
    assert " ".join(TOKENS[token] for token in tokens.tolist()) == (
        "[MAX 4 [MIN 4 4 6 9 0 0 ] 5 [MED 4 3 [MAX 7 7 3 6 ] ] 2 1 0 7 2 2 ]"
    )


@pytest.mark.slow
def test_labels_are_spread_as_in_the_long_range_arena() -> None:
    task = load_task("listops", num_train=4000, num_validation=10, num_test=10)
    labels = np.bincount([label for _, label in rows(task, "train")], minlength=10) / 4000
    # The smallest and largest values are most frequent: MIN and MAX of many arguments.
    assert 0.14 < labels[0] < 0.19
    assert 0.13 < labels[9] < 0.19
    assert (labels[1:9] > 0.05).all()
    inputs, _ = task.split("train")[0]
    assert inputs.dtype == torch.int64
