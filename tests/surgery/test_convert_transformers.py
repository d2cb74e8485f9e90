"""rifflemix convert, and conversions of models of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_transformers import build, inputs_of, outputs_of, transformers

import rifflemix as rm
from command_line import Cli

tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers")

WORDS = ["the", "cat", "dog", "sat", "ran", "on", "a", "mat", "hill", "and", "saw"]
QUICK = ("--length", 6, "--batch-size", 4, "--lengths", "8", "--device", "cpu")


def save_language_model(folder: Path) -> None:
    """Write a tiny GPT-2 and a tokenizer of words."""
    vocabulary = {word: i for i, word in enumerate(["<pad>", "<unk>", *WORDS])}
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, "<unk>"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, unk_token="<unk>", pad_token="<pad>"
    )
    build("gpt2").save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.fixture
def paths(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Return the folders of a model and of the results, and a text file."""
    save_language_model(tmp_path / "gpt2")
    torch.manual_seed(0)
    lines = [" ".join(WORDS[i] for i in torch.randint(len(WORDS), (7,))) for _ in range(12)]
    (tmp_path / "texts.txt").write_text("\n\n".join(lines), encoding="utf-8")
    return tmp_path / "gpt2", tmp_path / "out", tmp_path / "texts.txt"


def test_the_command_writes_a_model_that_loads(cli: Cli, paths: Any) -> None:
    model, out, texts = paths
    options = ("--mixer", "tssa", "--data", texts, "--out", out, "--steps", "layers=2,outputs=2")
    done = cli("convert", model, *options, "--keep", 1, *QUICK, "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["stages"][-1]["task_loss"] > 0
    assert [layer["is_converted"] for layer in found["layers"]].count(True) == 1
    assert json.loads((out / "report.json").read_text())["mixer"] == "tssa"
    rm.register_hf()
    loaded = transformers.AutoModelForCausalLM.from_pretrained(out / "model")
    assert sum(type(m).__name__ == "TSSA" or "Causal" in type(m).__name__
               for m in loaded.modules()) >= 1  # fmt: skip
    again = cli("convert", model, *options, "--keep", 1, *QUICK, "--json")
    assert again.code == 0
    assert json.loads(again.out)["stages"] == found["stages"]


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        (("--steps", "many"), "--steps"),
        (("--layers", "first"), "--layers"),
        (("--layers", "7"), "layers"),
        (("--mixer", "fnet"), "mixer"),
        (("--keep", "2"), "keep"),
        (("--batch-size", "12"), "--data"),
    ],
)
def test_wrong_options_are_reported_in_one_sentence(
    cli: Cli, paths: Any, changed: tuple[str, str], name: str
) -> None:
    model, out, texts = paths
    options = ("--mixer", "tssa", "--data", texts, "--out", out, *QUICK)
    done = cli("convert", model, *options, *changed)
    assert done.code == 2
    assert name in done.err.splitlines()[-1]
    assert not out.exists()


def test_a_folder_without_a_model_is_refused(cli: Cli, paths: Any) -> None:
    _, out, texts = paths
    done = cli("convert", out, "--mixer", "tssa", "--data", texts, "--out", out)
    assert done.code == 2
    assert "config.json" in done.err


def test_shared_layers_learn_from_all_their_calls() -> None:
    model, batches = build("albert"), [inputs_of("albert")]
    report = rm.convert(model, "linear", batches, steps={"layers": 30})
    (swap, layers) = report.stages[1:]
    assert len(layers.layer_errors) == 1
    assert sum(layers.layer_errors.values()) < sum(swap.layer_errors.values())
    assert outputs_of(report.model, batches[0]).shape == outputs_of(model, batches[0]).shape
