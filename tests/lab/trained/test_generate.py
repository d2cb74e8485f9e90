"""Tests of the sequences that trained models write."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from trained_runs import train_into

import rifflemix as rm
from rifflemix.errors import InputError
from rifflemix.lab.tasks import load_task
from rifflemix.lab.tasks.images.image_bytes import START
from rifflemix.lab.tasks.text.next_token import ByteInputs

TEXT = "the cat sat on the mat\nthe dog sat\n"
PROMPTS = ["the cat", "the", "dog sat on"]


@pytest.fixture(scope="module")
def text_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("data")
    for part in ("train", "valid", "test"):
        (data / f"ptb.{part}.txt").write_text(TEXT * 20)
    task = load_task("ptb", data_dir=data, level="character", max_length=24)
    return train_into(tmp_path_factory.mktemp("runs") / "run", task, model="gpt")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_prompt_has_the_same_continuation_alone_and_in_a_batch(
    text_run: Path, temperature: float
) -> None:
    run = rm.load_run(text_run)
    found = run.generate(PROMPTS, 9, temperature=temperature, seed=4)
    for prompt, text in zip(PROMPTS, found, strict=True):
        assert text.startswith(prompt)
        assert len(text) == len(prompt) + 9
        assert run.generate([prompt], 9, temperature=temperature, seed=4) == [text]
    assert run.generate(PROMPTS[0], 9, temperature=temperature, seed=4) == found[:1]
    other = run.generate(PROMPTS, 9, temperature=temperature, seed=5)
    assert (other == found) is (temperature == 0)


def test_greedy_text_equals_predict(text_run: Path) -> None:
    run = rm.load_run(text_run)
    (text,) = run.generate(["the cat"], 3, temperature=0)
    for end in range(7, 10):
        assert run.predict([text[:end]])[0] == text[end]


def test_texts_end_at_the_maximum_length(text_run: Path) -> None:
    (text,) = rm.load_run(text_run).generate(["the"])
    assert len(text) == 25  # the model reads 24 characters
    with pytest.raises(InputError, match="max_new_tokens"):
        rm.load_run(text_run).generate(["the"], 23)


def test_a_sequence_model_sorts_or_writes_symbols(tmp_path: Path) -> None:
    sizes = {"num_train": 20, "num_validation": 8, "num_test": 8}
    task = load_task("sort", **sizes)
    run = rm.load_run(train_into(tmp_path / "run", task, model="seq2seq"))
    sources = [[3, 1, 2], [5, 4, 3, 2, 1]]
    found = run.generate(sources)
    assert found == run.predict(sources)
    assert all(
        len(written) <= len(source) + 1 for written, source in zip(found, sources, strict=True)
    )
    assert all(len(written) <= 2 for written in run.generate(sources, 2))
    with pytest.raises(InputError, match="temperature"):
        run.generate(sources, temperature=1.0)


def test_bytes_of_images_never_contain_the_start_token() -> None:
    model = rm.create_model(
        "gpt", mixer="tssa", vocab_size=START + 1, dim=8, num_heads=2, num_layers=1, max_length=12
    )
    with torch.no_grad():
        model.embed.weight[START] += 50.0  # the start token would be the most likely
    spec = ByteInputs(START, 12, image_shape=(2, 2, 3))
    samples = spec.encode([[], [7, 8]])
    found = rm.models.continue_prompts(model, samples, 10, below=spec.num_outputs)
    assert all(tokens[1:].max() < START for tokens in found)
    assert spec.decode_whole(found[0].tolist()).shape == (10,)
    (whole,) = rm.models.continue_prompts(model, samples[:1], 12, below=spec.num_outputs)
    image = spec.decode_whole(whole.tolist())
    assert image.shape == (2, 2, 3)
    assert image.dtype == np.uint8


def test_a_class_for_each_token_is_predicted(tmp_path: Path) -> None:
    sizes = {"num_train": 20, "num_validation": 8, "num_test": 8, "length": 16}
    task = load_task("mqar", causal=False, **sizes)
    settings = {"pool": "none"}
    run = rm.load_run(train_into(tmp_path / "run", task, mixer="csp", **settings))
    rows = [task.split("test")[k][0].tolist() for k in range(3)]
    found = run.predict([rows[0], rows[1][:9]])
    assert [part.shape for part in found] == [(16,), (9,)]
    assert (run.predict([rows[1][:9]])[0] == found[1]).all()
    shares = run.predict_proba([rows[0]])[0]
    assert shares.shape == (16, 256)
    assert [run.classes[i] for i in shares.argmax(1)] == found[0].tolist()


def test_classifier_cannot_generate(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(40, 6, 2)).astype(np.float32)
    run = rm.load_run(train_into(tmp_path / "run", rm.Task.from_arrays(x, np.arange(40) % 2)))
    with pytest.raises(InputError, match="generate"):
        run.generate(x[:2], 3)


def test_an_empty_prompt_is_refused(text_run: Path) -> None:
    with pytest.raises(InputError, match=r"got 0 .*\b1\b"):
        rm.load_run(text_run).generate(["a", ""], 3)


Cli = Callable[..., Any]


def test_the_command_prints_and_writes_texts(text_run: Path, cli: Cli, tmp_path: Path) -> None:
    arguments = ("generate", str(text_run), "--max-new-tokens", "5", "--seed", "2")
    expected = rm.load_run(text_run).generate(["the cat", "dog"], 5, seed=2)
    listed = cli(*arguments, "--prompt", "the cat", "--prompt", "dog", "--json")
    assert listed.code == 0, listed.err
    assert json.loads(listed.out) == expected
    (tmp_path / "in.txt").write_text("the cat\ndog\n")
    out = tmp_path / "out.txt"
    assert cli(*arguments, "--prompts", str(tmp_path / "in.txt"), "--out", str(out)).code == 0
    assert out.read_text() == "".join(f"{text}\n" for text in expected)


def test_the_command_reads_texts_or_numbers_as_the_model(cli: Cli, tmp_path: Path) -> None:
    ids = [list(row) for n in (2, 3) for row in itertools.product((1, 2, 3), repeat=n)]
    words = ["".join("abc"[symbol - 1] for symbol in row) for row in ids]
    cases = [
        (
            rm.Task.from_arrays(words, words, kind="seq2seq"),
            "seq2seq",
            ["ab", "cb"],
            ["ab", "cb"],
        ),
        (rm.Task.from_arrays(ids, ids, kind="seq2seq"), "seq2seq", ["1 2", "3"], [[1, 2], [3]]),
        (rm.Task.from_arrays(ids, None, kind="next_token"), "gpt", ["1 2", "3"], [[1, 2], [3]]),
    ]
    for number, (task, model, lines, raw) in enumerate(cases):
        run = train_into(tmp_path / f"{number}", task, model=model)
        prompts = [part for line in lines for part in ("--prompt", line)]
        found = cli("generate", str(run), *prompts, "--json")
        assert found.code == 0, found.err
        wanted = rm.load_run(run).generate(raw)
        assert json.loads(found.out) == [e if isinstance(e, str) else list(e) for e in wanted]
    wrong = cli("generate", str(run), "--prompt", "1 b")
    assert (wrong.code, "'1 b'" in wrong.err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((), "--prompt"),
        (("--prompt", "a", "--images", "2"), "--images"),
        (("--images", "0", "--out", "OUT"), "--images"),
        (("--images", "2"), "--out"),
        (("--images", "2", "--out", "OUT"), "--images"),
        (("--images", "2", "--out", "OUT", "--max-new-tokens", "3"), "--max-new-tokens"),
        (("--prompt", "a", "--top-k", "0"), "top_k"),
        (("--prompt", "a", "--temperature", "-1"), "temperature"),
        (("--prompt", "Z"), "'Z'"),
        (("--prompts", "/no/such.txt"), "/no/such.txt"),
        (("--prompts", "OUT", "--out", "OUT"), "--out"),
        (("--prompt", "a", "--mixer", "csp"), "mixer"),
    ],
)
def test_bad_options_are_one_sentence(
    text_run: Path, cli: Cli, tmp_path: Path, arguments: tuple[str, ...], name: str
) -> None:
    out = tmp_path / "out"
    given = [str(out) if argument == "OUT" else argument for argument in arguments]
    found = cli("generate", str(text_run), *given)
    assert found.code == 2
    assert name in found.err
    assert found.err.startswith("error: ")
    assert found.err.count("\n") == 1
    assert not out.exists()
