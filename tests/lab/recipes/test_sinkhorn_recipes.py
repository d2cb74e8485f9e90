"""Tests of the Sinkhorn paper's recipes: rates, dropouts, sorting, losses and pairs."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from rifflemix.errors import InputError
from rifflemix.lab.recipes import Recipe, get_recipe, list_recipes
from rifflemix.lab.reproduction.cost import shapes_of
from rifflemix.lab.tasks import load_task
from rifflemix.lab.train.evaluate import run_model
from rifflemix.lab.train.length_batches import batches_by_length
from rifflemix.lab.train.optim import learning_rate
from rifflemix.mixers.sinkhorn import Sinkhorn
from rifflemix.models import GPT, Encoder, Model, create_model
from rifflemix.nn.block import Block

NAMES = [name for name in list_recipes() if name.startswith("sinkhorn/")]
LANGUAGE = [n for n in NAMES if n.split("/")[1][:6] in ("table2", "table3", "table4", "table8")]
FIGURES = [n for n in NAMES if "/figure" in n]


def tiny(recipe: Recipe, **settings: object) -> Model:
    torch.manual_seed(0)
    return create_model(
        recipe.model,
        **{**recipe.model_settings, "dim": 32, "num_heads": 4, "num_layers": 2, **settings},
    )


@pytest.mark.parametrize("name", [*LANGUAGE, *FIGURES])
def test_language_models_train_as_tensor2tensors(name: str) -> None:
    """Check Adafactor at 0.01 for 10,000 steps, then 1 / sqrt(step), and relu dropout."""
    recipe = get_recipe(name)
    assert (recipe.train.optimizer, recipe.train.weight_decay) == ("adafactor", 0.0)
    assert (recipe.train.max_steps, recipe.train.clip_norm) == (300_000, None)
    for step, rate in ((0, 0.01), (9_999, 0.01), (40_000, 1 / 200), (299_999, 299_999**-0.5)):
        assert learning_rate(recipe.train, step) == pytest.approx(rate, rel=1e-12)
    tokens = recipe.train.batch_size * recipe.task_options.get("max_length", 256)
    assert tokens == 16 * 4096
    model = tiny(recipe, vocab_size=11, max_length=64)
    assert isinstance(model, GPT)
    blocks = [block for block in model.modules() if isinstance(block, Block)]
    assert {block.mlp.hidden_drop.p for block in blocks} == {0.1}
    assert {block.drop.p for block in blocks} == {0.1}


def test_relu_dropout_is_a_setting() -> None:
    for value in (0.0, 0.25):
        model = create_model("gpt", dropout=0.1, hidden_dropout=value)
        drops = {b.mlp.hidden_drop.p for b in model.modules() if isinstance(b, Block)}
        assert drops == {value}
        model = create_model("seq2seq", dropout=0.1, hidden_dropout=value)
        drops = {m.p for n, m in model.named_modules() if n.endswith("hidden_drop")}
        assert drops == {value}
    model = create_model("seq2seq", dropout=0.1)
    assert {m.p for n, m in model.named_modules() if n.endswith("hidden_drop")} == {0.1}


def test_figures_vary_the_tuned_settings() -> None:
    points: dict[str, set[tuple[str, float, int]]] = {}
    for name in FIGURES:
        recipe = get_recipe(name)
        assert recipe.printed is None
        model = tiny(recipe, vocab_size=11, max_length=256)
        mixers = [module for module in model.modules() if isinstance(module, Sinkhorn)]
        assert len(mixers) == 2
        for mixer in mixers:
            options = mixer.sorter.options
            assert mixer.block_size == 32
            values = (recipe.column, options.temperature, options.num_iterations)
            points.setdefault(recipe.table, set()).add(values)
    corpora = ("LM1B", "Penn Treebank (not LM1B)")
    assert points["Figure 3"] == {(c, t, 5) for c in corpora for t in (0.25, 0.5, 0.75, 1.0)}
    assert points["Figure 4"] == {(c, 0.75, k) for c in corpora for k in (2, 5, 10, 20)}


def test_iterations_are_among_the_tuned_values() -> None:
    for recipe in map(get_recipe, NAMES):
        if recipe.model_settings["mixer"] == "sinkhorn":
            options = recipe.model_settings["mixer_options"]
            allowed = (0,) if recipe.name.endswith("no-sinkhorn") else (2, 5, 10, 20)
            assert options["num_iterations"] in allowed, recipe.name
            notes = " ".join(recipe.notes)
            said = ("tunes", "not state", "s(F1(X))")
            assert any(words in notes for words in said), recipe.name


def loss_and_gradients(model: Model, length: int) -> tuple[float, list[torch.Tensor]]:
    tokens = torch.randint(50, (2, length))
    scores = model.train()(tokens)
    loss = functional.cross_entropy(scores[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    return loss.item(), [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("corpus", ["lm1b", "ptb"])
def test_model_runs_without_normalisation(corpus: str) -> None:
    """Check row (6) of Table 8 over 8 blocks; a new model has about the loss of chance."""
    recipe = get_recipe(f"sinkhorn/table8-{corpus}-no-sinkhorn")
    model = tiny(recipe, dim=128, vocab_size=50, max_length=256)
    sorter = next(m for m in model.modules() if isinstance(m, Sinkhorn)).sorter
    assert (sorter.options.num_iterations, sorter.options.sort_net) == (0, "linear")
    loss, gradients = loss_and_gradients(model, 256)
    assert loss == pytest.approx(math.log(50), abs=1.0)
    assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
    weight = sorter.net.weight.grad  # the sorting network learns
    assert weight is not None
    assert weight.abs().max() > 0


def test_without_normalisation_exponentials_overflow() -> None:
    """Show why row (6) uses the ReLU."""
    recipe = get_recipe("sinkhorn/table8-lm1b-no-sinkhorn")
    options = {**recipe.model_settings["mixer_options"], "kernel": "exp"}
    model = tiny(recipe, dim=128, vocab_size=50, max_length=256, mixer_options=options)
    loss, _ = loss_and_gradients(model, 256)
    assert not math.isfinite(loss)


@pytest.mark.parametrize("row", ["transformer", "b8", "sortcut-b32"])
@pytest.mark.parametrize("task", ["snli", "mnli", "sick"])
def test_pairs_are_read_as_one_sequence(task: str, row: str) -> None:
    recipe = get_recipe(f"sinkhorn/table7-{task}-{row}")
    assert recipe.task_options["joined"] is True
    model = tiny(recipe, vocab_size=20, max_length=64)
    assert isinstance(model, Encoder)
    assert model.num_sequences == 1
    assert model(torch.randint(20, (2, 40))).shape == (2, 3)
    assert recipe.train.max_steps == (15_000 if task == "sick" else 500_000)


def test_both_edit_distances_are_offered() -> None:
    for row in ("transformer", "b32"):
        printed, written = (get_recipe(f"sinkhorn/table1-{m}-{row}") for m in ("edit", "written"))
        assert printed.metric == "tail_edit_distance"
        assert any(re.search(r"\bright\b.*\bbefore\b", note) for note in printed.notes)
        assert written.metric == "free_running_edit_distance"
        assert (written.printed, written.task_options["free_running"]) == (None, True)
        assert "free_running" not in printed.task_options
        assert written.model_settings == printed.model_settings
        assert written.train == printed.train


SORTING = [name for name in NAMES if "/table1-" in name]


@pytest.mark.parametrize("name", SORTING)
def test_sorting_is_measured_as_in_tensor2tensor(name: str) -> None:
    """Check 10,000 test sequences, batches of 4,096 tokens, and buckets up to 256 tokens."""
    recipe = get_recipe(name)
    assert recipe.task_options["num_test"] == 10_000
    assert recipe.train.token_batches == (4_096, 256)
    assert recipe.weights == "last"


def test_no_difference_is_shown_if_an_untrained_model_beats_the_paper() -> None:
    task = load_task("sort", num_train=2, num_validation=2, num_test=24)
    split = task.split("test")
    batches = list(batches_by_length(split.lengths(), range(24), (4_096, 256)))
    for row in ("b8", "transformer"):
        recipe = get_recipe(f"sinkhorn/table1-edit-{row}")
        model = tiny(recipe, vocab_size=task.vocab_size, max_length=task.max_length).eval()
        edits = symbols = 0.0
        for batch in (task.collate([split[index] for index in of]) for of in batches):
            with torch.no_grad():
                outputs = run_model(model, batch)
            value, count = task.metrics(outputs, batch)[recipe.metric]
            edits, symbols = edits + value, symbols + count
        assert recipe.printed is not None
        looks_better = edits / symbols < recipe.printed
        assert bool(recipe.not_comparable) == looks_better
        assert not get_recipe(f"sinkhorn/table1-sort-{row}").not_comparable


CLASSIFIERS = [name for name in NAMES if "/table6-" in name or "/table7-" in name]


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classifiers_have_tensor2tensors_settings(name: str) -> None:
    recipe = get_recipe(name)
    classes = 3 if "/table7-" in name else 2
    model = tiny(recipe, vocab_size=20, max_length=64, num_classes=classes, dim=128)
    assert isinstance(model, Encoder)
    assert model.pool.kind == "position_mean"
    # Embeddings have a deviation of 128 ** -0.5 and are scaled by 128 ** 0.5.
    assert model.embedding_scale == pytest.approx(128**0.5)
    assert model.embed.weight.std().item() == pytest.approx(128**-0.5, rel=0.1)
    train = recipe.train
    # Smoothing covers all classes here, so the right class keeps 0.9.
    assert 1 - train.label_smoothing + train.label_smoothing / classes == pytest.approx(0.9)
    assert train.token_batches is not None
    assert train.token_batches[0] == 4_096
    assert recipe.weights == "last"
    is_characters = "-char-" in name
    assert recipe.task_options.get("level", "byte") == ("byte" if is_characters else "subword")
    if "/table6-" in name:
        assert recipe.task_options["max_length"] == (2_048 if is_characters else 512)
        own = {"labels": "glue"} if "-sst-" in name else {"validation": False}
        assert own.items() <= recipe.task_options.items()


def test_choosing_by_validation_is_an_option() -> None:
    for name, options in (("imdb-word-b8", {"validation": True}), ("sst-word-b8", {})):
        recipe = get_recipe(f"sinkhorn/table6-{name}")
        chosen = recipe.choosing("best")
        assert chosen.weights == "best"
        assert chosen.task_options == {**recipe.task_options, **options}
        assert recipe.choosing("last") == recipe
    with pytest.raises(InputError, match="weights"):
        recipe.choosing("first")  # type: ignore[arg-type] # refused


@pytest.mark.parametrize(("task", "size"), [("sst", 16_384), ("sick", 4_346)])
@pytest.mark.slow
def test_costs_use_the_actual_number_of_subwords(task: str, size: int, shared_data: Path) -> None:
    for recipe in map(get_recipe, CLASSIFIERS):
        if recipe.task == task and recipe.task_options["level"] == "subword":
            loaded = load_task(task, data_dir=shared_data, **recipe.task_options)
            assert shapes_of(recipe).vocab_size == loaded.vocab_size
            joined = bool(recipe.task_options.get("joined"))
            assert loaded.vocab_size == size + joined
            return
