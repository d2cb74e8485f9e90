"""Tests of passages: counted words, families of papers, sampled pairs, refusals."""

from __future__ import annotations

import json
import lzma
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from rifflemix.errors import InputError
from rifflemix.lab.tasks import Task, load_task, task_status
from rifflemix.lab.tasks.text.passages import Passages, PassageSplit, encode_papers, families

LENGTH = 40
OPTIONS = {"max_length": 6, "skip_common": 0, "num_train": 300, "num_validation": 40}
OPTIONS |= {"num_test": 50}


def letters(number: int) -> str:
    return "".join(chr(ord("a") + int(digit)) for digit in f"{number:03d}")


def paper(number: int, length: int = LENGTH) -> list[str]:
    """Build words that are in no other paper."""
    return [f"p{letters(number)}{letters(position)}" for position in range(length)]


def write_papers(folder: Path, papers: Sequence[Sequence[str]]) -> None:
    """Write papers in task retrieval's format, each in some pair."""
    rows = [[f"P{number}", " ".join(words)] for number, words in enumerate(papers)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "aan_docs.jsonl.xz").write_bytes(lzma.compress(text.encode(), preset=0))
    lines = [f"1\t{rows[n - 1][0]}\t{row[0]}\n" for n, row in enumerate(rows)]
    for name, part in (("train", lines), ("valid", lines[:1]), ("test", lines[:1])):
        (folder / f"aan_pairs.{name}.tsv").write_text("".join(part))


Load = Callable[..., Task]


@pytest.fixture
def load(data: Path) -> Load:
    write_papers(data, [paper(number) for number in range(40)])
    return lambda **options: load_task("passages", data_dir=data, **{**OPTIONS, **options})


def split_of(task: Task, name: str) -> PassageSplit:
    split = task.split(name)
    assert isinstance(split, PassageSplit)
    return split


def test_pairs_of_passages(load: Load) -> None:
    task = load(vocab_size=10_000)
    assert (task.num_sequences, task.input_kind, task.num_classes) == (2, "tokens", 2)
    assert (task.max_length, task.padding) == (6, False)
    assert task.vocab_size == 2 + 32 * LENGTH  # of the 32 training papers
    assert [len(task.split(name)) for name in ("train", "validation", "test")] == [300, 40, 50]
    train = task.split("train")
    batch = task.collate([train[index] for index in range(8)])
    assert {name: tuple(values.shape) for name, values in batch.items()} == {
        "inputs": (8, 2, 6),
        "labels": (8,),
    }
    assert batch["inputs"].dtype == torch.int64
    for index in range(len(train)):
        pair, label = train[index]
        # Ids of one paper are consecutive: its words have equal frequency and alphabetical order.
        papers = [set(((ids - 2) // LENGTH).tolist()) for ids in pair]
        assert [len(found) for found in papers] == [1, 1]
        assert (papers[0] == papers[1]) == bool(label)
        assert not set(pair[0].tolist()) & set(pair[1].tolist())
        assert all(torch.equal(ids, ids[0] + torch.arange(6)) for ids in pair)
    assert 100 < sum(train[index][1] for index in range(300)) < 200


def test_test_papers_are_not_in_training(load: Load) -> None:
    task = load(vocab_size=10_000)
    for name in ("validation", "test"):
        split = split_of(task, name)
        assert len(split.papers) == 4
        assert (split.papers.tokens.values == 1).all()


def test_only_content_words_count() -> None:
    texts = [f"The {' '.join(['common'] * 3)} OF, x2 {letters(n)} rare".encode() for n in range(10)]
    arrays = encode_papers(texts, vocab_size=100, skip_common=1)
    rare = {"the": 2, "rare": 2}  # each once per paper, after the skipped word "common"
    for name in ("train", "validation", "test"):
        ends = arrays[f"{name}_ends"]
        assert np.diff(ends, prepend=0).tolist() == [3] * len(ends)
    tokens = arrays["train_tokens"].reshape(-1, 3)
    assert sorted({int(row[0]) for row in tokens} | {int(row[2]) for row in tokens}) == [2, 3]
    assert len(rare) + 8 + 2 == int(arrays["vocab_size"][0])
    assert (arrays["test_tokens"].reshape(-1, 3)[:, 1] == 1).all()
    few = encode_papers(texts, vocab_size=4, skip_common=1)
    assert few["vocab_size"].tolist() == [4]
    assert set(few["train_tokens"].tolist()) == {1, 2, 3}


def test_papers_that_share_text_are_a_family() -> None:
    whole = paper(0, 400)
    longer = [*paper(1, 100), *whole[:300], *paper(2, 50)]
    apart = paper(3, 400)
    through = [*longer[:200], *apart[100:]]  # shares text with both and joins them
    assert len(set(families([whole, longer, apart]).tolist())) == 2
    assert len(set(families([whole, longer, apart, through]).tolist())) == 1
    assert families([whole, apart, whole]).tolist() == [0, 1, 0]
    assert len(set(families([paper(n, 5) for n in range(3)]).tolist())) == 3  # too short for runs


def test_text_shared_by_all_papers_makes_no_family() -> None:
    notice = paper(999, 200)
    papers = [[*notice, *paper(number, 100)] for number in range(30)]
    assert len(set(families(papers).tolist())) == 30


def test_families_stay_in_one_split_and_form_no_negative_pairs(data: Path) -> None:
    whole = [paper(number, 200) for number in range(20)]
    copies = [[*words[:190], *paper(100 + number, 20)] for number, words in enumerate(whole)]
    write_papers(data, whole + copies)
    task = load_task("passages", data_dir=data, **OPTIONS)
    seen: set[int] = set()
    for name in ("train", "validation", "test"):
        split = split_of(task, name)
        family = np.asarray(split.papers.labels.values)
        assert not seen & set(family.tolist())
        seen |= set(family.tolist())
        assert sorted(family.tolist()) == sorted([*set(family.tolist())] * 2)
        one, other = split.chosen.T
        assert ((family[one] == family[other]) == (split.labels == 1)).all()
        assert ((one == other) == (split.labels == 1)).all()


def test_every_position_is_drawn(data: Path) -> None:
    write_papers(data, [paper(number, 5) for number in range(40)])
    options = {**OPTIONS, "max_length": 2, "num_train": 2_000}
    split = split_of(load_task("passages", data_dir=data, **options), "train")
    starts = {label: set() for label in (0, 1)}
    for pair, label in zip(split.starts.tolist(), split.labels.tolist(), strict=True):
        starts[label].add(tuple(pair))
    assert starts[0] == {(first, second) for first in range(4) for second in range(4)}
    assert starts[1] == {(0, 2), (0, 3), (1, 3), (2, 0), (3, 0), (3, 1)}


def test_pairs_follow_from_the_seed_and_the_options(load: Load) -> None:
    first = load().fingerprint()
    assert load().fingerprint() == first
    others = ({"seed": 1}, {"max_length": 5}, {"vocab_size": 50}, {"num_test": 49})
    assert len({first, *(load(**other).fingerprint() for other in others)}) == 5
    assert load(seed=1).options["seed"] == 1
    few = load(max_samples=10)
    assert few.split("train")[9][0][0].tolist() == load().split("train")[9][0][0].tolist()


def test_splits_pickle_small(load: Load) -> None:
    split = split_of(load(), "train")
    copy = pickle.loads(pickle.dumps(split))
    assert isinstance(copy.papers.tokens.values.base, np.memmap)
    assert copy.digest() == split.digest()


def test_the_order_of_the_files_does_not_matter(load: Load, tmp_path: Path) -> None:
    turned = tmp_path / "turned"
    turned.mkdir()
    write_papers(turned, [paper(number) for number in reversed(range(40))])
    other = load_task("passages", data_dir=turned, **OPTIONS)
    assert other.fingerprint() == load().fingerprint()


def test_too_few_papers(load: Load) -> None:
    message = r"\b2\b.*\b42\b.*got 0\b"
    with pytest.raises(InputError, match=message):
        load(max_length=21)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"vocab_size": 2}, r"vocab_size: .*\b3\b.*got 2\b"),
        ({"skip_common": -1}, r"skip_common: .*\b0\b.*got -1\b"),
        ({"max_length": 0}, r"max_length: .*\b1\b.*got 0\b"),
        ({"num_test": 1.5}, r"num_test: .*got 1.5\b"),
    ],
)
def test_options_out_of_range(load: Load, option: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(**option)


def test_missing_and_damaged_files(data: Path) -> None:
    with pytest.raises(InputError, match="aan_docs"):
        load_task("passages", data_dir=data)
    assert not task_status("passages", data).available
    write_papers(data, [paper(number) for number in range(40)])
    assert task_status("passages", data).available
    (data / "aan_docs.jsonl.xz").write_bytes(lzma.compress(b"x" * 99)[:-8])
    with pytest.raises(InputError, match=r"aan_docs\.jsonl\.xz"):
        load_task("passages", data_dir=data)


@pytest.mark.slow
def test_real_files_are_read(shared_data: Path) -> None:
    task = load_task("passages", data_dir=shared_data)
    assert [len(task.split(name)) for name in ("train", "validation", "test")] == [
        32_000,
        2_000,
        2_000,
    ]
    assert task.vocab_size == Passages.card.options["vocab_size"]
    known = split_of(task, "test").papers.tokens.values
    assert (known > 1).mean() > 0.8
