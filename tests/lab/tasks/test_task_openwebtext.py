"""Tests of OpenWebText in nanoGPT's token files, with further texts for testing."""

from __future__ import annotations

import json
import lzma
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rifflemix.errors import InputError
from rifflemix.lab.tasks import load_task, prepare_task, task_status
from rifflemix.lab.tasks.text.next_token import NextTokenTask

DOCUMENTS = ["the cat sat\n\n\nthe dog sat", "on the cat", "a dog, again\n"] * 20
HELD_OUT = ["the dog sat on the cat", "the cat"]
PASSAGES = ["the dog and then the cat sat", "on the dog\n\n\nagain"]
WIKITEXT = " \n = The cat = \n \n the dog <unk> sat . \n"
END = "<|endoftext|>"

tokenizers = pytest.importorskip("tokenizers")


def tokeniser(size: int = 300, special: str = END) -> Any:
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[special],
        show_progress=False,
    )
    made.train_from_iterator(DOCUMENTS, trainer)
    return made


def write_tokens(path: Path, documents: list[str]) -> None:
    ids = [token for text in documents for token in tokeniser().encode(text + END).ids]
    np.array(ids, dtype="<u2").tofile(path)


@pytest.fixture
def corpus(data: Path) -> Path:
    folder = data / "openwebtext"
    folder.mkdir()
    tokeniser().save(str(folder / "tokenizer.json"))
    write_tokens(folder / "train.bin", DOCUMENTS)
    write_tokens(folder / "val.bin", HELD_OUT)
    rows = (json.dumps({"text": text}) for text in PASSAGES)
    (data / "lambada_test.jsonl").write_text("".join(f"{row}\n" for row in rows))
    (data / "wikitext2.test.txt.xz").write_bytes(lzma.compress(WIKITEXT.encode()))
    return data


def load(folder: Path, **options: Any) -> NextTokenTask:
    task = load_task("openwebtext", data_dir=folder, **{"max_length": 8, **options})
    assert isinstance(task, NextTokenTask)
    return task


def text_of(task: NextTokenTask, split: str) -> str:
    return task.vocabulary.decode(task.split(split).tokens.values)


def test_end_of_the_training_tokens_is_the_validation_split(corpus: Path) -> None:
    task = load(corpus)
    tokens = {split: task.split(split).tokens.values for split in task.splits}
    stored = np.fromfile(corpus / "openwebtext" / "train.bin", dtype="<u2")
    assert len(tokens["validation"]) == min(len(tokens["test"]), len(stored) // 10)
    assert np.array_equal(np.concatenate([tokens["train"], tokens["validation"]]), stored)
    assert text_of(task, "test") == "".join(HELD_OUT)
    assert task.further_tests == {}
    assert re.search(r"\btraining\b.*\btest\b.*\bvalidation\b", task.split_note)
    assert "train.bin, val.bin, tokenizer.json" in task.data_source


def test_vocabulary_is_padded_to_a_multiple_of_64(corpus: Path) -> None:
    task = load(corpus)
    size = tokeniser().get_vocab_size()
    assert size % 64
    assert task.vocab_size == task.num_classes == len(task.vocabulary) == -(-size // 64) * 64
    assert set(task.vocabulary.pieces[size:]) == {b""}
    assert max(int(task.split(split).tokens.values.max()) for split in task.splits) < size


def test_end_of_document_token_has_no_text(corpus: Path) -> None:
    task = load(corpus)
    end = tokeniser().token_to_id(END)
    assert (task.split("test").tokens.values == end).sum() == len(HELD_OUT)
    assert task.vocabulary.num_bytes[end] == 0


def test_further_texts_are_encoded_as_documents_are(corpus: Path) -> None:
    task = load(corpus, further_tests="lambada, wikitext")
    assert list(task.further_tests) == ["lambada", "wikitext"]
    made = tokeniser()
    passages = [token for text in PASSAGES for token in made.encode(text + END).ids]
    assert task.split("lambada").tokens.values.tolist() == passages
    assert task.split("wikitext").tokens.values.tolist() == made.encode(WIKITEXT).ids
    # Encoding line by line would give other tokens.
    assert task.vocabulary.encode(PASSAGES[1]).tolist() != made.encode(PASSAGES[1]).ids
    with pytest.raises(InputError, match=r"split: .*got 'ptb'"):
        task.split("ptb")


def test_passages_as_plain_text(corpus: Path) -> None:
    rows = load(corpus, further_tests="lambada").split("lambada").digest()
    (corpus / "lambada_test.jsonl").write_text(
        "".join(f"{json.dumps({'text': text})}\n" for text in HELD_OUT)
    )
    as_json = load(corpus, further_tests="lambada").split("lambada").digest()
    (corpus / "lambada_test.jsonl").unlink()
    (corpus / "lambada").mkdir()
    (corpus / "lambada" / "lambada_test_plain_text.txt").write_text("\n".join(HELD_OUT) + "\n")
    plain = load(corpus, further_tests="lambada").split("lambada").digest()
    assert as_json == plain != rows


def test_token_files_are_read_in_place(corpus: Path, cache: Path) -> None:
    folder = prepare_task("openwebtext", data_dir=corpus)
    assert folder is not None
    assert not (folder / "train.npy").exists()
    assert "decoded" in task_status("openwebtext", corpus).detail
    split = load(corpus).split("validation")
    assert len(pickle.dumps(split)) < 2000
    copy = pickle.loads(pickle.dumps(split))
    assert copy.digest() == split.digest()
    assert np.array_equal(copy.tokens.values, split.tokens.values)
    inputs, labels = copy[0]
    assert inputs.dtype == labels.dtype
    assert inputs[1:].tolist() == labels[:-1].tolist()


def test_changed_content_changes_the_fingerprint(corpus: Path) -> None:
    fingerprints = {load(corpus).fingerprint(), load(corpus, max_length=4).fingerprint()}
    fingerprints.add(load(corpus, further_tests="wikitext").fingerprint())
    path = corpus / "openwebtext" / "val.bin"
    ids = np.fromfile(path, dtype="<u2")
    ids[0] ^= 1
    ids.tofile(path)
    fingerprints.add(load(corpus).fingerprint())
    assert len(fingerprints) == 4


def test_files_in_one_folder(corpus: Path, tmp_path: Path) -> None:
    flat = tmp_path / "flat"
    flat.mkdir()
    for path in (corpus / "openwebtext").iterdir():
        (flat / path.name).write_bytes(path.read_bytes())
    assert load(flat).fingerprint() == load(corpus).fingerprint()


BAD = {
    "unknown": ("lambada,nothing", "got 'lambada,nothing'"),
    "twice": ("ptb,ptb", "got 'ptb,ptb'"),
    "no text": (3, "got 3"),
}


@pytest.mark.parametrize(("value", "message"), BAD.values(), ids=BAD)
def test_bad_names_of_texts(value: object, message: str, corpus: Path) -> None:
    expected = f"further_tests: .*wikitext.*ptb.*{message}"
    with pytest.raises(InputError, match=expected):
        load(corpus, further_tests=value)


@pytest.mark.parametrize(
    ("absent", "advice"),
    [("val.bin", "nanoGPT"), ("tokenizer.json", "openai-community/gpt2")],
)
def test_missing_file_next_to_the_tokens(absent: str, advice: str, corpus: Path) -> None:
    (corpus / "openwebtext" / absent).unlink()
    with pytest.raises(InputError, match=f"openwebtext.*{absent}.*{advice}"):
        load(corpus)
    assert not task_status("openwebtext", corpus).available


def test_a_text_that_is_missing(corpus: Path) -> None:
    with pytest.raises(InputError, match=r"ptb/ptb\.test\.txt.*ptb\.train\.txt"):
        load(corpus, further_tests="ptb")


def test_missing_data_is_reported(data: Path) -> None:
    with pytest.raises(InputError, match=r"OpenWebText.*train\.bin"):
        load(data)
    assert not task_status("openwebtext", data).available


DAMAGED = {
    "odd": (b"\1\0\1", "damaged"),
    "empty": (b"", "damaged"),
    "short": (b"\1\0" * 19, r"\b19\b"),
    "other tokens": (b"\1\0" * 50 + b"\xff\xff", r"\b65,535\b.*[0-9]+"),
}


@pytest.mark.parametrize(("content", "message"), DAMAGED.values(), ids=DAMAGED)
def test_damaged_tokens(content: bytes, message: str, corpus: Path) -> None:
    (corpus / "openwebtext" / "train.bin").write_bytes(content)
    with pytest.raises(InputError, match=rf"train\.bin: .*{message}") as caught:
        load(corpus)
    assert "\n" not in str(caught.value)


def test_another_tokeniser(corpus: Path) -> None:
    path = corpus / "openwebtext" / "tokenizer.json"
    tokeniser(special="[CLS]").save(str(path))
    with pytest.raises(InputError, match=r"tokenizer\.json: .*GPT-2\b"):
        load(corpus)
    path.write_text("{}")
    with pytest.raises(InputError, match=r"^tokenizer: "):
        load(corpus)


@pytest.mark.parametrize("line", ["{}", '{"text": 3}', "[]", "{"])
def test_damaged_passages(line: str, corpus: Path) -> None:
    (corpus / "lambada_test.jsonl").write_text(f'{{"text": "the cat"}}\n{line}\n')
    with pytest.raises(InputError, match=r"lambada_test\.jsonl:"):
        load(corpus, further_tests="lambada")
