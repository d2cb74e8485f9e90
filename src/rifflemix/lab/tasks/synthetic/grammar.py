"""ListOps grammar of the Long Range Arena: draw, evaluate and encode expressions.

Source: Tay et al., Long Range Arena (2021), section 2.1; Nangia and Bowman, ListOps (2018).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rifflemix.lab.tasks.core.arrays import bad_input, check_length, texts

OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
TOKENS = ("<pad>", *map(str, range(10)), *OPERATORS, "]")
"""Token of each id: padding, digits, operators, closing bracket."""

DIGIT, OPERATOR, END = 1, 11, 15
"""Ids of digit 0, the first operator and the closing bracket."""

Ints = NDArray[np.int64]
Draw = Callable[[int], NDArray[np.uint64]]

_ROOTS = 1024
_FRUITLESS_ROUNDS = 50


@dataclass(frozen=True)
class Grammar:
    """Limits of drawn expressions.

    Attributes:
        min_length: Exclusive lower limit on the number of tokens.
        max_length: Exclusive upper limit on the number of tokens.
        max_depth: Maximum number of tree levels, including the root.
        max_args: Maximum number of arguments of an operator. The minimum is 2.
    """

    min_length: int
    max_length: int
    max_depth: int
    max_args: int


class Expressions(NamedTuple):
    """Expressions, stored end to end.

    Attributes:
        tokens: (sum of lengths,) uint8 token ids.
        lengths: (M,) number of tokens of each expression.
        values: (M,) value of each expression, 0 to 9.
    """

    tokens: NDArray[np.uint8]
    lengths: Ints
    values: Ints


class _Level(NamedTuple):
    """Nodes at one depth of all trees.

    The children of a node are adjacent in the next level.
    """

    tree: Ints
    num_args: Ints
    operator: Ints
    digit: Ints


def draw_expressions(draw: Draw, grammar: Grammar) -> Expressions:
    """Draw `_ROOTS` random trees and return the trees with a valid length.

    A node above the last level is an operator with probability 1/4, else a digit. Operators,
    numbers of arguments and digits are uniform.

    Args:
        draw: Function that returns a given number of random 64-bit words.
        grammar: Limits of the expressions.
    """
    return _evaluate(_grow(draw, grammar))


def unique_rows(
    seed: int,
    stream: int,
    grammar: Grammar,
    wanted: Callable[[bytes], bool],
    seen: set[bytes],
) -> Iterator[tuple[bytes, int]]:
    """Generate distinct expressions and their values.

    The iterator ends when repeated draws find no new expression.

    Args:
        seed: Seed of the data.
        stream: Number of the random stream. Different streams are independent.
        grammar: Limits of the expressions.
        wanted: Function that returns whether to keep an expression, given its 16-byte hash.
        seen: Hashes of expressions to skip. New hashes are added.
    """
    # The stream number is the upper half of the counter, so streams never overlap.
    bits = np.random.Philox(key=seed, counter=[0, 0, stream, 0])
    fruitless = 0
    while fruitless < _FRUITLESS_ROUNDS:
        fruitless += 1
        tokens, lengths, values = draw_expressions(bits.random_raw, grammar)
        ends = np.cumsum(lengths)
        for end, length, value in zip(ends, lengths, values, strict=True):
            row = tokens[end - length : end].tobytes()
            digest = expression_hash(row)
            if wanted(digest) and digest not in seen:
                seen.add(digest)
                fruitless = 0
                yield row, int(value)


def expression_hash(row: bytes) -> bytes:
    """Hash an expression to 16 bytes."""
    return hashlib.blake2b(row, digest_size=16).digest()


def evaluate(tokens: bytes) -> int:
    """Evaluate one expression of token ids, from left to right.

    Raises:
        ValueError: The tokens are not an expression.
    """
    open_lists: list[tuple[int, list[int]]] = [(-1, [])]
    for token in tokens:
        if DIGIT <= token < OPERATOR:
            open_lists[-1][1].append(token - DIGIT)
        elif OPERATOR <= token < END:
            open_lists.append((token - OPERATOR, []))
        elif token == END and len(open_lists) > 1 and open_lists[-1][1]:
            operator, arguments = open_lists.pop()
            open_lists[-1][1].append(_apply(operator, arguments))
        else:
            raise ValueError("a bracket of a ListOps expression closes nothing")
    if len(open_lists) != 1 or len(open_lists[0][1]) != 1:
        raise ValueError("not one whole ListOps expression")
    return open_lists[0][1][0]


def _apply(operator: int, arguments: list[int]) -> int:
    if operator == 0:
        return min(arguments)
    if operator == 1:
        return max(arguments)
    if operator == 2:
        # Truncated median, equal to the Long Range Arena's int(median).
        ordered, count = sorted(arguments), len(arguments)
        return (ordered[(count - 1) // 2] + ordered[count // 2]) // 2
    return sum(arguments) % 10


def from_source(source: bytes) -> bytes:
    """Encode an expression in the Long Range Arena's format. Drop round brackets.

    Raises:
        ValueError: The text contains an invalid token.
    """
    text = source.replace(b"( ", b"").replace(b" )", b"")
    for code, operator in enumerate(OPERATORS):
        text = text.replace(operator.encode(), bytes([OPERATOR + code]))
    ids = text[::2].translate(_ID_OF_BYTE)
    if not ids or len(text) % 2 == 0 or 0 in ids or text[1::2].strip(b" "):
        raise ValueError("an expression holds something other than ListOps tokens")
    return ids


def _id_of_byte() -> bytes:
    table = bytearray(256)
    for digit in range(10):
        table[ord("0") + digit] = DIGIT + digit
    for code in range(OPERATOR, END):
        table[code] = code
    table[ord("]")] = END
    return bytes(table)


_ID_OF_BYTE = _id_of_byte()


def _grow(draw: Draw, grammar: Grammar) -> list[_Level]:
    """Grow all trees at once. Return the levels of valid trees."""
    tree: Ints = np.arange(_ROOTS)
    length: Ints = np.zeros(_ROOTS, dtype=np.int64)
    levels: list[_Level] = []
    for depth in range(1, grammar.max_depth + 1):
        level = _draw_level(draw, tree, grammar.max_args if depth < grammar.max_depth else 0)
        levels.append(level)
        # A digit is one token. An operator is two tokens: its name and the closing bracket.
        length += np.bincount(tree, minlength=_ROOTS)
        length += np.bincount(tree[level.num_args > 0], minlength=_ROOTS)
        children = np.repeat(tree, level.num_args)
        pending = np.bincount(children, minlength=_ROOTS)
        # Stop growing trees that are already too long, to limit memory.
        too_long = length + pending >= grammar.max_length
        length[too_long] = grammar.max_length
        tree = children[~too_long[children]]
        if not len(tree):
            break
    accepted = (length > grammar.min_length) & (length < grammar.max_length)
    return [_Level(*(part[accepted[level.tree]] for part in level)) for level in levels]


def _draw_level(draw: Draw, tree: Ints, max_args: int) -> _Level:
    """Draw random nodes from one 64-bit word each.

    If `max_args` is 0, all are digits.
    """
    words = draw(len(tree))
    high, low = words >> np.uint64(32), words & np.uint64(0xFFFFFFFF)
    args = 2 + (high * np.uint64(max(max_args - 1, 1)) >> np.uint64(32)).astype(np.int64)
    is_operator = (low & np.uint64(3) == 0) & (max_args > 0)
    return _Level(
        tree=tree,
        num_args=np.where(is_operator, args, 0),
        operator=(low >> np.uint64(2) & np.uint64(3)).astype(np.int64),
        digit=((low >> np.uint64(8)) * np.uint64(10) >> np.uint64(24)).astype(np.int64),
    )


def _evaluate(levels: list[_Level]) -> Expressions:
    """Encode and evaluate complete trees, level by level."""
    sizes, values = _measure(levels)
    tokens = np.zeros(int(sizes[0].sum()), dtype=np.uint8)
    starts = np.cumsum(sizes[0]) - sizes[0]
    for depth, level in enumerate(levels):
        parent = level.num_args > 0
        tokens[starts] = np.where(parent, OPERATOR + level.operator, DIGIT + level.digit)
        tokens[(starts + sizes[depth] - 1)[parent]] = END
        if not parent.any():
            break
        args, below = level.num_args[parent], sizes[depth + 1]
        before = np.cumsum(below) - below
        first = np.cumsum(args) - args
        starts = np.repeat(starts[parent] + 1 - before[first], args) + before
    return Expressions(tokens, sizes[0], values)


def _measure(levels: list[_Level]) -> tuple[list[Ints], Ints]:
    """Compute subtree sizes per level and root values, from leaves to root."""
    sizes: list[Ints] = []
    below_size = below_value = np.zeros(0, dtype=np.int64)
    for level in reversed(levels):
        parent = level.num_args > 0
        size, value = np.ones_like(level.digit), level.digit.copy()
        if parent.any():
            args = level.num_args[parent]
            first = np.cumsum(args) - args
            size[parent] = 2 + np.add.reduceat(below_size, first)
            value[parent] = _apply_groups(level.operator[parent], below_value, first, args)
        sizes.insert(0, size)
        below_size, below_value = size, value
    return sizes, below_value


def _apply_groups(operator: Ints, values: Ints, first: Ints, args: Ints) -> Ints:
    """Apply each operator to its `args` values from index `first` on."""
    group = np.repeat(np.arange(len(args)), args)
    ordered = np.sort(group * 10 + values) % 10
    last = first + args - 1
    median = (ordered[first + (args - 1) // 2] + ordered[first + args // 2]) // 2
    total = np.add.reduceat(values, first) % 10
    return np.choose(operator, [ordered[first], ordered[last], median, total])


@dataclass(frozen=True)
class ExpressionInputs:
    """Expressions with spaces between tokens, such as "[MAX 2 9 [MIN 4 7 ] 0 ]".

    Attributes:
        max_length: Maximum number of tokens.
    """

    kind: ClassVar[str] = "expressions"
    max_length: int

    def encode(self, raw: Any) -> list[Tensor]:
        """Convert expressions to token ids (N,) int64."""
        return [self._ids(text, number) for number, text in enumerate(texts(raw))]

    def _ids(self, text: str, number: int) -> Tensor:
        try:
            row = from_source(text.strip().encode())
            evaluate(row)
        except ValueError as error:
            raise bad_input("an expression such as '[MAX 2 9 ]'", repr(text), number) from error
        check_length(len(row), self.max_length, number, "tokens")
        return torch.from_numpy(np.frombuffer(row, dtype=np.uint8).astype(np.int64))
