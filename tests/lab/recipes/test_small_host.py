"""Compare Nystromformer's host model in Dimension Mixer's Table 5 with a literal one.

The literal model consists of tensors and functions only and shares no code with the package. It
defines the expected behavior of the recipes, above all for padding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import rifflemix as rm
from perturbed import perturb
from rifflemix.lab.recipes import get_recipe

TASKS = ("listops", "text", "retrieval", "image", "pathfinder")
IMAGES = ("image", "pathfinder")
MIXERS = ("softmax", "reformer", "linformer", "performer", "nystromformer", "butterfly")
LENGTHS = {"listops": 2048, "text": 4096, "retrieval": 4096, "image": 1024, "pathfinder": 1024}
DIM, HEADS, WIDTH, LAYERS = 64, 2, 32, 2

Attend = Callable[[int, Tensor, Tensor, Tensor, Tensor], Tensor]


def build(task: str, mixer: str, *, suffix: str = "", **changes: Any) -> rm.models.Model:
    """Build the recipe's model for evaluation, with noise in all parameters."""
    recipe = get_recipe(f"dimension_mixer/table5-{task}-{mixer}{suffix}")
    torch.manual_seed(11)
    model = rm.create_model(recipe.model, **{**recipe.model_settings, **changes}).eval()
    return perturb(model, 0.1)


def ids_of(task: str, length: int, batch: int = 3) -> Tensor:
    """Build token ids (batch, length).

    Images have black pixels; other tasks have padding at the end.
    """
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(1, 17 if task == "listops" else 256, (batch, length), generator=generator)
    if task in IMAGES:
        return ids.masked_fill(torch.rand(batch, length, generator=generator) < 0.77, 0)
    return ids * (torch.arange(length) < torch.tensor([length, length // 2, 3][:batch])[:, None])


def filled(ids: Tensor, length: int) -> Tensor:
    return torch.cat((ids, ids.new_zeros(len(ids), length - ids.shape[1])), 1)


# The literal model.


def norm(x: Tensor, w: dict[str, Tensor], name: str) -> Tensor:
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, correction=0, keepdim=True)
    return (x - mean) / (variance + 1e-5).sqrt() * w[f"{name}.weight"] + w[f"{name}.bias"]


def linear(x: Tensor, w: dict[str, Tensor], name: str) -> Tensor:
    y = x @ w[f"{name}.weight"].T
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def host_vectors(w: dict[str, Tensor], ids: Tensor, attend: Attend) -> Tensor:
    """Average the normalized output over positions, with zeros for id 0."""
    mask = (ids != 0).to(w["norm.weight"].dtype)
    x = w["embed.weight"][ids] + w["positions.table"]
    for layer in range(LAYERS):
        block = f"blocks.{layer}"
        h = norm(x, w, f"{block}.norm1")
        mixer = f"{block}.mixer.attention" if f"{block}.mixer.qkv.weight" not in w else ""
        mixer = mixer or f"{block}.mixer"
        qkv = linear(h, w, f"{mixer}.qkv")
        q, k, v = (
            qkv[..., start : start + DIM].unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)
            for start in (0, DIM, 2 * DIM)
        )
        y = attend(layer, q, k, v, mask).transpose(1, 2).flatten(2)
        x = x + linear(y, w, f"{mixer}.proj")
        h = norm(x, w, f"{block}.norm2")
        h = linear(h, w, f"{block}.mlp.fc1")
        x = x + linear(h * 0.5 * (1 + torch.erf(h / 2**0.5)), w, f"{block}.mlp.fc2")
    return (norm(x, w, "norm") * mask[:, :, None]).mean(1)


def host_logits(w: dict[str, Tensor], ids: Tensor, attend: Attend) -> Tensor:
    if ids.dim() == 3:
        a, b = (host_vectors(w, part, attend) for part in ids.unbind(1))
        vector = torch.cat((a, b, a * b, a - b), -1)
    else:
        vector = host_vectors(w, ids, attend)
    return linear(linear(vector, w, "head.0").clamp_min(0), w, "head.2")


def softmax(_: int, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = q @ k.mT / math.sqrt(WIDTH) - 1e6 * (1 - mask[:, None, None, :])
    return scores.softmax(-1) @ v


def nystrom(w: dict[str, Tensor], landmarks: int) -> Attend:
    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        seen = mask[:, None, :, None]
        q, k = q * seen / WIDTH**0.25, k * seen / WIDTH**0.25
        length = q.shape[2]
        q_marks, k_marks = (
            t.unflatten(2, (landmarks, length // landmarks)).mean(3) for t in (q, k)
        )
        first = (q @ k_marks.mT).softmax(-1)
        middle = (q_marks @ k_marks.mT).softmax(-1)
        last = (q_marks @ k.mT - 1e9 * (1 - mask[:, None, None, :])).softmax(-1)
        inverse = middle.mT / middle.sum(-2).max()
        one = torch.eye(landmarks, dtype=q.dtype)
        for _ in range(6):
            product = middle @ inverse
            inner = 7 * one - product
            inverse = inverse @ (13 * one - product @ (15 * one - product @ inner)) / 4
        kernel = w[f"blocks.{layer}.mixer.conv.weight"]
        around = F.conv2d(v * seen, kernel, padding=(kernel.shape[2] // 2, 0), groups=HEADS)
        return first @ inverse @ (last @ v) + around

    return attend


def linformer(w: dict[str, Tensor]) -> Attend:
    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        seen, project = mask[:, None, :, None], w[f"blocks.{layer}.mixer.key_projection"]
        k, v = project @ (k * seen), project @ (v * seen)
        return (q @ k.mT / math.sqrt(WIDTH)).softmax(-1) @ v

    return attend


def performer(w: dict[str, Tensor]) -> Attend:
    """Scale queries and keys outside and inside; padded keys are zeros."""

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        rows, seen = w[f"blocks.{layer}.mixer.projection"], mask[:, None, :, None]
        q, k, v = q / WIDTH**0.25, k / WIDTH**0.25 * seen, v * seen

        def features(x: Tensor, dims: tuple[int, ...]) -> Tensor:
            x = x / WIDTH**0.25
            products = x @ rows.T
            exponents = products - x.square().sum(-1, keepdim=True) / 2
            largest = products.amax(dims, keepdim=True)
            return ((exponents - largest).exp() + 1e-4) / math.sqrt(len(rows))

        q, k = features(q, (-1,)), features(k, (-1, -2))
        return (q @ (k.mT @ v)) / (q @ k.sum(2)[..., None])

    return attend


def butterfly(_: dict[str, Tensor]) -> Attend:
    """Attend in blocks of sqrt(N) neighbors, then in strided groups."""

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        length = q.shape[2]
        block = 2 ** math.ceil(math.log2(math.sqrt(length)))
        place = torch.arange(length)
        groups = length // block
        group = place // block if layer == 0 else place % groups
        together = group[:, None] == group[None, :]
        scores = q @ k.mT / math.sqrt(WIDTH) - 1e6 * (1 - mask[:, None, None, :])
        return scores.masked_fill(~together, -torch.inf).softmax(-1) @ v

    return attend


def literal_attention(mixer: str, model: rm.models.Model) -> Attend:
    w = dict(model.state_dict())
    if mixer == "nystromformer":
        return nystrom(w, model.blocks[0].mixer.num_landmarks)
    literals = {"linformer": linformer, "performer": performer, "butterfly": butterfly}
    return softmax if mixer == "softmax" else literals[mixer](w)


SMALL: dict[str, tuple[int, int]] = {"listops": (60, 64), "image": (64, 64), "pathfinder": (64, 64)}
SMALLER_MIXERS = {
    "linformer": {"projected_length": 16},
    "performer": {"num_features": 24},
    "nystromformer": {"num_landmarks": 8},
}


@pytest.mark.parametrize("task", SMALL)
@pytest.mark.parametrize("mixer", [mixer for mixer in MIXERS if mixer != "reformer"])
def test_equals_a_literal_implementation(mixer: str, task: str) -> None:
    """Compare in float64 on 64 positions; without the mask, the outputs must differ."""
    length, places = SMALL[task]
    recipe = get_recipe(f"dimension_mixer/table5-{task}-{mixer}")
    options = {**recipe.model_settings.get("mixer_options", {}), **SMALLER_MIXERS.get(mixer, {})}
    changes = {"max_length": places, "mixer_options": options}
    model = build(task, mixer, **changes).double()
    ids = ids_of(task, length)
    expected = host_logits(model.state_dict(), filled(ids, places), literal_attention(mixer, model))
    torch.testing.assert_close(model(ids), expected, atol=1e-9, rtol=1e-9)
    other = build(task, mixer, padding_id=None, padding="unmasked", **changes).double()
    assert (other(ids) - expected).abs().max() > 1e-3 * expected.abs().max()


@pytest.mark.parametrize("task", ["listops", "pathfinder"])
def test_softmax_equals_a_literal_implementation_at_its_length(task: str) -> None:
    model, ids = build(task, "softmax"), ids_of(task, 1024, batch=1)
    with torch.no_grad():
        expected = host_logits(model.state_dict(), filled(ids, LENGTHS[task]), softmax)
        torch.testing.assert_close(model(ids), expected, atol=2e-6, rtol=1e-5)


def test_pair_equals_a_literal_implementation() -> None:
    model = build("retrieval", "softmax", max_length=64).double()
    pairs = ids_of("retrieval", 50, batch=2)[None]
    expected = host_logits(model.state_dict(), filled(pairs[0], 64)[None], softmax)
    torch.testing.assert_close(model(pairs), expected, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("task", ["listops", "text"])
@pytest.mark.parametrize("mixer", MIXERS)
def test_sample_does_not_depend_on_other_samples(mixer: str, task: str) -> None:
    """Compare each sample alone and in a batch to 1e-6, because all use the filled length.

    The released Nystromformer scales its inverse by the largest sum of the batch. This test scales
    each matrix separately, which isolates any other dependence.
    """
    changes: dict[str, Any] = {"max_length": 256}
    if mixer == "nystromformer":
        options = get_recipe(f"dimension_mixer/table5-{task}-{mixer}").model_settings
        changes["mixer_options"] = {**options["mixer_options"], "pinv_init": "per_matrix"}
    model = build(task, mixer, **changes)
    together = ids_of(task, 200)
    mask = together == 0
    with torch.no_grad():
        expected = model(together, key_padding_mask=mask)
        for row, length in enumerate((200, 100, 3)):
            alone = model(together[row : row + 1, :length])
            torch.testing.assert_close(alone[0], expected[row], atol=1e-6, rtol=0)


def test_sample_padded_to_the_longest_depends_on_other_samples() -> None:
    """Check the opposite: samples do interact with other `padding` and another `layout`."""
    changes: dict[str, Any] = {"padding": "batch", "mixer_options": {"layout": "length"}}
    model = build("listops", "butterfly", max_length=256, **changes)
    together = ids_of("listops", 200)
    with torch.no_grad():
        alone = model(together[1:2, :100])
        assert (alone - model(together)[1]).abs().max() > 1e-4


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("task", TASKS)
def test_settings_of_every_row(task: str, mixer: str) -> None:
    recipe = get_recipe(f"dimension_mixer/table5-{task}-{mixer}")
    with torch.device("meta"):
        model = rm.create_model(recipe.model, **recipe.model_settings)
    assert (model.padding, model.padding_id) == ("max_length", 0)
    assert model.max_length == LENGTHS[task]
    assert model.positions.table.shape == (LENGTHS[task], DIM)
    assert model.embed.weight.shape == (32 if task == "listops" else 512, DIM)
    assert isinstance(model.positions.table, torch.nn.Parameter)
    drops = 0.1 if mixer in ("softmax", "butterfly") else 0.0
    for block in model.blocks:
        found = (block.mixer.dropout, block.drop.p, block.mlp.hidden_drop.p, block.mlp.drop.p)
        assert found == (drops, 0.1, 0.1, 0.1)
    assert model.drop.p == 0.1
    assert recipe.task_options.get("max_length") == (4000 if task == "text" else None)
    assert any("black pixels" in note for note in recipe.notes) == (task in IMAGES)
    assert any("float16" in note for note in recipe.notes)


# Difference from four 64 x 64 projections with biases (queries, keys, values, output) per layer.
ADDED = {
    "softmax": 0,
    "butterfly": 0,
    "performer": 0,
    "linformer": 2 * 256 * 1024,  # heads, projected keys, positions; per layer
    "nystromformer": 2 * 35,
    "reformer": -(64 * 64 + 64) - 2 * 64,  # no key projection and no Q/V bias
}


@pytest.mark.parametrize("mixer", MIXERS)
def test_parameter_counts_follow_the_mixer(mixer: str) -> None:
    recipe = get_recipe(f"dimension_mixer/table5-pathfinder-{mixer}")
    with torch.device("meta"):
        model = rm.create_model(recipe.model, **recipe.model_settings, num_classes=2)
    maps, mlp = 4 * (64 * 64 + 64), 64 * 128 + 128 + 128 * 64 + 64
    layer = maps + mlp + 2 * 2 * 64 + ADDED[mixer]
    head = 64 * 128 + 128 + 128 * 2 + 2
    assert model.num_parameters() == 512 * 64 + 1024 * 64 + 2 * layer + 2 * 64 + head


@pytest.mark.parametrize("mixer", ["csp", "sliceformer", "tssa", "sinkhorn"])
@pytest.mark.parametrize("task", TASKS)
def test_mixers_of_other_papers_use_the_same_model(task: str, mixer: str) -> None:
    """Check that only the mixer and its attention dropout differ from a row of the table."""
    printed = get_recipe(f"dimension_mixer/table5-{task}-butterfly")
    beside = get_recipe(f"dimension_mixer/table5-{task}-{mixer}")
    assert beside.printed is None
    assert "paper" in beside.notes[0]
    assert {**beside.model_settings, "mixer": "butterfly"} == {
        **printed.model_settings,
        "attention_dropout": 0.0,
    }
    assert (beside.train, beside.task, beside.task_options) == (
        printed.train,
        printed.task,
        printed.task_options,
    )


@pytest.mark.parametrize("mixer", ["csp", "sliceformer", "tssa", "sinkhorn"])
def test_mixers_of_other_papers_hide_padding(mixer: str) -> None:
    model, ids = build("listops", mixer), ids_of("listops", 300, batch=2)
    ids[:, 200:] = 0
    with torch.no_grad():
        logits = model(ids)
        model.embed.weight[0] += 1.0
        assert torch.equal(model(ids), logits)
        assert not torch.equal(model(ids[:, :199]), logits)


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("task", IMAGES)
def test_black_pixels_are_tokens_in_the_variant_with_all_pixels(task: str, mixer: str) -> None:
    """Use the same recipe with every pixel as a token and without a reported value."""
    hidden = get_recipe(f"dimension_mixer/table5-{task}-{mixer}")
    seen = get_recipe(f"dimension_mixer/table5-{task}-{mixer}-all-pixels")
    assert (seen.printed, seen.model_settings["padding_id"]) == (None, None)
    assert seen.train == hidden.train
    again = replace(
        seen,
        name=hidden.name,
        row=hidden.row,
        printed=hidden.printed,
        notes=hidden.notes,
        model_settings={**seen.model_settings, "padding_id": 0},
    )
    assert again == hidden


def test_positions_of_black_pixels_matter_only_if_they_are_tokens() -> None:
    ids = ids_of("pathfinder", 1024, batch=1)
    with torch.no_grad():
        hidden, seen = (build("pathfinder", "softmax", suffix=s) for s in ("", "-all-pixels"))
        for model, moves in ((hidden, False), (seen, True)):
            before = model(ids)
            model.embed.weight[0] += 1.0
            assert torch.equal(model(ids), before) != moves
