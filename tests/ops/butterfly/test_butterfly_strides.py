"""Strides are valid and complete, and equal the paper's strides if those are valid and complete."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rifflemix as rm


def reached(length: int, block: int, strides: list[int]) -> list[set[int]]:
    """Propagate index sets one position at a time, following the definition of a group."""
    sets = [{position} for position in range(length)]
    for stride in strides:
        merged: list[set[int]] = [set() for _ in range(length)]
        for start in range(0, length, block * stride):
            for base in range(start, start + stride):
                group = [base + j * stride for j in range(block)]
                union = set().union(*(sets[position] for position in group))
                for position in group:
                    merged[position] = union
        sets = merged
    return sets


def is_valid(length: int, block: int, strides: list[int]) -> bool:
    return all(length % (block * stride) == 0 for stride in strides)


def is_complete(length: int, block: int, strides: list[int]) -> bool:
    everything = set(range(length))
    return all(positions == everything for positions in reached(length, block, strides))


def printed(length: int, block: int) -> list[int]:
    """Apply the rule of the paper, with ceil(log_a n) layers counted in integers."""
    layers, span = 1, block
    while span < length:
        layers, span = layers + 1, span * block
    return [block**i if block ** (i + 1) <= length else length // block for i in range(layers)]


@pytest.mark.parametrize(
    ("length", "block", "strides"),
    [
        (16, 4, [1, 4]),
        (8, 4, [1, 2]),
        (12, 4, [1, 3]),
        (40, 8, [1, 5]),
        (48, 16, [1, 3]),
        (27, 3, [1, 3, 9]),
        (125, 5, [1, 5, 25]),
        (32, 4, [1, 4, 8]),
        (48, 4, [1, 4, 12]),
        (1024, 32, [1, 32]),
        (2048, 64, [1, 32]),
        (4096, 64, [1, 64]),
        (16384, 128, [1, 128]),
        (65536, 256, [1, 256]),
        (1 << 20, 2, [1 << i for i in range(20)]),
        (1, 1, [1]),
        (7, 7, [1]),
        (2, 2, [1]),
    ],
    ids=str,
)
def test_known_strides(length: int, block: int, strides: list[int]) -> None:
    assert rm.ops.butterfly_strides(length, block) == strides


@pytest.mark.parametrize("length", range(2, 121))
def test_valid_and_complete_for_every_block(length: int) -> None:
    for block in (a for a in range(2, length + 1) if length % a == 0):
        strides = rm.ops.butterfly_strides(length, block)
        assert is_valid(length, block, strides)
        assert is_complete(length, block, strides)
        rule = printed(length, block)
        if is_valid(length, block, rule) and is_complete(length, block, rule):
            assert strides == rule


@pytest.mark.parametrize(
    ("length", "block"), [(24, 4), (20, 4), (28, 4), (36, 4), (60, 4), (96, 8), (200, 8), (6, 2)]
)
def test_extra_strides_if_two_are_not_enough(length: int, block: int) -> None:
    assert not is_valid(length, block, printed(length, block))
    strides = rm.ops.butterfly_strides(length, block)
    assert len(strides) > 2
    assert strides[:2] == [1, length // block]
    assert not is_complete(length, block, strides[:-1])


def test_example_reaches_16_of_24_tokens_with_two_strides() -> None:
    assert rm.ops.butterfly_strides(24, 4)[:2] == [1, 6]
    assert {len(positions) for positions in reached(24, 4, [1, 6])} == {16}
    assert len(rm.ops.butterfly_strides(24, 4)) == 3


@settings(max_examples=40, deadline=None)
@given(block=st.integers(2, 12), groups=st.integers(1, 60))
def test_any_multiple_of_the_block(block: int, groups: int) -> None:
    strides = rm.ops.butterfly_strides(block * groups, block)
    assert is_valid(block * groups, block, strides)
    assert is_complete(block * groups, block, strides)


@pytest.mark.parametrize("order", ["forward", "reversed"])
def test_reversed_strides_are_complete_too(order: str) -> None:
    for length, block in [(24, 4), (60, 4), (90, 3), (64, 8)]:
        strides = rm.ops.butterfly_strides(length, block)
        assert is_complete(length, block, strides if order == "forward" else strides[::-1])


@pytest.mark.parametrize(("length", "block"), [(98304, 256), (1 << 22, 2048), (12000, 4)])
def test_large_lengths_are_quick(length: int, block: int) -> None:
    start = time.process_time()
    assert is_valid(length, block, rm.ops.butterfly_strides(length, block))
    assert time.process_time() - start < 5.0


@pytest.mark.parametrize(
    ("length", "block", "named"),
    [
        (10, 4, r"block: .*length = 10.*got 4\b"),
        (4, 8, "block: .*got 8"),
        (4, 0, "block: .*got 0"),
        (4, -2, "block: .*got -2"),
        (4, 2.0, r"block: .*got 2\.0"),
        (4, 1, r"block: .*\b2\b"),
        (0, 4, "length: .*got 0"),
        (-4, 4, "length: .*got -4"),
        (4.0, 4, r"length: .*got 4\.0"),
    ],
)
def test_impossible_arguments_are_refused(length: int, block: int, named: str) -> None:
    with pytest.raises(rm.InputError, match=named):
        rm.ops.butterfly_strides(length, block)
