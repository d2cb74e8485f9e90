"""Tests of the number of CPU threads that trainings choose."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import rifflemix as rm
from rifflemix.lab.runs.environment import default_threads, stored_threads, using_threads

TINY: dict[str, Any] = {"dim": 8, "num_layers": 1, "num_heads": 2, "max_steps": 1, "batch_size": 8}


@pytest.fixture(autouse=True)
def _four_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)


@pytest.mark.parametrize(
    ("parameters", "tokens", "device", "expected"),
    [
        (72_322, 512, "cpu", 1),
        (1_000_000, 200, "cpu", 3),
        (10**9, 10**9, "cpu", 4),
        (10, 10, "cuda", 4),
    ],
)
def test_threads_grow_with_the_work_of_an_update(
    parameters: int, tokens: int, device: str, expected: int, tmp_path: Path
) -> None:
    assert default_threads(parameters, tokens, device, tmp_path) == expected


@pytest.mark.parametrize("content", ["{}", "[]", '{"threads": null}'])
def test_a_folder_without_threads_gets_the_default(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    assert stored_threads(tmp_path) is None
    assert default_threads(10, 10, "cpu", tmp_path) == 1


def test_none_keeps_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    with using_threads(None):
        pass
    assert chosen == [4, 4]


def test_a_comparison_stores_and_keeps_its_threads(tmp_path: Path) -> None:
    options = {"task_options": {"patch_size": 4}, **TINY}
    rm.compare("digits", ["identity"], out=tmp_path, **options)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["threads"] == 1
    assert "threads = 1" in (tmp_path / "config.toml").read_text()
    again = tmp_path / "again"
    rm.compare("digits", ["identity"], out=again, threads=2, **options)
    assert (
        rm.compare("digits", ["identity"], out=again, **options).results["config"]["threads"] == 2
    )
