"""Tests of runs that start from the weights of another run."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import rifflemix as rm
from rifflemix.errors import InputError
from rifflemix.files import read_tensors, write_tensors
from rifflemix.lab.experiments import only_run
from rifflemix.lab.recipes import Recipe, get_recipe
from rifflemix.lab.reproduction import (
    ReproduceOptions,
    load_results,
    plan_reproduction,
    run_reproduction,
)
from rifflemix.lab.reproduction.page import report_files
from rifflemix.lab.reproduction.plan import (
    InitialWeights,
    build_model,
    read_initial_weights,
    start_model,
)
from rifflemix.lab.reproduction.records import Origin
from rifflemix.lab.reproduction.tables import report_entries, summary_rows
from rifflemix.lab.tasks import Task, load_task
from rifflemix.models import Model
from rifflemix.nn.embeddings import enlarge_grid
from small_recipes import QUICK, small

pytestmark = pytest.mark.usefixtures("no_matmul_timing")

SOME_ORIGIN = Origin(recipe="a run", step=0, blake2b="")


def test_weights_equal_the_other_run(finished: Path, tmp_path: Path) -> None:
    recipe = small(train=QUICK)
    plan = plan_reproduction(
        recipe, tmp_path / "second", ReproduceOptions(seed=5, start_from=finished)
    )
    weights, about = read_tensors(only_run(finished) / "best.safetensors")
    model = build_model(plan.recipe, plan.task, plan.seed, plan.start)
    assert model.state_dict().keys() == weights.keys()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, weights[name], rtol=0, atol=0)
    results = run_reproduction(plan)
    assert results.started_from.recipe == recipe.name
    assert results.started_from.step == about["step"]
    label = f"{recipe.name} at step {about['step']:,}"
    assert ("started from", label) in summary_rows(results)


def test_fresh_runs_are_marked_and_separate(finished: Path, tmp_path: Path) -> None:
    plan = plan_reproduction(
        small(train=QUICK), tmp_path / "second", ReproduceOptions(start_from=finished)
    )
    run_reproduction(plan)
    assert json.loads((finished / "results.json").read_text())["started_from"] is None
    entries = report_entries(load_results([tmp_path]))
    assert [len(entry["files"]) for entry in entries if entry["files"]] == [1, 1]
    files = report_files(load_results([tmp_path]), tmp_path)
    for name in ("report.md", "report.html"):
        assert re.search(r"TSSA\b.*test/digits\b.*\bstep \d", files[name].decode())


@pytest.mark.slow
def test_resuming_needs_the_same_initial_weights(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "second"
    plan = plan_reproduction(small(train=QUICK), out, ReproduceOptions(start_from=finished))
    partial = run_reproduction(plan, should_stop=iter([False, True]).__next__)
    assert partial.status == "partial"
    with pytest.raises(InputError, match="started_from"):
        run_reproduction(plan_reproduction(small(train=QUICK), out))
    done = run_reproduction(
        plan_reproduction(small(train=QUICK), out, ReproduceOptions(start_from=finished))
    )
    straight = run_reproduction(
        plan_reproduction(
            small(train=QUICK), tmp_path / "straight", ReproduceOptions(start_from=finished)
        )
    )
    assert done.ours == straight.ours
    assert done.result.validation == straight.result.validation


def other_model() -> Recipe:
    recipe = small(train=QUICK)
    return replace(recipe, model_settings={**recipe.model_settings, "num_layers": 3})


def wider() -> Recipe:
    recipe = small(train=QUICK)
    return replace(recipe, model_settings={**recipe.model_settings, "dim": 32})


@pytest.mark.parametrize(
    ("recipe", "message"),
    [(other_model(), r"start_from: .*blocks\.2\."), (wider(), r"start_from: .*got \(16, 16\)")],
)
def test_models_that_differ_are_refused(
    recipe: Recipe, message: str, finished: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        plan_reproduction(recipe, tmp_path / "second", ReproduceOptions(start_from=finished))
    assert not (tmp_path / "second").exists()


def test_folders_without_weights_are_refused(finished: Path, tmp_path: Path) -> None:
    for folder, message in (
        (tmp_path / "nothing", "start_from: .*`rifflemix reproduce`"),
        (finished, "evaluation"),
    ):
        if folder == finished:
            (only_run(finished) / "best.safetensors").unlink()
        with pytest.raises(InputError, match=message):
            plan_reproduction(
                small(train=QUICK), tmp_path / "second", ReproduceOptions(start_from=folder)
            )


def test_folder_of_a_comparison_is_not_an_unevaluated_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"format": "rifflemix.compare/1", "model": "encoder"}')
    with pytest.raises(InputError, match=r"start_from: .*config\.json"):
        plan_reproduction(
            small(train=QUICK), tmp_path / "second", ReproduceOptions(start_from=tmp_path)
        )


def test_scale_is_named_only_if_it_causes_the_different_widths(
    finished: Path, tmp_path: Path
) -> None:
    """Check that the message names --scale only if the scale is the reason."""
    for recipe, scale in ((small(train=QUICK), 0.5), (wider(), 1.0)):
        with pytest.raises(InputError) as raised:
            plan_reproduction(
                recipe, tmp_path / "second", ReproduceOptions(scale=scale, start_from=finished)
            )
        assert str(raised.value).startswith("start_from: ")
        assert ("--scale" in str(raised.value)) is (scale != 1.0)


@pytest.mark.parametrize(
    "config",
    ["{}", "[]", '"x"', '{"model": 3}', '{"model": {}}', '{"model": {"settings": []}}',
     '{"model": {"settings": {"recipe": 3}}}'],
)  # fmt: skip
def test_damaged_settings_are_refused(config: str, finished: Path, tmp_path: Path) -> None:
    (only_run(finished) / "config.json").write_text(config)
    with pytest.raises(InputError, match="start_from: expected") as raised:
        plan_reproduction(
            small(train=QUICK), tmp_path / "second", ReproduceOptions(start_from=finished)
        )
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("about", [{}, {"step": "8"}, {"step": 8.5}, {"step": True}, [8]])
def test_weights_with_an_invalid_step_are_refused(
    about: object, finished: Path, tmp_path: Path
) -> None:
    weights, _ = read_tensors(only_run(finished) / "best.safetensors")
    write_tensors(only_run(finished) / "best.safetensors", weights, about)
    with pytest.raises(InputError, match=r"start_from: .*step.*best\.safetensors.*, got "):
        plan_reproduction(
            small(train=QUICK), tmp_path / "second", ReproduceOptions(start_from=finished)
        )


def test_positions_are_enlarged_to_the_nearest() -> None:
    table = torch.arange(8.0).reshape(4, 2)  # grid positions 0 1 / 2 3
    large = enlarge_grid(table, 16)[:, 0].reshape(4, 4) / 2
    assert large.tolist() == [[0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 3, 3], [2, 2, 3, 3]]
    for places in (0, 8, 9, 17):
        with pytest.raises(InputError, match="positions"):
            enlarge_grid(table, places)
    with pytest.raises(InputError, match="positions"):
        enlarge_grid(table[:0], 4)


def test_position_of_the_class_token_is_kept() -> None:
    table = torch.arange(10.0).reshape(5, 2)
    large = enlarge_grid(table, 17)
    assert torch.equal(large[0], table[0])
    assert torch.equal(large[1:], enlarge_grid(table[1:], 16))


def encoder(max_length: int, pool: str = "mean", dim: int = 8) -> Model:
    return rm.create_model(
        "encoder", vocab_size=5, num_classes=2, dim=dim, num_layers=1, num_heads=2,
        max_length=max_length, pool=pool,
    )  # fmt: skip


def images() -> Task:
    return load_task("digits")


@pytest.mark.parametrize("pool", ["mean", "cls"])
def test_models_of_larger_images_start_from_smaller_ones(pool: str) -> None:
    small_one, large_one = encoder(4, pool), encoder(16, pool)
    start_model(large_one, InitialWeights(small_one.state_dict(), SOME_ORIGIN), images())
    before, after = small_one.state_dict(), large_one.state_dict()
    grown = {name for name in before if before[name].shape != after[name].shape}
    assert len(grown) == 1
    for name, tensor in before.items():
        expected = enlarge_grid(tensor, 16 + (pool == "cls")) if name in grown else tensor
        torch.testing.assert_close(after[name], expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("large", "task", "words"),
    [
        (encoder(9), "digits", "start_from: .*position.*square"),
        (encoder(2), "digits", "start_from: .*position.*square"),
        (encoder(16), "text", "start_from: .*position.*images"),
        (encoder(16, dim=16), "digits", "got"),
    ],
    ids=["no multiple", "smaller", "text", "wider"],
)
def test_position_tables_that_cannot_be_enlarged_are_named(
    large: Model, task: str, words: str
) -> None:
    small_one = encoder(4)
    shapes = {
        tuple(tensor.shape)
        for name, tensor in large.state_dict().items()
        if name == "positions.table"
    }
    with pytest.raises(InputError, match=words) as raised:
        start_model(
            large, InitialWeights(small_one.state_dict(), SOME_ORIGIN), replace(images(), name=task)
        )
    message = str(raised.value)
    assert message.startswith("start_from: ")
    assert "--scale" not in message
    if words != "got":
        shape = re.escape(str(shapes.pop()))
        assert re.search(rf"positions\.table\b.*{shape}, got \(4, 8\)", message)


def fine_tuned(tmp_path: Path, *, classes: int, new_head: bool) -> tuple[Recipe, Path, Model]:
    """Build a recipe and save its model with another class count."""
    recipe = replace(small(train=QUICK), new_head=new_head)
    task = load_task(recipe.task, **recipe.task_options)
    model = build_model(recipe, task, 3)
    saved = rm.create_model(recipe.model, **{**model.settings, "num_classes": classes})
    saved.save_pretrained(tmp_path / "saved")
    return recipe, tmp_path / "saved", saved


def test_a_saved_model_of_other_classes_gives_all_but_its_head(tmp_path: Path) -> None:
    recipe, folder, saved = fine_tuned(tmp_path, classes=7, new_head=True)
    plan = plan_reproduction(recipe, tmp_path / "run", ReproduceOptions(start_from=folder))
    model = build_model(plan.recipe, plan.task, plan.seed, plan.start)
    fresh = build_model(plan.recipe, plan.task, plan.seed).state_dict()
    weights = saved.state_dict()
    for name, tensor in model.state_dict().items():
        expected = fresh[name] if name.startswith("head.") else weights[name]
        assert torch.equal(tensor, expected), name
    results = run_reproduction(plan)
    assert results.started_from.recipe == f"saved model {saved.name}"
    assert ("started from", f"saved model {saved.name}") in summary_rows(results)


def test_a_saved_model_of_other_classes_needs_a_new_head(tmp_path: Path) -> None:
    recipe, folder, _ = fine_tuned(tmp_path, classes=7, new_head=False)
    with pytest.raises(InputError, match=r"start_from: .*weight head"):
        plan_reproduction(recipe, tmp_path / "run", ReproduceOptions(start_from=folder))


def test_fine_tuning_of_tost_uses_released_weights(tmp_path: Path) -> None:
    """Convert a model with 1,000 classes at size 224 to 10 classes at size 32, resized to 224."""
    recipe = get_recipe("tost/table2-cifar10-tost_tiny_16")
    assert (recipe.new_head, recipe.train.weight_decay) == (True, 0.01)
    tiny = {"dim": 16, "num_layers": 1, "num_heads": 2}
    released = rm.create_model("tost_tiny_16", **tiny)
    released.save_pretrained(tmp_path / "released")
    start = read_initial_weights(tmp_path / "released")
    model = rm.create_model(recipe.model, **{**recipe.model_settings, **tiny}).eval()
    head = model.head.weight.clone()
    start_model(model, start, load_task("digits"), new_head=recipe.new_head)
    assert torch.equal(model.head.weight, head)
    assert torch.equal(model.blocks[0].norm1.weight, released.blocks[0].norm1.weight)
    images = torch.randn(2, 3, 32, 32)
    large = torch.nn.functional.interpolate(
        images, size=(224, 224), mode="bilinear", align_corners=True
    )
    released.head = model.head
    torch.testing.assert_close(model(images), released.eval()(large))
