"""Shared argument checks: integers, numbers and lists of integers."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from rifflemix.checks import (
    check_bool,
    check_divides,
    check_integer,
    check_integers,
    check_layer,
    check_like,
    check_positive,
    check_probability,
)
from rifflemix.errors import InputError


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3), np.array(3)], ids=repr)
def test_integers_are_returned_as_int(value: Any) -> None:
    number = check_integer("n", value, 3, 3)
    assert type(number) is int
    assert number == 3


NOT_INTEGERS = {
    "float": (2.0, r"2\.0"),
    "numpy float": (np.float32(2), r"np\.float32\(2\.0\)"),
    "text": ("2", "'2'"),
    "nothing": (None, "None"),
    "bool": (True, "True"),
    "numpy bool": (np.True_, "np.True_"),
    "tensor": (torch.tensor(2), r".*tensor.*\(\)"),
    "array": (np.array([2]), r"array\(\[2\]\)"),
    "list": ([2], r"\[2\]"),
}


@pytest.mark.parametrize(("value", "got"), NOT_INTEGERS.values(), ids=NOT_INTEGERS)
def test_values_that_are_not_integers_are_refused(value: Any, got: str) -> None:
    with pytest.raises(InputError) as error:
        check_integer("n", value)
    assert re.fullmatch(f"n: expected .*, got {got}", str(error.value))


@pytest.mark.parametrize(
    ("value", "bounds", "message"),
    [
        (0, (1,), r"n: .*\b1, got 0"),
        (np.int8(-1), (1,), r"n: .*\b1, got -1"),
        (4, (1, 3), r"n: .*\b1\b.*\b3, got 4"),
        (0.5, (1, 3), r"n: .*\b1\b.*\b3, got 0\.5"),
        (2**63, (), f"n: .*int64.*got {2**63}"),
        (10**40, (1,), f"n: .*int64.*got {10**40}"),
    ],
)
def test_bounds_of_integers(value: Any, bounds: tuple[int, ...], message: str) -> None:
    with pytest.raises(InputError) as error:
        check_integer("n", value, *bounds)
    assert re.fullmatch(message, str(error.value))


@pytest.mark.parametrize(
    "values",
    [
        [1, 2],
        (np.int64(1), 2),
        range(1, 3),
        np.array([1, 2], dtype=np.uint16),
        np.array([2, 1])[::-1],
        torch.tensor([1, 2], dtype=torch.int8),
        torch.Size([1, 2]),
    ],
    ids=repr,
)
def test_lists_of_integers(values: Any) -> None:
    integers = check_integers("n", values, 1)
    assert integers == (1, 2)
    assert all(type(number) is int for number in integers)


NOT_LISTS = {
    "text": "12",
    "number": 3,
    "nothing": None,
    "tensor without axes": torch.tensor(3),
    "without values": torch.zeros(2, dtype=torch.int64, device="meta"),
    "matrix": torch.zeros(2, 2, dtype=torch.int64),
    "array of rows": np.zeros((2, 1), dtype=int),
    "ragged": [[1], [2, 3]],
    "floats": torch.ones(2),
    "bools": torch.ones(2, dtype=torch.bool),
    "too large": [2**63],
}


@pytest.mark.parametrize("values", NOT_LISTS.values(), ids=NOT_LISTS)
def test_values_that_are_not_lists_of_integers_are_refused(values: Any) -> None:
    with pytest.raises(InputError, match=r"^n: .*, got "):
        check_integers("n", values)


@pytest.mark.parametrize(
    "value", [1, 2**70, 0.5, np.float32(0.5), np.int64(1), Fraction(1, 2)], ids=repr
)
def test_positive_numbers(value: Any) -> None:
    number = check_positive("t", value)
    assert isinstance(number, float)
    assert number == value


@pytest.mark.parametrize(
    "value",
    [0, -1.0, float("nan"), float("inf"), 2**1024, "1", None, True, torch.ones(()), 1j],
    ids=lambda value: repr(value)[:12],
)
def test_values_that_are_not_positive_numbers_are_refused(value: Any) -> None:
    with pytest.raises(InputError, match=r"^t: .*\b0, got "):
        check_positive("t", value)


@pytest.mark.parametrize("value", [1, 1.0, -0.1, float("nan"), "0", None, False], ids=repr)
def test_values_that_are_not_probabilities_are_refused(value: Any) -> None:
    with pytest.raises(InputError, match=r"^p: .*\[0, 1\), got "):
        check_probability("p", value)


@pytest.mark.parametrize("value", [1, 0, "yes", None, np.True_], ids=repr)
def test_values_that_are_not_bools_are_refused(value: Any) -> None:
    with pytest.raises(InputError, match=r"^flag: .*True.*False"):
        check_bool("flag", value)


def test_divisors_and_layers_are_returned_as_int() -> None:
    assert type(check_divides("d", np.int64(2), 6, "N")) is int
    assert [type(n) for n in check_layer(np.int64(0), np.int32(2))] == [int, int]


def test_symbolic_sizes_stay_symbolic() -> None:
    """Check that no check fixes a symbolic size.

    One graph serves every length.
    """
    graphs = 0

    def count(graph: torch.fx.GraphModule, _: Any) -> Any:
        nonlocal graphs
        graphs += 1
        return graph.forward

    def run(x: torch.Tensor) -> torch.Tensor:
        length = check_integer("n", x.shape[0], 1)
        return x * check_divides("d", length // 2, length, "N") + sum(check_integers("s", x.shape))

    compiled = torch.compile(run, backend=count, fullgraph=True, dynamic=True)
    for length in (8, 10, 12, 30):
        torch.testing.assert_close(compiled(torch.ones(length)), run(torch.ones(length)))
    assert graphs == 1


def test_dtypes_may_differ_under_autocast_only() -> None:
    x, y = torch.zeros(2), torch.zeros(2, dtype=torch.bfloat16)
    with pytest.raises(InputError, match=r"^y: .*torch\.float32 of x"):
        check_like("y", y, x, "x")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        check_like("y", y, x, "x")
    with pytest.raises(InputError, match=r"^y: .*got torch\.bfloat16"):
        check_like("y", y.to("meta"), x.to("meta"), "x")
