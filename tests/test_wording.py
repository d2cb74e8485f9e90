"""Tests match the names and values in a message, so that its wording can change."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

MOST_WORDS = 3
NO_PROSE = re.compile(r"\{[^{}]*\}|(?<!\w)'[^']*'|\"[^\"]*\"|`[^`]*`|\\?\[.*?\]|\\[a-zA-Z]")
Scope = dict[str, list[ast.expr]]


def prose(pattern: str) -> list[str]:
    """Return a pattern's words except names, values and fixed error words."""
    parts = re.split(r"\s+|\.\*|[()|^$]", NO_PROSE.sub(" ", pattern))
    words = [part for part in parts if re.fullmatch(r"[A-Z]?[a-z]+(-[a-z]+)*[.;]?", part)]
    return [word for word in words if word not in ("expected", "got")]


def columns(names: list[str], rows: ast.expr, scope: Scope) -> Scope:
    """Return each name's expressions in a parametrized test or a loop."""
    if isinstance(rows, ast.Call) and isinstance(rows.func, ast.Attribute):
        return columns(names, rows.func.value, scope)  # .values() of a dict
    if isinstance(rows, ast.Name):
        outer = {name: values for name, values in scope.items() if name != rows.id}
        return columns(names, scope[rows.id][0], outer) if scope.get(rows.id) else {}
    if isinstance(rows, ast.Dict):
        elements = list(rows.values)
    else:
        elements = rows.elts if isinstance(rows, ast.List | ast.Tuple) else []
    result: Scope = {name: [] for name in names}
    for element in elements:
        is_param = isinstance(element, ast.Call) and ast.unparse(element.func) == "pytest.param"
        cells = element.args if is_param else getattr(element, "elts", [element])
        for name, cell in zip(names, cells if len(names) > 1 else [element], strict=False):
            result[name].append(cell)
    return result


def names_of(target: ast.expr) -> list[str]:
    return [ast.unparse(part) for part in getattr(target, "elts", [target])]


def scope_of(function: ast.FunctionDef, module: Scope) -> Scope:
    """Return every expression that a name may refer to in a test."""
    scope = dict(module)
    for mark in function.decorator_list:
        if isinstance(mark, ast.Call) and ast.unparse(mark.func).endswith("parametrize"):
            given = ast.literal_eval(mark.args[0])
            names = given.replace(" ", "").split(",") if isinstance(given, str) else list(given)
            scope |= columns(names, mark.args[1], scope)
    for node in ast.walk(function):
        if isinstance(node, ast.For):
            scope |= columns(names_of(node.target), node.iter, scope)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            scope[node.targets[0].id] = [node.value]
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript):
            scope |= columns(names_of(node.targets[0]), node.value.value, scope)
    return scope


def texts(expression: ast.expr, scope: Scope, depth: int = 3) -> Iterator[tuple[int, str]]:
    """Yield line and text of each literal in a pattern."""
    if isinstance(expression, ast.Constant) and isinstance(expression.value, str):
        yield expression.lineno, expression.value
    elif isinstance(expression, ast.JoinedStr):
        parts = expression.values
        yield expression.lineno, "".join(getattr(part, "value", "") if isinstance(
            part, ast.Constant) else "{}" for part in parts)  # fmt: skip
    names = [node.id for node in ast.walk(expression) if isinstance(node, ast.Name)]
    for name in names if depth else []:
        for value in scope.get(name, []):
            if isinstance(value, ast.Constant | ast.JoinedStr | ast.Name | ast.BinOp):
                yield from texts(value, scope, depth - 1)


def patterns(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and text of every `match=` literal of a file.

    Literals in tables of tests are included.
    """
    module: Scope = {
        name: [node.value]
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
        for name in names_of(node.targets[0] if isinstance(node, ast.Assign) else node.target)
    }
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            nodes = [node for node in ast.walk(function) if isinstance(node, ast.keyword)]
            matches = [node.value for node in nodes if node.arg == "match"]
            scope = scope_of(function, module) if matches else {}
            for expression in matches:
                yield from texts(expression, scope)


def test_patterns_keep_names_and_values() -> None:
    wordy = {
        f"{path.name}:{line}: {text}"
        for path in sorted(Path(__file__).parent.rglob("*.py"))
        for line, text in patterns(ast.parse(path.read_text(encoding="utf-8")))
        if len(prose(text)) > MOST_WORDS
    }
    assert not wordy, "match the argument's name and the value, not the sentence"


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (r"num_groups: .*max_length = 25\b.*got 4\b", []),
        (r"^x: .*\(B, N, C\).*got \(2, 3\)$", []),
        ("num_groups: expected a divisor of max_length = 25, got 4", ["a", "divisor", "of"]),
        (
            "out: expected a folder that can be written",
            ["a", "folder", "that", "can", "be", "written"],
        ),
        ("'softmx'.*softmax", ["softmax"]),
    ],
)
def test_words_of_a_pattern(pattern: str, words: list[str]) -> None:
    assert prose(pattern) == words


def test_tables_of_a_test_are_searched() -> None:
    source = """
CASES = {"one": (1, "a sentence of five words"), "two": (2, "x: ")}
@pytest.mark.parametrize(("n", "message"), CASES.values())
def test_it(n, message):
    for word, other in (("of four other words", 1),):
        with pytest.raises(InputError, match=message): ...
        with pytest.raises(InputError, match=f"x: {word}"): ...
"""
    found = {text for _, text in patterns(ast.parse(source))}
    assert {"a sentence of five words", "x: ", "of four other words", "x: {}"} <= found
