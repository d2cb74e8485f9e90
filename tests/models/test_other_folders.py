"""`from_pretrained` of models on valid folders that contain no model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import rifflemix as rm
from command_line import Cli
from rifflemix.lab.runs.build_for_task import fit_model


def test_training_run_is_refused_as_a_saved_model(cli: Cli, tmp_path: Path) -> None:
    out, folder = tmp_path / "out", tmp_path / "model"
    command = ["train", "--task", "digits", "--mixer", "tssa", "--max-steps", 1, "--dim", 16]
    assert cli(*command, "--layers", 1, "--threads", 1, "--out", out).code == 0
    with pytest.raises(rm.InputError, match="subfolder run"):
        rm.models.from_pretrained(out)
    run = out / "run"
    with pytest.raises(rm.InputError, match="folder") as caught:
        rm.models.from_pretrained(run)
    assert "a training run" in str(caught.value)
    assert "damaged" not in str(caught.value)
    # Follow the advice of the error message.
    stored = json.loads((run / "config.json").read_text())
    settings = stored["model"]["settings"]
    task = rm.tasks.load_task("digits", **stored["task"]["options"])
    model = fit_model(settings.pop("model"), task, settings, seed=5)
    assert safetensors.torch.load_model(model, run / "best.safetensors") == (set(), [])
    model.save_pretrained(folder)
    weights = safetensors.torch.load_file(run / "best.safetensors")
    again = rm.models.from_pretrained(folder).state_dict()
    assert all(torch.equal(again[name], weights[name]) for name in again)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"format": 3, "mixers": ["csp"], "task": "digits"}, "a comparison"),
        ({"grid": {"lr": [1, 2]}, "recipe": "x"}, "a sweep"),
        ({"model_type": "bert", "architectures": ["BertModel"]}, "a model of transformers"),
    ],
)
def test_other_folders_are_refused_as_a_saved_model(
    config: Any, words: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(rm.InputError, match="folder") as caught:
        rm.models.from_pretrained(tmp_path)
    assert words in str(caught.value)
    assert "damaged" not in str(caught.value)
