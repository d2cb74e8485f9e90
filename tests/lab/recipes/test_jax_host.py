"""Compare the JAX host model of the Long Range Arena with a literal implementation.

As in `test_small_host`, the literal model shares no code with the package. A pair of positions has
the score -1e10 if one of them is padding. That score swallows every digit of a float32 score, so a
padded query attends to all positions equally.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import rifflemix as rm
from perturbed import perturb
from rifflemix.lab.recipes import Recipe, get_recipe, list_recipes
from rifflemix.lab.recipes.csp import TRANSFORMERS

TASKS = ("listops", "text", "retrieval", "image", "pathfinder")
NO_MASK = ("linear", "linformer", "performer", "reformer")

Attend = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def of_row(task: str, mixer: str) -> Recipe:
    return get_recipe(f"csp/table4-{task}-{mixer}")


def build(recipe: Recipe, **changes: Any) -> rm.models.Model:
    torch.manual_seed(5)
    model = rm.create_model(recipe.model, **{**recipe.model_settings, **changes}).double().eval()
    return perturb(model, 0.1)


def on_meta(recipe: Recipe) -> rm.models.Model:
    with torch.device("meta"):
        return rm.create_model(recipe.model, **recipe.model_settings)


def norm(x: Tensor, w: dict[str, Tensor], name: str) -> Tensor:
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, correction=0, keepdim=True)
    return (x - mean) / (variance + 1e-6).sqrt() * w[f"{name}.weight"] + w[f"{name}.bias"]


def linear(x: Tensor, w: dict[str, Tensor], name: str) -> Tensor:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def waves(length: int, dim: int) -> Tensor:
    place, channel = torch.arange(length).double()[:, None], torch.arange(dim).double()
    angle = place / 10_000 ** ((channel - channel % 2) / dim)
    return torch.where(channel % 2 == 0, angle.sin(), angle.cos())


def vector(w: dict[str, Tensor], ids: Tensor, heads: int, attend: Attend) -> Tensor:
    """Run the encoder on ids (B, N) up to its vector per sample.

    The vector is the class token, or the mean over all positions, after the last norm.
    """
    valid, x = ids > 0, w["embed.weight"][ids]
    if "cls" in w:
        x = torch.cat((w["cls"].expand(len(x), -1, -1), x), 1)
        valid = torch.cat((valid[:, :1], valid), 1)
    learned = w.get("positions.table")
    # The table is float32 in the original code.
    x = x + (waves(*x.shape[1:]).float() if learned is None else learned[: x.shape[1]])
    layer = 0
    while f"blocks.{layer}.norm1.weight" in w:
        block = f"blocks.{layer}"
        assert f"{block}.mixer.qkv.bias" not in w
        assert f"{block}.mixer.proj.bias" not in w
        qkv = norm(x, w, f"{block}.norm1") @ w[f"{block}.mixer.qkv.weight"].T
        q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in qkv.chunk(3, -1))
        y = attend(q, k, v, valid).transpose(1, 2).flatten(2)
        x = x + y @ w[f"{block}.mixer.proj.weight"].T
        h = gelu(linear(norm(x, w, f"{block}.norm2"), w, f"{block}.mlp.fc1"))
        x = x + linear(h, w, f"{block}.mlp.fc2")
        layer += 1
    x = norm(x, w, "norm")
    return x[:, 0] if "cls" in w else x.mean(1)


def logits(w: dict[str, Tensor], ids: Tensor, heads: int, attend: Attend) -> Tensor:
    if ids.dim() == 3:
        x = torch.cat([vector(w, part, heads, attend) for part in ids.unbind(1)], -1)
    else:
        x = vector(w, ids, heads, attend)
    layers = sorted(name[:-7] for name in w if name.startswith("head.") and "weight" in name)
    for name in layers[:-1]:
        x = linear(x, w, name).clamp_min(0)
    return linear(x, w, layers[-1])


def softmax(q: Tensor, k: Tensor, v: Tensor, valid: Tensor, sees: Tensor | None = None) -> Tensor:
    pair = valid[:, None, :, None] & valid[:, None, None, :]
    if sees is not None:
        pair = pair & sees
    scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~pair, -1e10)
    return scores.softmax(-1) @ v


def sparse(q: Tensor, k: Tensor, v: Tensor, valid: Tensor) -> Tensor:
    """Attend to pixels in blocks of 50 with 10 summaries each.

    The class token is first. It attends to all positions, and all positions attend to it.
    """
    i, j = torch.arange(q.shape[2] - 1)[:, None], torch.arange(q.shape[2] - 1)[None, :]
    summary = (j % 50 == 0) | (j % 50 >= 40)
    sees = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool)
    sees[1:, 1:] = (j <= i) & ((i // 50 == j // 50) | summary)
    return softmax(q, k, v, valid, sees)


def window(q: Tensor, k: Tensor, v: Tensor, valid: Tensor) -> Tensor:
    i, j = torch.arange(q.shape[2])[:, None], torch.arange(q.shape[2])[None, :]
    return softmax(q, k, v, valid, (j >= i - 4) & (j <= i + 3))


def elu(q: Tensor, k: Tensor, v: Tensor, valid: Tensor) -> Tensor:
    """Apply linear attention without a mask."""
    q, k = (torch.where(t > 0, t + 1, t.exp()) for t in (q, k))
    weights = q @ k.mT
    return weights @ v / (weights.sum(-1, keepdim=True) + 1e-6)


def relu(q: Tensor, k: Tensor, v: Tensor, valid: Tensor) -> Tensor:
    weights = (q.clamp_min(0) + 1e-3) @ (k.clamp_min(0) + 1e-3).mT
    return weights @ v / weights.sum(-1, keepdim=True)


def ids_of(task: str, length: int) -> Tensor:
    """Build ids (3, length).

    The first two images have black pixels; the first pixel of the second image is black.
    """
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(1, 16, (3, length), generator=generator)
    if task in ("image", "pathfinder"):
        ids[:2] = ids[:2].masked_fill(torch.rand(2, length, generator=generator) < 0.6, 0)
        ids[0, 0], ids[1, 0] = 7, 0
        return ids
    return ids * (torch.arange(length) < torch.tensor([[length], [length // 2], [3]]))


LITERAL: dict[str, tuple[Attend, tuple[str, ...], dict[str, Any]]] = {
    "softmax": (softmax, ("listops", "text", "image", "pathfinder"), {}),
    "sparse_transformer": (sparse, ("listops", "image"), {}),
    "longformer": (window, ("image", "pathfinder"), {"window": 8}),
    "linear": (elu, ("text", "image", "pathfinder"), {}),
    "performer": (relu, ("text", "image", "pathfinder"), {}),
}
ROWS = [(task, mixer) for mixer, (_, tasks, _) in LITERAL.items() for task in tasks]


@pytest.mark.parametrize(("task", "mixer"), ROWS)
def test_equals_a_literal_implementation(task: str, mixer: str) -> None:
    attend, _, smaller = LITERAL[mixer]
    recipe = of_row(task, mixer)
    options = {**recipe.model_settings.get("mixer_options", {}), **smaller}
    length, places = (140, 150) if mixer == "sparse_transformer" else (40, 48)
    if task in ("image", "pathfinder"):
        length = places
    small = {"dim": 32} if task in ("listops", "text") else {}
    model = build(recipe, max_length=places, mixer_options=options, **small)
    heads = model.blocks[0].mixer.num_heads
    ids = ids_of(task, length)
    full = torch.cat((ids, ids.new_zeros(len(ids), places - length)), 1)
    expected = logits(dict(model.state_dict()), full, heads, attend)
    torch.testing.assert_close(model(ids), expected, atol=1e-8, rtol=1e-8)


def test_pair_equals_a_literal_implementation() -> None:
    model = build(of_row("retrieval", "softmax"), max_length=24)
    pairs = ids_of("retrieval", 24)[None, :2]
    expected = logits(dict(model.state_dict()), pairs, 4, softmax)
    torch.testing.assert_close(model(pairs), expected, atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("mixer", TRANSFORMERS)
@pytest.mark.parametrize("task", TASKS)
def test_settings_of_every_row(task: str, mixer: str) -> None:
    recipe = of_row(task, mixer)
    model = on_meta(recipe)
    unmasked = mixer in NO_MASK or (task, mixer) == ("text", "synthesizer")
    expected = ("unmasked", None) if unmasked else ("max_length", 0)
    assert (model.padding, model.padding_id) == expected
    is_cut = task == "text" or (task, mixer) == ("retrieval", "sinkformer")
    assert (model.cls_mask, recipe.task_options) == (
        "first",
        {"max_length": 1000} if is_cut else {},
    )
    learned = isinstance(getattr(model.positions, "table", None), torch.nn.Parameter)
    assert learned == (task == "image")
    if not learned:
        assert recipe_positions(recipe) == "interleaved_sinusoid"
    dropout = {"image": 0.3, "pathfinder": 0.2}.get(task, 0.1)
    if (task, mixer) in LESS_DROPOUT:
        dropout = 0.1
    for block in model.blocks:
        assert block.mixer.dropout == (0.2 if task == "image" else 0.1)
        assert (block.drop.p, block.mlp.hidden_drop.p, block.mlp.drop.p) == (dropout,) * 3
        biases = [name for name, _ in block.mixer.named_parameters() if name.endswith("bias")]
        assert [name for name in biases if name.split(".")[0] in MAPS] == []
        assert block.mlp.fc1.bias is not None
    steps = {"listops": 5_000, "text": 20_000, "retrieval": 5_000, "image": 35_000}
    assert recipe.train.max_steps == steps.get(task, 62_400)
    hidden = any("padding_id=None" in note for note in recipe.notes)
    assert hidden == (task in ("image", "pathfinder") and not unmasked)
    assert any("no mask" in note for note in recipe.notes) == unmasked


LESS_DROPOUT = (("pathfinder", "local"), ("pathfinder", "longformer"), ("image", "sinkhorn"))
MAPS = ("qkv", "proj", "global_qkv", "qk", "value")


def recipe_positions(recipe: Recipe) -> str:
    settings = rm.models.model_settings(recipe.model) | dict(recipe.model_settings)
    return settings["positions"]


def test_parameters_of_the_listops_transformer() -> None:
    """16 ids; 4 layers of 4 maps 512 x 512 without bias, an MLP, two norms; norm; head."""
    dim, mlp = 512, 1024
    layer = 4 * dim * dim + 2 * dim * mlp + mlp + dim + 4 * dim
    head = dim * mlp + mlp + mlp * 10 + 10
    expected = 16 * dim + dim + 4 * layer + 2 * dim + head
    assert expected == 8_948_234
    assert on_meta(of_row("listops", "softmax")).num_parameters() == expected
    with torch.device("meta"):
        assert rm.create_model("lra_listops").num_parameters() == expected


def test_sparse_rows_have_the_blocks_of_the_released_get_model() -> None:
    for task in TASKS:
        mixer = on_meta(of_row(task, "sparse_transformer")).blocks[0].mixer
        assert (mixer.stride, mixer.num_summary, mixer.triangular) == (50, 10, True)
        assert mixer.cls_token == (task != "pathfinder")


@pytest.mark.parametrize("task", [task for task in TASKS if task != "retrieval"])
def test_sinkhorn_reads_the_mean_by_one_map(task: str) -> None:
    """The Sinkhorn model in that code has no class token and no hidden layer in the head."""
    recipe = of_row(task, "sinkhorn")
    model = on_meta(recipe)
    assert (recipe.model_settings["pool"], model.settings["head_hidden"]) == ("position_mean", [])
    assert isinstance(model.head, torch.nn.Linear)
    assert "cls" not in model.state_dict()
    assert any("class token, but" in note for note in recipe.notes) == (task in ("text", "image"))


@pytest.mark.parametrize(
    ("mixer", "task", "words"),
    [
        ("linformer", "text", "16"),
        ("synthesizer", "text", "random"),
        ("performer", "listops", "every call"),
        ("longformer", None, "ahead"),
        ("softmax", "retrieval", "first byte"),
    ],
)
def test_rows_note_differences_from_the_released_code(
    mixer: str, task: str | None, words: str
) -> None:
    said = [re.search(rf"\b{words}\b", " ".join(of_row(n, mixer).notes)) is not None for n in TASKS]
    assert said == [task in (name, None) for name in TASKS]


def test_listops_performer_has_two_features() -> None:
    for task in TASKS:
        mixer = on_meta(of_row(task, "performer")).blocks[0].mixer
        kind = (mixer.kernel, None if mixer.projection is None else len(mixer.projection))
        assert kind == (("softmax", 2) if task == "listops" else ("relu", None))
        assert mixer.scale_exponent == (0.25 if task == "listops" else 0.0)


SORTS = ("ascending", "interleave", "max_exchange")


@pytest.mark.parametrize("variant", SORTS)
@pytest.mark.parametrize("task", TASKS)
def test_rows_of_the_sliceformer_paper(task: str, variant: str) -> None:
    recipe = get_recipe(f"sliceformer/table2-{task}-{variant}")
    model = on_meta(recipe)
    assert (model.padding, model.padding_id, model.pool.kind) == ("unmasked", None, "cls")
    learned = isinstance(model.positions.table, torch.nn.Parameter)
    assert learned == (task in ("image", "pathfinder"))
    assert model.blocks[0].mixer.dropout == 0.1
    assert model.blocks[0].drop.p == (0.2 if task == "image" else 0.1)


def test_one_table_is_one_task() -> None:
    """Check that Text of Table II is 1,000 bytes in every row and for every host model."""
    recipes = [get_recipe(name) for name in list_recipes()]
    rows = [
        r for r in recipes if r.model == "lra_text" or r.name.startswith("sliceformer/table2-text")
    ]
    assert len(rows) >= 2 * len(TRANSFORMERS) + len(SORTS) + 1
    assert {r.name: r.task_options for r in rows if r.task_options != {"max_length": 1000}} == {}


@pytest.mark.parametrize("task", TASKS)
def test_csp_row_equals_sliceformers_or_notes_the_difference(task: str) -> None:
    own, other = (
        get_recipe(f"csp/table4-{task}"),
        get_recipe(f"sliceformer/table2-{task}-ascending"),
    )
    assert own.printed == other.printed
    models = build_small(own), build_small(other)
    ids = ids_of(task, 20)
    if task == "retrieval":
        ids = ids[None, :2]
    same_model = models[0].state_dict().keys() == models[1].state_dict().keys() and all(
        a.shape == b.shape for a, b in zip(*(m.state_dict().values() for m in models), strict=True)
    )
    if same_model:
        models[1].load_state_dict(models[0].state_dict())
        torch.testing.assert_close(models[0](ids), models[1](ids))
    is_same = same_model and own.train == other.train
    assert is_same == (task in ("listops", "text"))
    assert ("are the same" in own.notes[0]) == is_same


def build_small(recipe: Recipe) -> rm.models.Model:
    return build(recipe, max_length=24)


def test_sinkformer_rows_are_truncated_as_released_or_noted() -> None:
    """Check max_length 1,000 on two tasks; other Sinkformer tasks use the task's length."""
    assert of_row("retrieval", "sinkformer").task_options == {"max_length": 1000}
    assert of_row("retrieval", "softmax").task_options == {}
    assert any("1,000 tokens" in note for note in of_row("listops", "sinkformer").notes)
