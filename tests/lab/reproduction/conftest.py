"""A registry of made-up recipes and some of their results."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rifflemix.lab.recipes import Recipe, registry
from rifflemix.lab.reproduction import (
    Reproduction,
    load_results,
    plan_reproduction,
    run_reproduction,
)
from small_recipes import QUICK, made_up, small, write


@contextmanager
def matmul_not_timed() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rifflemix.lab.reproduction.run.matmul_flops_per_second", lambda *_: 1e12)
        yield


@pytest.fixture
def no_matmul_timing() -> Iterator[None]:
    """Skip the matmul timing, because it takes longer than the runs."""
    with matmul_not_timed():
        yield


@pytest.fixture(scope="session")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run a recipe from start to end; treat the folder as read-only."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    with matmul_not_timed():
        run_reproduction(plan_reproduction(small(train=QUICK), folder))
    return folder


@pytest.fixture
def finished(straight: Path, tmp_path: Path) -> Path:
    """Copy the finished run, so that a test may change it."""
    return Path(shutil.copytree(straight, tmp_path / "finished"))


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[Recipe]:
    """Register three recipes and hide all other recipes."""
    recipes = [
        small(train=QUICK),
        small(train=QUICK, name="test/csp", row="CSP", printed=None),
        small(train=QUICK, name="test/not-run", row="Never | run", printed=70.25),
    ]
    monkeypatch.setattr(registry, "_RECIPES", {r.name: (lambda r=r: r) for r in recipes})
    return recipes


@pytest.fixture
def found(tmp_path: Path, listed: list[Recipe]) -> list[tuple[Path, Reproduction]]:
    runs = tmp_path / "runs (of today)"
    for seed, ours in enumerate((60.0, 62.0, 64.0)):
        write(runs / f"seed {seed}" / "results.json", made_up(seed=seed, ours=ours))
    short = small(train=QUICK).shortened(4)
    write(runs / "short" / "results.json", made_up(recipe=short, steps=4, ours=20.0))
    stopped = made_up(recipe=listed[1], steps=3, ours=None, status="partial", utilisation=None)
    write(runs / "stopped.json", stopped)
    return load_results([runs])
