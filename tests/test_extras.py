"""Without optional packages everything else works, and errors name the package to install."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import rifflemix.cli
from rifflemix.errors import InputError, require_packages
from rifflemix.lab.bench.swap import SwapMeasurement
from rifflemix.lab.comparison import Comparison
from rifflemix.lab.comparison.pages.files import html_fragment
from rifflemix.lab.comparison.plan import plan_comparison
from rifflemix.lab.report import page

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "rifflemix"
OPTIONAL = (
    "PIL", "accelerate", "click", "datasets", "jinja2", "matplotlib", "pandas", "rdkit", "rich",
    "scipy", "timm", "tokenizers", "transformers", "triton", "typer",
)  # fmt: skip
HIDE = """
from importlib.machinery import PathFinder
found = PathFinder.find_spec
def find_spec(name, path=None, target=None):
    return None if name.split(".")[0] in {packages!r} else found(name, path, target)
PathFinder.find_spec = staticmethod(find_spec)
"""


def without(packages: tuple[str, ...], code: str) -> subprocess.CompletedProcess[str]:
    """Return a function that runs code in an interpreter without these packages."""
    hide = HIDE.format(packages=packages)
    return subprocess.run(
        [sys.executable, "-c", hide + code], capture_output=True, text=True, timeout=120
    )


@pytest.mark.slow
def test_every_subpackage_is_imported_without_extras() -> None:
    """Check that plots and classes of optional packages are imported lazily."""
    light = [
        ".".join(["rifflemix", *path.relative_to(SOURCE).with_suffix("").parts])
        for folder in (SOURCE, SOURCE / "lab")
        for path in sorted(folder.iterdir())
        if (path.suffix == ".py" or path.is_dir()) and not path.stem.startswith("__")
    ]
    assert {"rifflemix.surgery", "rifflemix.lab.analysis", "rifflemix.lab.train"} <= set(light)
    done = without(
        OPTIONAL,
        f"import importlib\nfor name in {light!r}: importlib.import_module(name)\n"
        "from rifflemix import *\n"
        "mixer = create_mixer('tssa', 32, num_heads=4)\n"
        "import torch\n"
        "assert mixer(torch.ones(1, 5, 32)).shape == (1, 5, 32)",
    )
    assert done.returncode == 0, done.stderr


def test_command_line_without_its_packages_names_them() -> None:
    done = without(
        ("typer", "rich"), "import rifflemix.cli\nraise SystemExit(rifflemix.cli.main())"
    )
    assert done.returncode == 2
    assert re.fullmatch(r"error: .*typer and rich\b.*pip install 'rifflemix\[cli\]'\n", done.stderr)
    assert not done.stdout


def test_missing_packages_are_named_with_their_extra() -> None:
    require_packages("a test", "test", "sys", "pytest")
    packages = "no_such_a, no_such_b and no_such_c"
    with pytest.raises(InputError, match=rf"^a test .*{packages}\b.*'rifflemix\[test\]'$"):
        require_packages("a test", "test", "sys", "no_such_a", "no_such_b", "no_such_c")


@pytest.fixture
def no_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("accelerate", "jinja2", "matplotlib", "rich"):
        monkeypatch.setitem(sys.modules, name, None)


COMPARE = r"'rifflemix\[compare\]'"


@pytest.mark.usefixtures("no_extras")
def test_comparisons_and_plots_name_missing_extras(tmp_path: Path) -> None:
    packages = "accelerate, jinja2, matplotlib and rich"
    with pytest.raises(InputError, match=f"{packages}.*{COMPARE}"):
        plan_comparison(None, tmp_path / "run")  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())
    with pytest.raises(InputError, match=COMPARE):
        Comparison({}).plot()
    with pytest.raises(InputError, match=COMPARE):
        html_fragment({}, [])
    with pytest.raises(InputError, match=COMPARE):
        SwapMeasurement((), {}, "cpu", 1).plot()
    page._environment.cache_clear()
    with pytest.raises(InputError, match=COMPARE):
        page.render("comparison.html")


def test_missing_matplotlib_is_reported_before_scaling_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(
        sys, "argv", ["rifflemix", "bench", "scaling", "--out", str(tmp_path / "x")]
    )
    assert rifflemix.cli.main() == 2
    assert "pip install 'rifflemix[compare]'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_packages_that_are_always_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = [requirement.partition(">=")[0] for requirement in project["dependencies"]]
    assert names == ["torch", "numpy", "safetensors"]
