"""Runs that start from the weights of another."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_recipes import QUICK, small

import rifflemix as rm
from rifflemix.bench.reproduce import load_results, plan_reproduction, run_reproduction
from rifflemix.bench.reproduce.run import build_model
from rifflemix.bench.reproduce.start import Start, start_model
from rifflemix.errors import InputError
from rifflemix.files import read_tensors
from rifflemix.nn.resize import enlarge_grid
from rifflemix.recipes import Recipe
from rifflemix.report.reproduction import report_entries, summary_rows

pytestmark = pytest.mark.usefixtures("no_matmul_timing")


@pytest.fixture
def first(tmp_path: Path) -> Path:
    """A finished run."""
    folder = tmp_path / "first"
    run_reproduction(plan_reproduction(small(train=QUICK), folder))
    return folder


def test_weights_are_those_of_the_other_run(first: Path, tmp_path: Path) -> None:
    recipe = small(train=QUICK)
    plan = plan_reproduction(recipe, tmp_path / "second", seed=5, start_from=first)
    weights, about = read_tensors(first / "best.safetensors")
    model = build_model(plan.recipe, plan.task, plan.seed, plan.start)
    assert model.state_dict().keys() == weights.keys()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, weights[name], rtol=0, atol=0)
    results = run_reproduction(plan)
    assert results["started_from"]["recipe"] == recipe.name
    assert results["started_from"]["step"] == about["step"]
    label = f"{recipe.name} at step {about['step']:,}"
    assert ("started from", label) in summary_rows(results)


def test_fresh_runs_say_so_and_stand_apart(first: Path, tmp_path: Path) -> None:
    plan = plan_reproduction(small(train=QUICK), tmp_path / "second", start_from=first)
    run_reproduction(plan)
    assert json.loads((first / "results.json").read_text())["started_from"] is None
    entries = report_entries(load_results([tmp_path]))
    assert [len(entry["files"]) for entry in entries if entry["files"]] == [1, 1]


def test_going_on_needs_the_same_start(first: Path, tmp_path: Path) -> None:
    out = tmp_path / "second"
    plan = plan_reproduction(small(train=QUICK), out, start_from=first)
    partial = run_reproduction(plan, should_stop=iter([False, True]).__next__)
    assert partial["status"] == "partial"
    with pytest.raises(InputError, match="started_from"):
        run_reproduction(plan_reproduction(small(train=QUICK), out))
    done = run_reproduction(plan_reproduction(small(train=QUICK), out, start_from=first))
    straight = run_reproduction(
        plan_reproduction(small(train=QUICK), tmp_path / "straight", start_from=first)
    )
    assert done["ours"] == straight["ours"]
    assert done["result"]["validation"] == straight["result"]["validation"]


def other_model() -> Recipe:
    recipe = small(train=QUICK)
    return replace(recipe, model_settings={**recipe.model_settings, "num_layers": 3})


def wider() -> Recipe:
    recipe = small(train=QUICK)
    return replace(recipe, model_settings={**recipe.model_settings, "dim": 32})


@pytest.mark.parametrize(
    ("recipe", "message"), [(other_model(), "same model"), (wider(), "of shape")]
)
def test_models_that_differ_are_refused(
    recipe: Recipe, message: str, first: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        plan_reproduction(recipe, tmp_path / "second", start_from=first)
    assert not (tmp_path / "second").exists()


def test_folders_without_weights_are_refused(first: Path, tmp_path: Path) -> None:
    for folder, message in ((tmp_path / "nothing", "folder of a run"), (first, "evaluation")):
        if folder == first:
            (first / "best.safetensors").unlink()
        with pytest.raises(InputError, match=message):
            plan_reproduction(small(train=QUICK), tmp_path / "second", start_from=folder)


def test_positions_are_enlarged_to_the_nearest() -> None:
    table = torch.arange(8.0).reshape(4, 2)  # places 0 1 / 2 3
    large = enlarge_grid(table, 16)[:, 0].reshape(4, 4) / 2
    assert large.tolist() == [[0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 3, 3], [2, 2, 3, 3]]
    for places in (8, 9, 17):
        with pytest.raises(InputError, match="places"):
            enlarge_grid(table, places)


def test_models_of_larger_images_start_from_smaller_ones() -> None:
    settings = {"vocab_size": 5, "num_classes": 2, "dim": 8, "num_layers": 1, "num_heads": 2}
    small_one = rm.create_model("encoder", max_length=4, pool="mean", **settings)
    large_one = rm.create_model("encoder", max_length=16, pool="mean", **settings)
    start_model(large_one, Start(small_one.state_dict(), {}))
    before, after = small_one.state_dict(), large_one.state_dict()
    grown = {name for name in before if before[name].shape != after[name].shape}
    assert len(grown) == 1
    for name, tensor in before.items():
        expected = enlarge_grid(tensor, 16) if name in grown else tensor
        torch.testing.assert_close(after[name], expected, rtol=0, atol=0)
