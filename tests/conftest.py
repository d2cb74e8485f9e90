"""Shared fixtures.

Variables are set before torch and matplotlib are imported. Spinning threads are slow.
"""

from __future__ import annotations

import gc
import os
import sys

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# A list of fonts that another environment stored may lack the fonts of this one.
os.environ.setdefault("MPLCONFIGDIR", os.path.join(sys.prefix, "matplotlib"))

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest_plugins = ["skip_gate", "command_line"]

# `torch.manual_seed` records a stack trace for each missing kind of GPU: 3 ms per call.
for _kind in (torch.cuda, torch.xpu, torch.mtia):
    if not _kind.is_available():
        vars(_kind)["manual_seed_all"] = lambda seed: None

# A flush to disk matters only for a power failure and takes milliseconds. Tests that check the
# flushes replace this function.
os.fsync = lambda fd: None

REPOSITORY = Path(__file__).resolve().parents[1]
GOLDEN = Path(__file__).resolve().parent / "golden"
SHARED = Path(os.environ.get("RIFFLEMIX_SHARED", REPOSITORY.parent / "shared"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Exclude collected items and modules from garbage collection.

    They live until the end. Each collection took half a second with them, and every training run
    ends with a collection.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        # A comparison ends with this call. Without the frozen objects, the next one would collect
        # garbage among millions of objects.
        gc.unfreeze = lambda: None


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Report slow tests at once: an interrupted run has no summary."""
    if report.duration > 60 and "PYTEST_XDIST_WORKER" not in os.environ:
        print(f"\n{report.nodeid} took {report.duration:.0f} s", file=sys.__stderr__, flush=True)


@pytest.fixture(scope="module", autouse=True)
def _set_aside() -> None:
    """Exclude later imports from garbage collection too.

    Every training run ends with a collection.
    """
    if len(gc.get_objects()) > 50_000:
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def _registries() -> list[tuple[Any, str]]:
    """Return the modules of all registries and the names of their dictionaries."""
    from rifflemix.lab.analysis import registry as analyses
    from rifflemix.lab.recipes import registry as recipes
    from rifflemix.lab.tasks import registry as tasks
    from rifflemix.mixers import registry as mixers
    from rifflemix.models import presets

    return [
        (mixers, "_MIXERS"),
        (tasks, "_TASKS"),
        (presets, "_PRESETS"),
        (recipes, "_RECIPES"),
        (analyses, "_ANALYSES"),
    ]


@pytest.fixture
def registries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore the registries after the test."""
    from rifflemix.plugins import loading

    for module, name in _registries():
        monkeypatch.setattr(module, name, dict(getattr(module, name)))
    monkeypatch.setattr(loading, "_loaded", {})
    monkeypatch.setenv(loading._VARIABLE, "")
    yield
    for module, _ in _registries():
        module._ENTRY_POINTS.forget()
    for name in [name for name in sys.modules if name.startswith(loading._PREFIX)]:
        del sys.modules[name]


@pytest.fixture
def install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, str, dict[str, str]], None]:
    """Install packages with entry points, in the layout of an installer."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(package: str, code: str, points: dict[str, str]) -> None:
        (tmp_path / f"{package}.py").write_text(code, encoding="utf-8")
        info = tmp_path / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = [f"[rifflemix.{group}]\n{point}\n" for group, point in points.items()]
        (info / "entry_points.txt").write_text("\n".join(lines))
        monkeypatch.delitem(sys.modules, package, raising=False)
        for module, _ in _registries():
            module._ENTRY_POINTS.forget()

    return write


@pytest.fixture
def golden() -> Callable[[str], dict[str, np.ndarray]]:
    """Load a vector of tests/golden by name, computed by the paper's code."""

    def load(name: str) -> dict[str, np.ndarray]:
        with np.load(GOLDEN / f"{name}.npz") as arrays:
            return dict(arrays)

    return load


@pytest.fixture
def shared_data() -> Path:
    """Return the folder of real data files, or skip the test."""
    path = SHARED / "data"
    if not path.exists():
        pytest.skip("shared data is not at hand (set RIFFLEMIX_SHARED)")
    return path


@pytest.fixture
def papers() -> Path:
    """Return the folder of the papers' texts, or skip the test."""
    path = SHARED / "papers"
    if not path.exists():
        pytest.skip("the papers' texts are not at hand (set RIFFLEMIX_SHARED)")
    return path
