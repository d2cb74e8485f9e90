"""Tests of the ListOps grammar: probabilities, values and text."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from listops_files import to_source

from rifflemix.lab.tasks.synthetic import grammar
from rifflemix.lab.tasks.synthetic.grammar import DIGIT, END, OPERATOR, TOKENS, Expressions, Grammar

ANY_LENGTH = Grammar(min_length=0, max_length=10**6, max_depth=4, max_args=5)

Tree = int | tuple[str, list["Tree"]]


def draw(bounds: Grammar, seed: int = 0) -> list[tuple[bytes, int]]:
    drawn: Expressions = grammar.draw_expressions(np.random.Philox(key=seed).random_raw, bounds)
    ends = np.cumsum(drawn.lengths)
    return [
        (drawn.tokens[end - length : end].tobytes(), int(value))
        for end, length, value in zip(ends, drawn.lengths, drawn.values, strict=True)
    ]


def ids(*words: str) -> bytes:
    return bytes(TOKENS.index(word) for word in words)


def tree_of(tokens: bytes) -> Tree:
    words = [TOKENS[token] for token in tokens]

    def parse(start: int) -> tuple[Tree, int]:
        if words[start].isdigit():
            return int(words[start]), start + 1
        arguments: list[Tree] = []
        position = start + 1
        while words[position] != "]":
            argument, position = parse(position)
            arguments.append(argument)
        return (words[start], arguments), position + 1

    tree, end = parse(0)
    assert end == len(words)
    return tree


def value_of(tree: Tree) -> int:
    if isinstance(tree, int):
        return tree
    arguments = [value_of(argument) for argument in tree[1]]
    return {
        "[MIN": min(arguments),
        "[MAX": max(arguments),
        "[MED": int(statistics.median(arguments)),
        "[SM": sum(arguments) % 10,
    }[tree[0]]


def depth_of(tree: Tree) -> int:
    return 1 if isinstance(tree, int) else 1 + max(map(depth_of, tree[1]))


def operators_of(tree: Tree) -> list[tuple[str, list[Tree]]]:
    if isinstance(tree, int):
        return []
    return [tree, *(found for argument in tree[1] for found in operators_of(argument))]


def test_token_ids() -> None:
    assert len(TOKENS) == 16
    assert TOKENS[DIGIT + 7] == "7"
    assert TOKENS[OPERATOR : END + 1] == ("[MIN", "[MAX", "[MED", "[SM", "]")


def test_values_equal_an_independent_parser() -> None:
    for seed in range(3):
        for tokens, value in draw(ANY_LENGTH, seed):
            tree = tree_of(tokens)
            assert value_of(tree) == value == grammar.evaluate(tokens)
            assert depth_of(tree) <= 4
            assert all(2 <= len(arguments) <= 5 for _, arguments in operators_of(tree))


def test_every_depth_and_count_occurs() -> None:
    trees = [tree_of(tokens) for tokens, _ in draw(ANY_LENGTH)]
    assert {depth_of(tree) for tree in trees} == {1, 2, 3, 4}
    counts = [len(arguments) for tree in trees for _, arguments in operators_of(tree)]
    assert set(counts) == {2, 3, 4, 5}


def test_probabilities() -> None:
    trees = [tree_of(tokens) for seed in range(20) for tokens, _ in draw(ANY_LENGTH, seed)]
    assert len(trees) == 20 * 1024
    roots = np.mean([isinstance(tree, tuple) for tree in trees])
    assert roots == pytest.approx(0.25, abs=0.015)
    found = [operator for tree in trees for operator in operators_of(tree)]
    for name in grammar.OPERATORS:
        assert np.mean([name == operator for operator, _ in found]) == pytest.approx(0.25, abs=0.02)
    for count in range(2, 6):
        share = np.mean([len(arguments) == count for _, arguments in found])
        assert share == pytest.approx(0.25, abs=0.02)
    leaves = [tree for tree in trees if isinstance(tree, int)]
    for digit in range(10):
        assert leaves.count(digit) / len(leaves) == pytest.approx(0.1, abs=0.01)


def test_lengths_are_between_the_bounds() -> None:
    bounds = Grammar(min_length=6, max_length=20, max_depth=4, max_args=5)
    wide = [row for row in draw(ANY_LENGTH) if 6 < len(row[0]) < 20]
    narrow = draw(bounds)
    assert {len(tokens) for tokens, _ in narrow} == set(range(7, 20))
    assert len(narrow) > 30
    # Trees share one random stream, and long trees leave it early: only the law is equal.
    assert np.mean([len(row[0]) for row in narrow]) == pytest.approx(
        np.mean([len(row[0]) for row in wide]), abs=1.5
    )


def test_explosive_trees_do_not_fill_the_memory() -> None:
    bounds = Grammar(min_length=10, max_length=60, max_depth=40, max_args=100)
    assert all(10 < len(tokens) < 60 for tokens, _ in draw(bounds))


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("[MIN 4 2 9 ]", 2),
        ("[MAX 4 2 9 ]", 9),
        ("[MED 4 2 9 ]", 4),
        ("[MED 4 2 9 7 ]", 5),
        ("[MED 1 2 ]", 1),
        ("[SM 9 9 9 ]", 7),
        ("[MAX 1 [SM 5 5 ] [MED 8 8 3 ] ]", 8),
        ("6", 6),
    ],
)
def test_evaluate(words: str, value: int) -> None:
    tokens = ids(*words.split())
    assert grammar.evaluate(tokens) == value_of(tree_of(tokens)) == value


@pytest.mark.parametrize(
    "words", ["", "]", "1 2", "[MIN ]", "[MIN 1 2", "[MIN 1 2 ] ]", "[MIN 1 [MAX ] ]", "<pad> 1"]
)
def test_evaluate_refuses(words: str) -> None:
    with pytest.raises(ValueError, match="ListOps"):
        grammar.evaluate(ids(*words.split()))


def test_written_form() -> None:
    tokens = ids(*["[MAX", "2", "[SM", "3", "4", "]", "]"])
    source = "( ( ( [MAX 2 ) ( ( ( [SM 3 ) 4 ) ] ) ) ] )"
    assert to_source(tokens) == source
    assert grammar.from_source(source.encode()) == tokens


trees = st.recursive(
    st.integers(0, 9),
    lambda below: st.tuples(
        st.sampled_from(grammar.OPERATORS), st.lists(below, min_size=1, max_size=4)
    ),
    max_leaves=20,
)


def words_of(tree: Tree) -> list[str]:
    if isinstance(tree, int):
        return [str(tree)]
    return [tree[0], *(word for argument in tree[1] for word in words_of(argument)), "]"]


@settings(deadline=None, max_examples=60)
@given(trees)
def test_any_expression_round_trips(tree: Tree) -> None:
    tokens = ids(*words_of(tree))
    assert grammar.evaluate(tokens) == value_of(tree)
    source = to_source(tokens)
    assert source.count("(") == source.count(")")
    assert grammar.from_source(source.encode()) == tokens
