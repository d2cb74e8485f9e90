"""Tests of GLUE's phrases of SST: file names, damage, and a validation split without leaks."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

import rifflemix as rm
from rifflemix.lab.tasks import Task, load_task, task_status
from rifflemix.lab.tasks.text.sst import cut_sentences

HEADER = "sentence\tlabel"
SENTENCES = [
    f"the {n} film is a {n} and {n} story with no end ." for n in "abcdefghijklmnopqrstuvw"
]
PARTS = [part for s in SENTENCES for part in (s, s.split(" ", 2)[2], s[:5], "film")]


def write(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(lzma.compress(text, preset=0) if path.suffix == ".xz" else text)


def put(folder: Path, train: str, dev: str, header: str = HEADER) -> None:
    swapped = header.startswith("label")
    rows = [f"{n % 2}\t{part}" if swapped else f"{part} \t{n % 2}" for n, part in enumerate(PARTS)]
    write(folder / train, [header, *rows])
    write(folder / dev, [header, "1\ta film" if swapped else "a film \t1"])


def phrases(task: Task, name: str) -> list[str]:
    split = task.split(name)
    return [bytes((split[index][0] - 1).tolist()).decode() for index in range(len(split))]


FORMS = {
    "glue": ("SST-2/train.tsv", "SST-2/dev.tsv", HEADER),
    "inside": ("train.tsv", "dev.tsv", HEADER),
    "ours": ("sst2_glue_train.tsv.xz", "sst2_glue_dev.tsv.xz", "label\tcontent"),
    "unpacked": ("sst2_glue_train.tsv", "sst2_glue_dev.tsv", "label\tsentence"),
}


@pytest.mark.parametrize("form", FORMS)
def test_files_are_found_under_common_names(form: str, data: Path) -> None:
    put(data, *FORMS[form])
    task = load_task("sst", data_dir=data, labels="glue", level="byte")
    assert phrases(task, "test") == ["a film"]
    assert task.split("test")[0][1] == 1
    assert set(phrases(task, "train")) <= set(PARTS)
    assert len(phrases(task, "validation")) == 1  # of 23 sentences
    assert "glue" in task_status("sst", data).detail


def test_every_file_format_gives_the_same_data(data: Path) -> None:
    seen = set()
    for number, form in enumerate(FORMS.values()):
        put(data / str(number), *form)
        folder = data / str(number)
        seen.add(load_task("sst", data_dir=folder, labels="glue", level="byte").fingerprint())
    assert len(seen) == 1


def test_validation_sentences_and_their_phrases_are_removed_from_training(data: Path) -> None:
    put(data, *FORMS["glue"])
    task = load_task("sst", data_dir=data, labels="glue", level="byte")
    (held_out,) = phrases(task, "validation")
    train = set(phrases(task, "train"))
    assert train == set(PARTS) - {held_out, held_out.split(" ", 2)[2], held_out[:5]}
    assert "film" in train  # other sentences contain it too


def test_near_copies_of_validation_sentences_are_removed_from_training() -> None:
    rows = [((sentence,), 0) for sentence in SENTENCES]
    (((held_out,), _),) = cut_sentences(rows)[1]
    copy = f"well , {held_out[:-2]} , they say"
    fragment = "they say"
    more = [*rows, ((copy,), 1), ((fragment,), 1)]
    train, validation = cut_sentences(more)
    kept = {sentences[0] for sentences, _ in train}
    (((chosen,), _),) = validation
    assert (
        {held_out, copy} & kept == set() if chosen in (held_out, copy) else {held_out, copy} <= kept
    )
    assert (fragment in kept) == (copy in kept)
    assert chosen not in kept


DAMAGE = {
    "no header": (["a film\t1"], "two columns"),
    "three columns": (["a\tlabel\tc", "a\t1\tb"], "two columns"),
    "empty": ([], "two columns"),
    "no samples": ([HEADER], "no samples"),
    "label": ([HEADER, "a film\t2"], "line 2"),
    "blank": ([HEADER, "a film\t1", " \t1"], "line 3"),
    "no tab": ([HEADER, "a film 1"], "line 2"),
}


@pytest.mark.parametrize(("lines", "words"), DAMAGE.values(), ids=DAMAGE)
def test_damage_is_named(lines: list[str], words: str, data: Path) -> None:
    put(data, *FORMS["glue"])
    write(data / "SST-2/dev.tsv", lines)
    with pytest.raises(rm.InputError, match=words) as caught:
        load_task("sst", data_dir=data, labels="glue")
    assert "dev.tsv" in str(caught.value)


def test_missing_files_and_too_few_sentences_are_refused(data: Path) -> None:
    with pytest.raises(rm.InputError, match="SST-2"):
        load_task("sst", data_dir=data, labels="glue")
    put(data, *FORMS["glue"])
    write(data / "SST-2/train.tsv", [HEADER, "a film\t1", "no film\t0"])
    with pytest.raises(rm.InputError, match="sentences"):
        load_task("sst", data_dir=data, labels="glue")
    (data / "SST-2/train.tsv").unlink()
    with pytest.raises(rm.InputError, match=r"train\.tsv: .*dev\.tsv"):
        load_task("sst", data_dir=data, labels="glue")


def test_files_of_another_data_set_do_not_hide_the_sentences(data: Path) -> None:
    write(data / "train.tsv", ["index\tquestion", "0\tWhy?"])
    for part in ("train", "dev", "test"):
        write(data / f"sst_binary.{part}.txt.xz", ["1 good film", "0 bad film"])
    status = task_status("sst", data)
    assert (status.available, "glue" in status.detail) == (True, False)


@pytest.mark.slow
def test_real_phrases(shared_data: Path) -> None:
    task = load_task("sst", data_dir=shared_data, labels="glue", level="byte")
    sizes = tuple(len(task.split(s)) for s in ("train", "validation", "test"))
    assert sizes == (64_285, 316, 872)
    train, held_out = set(phrases(task, "train")), phrases(task, "validation")
    assert not train & set(held_out)
    assert not train & set(phrases(task, "test"))
    assert min(len(sentence.split()) for sentence in held_out) >= 6
    binary = load_task("sst", data_dir=shared_data, level="byte")
    assert sorted(phrases(task, "test")) == sorted(phrases(binary, "validation"))
    # The training split contains only short word runs of the held-out sentences.
    runs = {
        " ".join(words[start : start + 6])
        for words in map(str.split, train)
        for start in range(len(words) - 5)
    }
    held = [
        " ".join(words[start : start + 6])
        for words in map(str.split, held_out)
        for start in range(len(words) - 5)
        if all(any(map(str.isalnum, word)) for word in words[start : start + 6])
    ]
    assert len(held) > 500
    assert not runs & set(held)
