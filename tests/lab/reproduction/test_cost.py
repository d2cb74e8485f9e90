"""Compare the counted cost of a recipe, and the estimate from it, with a real step."""

from __future__ import annotations

import json
import time
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from rifflemix.errors import InputError
from rifflemix.lab.recipes import Recipe, get_recipe, list_recipes
from rifflemix.lab.reproduction.cost import (
    FILE,
    Speed,
    StepCost,
    calibrate,
    cost_cache,
    count_step,
    read_costs,
    recipe_costs,
    shapes_of,
    work,
    write_costs,
)
from rifflemix.lab.runs.build_for_task import fit_model, task_settings
from rifflemix.lab.runs.measure import peak_memory, processor_seconds
from rifflemix.lab.tasks import card_of, load_task, task_card
from rifflemix.lab.tasks.images.pixels import WholeImages
from rifflemix.lab.train import TrainConfig
from rifflemix.lab.train.evaluate import run_model
from rifflemix.models.macs import flop_formulas
from rifflemix.ops import dropout_attention, native
from small_recipes import small

needs_kernels = pytest.mark.skipif(native.library() is None, reason="needs the compiled kernels")
SPEED = Speed(flops=1e9, moved_bytes=1e9, operator_seconds=1e-3)


def step(recipe: Recipe) -> tuple[nn.Module, Any]:
    """Return a model and a call that runs one real step."""
    shapes = shapes_of(recipe)
    model = fit_model(recipe.model, shapes, recipe.model_settings, 0).train()
    batch = shapes.zeros(recipe.train.batch_size, task_card(recipe.task).output)

    def call() -> None:
        logits = run_model(model, batch).float()
        nn.functional.cross_entropy(logits, batch["labels"]).backward()

    return model, call


@pytest.mark.parametrize("mixer", ["tssa", "csp", "softmax", "butterfly"])
def test_flops_and_memory_equal_a_real_step(mixer: str) -> None:
    settings = {"mixer": mixer, "dim": 32, "num_heads": 2, "dropout": 0.1}
    recipe = small(model_settings=settings, task_options={"patch_size": 1})
    counted = count_step(recipe)
    model, call = step(recipe)
    call()  # allocate gradients
    with FlopCounterMode(display=False, custom_mapping=flop_formulas()) as counter:
        call()
    assert counted.flops == counter.get_total_flops() > 0
    weights = 4 * sum(p.numel() for p in model.parameters())
    # Weights, gradients and both moments, plus the memory of the step itself.
    held = peak_memory(call, torch.device("cpu")) + 4 * weights
    assert counted.peak_bytes == pytest.approx(held, rel=0.15)
    assert counted.tokens == recipe.train.batch_size * 64


def test_attention_with_dropout_is_counted_as_attention() -> None:
    flops = []
    for dropout in (0.0, 0.1):
        settings = {"mixer": "softmax", "dim": 32, "num_heads": 2, "dropout": dropout}
        flops.append(count_step(small(model_settings=settings)).flops)
    assert flops[0] == flops[1]


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("kind", [nn.Conv1d, nn.ConvTranspose1d])
def test_backward_of_a_grouped_convolution_costs_twice_the_forward(
    kind: type[nn.Module], groups: int
) -> None:
    convolution = kind(8, 16, 3, stride=2, groups=groups)
    x = torch.ones(2, 8, 9, requires_grad=True)
    with FlopCounterMode(display=False, custom_mapping=flop_formulas()) as counter:
        y = convolution(x)
        forward = counter.get_total_flops()
        y.sum().backward()
    places = 4 if kind is nn.Conv1d else 9
    assert forward == 2 * 2 * places * 16 * 3 * 8 // groups
    assert counter.get_total_flops() == 3 * forward


def test_twice_the_samples_move_twice_the_bytes() -> None:
    recipe = small(task_options={"patch_size": 1})
    twice = replace(recipe, train=replace(recipe.train, batch_size=2 * recipe.train.batch_size))
    one, two = count_step(recipe), count_step(twice)
    assert two.operators == one.operators
    assert two.flops == 2 * one.flops
    assert 1.8 * one.moved_bytes < two.moved_bytes < 2 * one.moved_bytes


@pytest.mark.slow
def test_padding_is_omitted_if_it_changes_the_shape_of_a_result() -> None:
    assert count_step(get_recipe("csp/table4-listops-s4")).flops > 0


@pytest.mark.slow
def test_model_that_reads_its_weights_in_the_constructor_is_counted() -> None:
    assert count_step(get_recipe("tost/table2-cifar10-tost_tiny_16")).flops > 0


@pytest.mark.slow
def test_accumulated_batches_are_added() -> None:
    recipe = small(train=TrainConfig(batch_size=8, accumulation=2))
    halves, whole = count_step(recipe), count_step(small(train=TrainConfig(batch_size=8)))
    assert (halves.tokens, halves.flops) == (whole.tokens, whole.flops)
    assert halves.operators > 1.5 * whole.operators
    assert halves.peak_bytes < whole.peak_bytes
    quarters, eighths = (
        count_step(small(train=TrainConfig(batch_size=8, accumulation=n))) for n in (4, 8)
    )
    more = [quarters.operators - halves.operators, eighths.operators - quarters.operators]
    assert more[1] == 2 * more[0] > 0
    assert eighths.flops == whole.flops


@pytest.mark.parametrize(("accumulation", "times"), [(1, [1]), (2, [1, 1]), (8, [1, 7])])
def test_first_of_accumulated_batches_is_counted_separately(
    accumulation: int, times: list[int]
) -> None:
    from rifflemix.lab.reproduction import cost

    assert cost._times(accumulation) == times


def test_matrix_product_moves_inputs_and_output() -> None:
    from rifflemix.lab.reproduction import cost

    x, weight = torch.ones(3, 5), torch.ones(5, 7)
    with cost._Count(iter(()), valid=1) as count:
        _ = x @ weight
    assert (count.flops, count.operators) == (2 * 3 * 5 * 7, 1)
    assert count.moved_bytes == 4 * (3 * 5 + 5 * 7 + 3 * 7)


@pytest.mark.skipif(native.instruction_level() < 2, reason="no compiled kernels here")
@pytest.mark.parametrize("padded", [False, True])
def test_attention_without_padding_counts_valid_tokens(padded: bool) -> None:
    from rifflemix.lab.reproduction import cost

    q, k, v = (torch.ones(2, 3, 40, 8, requires_grad=True) for _ in range(3))
    mask = torch.ones(2, 1, 1, 40, dtype=torch.bool)
    with cost._Count(iter(()), valid=10) as count:
        y = dropout_attention(q, k, v, 0.1, mask=mask, is_padding=padded)
        forward = count.flops
        y.backward(torch.ones_like(y))
    products = 2 * 2 * 3 * 8 * (10**2 if padded else 40**2)
    assert forward == 2 * products
    assert count.flops == (2 + 5) * products


def test_seconds_are_the_sum_of_computing_moving_and_starting() -> None:
    cost = StepCost(tokens=1, flops=3 * 10**9, moved_bytes=2 * 10**9, operators=500, peak_bytes=1)
    assert SPEED.seconds(cost) == pytest.approx(3 + 2 + 0.5)


def test_rows_of_one_model_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from rifflemix.lab.reproduction import cost

    counted = []
    once = StepCost(10, 20, 30, 40, 50)
    monkeypatch.setattr(cost, "count_step", lambda recipe: counted.append(recipe.name) or once)
    monkeypatch.setattr(cost, "cost_cache", dict)
    names = ["csp/table3-cifar10-csp", "csp/table3-cifar10-csp-top5", "csp/table3-cifar10-vit"]
    progress: list[tuple[int, int]] = []
    entries = list(
        recipe_costs(list(map(get_recipe, names)), SPEED, lambda *at: progress.append(at))
    )
    assert counted == [names[0], names[2]]
    assert progress == [(0, 3), (1, 3), (2, 3)]
    assert [entry["name"] for entry in entries] == names
    assert entries[0]["steps"] == 78_100
    assert entries[0]["flops_in_all"] == 78_100 * 20
    assert entries[0]["tokens_in_all"] == 78_100 * 10
    assert entries[0]["seconds"] == pytest.approx(78_100 * SPEED.seconds(once))
    json.dumps(entries, allow_nan=False)


@needs_kernels
def test_no_model_is_built_to_list_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this test fails, run `python docs/build/build.py costs` to count the new rows."""
    from rifflemix.lab.reproduction import cost

    built: list[str] = []
    monkeypatch.setattr(cost, "fit_model", lambda model, *rest: built.append(model))
    recipes = list(map(get_recipe, list_recipes()))
    assert len(list(recipe_costs(recipes, SPEED))) == len(recipes)
    assert built == []


@needs_kernels
def test_one_model_is_built_for_a_row_that_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    from rifflemix.lab.reproduction import cost

    built = []

    def build(model: str, *rest: Any) -> nn.Module:
        built.append(model)
        return fit_model(model, *rest)

    monkeypatch.setattr(cost, "fit_model", build)
    old = get_recipe("csp/table4-image")
    list(recipe_costs([old, small(), small(), old], SPEED))
    assert built == [small().model]


def test_the_seconds_of_a_long_step_have_no_exponent() -> None:
    from rifflemix.cli.workers import _row

    numbers = dict.fromkeys(("steps", "tokens", "tokens_in_all", "flops_in_all", "peak_bytes"), 1)
    for seconds, text in ((113.4, "113 s"), (2.334, "2.33 s"), (0.01234, "0.0123 s")):
        entry = {"name": "a", "seconds_per_step": seconds, "seconds": seconds, **numbers}
        assert _row(entry)[-2] == text


def test_stored_costs_belong_to_existing_recipes() -> None:
    assert read_costs(FILE).keys() == {work(get_recipe(name)) for name in list_recipes()}


def test_stored_costs_are_not_used_without_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(native, "library", lambda: None)
    assert cost_cache.__wrapped__() == {}


def test_costs_are_read_as_they_were_written(tmp_path: Path) -> None:
    costs = {"b": StepCost(1, 2, 3, 4, 5), "a": StepCost(6, 7, 8, 9, 10)}
    write_costs(tmp_path / "costs.json", costs)
    assert read_costs(tmp_path / "costs.json") == costs
    assert len((tmp_path / "costs.json").read_text().splitlines()) == 4


def test_cost_depends_only_on_the_work_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    from rifflemix.lab.reproduction import cost as kept

    recipe = small()
    longer = replace(recipe, train=replace(recipe.train, max_steps=7, lr=0.5, seed=3))
    assert work(recipe) == work(longer)
    others = [
        small(task_options={"patch_size": 1}),
        small(model_settings={"mixer": "csp"}),
        replace(recipe, train=replace(recipe.train, batch_size=9)),
        replace(recipe, train=replace(recipe.train, optimizer="adafactor")),
    ]
    assert len({work(recipe), *map(work, others)}) == 5
    before = work(recipe)
    monkeypatch.setattr(kept, "model_settings", lambda name: {"another setting": 1})
    assert work(recipe) != before


def test_a_machine_is_calibrated() -> None:
    speed = calibrate()
    assert 1e8 < speed.flops < 1e14
    assert 1e7 < speed.moved_bytes < 1e13
    assert 1e-8 < speed.operator_seconds < 1e-2


def test_time_of_other_processes_does_not_count() -> None:
    assert processor_seconds(lambda: time.sleep(0.002), min_seconds=1e-4) < 1e-3


PADDED = {"listops", "text", "retrieval", "sst", "snli", "mnli", "sick", "sort", "pcqm4m"}


def test_the_shapes_of_every_recipe_are_known() -> None:
    for name in list_recipes():
        recipe = get_recipe(name)
        shapes = shapes_of(recipe)
        assert 0 < shapes.valid <= shapes.tokens <= shapes.max_length, name
        assert shapes.padding == (recipe.task in PADDED), name


def test_a_task_whose_shapes_depend_on_its_data_is_refused() -> None:
    recipe = small(task="image_folder", task_options={})
    with pytest.raises(InputError, match="image_folder"):
        shapes_of(recipe)
    with pytest.raises(InputError, match="level"):
        shapes_of(small(task="wikitext", task_options={}))


def one_of_each_table_and_mixer() -> set[str]:
    first: dict[Any, str] = {}
    for recipe in map(get_recipe, list_recipes()):
        first.setdefault((recipe.paper, recipe.table), recipe.name)
        first.setdefault(recipe.model_settings.get("mixer"), recipe.name)
    return set(first.values())


QUICK = "tost/table3-listops-tssa"
OTHERS = sorted(one_of_each_table_and_mixer() - {QUICK})


@needs_kernels
@pytest.mark.parametrize(
    "name", [QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]
)
def test_stored_costs_equal_counted_costs(name: str) -> None:
    """If this test fails, run `python docs/build/build.py costs PART_OF_THE_NAME`."""
    kept, counted = cost_cache()[work(get_recipe(name))], count_step(get_recipe(name))
    assert min(counted.tokens, counted.flops, counted.moved_bytes, counted.operators) > 0
    # A few operators more or less in a mixer do not require a new count: the estimated time is
    # only accurate within a factor of 1.5.
    assert counted.tokens == kept.tokens
    assert astuple(counted) == pytest.approx(astuple(kept), rel=0.05)


def assert_as_loaded(recipe: Recipe, data_dir: Path | None = None, **options: Any) -> None:
    """Check that the shapes on the card agree with the loaded task."""
    task = load_task(recipe.task, data_dir=data_dir, **{**recipe.task_options, **options})
    known = shapes_of(recipe)
    assert task_settings(known) == task_settings(task)
    zeros = known.zeros(2, card_of(task).output)
    shapes = {}
    samples = [task.split("train")[index] for index in range(2)]
    for kind, batch in {"real": task.collate(samples), "made up": zeros}.items():
        whole = isinstance(task, WholeImages)
        shapes[kind] = {
            key: (value.shape if whole else value.dim(), value.dtype)
            for key, value in batch.items()
        }
    assert shapes["made up"] == shapes["real"]


@pytest.mark.parametrize("patch_size", [1, 4])
def test_shapes_of_digits_equal_loaded_data(patch_size: int) -> None:
    assert_as_loaded(small(task_options={"patch_size": patch_size}))


def test_shapes_of_generated_images_equal_loaded_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RIFFLEMIX_CACHE", str(tmp_path))
    recipe = replace(get_recipe("csp/table4-pathfinder"), task_options={"patch_size": 4})
    assert_as_loaded(recipe, preset="curv_baseline", max_samples=3)


@pytest.mark.parametrize(
    "name", ["csp/table4-listops", "csp/table4-pathfinder", "sinkhorn/table1-sort-b32"]
)
def test_shapes_of_generated_tasks_equal_loaded_data(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RIFFLEMIX_CACHE", str(tmp_path))
    assert_as_loaded(get_recipe(name), max_samples=3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "csp/table4-text",
        "csp/table4-retrieval",
        "csp/table4-image",
        "csp/table3-cifar10-csp",
        "sinkhorn/table6-sst-word-b8",
        "sinkhorn/table6-sst-char-b8",
        "sinkhorn/table7-sick-b8",
        "sinkhorn/table5-cifar10-b256",
        "sinkhorn/table2-ptb-b16",
        "sinkhorn/table4-shakespeare-local",
    ],
)
def test_real_data_has_the_shapes_of_its_card(
    name: str, shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RIFFLEMIX_CACHE", str(tmp_path))
    assert_as_loaded(get_recipe(name), shared_data)
