"""Every public function and class has an example, and all examples of docstrings run."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import rifflemix as rm
from document_scripts import load_script

REPOSITORY = Path(__file__).resolve().parents[1]
PUBLISHED = re.compile(r"^::: (\S+)", re.MULTILINE)
# Examples that train a model or import another library.
SLOW = {
    "Comparison",
    "ConversionReport",
    "Results",
    "SuiteComparison",
    "SuitePlan",
    "TrainResult",
    "TrainedRun",
    "TrainedRun.generate",
    "TrainingDiverged",
    "analyze_into",
    "check_mixer",
    "collect_comparison",
    "compare",
    "compare_suite",
    "convert",
    "load_run",
    "measure_apart",
    "measure_swap",
    "open_suite",
    "over_training",
    "plan_suite",
    "register_hf",
    "run_comparison",
    "run_suite",
    "train",
    "train_mixer",
    "train_single",
    "training_memory",
}


def published() -> dict[str, Any]:
    """Return the functions and classes of `rifflemix` and of the reference pages by name."""
    found = {f"rifflemix.{name}": getattr(rm, name) for name in rm.__all__}
    for page in sorted((REPOSITORY / "docs" / "reference").glob("*.md")):
        for name in PUBLISHED.findall(page.read_text(encoding="utf-8")):
            value = pkgutil.resolve_name(name)
            names = value.__all__ if isinstance(value, ModuleType) else ()
            found |= {name: value} | {f"{name}.{part}": getattr(value, part) for part in names}
    return {
        name: value
        for name, value in found.items()
        if inspect.isclass(value) or inspect.isroutine(value)
    }


def docstrings(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the names and docstrings of the functions and classes of a file."""

    def visit(node: ast.AST, prefix: str) -> Iterator[tuple[str, str]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                name = prefix + child.name
                yield name, ast.get_docstring(child) or ""
                yield from visit(child, f"{name}.")

    text = path.read_text(encoding="utf-8")
    if ">>> " in text:
        yield from visit(ast.parse(text), "")


def examples() -> list[Any]:
    parser, source = doctest.DocTestParser(), REPOSITORY / "src"
    return [
        pytest.param(
            parser.get_doctest(text, {"__name__": "example"}, name, str(path), 0),
            id=f"{path.relative_to(source / 'rifflemix').with_suffix('').as_posix()}-{name}",
            marks=[pytest.mark.slow] if name in SLOW else [],
        )
        for path in sorted(source.rglob("*.py"))
        for name, text in docstrings(path)
        if ">>> " in text
    ]


@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize("example", examples())
def test_example_prints_its_output(
    example: doctest.DocTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run an example with only the names that it imports."""
    monkeypatch.chdir(tmp_path)
    adapters = importlib.import_module("rifflemix.surgery.sites")
    monkeypatch.setattr(adapters, "_registered", [])
    if example.name == "register_hf":
        load_script("tests/surgery/torchvision_shim.py").declare_operators()
    report: list[str] = []
    doctest.DocTestRunner(verbose=False).run(example, out=report.append)
    assert not report, "".join(report)


def test_public_objects_have_an_example() -> None:
    missing = [name for name, value in published().items() if ">>> " not in (value.__doc__ or "")]
    assert missing == []
