"""Settings of the backbone in comparisons: `model_options` and `--model-option`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rifflemix as rm
from command_line import Cli
from rifflemix.errors import InputError

TINY: dict[str, Any] = {
    "max_steps": 2, "batch_size": 8, "dim": 8, "num_layers": 1, "num_heads": 2, "threads": 1,
    "device": "cpu",
}  # fmt: skip
COUNTS = {"num_train": 20, "num_validation": 8, "num_test": 8, "length": 16}


def compare(out: Path, task: str = "copying", **settings: Any) -> rm.Comparison:
    return rm.compare(task, ["csp"], out=out, task_options=COUNTS, **TINY, **settings)


@pytest.mark.parametrize("causal", [True, False])
def test_every_mixer_gets_the_settings(causal: bool, tmp_path: Path) -> None:
    options = {**COUNTS, "causal": causal}
    chosen = {"short_conv": 3, "positions": "none"}
    found = rm.compare(
        "copying", ["csp", "tssa"], out=tmp_path / "a", task_options=options, model_options=chosen,
        **TINY,
    )  # fmt: skip
    assert found.record.setup.model_options == chosen
    plain = rm.compare("copying", ["csp"], task_options=options, **TINY)
    more = found.record.mixers[0].parameters - plain.record.mixers[0].parameters
    assert more == 4 * 8 - 16 * 8
    trained = rm.load_run(tmp_path / "a", mixer="csp")
    assert trained.model.blocks[0].short_conv.causal is causal
    assert len(trained.predict([[1, 2, 3, 4]])) == 1
    again = (tmp_path / "a" / "config.toml").read_text()
    assert "short_conv" in again


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"width": 3}, "model_options: .*width"),
        ({"dim": 3}, "model_options: .*dim"),
        ({"max_length": 3}, "model_options: .*max_length"),
        ({"short_conv": 1}, "short_conv"),
        ({"positions": "rope"}, "positions: .*csp"),
    ],
)
def test_bad_settings_are_refused_before_training(
    chosen: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=words):
        compare(tmp_path / "out", model_options=chosen)
    assert not (tmp_path / "out").exists()


def test_command_line_converts_model_options(cli: Cli, tmp_path: Path) -> None:
    words = ["compare", "--task", "copying", "--mixers", "csp", "--out", str(tmp_path / "out")]
    words += [f"--task-option={name}={value}" for name, value in COUNTS.items()]
    words += ["--max-steps", "1", "--batch-size", "8", "--dim", "8", "--layers", "1"]
    found = cli(*words, "--model-option", "short_conv=x")
    assert found.code == 2
    assert "short_conv" in found.err
    found = cli(*words, "--model-option", "short_conv=3", "--heads", "2")
    assert found.code == 0, found.err
    assert rm.load_run(tmp_path / "out").model.blocks[0].short_conv.size == 3
