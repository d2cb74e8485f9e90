"""Sources of language tasks: files, downloads and published sizes."""

from __future__ import annotations

import hashlib
import lzma
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from language_files import TRAIN, load

from rifflemix.errors import InputError
from rifflemix.lab.tasks import load_task, task_status
from rifflemix.lab.tasks.data_io.file_task import Remote, download
from rifflemix.lab.tasks.text.language import Shakespeare, WikiText


def test_compressed_files_in_a_subfolder(ptb: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "ptb"
    other.mkdir(parents=True)
    for path in ptb.iterdir():
        (other / f"{path.name}.xz").write_bytes(lzma.compress(path.read_bytes()))
    assert load(other.parent).fingerprint() == load(ptb).fingerprint()


@pytest.mark.parametrize("name", ["ptb", "shakespeare", "wikitext"])
def test_missing_files_in_one_sentence(name: str, data: Path) -> None:
    with pytest.raises(InputError, match=r"https://.*--data-dir") as caught:
        load_task(name, data_dir=data)
    assert "\n" not in str(caught.value)
    assert not task_status(name, data).available


@pytest.mark.parametrize("absent", ["train", "valid"])
def test_missing_split_is_named(absent: str, ptb: Path) -> None:
    (ptb / f"ptb.{absent}.txt").unlink()
    with pytest.raises(InputError, match=rf"ptb\.{absent}\.txt"):
        load(ptb)
    assert f"ptb.{absent}.txt" in task_status("ptb", ptb).detail


def test_text_that_is_too_short(ptb: Path) -> None:
    (ptb / "ptb.test.txt").write_text("\n")
    with pytest.raises(InputError, match=r"ptb\.train\.txt.*\b2\b"):
        load(ptb)


def test_damaged_text(ptb: Path) -> None:
    (ptb / "ptb.test.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"ptb\.test\.txt:"):
        load(ptb)


def test_shakespeare_is_cut_in_order(data: Path) -> None:
    text = "".join(f"{number:04}\n" for number in range(200))
    (data / "input.txt").write_text(text)
    task = load_task("shakespeare", data_dir=data, max_length=9)
    parts = [task.split(s).tokens.values.tobytes() for s in ("train", "validation", "test")]
    joined = b"".join(bytes(np.frombuffer(part, np.int32).astype(np.uint8)) for part in parts)
    assert joined.decode() == text
    assert [len(part) // 4 for part in parts] == [900, 50, 50]


def test_download_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(b"abc")
    sha256 = hashlib.sha256(b"abc").hexdigest()
    told: list[str] = []

    def fetch(url: str, wanted: str | None, size: int | None = None) -> bytes:
        remote = Remote(url, wanted, size)
        return download(remote, lambda what, *_: told.append(what), InputError)

    assert fetch(path.as_uri(), sha256) == fetch(path.as_uri(), None, 3) == b"abc"
    assert all("text.txt" in what for what in told)
    assert len(set(told)) == 1
    with pytest.raises(InputError, match=r"text\.txt.*\b3\b.*\b4\b"):
        fetch(path.as_uri(), None, 4)
    with pytest.raises(InputError, match=r"sha256\b.*\b000\b"):
        fetch(path.as_uri(), "000")
    with pytest.raises(InputError, match=r"/absent\b"):
        fetch((tmp_path / "absent").as_uri(), sha256)


def test_corpus_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "input.txt"
    path.write_text(TRAIN)
    sha256 = hashlib.sha256(TRAIN.encode()).hexdigest()
    remotes = {"all": Remote(path.as_uri(), sha256)}
    monkeypatch.setattr(Shakespeare, "remotes", remotes)
    assert not task_status("shakespeare").available
    first = load_task("shakespeare", max_length=9).fingerprint()
    path.unlink()  # the second load fetches no file
    assert load_task("shakespeare", max_length=9).fingerprint() == first
    assert task_status("shakespeare").available


def test_wikitext_is_downloaded_from_the_hub(
    monkeypatch: pytest.MonkeyPatch, put_on_hub: Callable[..., list[str]]
) -> None:
    lines = {"train": ["a b\n", "", "b\n"], "validation": ["a\n", "b\n"], "test": ["a c\n"]}
    splits = {name: {"text": text} for name, text in lines.items()}
    fetched = put_on_hub("Salesforce/wikitext", splits)
    with pytest.raises(InputError, match=r"\btrain\b.*\b6\b.*\b2,088\b"):
        load_task("wikitext", max_length=2)
    monkeypatch.setattr(WikiText, "words", {"train": 6, "validation": 4, "test": 3})
    fetched.clear()
    task = load_task("wikitext", max_length=2)
    assert all("/b08601e04326c79dfdd32d625aee71d232d685c3/wikitext-2-v1/" in u for u in fetched)
    assert len(fetched) == 3
    assert task.vocabulary.decode(task.split("train").tokens.values) == "a b \n\nb \n"
    assert task.vocabulary.decode(task.split("test").tokens.values) == "a <unk> \n"


# The real files.

PUBLISHED = {
    "ptb words": ("ptb", "word", 10_000, (929_589, 73_760, 82_430)),
    "shakespeare characters": ("shakespeare", "character", 65, (1_003_854, 55_770, 55_770)),
    "shakespeare bytes": ("shakespeare", "byte", 256, (1_003_854, 55_770, 55_770)),
}


@pytest.mark.parametrize(
    ("name", "level", "size", "tokens"), PUBLISHED.values(), ids=PUBLISHED.keys()
)
def test_corpora_have_the_published_sizes(
    name: str, level: str, size: int, tokens: tuple[int, ...], shared_data: Path
) -> None:
    task = load_task(name, data_dir=shared_data, level=level)
    assert task.vocab_size == size
    found = tuple(len(task.split(s).tokens.values) for s in ("train", "validation", "test"))
    assert found == tokens


def test_wikitext_without_its_training_text(shared_data: Path) -> None:
    with pytest.raises(InputError, match=r"wikitext2\.train\.txt"):
        load_task("wikitext", data_dir=shared_data)
