"""Shared fixtures.

`OMP_WAIT_POLICY` is set before torch is imported, since spinning threads are slow.
"""

from __future__ import annotations

import gc
import os
import sys

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

pytest_plugins = ["skip_gate", "command_line"]

# `torch.manual_seed` records a stack trace for each missing kind of GPU: 3 ms per call.
for _kind in (torch.cuda, torch.xpu, torch.mtia):
    if not _kind.is_available():
        vars(_kind)["manual_seed_all"] = lambda seed: None

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


@pytest.fixture
def registries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore the registries after the test."""
    from rifflemix.lab.tasks import registry as tasks
    from rifflemix.mixers import named as mixers
    from rifflemix.models import presets
    from rifflemix.plugins import loading

    for module, name in ((mixers, "_MIXERS"), (tasks, "_TASKS"), (presets, "_PRESETS")):
        monkeypatch.setattr(module, name, dict(getattr(module, name)))
    monkeypatch.setattr(loading, "_loaded", {})
    monkeypatch.setenv(loading._VARIABLE, "")
    yield
    for registry in (mixers, tasks, presets):
        registry._OUTSIDE.forget()
    for name in [name for name in sys.modules if name.startswith(loading._PREFIX)]:
        del sys.modules[name]


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
