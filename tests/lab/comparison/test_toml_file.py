"""Tests of comparisons as TOML files: reading, refusing, writing and running again."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_compare import settings

import rifflemix as rm
import rifflemix.cli
from rifflemix.lab.comparison import resolve
from rifflemix.lab.comparison.choices import chosen_mixers, chosen_seeds, config_text, read_config
from rifflemix.lab.tasks import task_card

FILE = """
task = "digits"
mixers = ["softmax", "identity"]
seeds = [3]
max_steps = 2
batch_size = 8
dim = 8
num_layers = 1
num_heads = 2
threads = 1
device = "cpu"
[task_options]
patch_size = 4
"""


def resolved(text: str) -> dict[str, Any]:
    """Return the configuration that a file describes."""
    values = tomllib.loads(text)
    labels, _ = chosen_mixers(values.pop("mixers"), values["task"])
    seeds = chosen_seeds(values.pop("seeds"))
    return resolve(task_card(values.pop("task")), labels, seeds, **values).to_dict()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tuned": {"lr": (1e-3, 1e-30)}},
        {
            "mixers": ("csp", "a+b-1"),
            "variants": {"a+b-1": "csp"},
            "mixer_options": {"a+b-1": {"num_groups": 4}, "csp": {}},
        },
        {"task_options": {"patch_size": 2, "data": 'a "b"\\\n\x7f\U0001f600', "split": [0.5, 0.5]}},
        {"mixers": ("tssa",), "mixer_options": {"tssa": {"bias": True}}},
        {"train_options": {"weight_decay": 0.05, "betas": [0.9, 0.98], "schedule": "constant"}},
        {"train_options": {"clip_value": 0.5}},
    ],
    ids=["plain", "tuned", "variants", "texts", "flags", "training", "clipping by value"],
)
def test_configuration_round_trip(changes: dict[str, Any]) -> None:
    from rifflemix.lab.comparison import default_budget, train_config

    changes = dict(changes)
    train = train_config(
        default_budget("digits"),
        max_steps=6,
        batch_size=64,
        lr=1e-3,
        precision="bf16",
        options=(chosen := changes.pop("train_options", {})),
    )
    config = settings(train=train, **changes)
    assert config.train_options == chosen
    text = config_text(config)
    assert text is not None
    expected = config.to_dict()
    expected["mixer_options"] = {k: v for k, v in expected["mixer_options"].items() if v}
    found = resolved(text)
    found["mixer_options"] = {k: v for k, v in found["mixer_options"].items() if v}
    assert found == expected


def test_settings_that_a_file_cannot_choose_are_not_written() -> None:
    assert config_text(settings(mixer_options={"tssa": {"bias": None}})) is None
    card = replace(task_card("digits"), name="own")
    assert config_text(settings(task="own", own_card=card)) is None


@pytest.mark.parametrize("mixers", ['mixers = ["csp", "tssa"]', ""], ids=["named", "default"])
def test_options_of_unselected_mixers_are_ignored(
    mixers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "my.toml"
    text = f'task = "digits"\n{mixers}\nmixer_options.csp.num_groups = 4\n'
    file.write_text(text)
    assert run(monkeypatch, "--config", file, "--mixers", "tssa", "--out", file) == 2
    assert "error: out: " in capsys.readouterr().err
    file.write_text(text.replace("options.csp", "options.cps"))
    assert run(monkeypatch, "--config", file, "--mixers", "tssa", "--out", file) == 2
    assert re.search("mixer_options: .*tssa, got cps", capsys.readouterr().err)


def run(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["rifflemix", "compare", *map(str, words)])
    return rifflemix.cli.main()


@pytest.mark.slow
def test_command_line_options_override_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my.toml").write_text(FILE)
    words = ["--config", tmp_path / "my.toml", "--dim", 16, "--mixers", "identity"]
    assert run(monkeypatch, *words, "--out", tmp_path / "out") == 0
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["mixers"], config["seeds"]) == (["identity"], [3])
    assert (config["dim"], config["num_heads"], config["train"]["max_steps"]) == (16, 2, 2)
    assert config["task_options"]["patch_size"] == 4
    written = (tmp_path / "out" / "config.toml").read_text()
    again = resolved(written)
    assert {name: again[name] for name in again if name != "task_options"} == {
        name: config[name] for name in again if name != "task_options"
    }
    # The file gives the same comparison, so a finished folder is read and accepted.
    capsys.readouterr()
    (tmp_path / "copy.toml").write_text(written)
    assert run(monkeypatch, "--config", tmp_path / "copy.toml", "--out", tmp_path / "out") == 0
    assert "1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("task = ", "is not TOML: "),
        ("\x00", "is not TOML: "),
        ("step = 5", "unknown key 'step'"),
        ("max_step = 5", "unknown key 'max_step'; did you mean max_steps"),
        ("out = 'x'", "unknown key 'out'"),
        ("task = 5", "task: expected the name of a task, got 5"),
        ("mixers = 'csp'", "mixers: expected 'all', a list of names, or a table from labels"),
        ("seeds = true", "seeds: expected a number of seeds, or a list of them, got True"),
        ("max_steps = 'many'", "max_steps: expected a whole number, got 'many'"),
        ("max_steps = 1.5", "max_steps: expected a whole number, got 1.5"),
        ("model = 3", "model: expected a text, got 3"),
        ("lr = '0.1'", "lr: expected a number or a list of them, got '0.1'"),
        ("task_options = 3", "task_options: expected a mapping from names, got 3"),
        ("mixer_options = ['a']", "mixer_options: expected a mapping from names"),
        ("[mixer_options]\nsoftmax = 3", "mixer_options softmax: expected a mapping from names"),
    ],
    ids=lambda text: str(text)[:30],
)
def test_invalid_files_are_refused(
    text: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "my.toml"
    path.write_text(text)
    assert run(monkeypatch, "--config", path, "--out", tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: config: {path}")
    assert re.search(words, error)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("seeds = 2", "'--task'.*--config.*`rifflemix list tasks`"),
        (FILE.replace("3]", "-3]"), "seed: .*got -3"),
        (FILE.replace("softmax", "sofmax"), "'sofmax'.*softmax"),
        (FILE.replace('"softmax", "identity"', '"csp", "csp"'), "'csp'"),
        (FILE.replace('["softmax", "identity"]', "[1]"), "mixers: .*got.*1"),
        (FILE + "[mixer_options.csp]\nnum_groups = 2", "mixer_options: .*softmax.*csp"),
        (FILE.replace("patch_size", "patches"), "digits.*'patches'"),
        (FILE.replace('device = "cpu"', "lr = [0.1, 0.1]"), "lr: .*got 0.1"),
    ],
    ids=lambda text: str(text)[-30:],
)
def test_invalid_choices_are_refused(
    file: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "my.toml").write_text(file)
    assert run(monkeypatch, "--config", tmp_path / "my.toml", "--out", tmp_path / "out") == 2
    assert re.search(words, capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "text", ["dim = 0x" + "f" * 5000, "[task_options]\nx = [1, 0x10000000000000000]"]
)
def test_numbers_that_toml_cannot_store(text: str, tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text(text)
    with pytest.raises(rm.InputError, match=r"my\.toml.*TOML.*\b64\b"):
        read_config(tmp_path / "my.toml")


def test_endless_file_is_refused() -> None:
    with pytest.raises(rm.InputError, match=r"/dev/zero.*1,048,576"):
        read_config(Path("/dev/zero"))


def test_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(rm.InputError, match=r"config: .*none\.toml"):
        read_config(tmp_path / "none.toml")
    with pytest.raises(rm.InputError, match=r"config: .*directory"):
        read_config(tmp_path)
