"""Tests of comparisons on token prediction: backbone, mixers, metric."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_comparison import results_of_plan, table_of
from typer.testing import CliRunner

from rifflemix.cli.app import app
from rifflemix.errors import InputError
from rifflemix.lab.comparison import (
    CompareConfig,
    build_model,
    default_budget,
    default_mixers,
    default_model,
    plan_comparison,
    train_config,
)
from rifflemix.lab.comparison.defaults import all_mixers, takes_graphs
from rifflemix.lab.comparison.pages.files import comparison_files
from rifflemix.lab.tasks import list_tasks, load_task, task_card
from rifflemix.mixers import HEADLINE, TokenMixer, list_mixers, mixer_card
from rifflemix.models import GPT, Seq2Seq, model_card

TEXT = "the cat sat on the mat\nthe dog sat on the cat\n"
SORT = {
    "max_length": 5,
    "test_max_length": 7,
    "num_train": 40,
    "num_validation": 10,
    "num_test": 10,
}


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RIFFLEMIX_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "texts"
    folder.mkdir()
    for part, times in (("train", 20), ("valid", 3), ("test", 4)):
        (folder / f"ptb.{part}.txt").write_text(TEXT * times)
    return folder


def settings(task: str, **changes: Any) -> CompareConfig:
    train = train_config(default_budget(task), max_steps=4, batch_size=4, lr=1e-3, precision="no")
    base = CompareConfig(
        task=task,
        mixers=("softmax", "tssa"),
        seeds=(0,),
        dim=16,
        num_layers=1,
        num_heads=2,
        train=replace(train, eval_every=2),
        task_options={"max_length": 16, "level": "word"} if task == "ptb" else SORT,
        model=default_model(task),
    )
    return replace(base, **changes)


def test_backbones() -> None:
    assert [default_model(task) for task in ("digits", "ptb", "sort")] == [
        "encoder",
        "gpt",
        "seq2seq",
    ]


@pytest.mark.parametrize("task", list_tasks())
def test_every_card_names_a_backbone(task: str) -> None:
    card, model = task_card(task), default_model(task)
    assert model_card(model)
    assert (model == "gpt") == (card.output == "next_token")
    takes_images = model_card(model).inputs == "images"
    assert takes_images == (card.options.get("layout") == "image")
    if "layout" in card.options:
        assert model_card(default_model(task, {"layout": "image"})).inputs == "images"
        assert "vectors" in model_card(default_model(task, {"layout": "sequence"})).inputs


def test_default_and_all_skip_mixers_that_do_not_fit_the_task() -> None:
    assert default_mixers("digits") == HEADLINE
    assert all_mixers("digits") == tuple(list_mixers())
    causal = {name for name in list_mixers() if mixer_card(name).causal}
    assert set(all_mixers("ptb")) == causal
    assert default_mixers("ptb") == tuple(name for name in HEADLINE if name in causal)
    assert "butterfly" not in causal
    graphs = next(name for name in list_tasks() if takes_graphs(task_card(name)))
    assert default_mixers(graphs) == all_mixers(graphs) == ("softmax", "sliceformer")


def test_the_default_is_softmax_and_every_mixer_of_a_paper_with_recipes() -> None:
    """Check that the cards of the headline mixers, and no other cards, name the five papers."""
    papers = (
        "Channel-wise",
        "Sliceformer",
        "Token Statistics",
        "Dimension Mixer",
        "Sparse Sinkhorn",
    )
    of_papers = {name for name in list_mixers() if any(p in mixer_card(name).paper for p in papers)}
    assert of_papers - {"grouped"} == set(HEADLINE) - {"softmax"}


@pytest.mark.parametrize("task", ["ptb", "sort"])
def test_mixers_that_use_later_tokens_are_refused(task: str) -> None:
    with pytest.raises(InputError, match=f"{task}.*got fnet"):
        settings(task, mixers=("softmax", "fnet"))


def test_language_models_are_compared(texts: Path, tmp_path: Path) -> None:
    plan = plan_comparison(settings("ptb"), tmp_path / "out", data_dir=texts)
    results = results_of_plan(plan)
    assert results["status"] == "complete"
    assert results["config"]["model"] == "gpt"
    assert results["protocol"]["metric"] == "perplexity"
    for entry in results["mixers"]:
        run = next(run for run in results["runs"] if run["mixer"] == entry["name"])
        best = min(run["validation_curve"], key=lambda at: at["perplexity"])
        assert run["best_step"] == best["step"]
        assert entry["metric"]["name"] == "perplexity"
        assert not entry["metric"]["higher_is_better"]
        assert entry["metric"]["test"]["mean"] == run["test"]["perplexity"]
        loss = torch.tensor(run["test"]["loss"])
        assert run["test"]["perplexity"] == pytest.approx(loss.exp().item(), rel=1e-5)
        assert {"bits_per_byte", "bits_per_character"} <= set(run["test"])
    table = comparison_files(table_of(results))["table.md"].decode()
    assert "Test perplexity" in table


def test_sequence_models_are_compared(tmp_path: Path) -> None:
    plan = plan_comparison(settings("sort", mixers=("softmax", "sinkhorn")), tmp_path / "out")
    results = results_of_plan(plan)
    for run in results["runs"]:
        assert {"exact_match", "edit_distance"} <= set(run["test"])
        assert "edit_distance" in run["validation"]


@pytest.mark.parametrize(("task", "kind"), [("ptb", GPT), ("sort", Seq2Seq)])
def test_all_mixers_have_the_same_initial_backbone(task: str, kind: type, texts: Path) -> None:
    config = settings(task, mixers=("softmax", "tssa", "sinkhorn"))
    data = load_task(task, data_dir=texts, **config.task_options)
    models = [build_model(config, data, mixer, 0) for mixer in config.mixers]
    outside = [
        {
            name: value
            for name, value in model.state_dict().items()
            if not any(
                name.startswith(f"{place}.")
                for place, module in model.named_modules()
                if isinstance(module, TokenMixer)
            )
        }
        for model in models
    ]
    assert all(isinstance(model, kind) for model in models)
    for other in outside[1:]:
        assert all(torch.equal(value, other[name]) for name, value in outside[0].items())


def test_a_classifier_is_refused(texts: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"got \(2, 7\).*gpt"):
        plan_comparison(settings("ptb", model="encoder"), tmp_path / "out", data_dir=texts)


@pytest.mark.parametrize("model", ["encoder", "gpt"])
def test_model_without_generation_is_refused(model: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"decoder_inputs.*seq2seq$"):
        plan_comparison(settings("sort", model=model), tmp_path / "out")


def test_train_command_shows_the_tasks_metric(texts: Path, tmp_path: Path) -> None:
    options = ["--task", "ptb", "--data-dir", str(texts), "--mixer", "tssa", "--max-steps", "2"]
    options += ["--dim", "16", "--layers", "1", "--heads", "2", "--batch-size", "4"]
    options += ["--task-option", "max_length=16", "--threads", "1", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, ["train", *options])
    assert done.exit_code == 0, done.output
    assert done.output.count("perplexity") >= 2
    assert "bits per byte" in done.output
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["config"]["model"] == "gpt"


def test_the_command_names_default_mixers_that_do_not_fit(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise InputError("enough")

    monkeypatch.setattr("rifflemix.cli.compare.run_with_live_table", stop)
    options = ["--task", "ptb", "--data-dir", str(texts), "--batch-size", "4", "--dim", "16"]
    options += ["--heads", "2", "--task-option", "max_length=16", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, ["compare", *options])
    assert str(done.exception) == "enough"
    assert "left out: butterfly" in done.output
