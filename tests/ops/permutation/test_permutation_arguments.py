"""Permutation operators reject arguments of the wrong type and accept NumPy integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rifflemix.errors import InputError
from rifflemix.ops import (
    channel_permute,
    circular_shift,
    group_sort,
    interleave_columns,
    shift_steps,
)

STEPS = [0, 1, 2, 3]
BAD: dict[str, tuple[str, Callable[[Tensor], Any]]] = {
    "groups 2.0": ("num_groups", lambda x: group_sort(x, 2.0)),
    "groups text": ("num_groups", lambda x: group_sort(x, "2")),
    "groups None": ("num_groups", lambda x: group_sort(x, None)),
    "groups True": ("num_groups", lambda x: group_sort(x, True)),
    "groups tensor": ("num_groups", lambda x: group_sort(x, torch.tensor([2, 3]))),
    "heads 2.0": ("heads", lambda x: group_sort(x, heads=2.0)),
    "order of another kind": ("order", lambda x: group_sort(x, order=np.array(["a", "b"]))),
    "backend None": ("backend", lambda x: group_sort(x, backend=None)),
    "groups of the product": ("num_groups", lambda x: channel_permute(x, STEPS, 2.0)),
    "order None": ("order", lambda x: channel_permute(x, STEPS, 2, order=None)),
    "steps text": ("steps", lambda x: circular_shift(x, "linear")),
    "steps None": ("steps", lambda x: circular_shift(x, None)),
    "steps number": ("steps", lambda x: circular_shift(x, 3)),
    "steps with text": ("steps", lambda x: circular_shift(x, [0, "a", 2, 3])),
    "steps with a bool": ("steps", lambda x: circular_shift(x, [0, True, 2, 3])),
    "steps ragged": ("steps", lambda x: circular_shift(x, [[0], [1, 2]])),
    "steps too large": ("steps", lambda x: circular_shift(x, [10**30, 0, 0, 0])),
    "steps floats": ("steps", lambda x: circular_shift(x, np.zeros(4))),
    "steps unsigned 64": ("steps", lambda x: circular_shift(x, torch.zeros(4).to(torch.uint64))),
    "steps on meta": (
        "steps",
        lambda x: circular_shift(x, torch.zeros(4, dtype=torch.int64, device="meta")),
    ),
    "tokens 4.5": ("num_tokens", lambda _: shift_steps("linear", 4.5, 4)),
    "channels text": ("num_channels", lambda _: shift_steps("linear", 4, "4")),
    "kind None": ("kind", lambda _: shift_steps(None, 4, 4)),
    "layers 1.5": ("num_layers", lambda _: shift_steps("power", 4, 4, num_layers=1.5)),
    "layer 1.5": ("layer_index", lambda _: interleave_columns(8, 1.5)),
    "layer True": ("layer_index", lambda _: interleave_columns(8, True, num_layers=2)),
    "reverse text": ("reverse", lambda _: interleave_columns(8, 1, reverse="x", num_layers=2)),
}


@pytest.mark.parametrize(("name", "call"), BAD.values(), ids=BAD)
def test_arguments_of_a_wrong_type_are_named(name: str, call: Callable[[Tensor], Any]) -> None:
    with pytest.raises(InputError, match=f"^{name}: expected"):
        call(torch.randn(2, 6, 4))


@pytest.mark.parametrize(
    "steps",
    [
        np.array(STEPS, dtype=np.int8),
        np.array(STEPS)[::-1],
        list(np.array(STEPS)),
        range(4),
        torch.tensor(STEPS, dtype=torch.uint8),
        [-(2**62), 2**62, -1, 7],
    ],
    ids=repr,
)
def test_steps_of_many_types_are_accepted(steps: Any) -> None:
    x = torch.randn(2, 6, 4)
    plain = [int(step) for step in steps]
    torch.testing.assert_close(
        circular_shift(x, steps), circular_shift(x, plain, backend="reference")
    )


def test_integers_of_numpy() -> None:
    x = torch.randn(2, 6, 4)
    two, three = np.int64(2), np.int32(3)
    assert torch.equal(group_sort(x, three, heads=two), group_sort(x, 3, heads=2))
    assert torch.equal(channel_permute(x, STEPS, three), channel_permute(x, STEPS, 3))
    for kind in ("linear", "power", "code_exp"):
        steps = shift_steps(kind, np.int64(9), three, layer_index=np.int64(1), num_layers=two)
        assert torch.equal(steps, shift_steps(kind, 9, 3, layer_index=1, num_layers=2))
    columns = interleave_columns(np.int64(8), np.int64(1), heads=two, num_layers=three)
    assert torch.equal(columns, interleave_columns(8, 1, heads=2, num_layers=3))


@pytest.mark.parametrize("steps", [STEPS, np.array(STEPS), torch.tensor(STEPS)], ids=repr)
def test_steps_are_compiled_for_any_length(steps: Any) -> None:
    def run(x: Tensor) -> Tensor:
        return circular_shift(x, steps, backend="eager")

    compiled = torch.compile(run, backend="eager", fullgraph=True, dynamic=True)
    for length in (6, 9, 16):
        x = torch.randn(2, length, 4)
        torch.testing.assert_close(compiled(x), run(x))
