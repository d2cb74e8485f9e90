"""Tests of comparisons on tasks with pairs of sequences as samples."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rifflemix.errors import InputError
from rifflemix.lab.comparison import CompareConfig, check_model, default_budget, train_config
from rifflemix.lab.comparison.models import build_model
from rifflemix.lab.tasks import Task, load_task


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Task:
    monkeypatch.setenv("RIFFLEMIX_CACHE", str(tmp_path / "cache"))
    lines = "".join(f"{n % 2}\ta\tb\tone text {n}\tanother {n * n}\n" for n in range(8))
    for part in ("train", "eval", "test"):
        (tmp_path / f"new_aan_pairs.{part}.tsv").write_text(lines)
    return load_task("retrieval", data_dir=tmp_path, max_length=16)


def config(mixers: tuple[str, ...], model: str = "encoder") -> CompareConfig:
    budget = default_budget("retrieval")
    return CompareConfig(
        task="retrieval",
        mixers=mixers,
        seeds=(0,),
        dim=16,
        num_layers=1,
        num_heads=2,
        train=train_config(budget, max_steps=2, batch_size=4, lr=1e-3, precision="no"),
        model=model,
    )


@pytest.mark.parametrize("mixer", ["softmax", "csp", "sliceformer", "tssa"])
def test_pairs_use_the_encoder(task: Task, mixer: str) -> None:
    assert check_model(config((mixer,)), task, mixer).parameters > 0


def test_head_models_the_interaction_of_the_pair(task: Task) -> None:
    """Check for an interaction; a linear head on both vectors is a sum of one term for each."""
    model = build_model(config(("softmax",)), task, "softmax", 0).eval().double()
    one, other = torch.randint(1, 257, (2, 4, 16))
    logits = [
        model(torch.stack(pair, dim=1))
        for pair in ((one, one), (one, other), (other, one), (other, other))
    ]
    assert not torch.allclose(logits[0] + logits[3], logits[1] + logits[2], atol=1e-4)


def test_a_model_of_one_sequence_is_refused_in_one_sentence(task: Task) -> None:
    with pytest.raises(InputError, match="gpt") as raised:
        check_model(config(("tssa",), model="gpt"), task, "tssa")
    assert "\n" not in str(raised.value)
