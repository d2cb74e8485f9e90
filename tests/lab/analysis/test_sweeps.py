"""Tests of sweeps: each point is analyzed, and `sinkhorn` plots the reached values."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from rifflemix.errors import InputError
from rifflemix.lab.analysis import View, analyze_into, find_subjects
from rifflemix.lab.analysis.finding import Subject, SweepPoint
from rifflemix.lab.analysis.kinds.sinkhorn import (
    SETTINGS,
    curves,
    means,
    sinkhorn,
    sweep_points,
    swept_settings,
)
from rifflemix.lab.reproduction.sweep import plan_sweep, run_sweep
from rifflemix.lab.runs.options import ReproduceOptions
from small_recipes import QUICK, small

TEMPERATURE, ITERATIONS = SETTINGS
GRID = {TEMPERATURE: [0.5, 1.0], ITERATIONS: [1, 5]}


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a finished sweep over both settings."""
    out = tmp_path_factory.mktemp("sweep") / "out"
    options = {"mixer": "sinkhorn", "dim": 8, "num_heads": 2, "mixer_options": {"block_size": 4}}
    recipe = small(
        task_options={"patch_size": 2},
        model_settings=options,
        train=replace(QUICK, max_steps=1, warmup_steps=0),
    )
    run_sweep(plan_sweep(recipe, GRID, [0], out, ReproduceOptions(device="cpu", threads=1)))
    return out


@pytest.mark.slow
def test_each_point_has_its_model_and_score(swept: Path, tmp_path: Path) -> None:
    subjects = find_subjects(swept, View(samples=2))
    results = json.loads((swept / "results.json").read_text())
    assert [s.label for s in subjects] == [
        f"temperature={t}, num_iterations={n}" for t, n in itertools.product(*GRID.values())
    ]
    for subject, point in zip(subjects, results["points"], strict=True):
        trial = subject.sweep_point
        assert trial is not None
        assert (trial.settings, trial.mean) == (point["settings"], point["validation"]["mean"])
        assert (trial.metric, trial.split, trial.std, trial.seeds) == (
            "accuracy, %",
            "validation",
            None,
            1,
        )
        options = subject.model.blocks[0].mixer.sorter.options
        assert options.temperature == trial.settings[TEMPERATURE]
        assert options.num_iterations == trial.settings[ITERATIONS]
    view = View(samples=2)
    written, _ = analyze_into(
        tmp_path / "look", ["sinkhorn"], str(swept), view, tick=lambda *_: None
    )
    stored = json.loads((tmp_path / "look" / "sinkhorn.json").read_text())
    assert [p["mean"] for p in stored["data"]["sweep"]] == [
        p["validation"]["mean"] for p in results["points"]
    ]
    assert re.search("accuracy, %.*temperature", stored["seen"][0])
    assert tmp_path / "look" / "sinkhorn.png" in written


@pytest.mark.slow
def test_sweep_of_a_causal_model_has_only_the_curve(swept: Path) -> None:
    subjects = [replace(s, batches=[{"inputs": s.batches[0]["inputs"][:, :3]}])
                for s in find_subjects(swept, View(samples=2))]  # fmt: skip
    finding = sinkhorn(subjects)  # 3 tokens: one block, no sort matrix
    assert finding.data["models"] == {}
    assert len(finding.rows) == 4
    assert len(finding.figure.axes) == 2
    with pytest.raises(InputError, match=r"sinkhorn.*top_k"):
        sinkhorn([replace(subject, sweep_point=None) for subject in subjects])


@pytest.mark.slow
def test_a_sweep_without_finished_runs(swept: Path, tmp_path: Path) -> None:
    shutil.copytree(swept, tmp_path / "young")
    for message, name in (
        ("target: .*weights", "*/*/best.safetensors"),
        ("target: .*run", "results.json"),
    ):
        for file in (tmp_path / "young").glob(name):
            file.unlink()
        with pytest.raises(InputError, match=message):
            find_subjects(tmp_path / "young")
    (tmp_path / "young" / "results.json").write_text('{"points": 3}')
    with pytest.raises(InputError, match=r"results\.json.*damaged"):
        find_subjects(tmp_path / "young")


def test_curves_and_means() -> None:
    settings = list(itertools.product([1.0, 0.25, 0.5], [5, 2], [16, 32]))
    scores = np.random.default_rng(0).normal(size=(3, 2, 2))
    points = [
        SweepPoint({TEMPERATURE: t, ITERATIONS: n, "dim": d}, "loss", "test", float(score), 0.1, 2)
        for (t, n, d), score in zip(settings, scores.flat, strict=True)
    ]
    assert swept_settings(points) == [TEMPERATURE, ITERATIONS]
    assert swept_settings(points[:2]) == []
    subjects = [Subject("point", nn.Identity(), (), sweep_point=trial) for trial in (None, *points)]
    assert sweep_points(subjects) == points
    assert sweep_points(subjects[:3]) == []
    found = means(points, TEMPERATURE)
    assert list(found) == [0.25, 0.5, 1.0]
    assert list(found.values()) == pytest.approx(scores.mean((1, 2))[[1, 2, 0]])
    lines = curves(points, ITERATIONS)
    assert len(lines) == 6
    assert [t.mean for t in lines["temperature 0.5, dim 32"]] == [scores[2, 1, 1], scores[2, 0, 1]]
