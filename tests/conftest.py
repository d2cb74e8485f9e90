"""Shared fixtures. `OMP_WAIT_POLICY` is set before torch is imported: spinning threads crawl."""

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

# `torch.manual_seed` writes down the stack for each kind of GPU that is not there: 3 ms a call.
for _kind in (torch.cuda, torch.xpu, torch.mtia):
    if not _kind.is_available():
        vars(_kind)["manual_seed_all"] = lambda seed: None

REPOSITORY = Path(__file__).resolve().parents[1]
GOLDEN = Path(__file__).resolve().parent / "golden"
SHARED = Path(os.environ.get("RIFFLEMIX_SHARED", REPOSITORY.parent / "shared"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Items and modules stay to the end: set aside, they cost no later search for garbage.

    Each search took half a second among them, and every run that is trained ends with one.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Name what takes a minute as it ends: a run that is cut off has no summary."""
    if report.duration > 60 and "PYTEST_XDIST_WORKER" not in os.environ:
        print(f"\n{report.nodeid} took {report.duration:.0f} s", file=sys.__stderr__, flush=True)


@pytest.fixture(scope="module", autouse=True)
def _set_aside() -> None:
    """So does what tests have imported since: each training ends with a search for garbage."""
    if len(gc.get_objects()) > 50_000:
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def registries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test registers is gone after it."""
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
    """Load a vector of tests/golden by name: what the papers' own code computed."""

    def load(name: str) -> dict[str, np.ndarray]:
        with np.load(GOLDEN / f"{name}.npz") as arrays:
            return dict(arrays)

    return load


@pytest.fixture
def shared_data() -> Path:
    """Folder of real data files; skips where they are not at hand."""
    path = SHARED / "data"
    if not path.exists():
        pytest.skip("shared data is not at hand (set RIFFLEMIX_SHARED)")
    return path


@pytest.fixture
def papers() -> Path:
    """Folder of the papers' texts; skips where they are not at hand."""
    path = SHARED / "papers"
    if not path.exists():
        pytest.skip("the papers' texts are not at hand (set RIFFLEMIX_SHARED)")
    return path
