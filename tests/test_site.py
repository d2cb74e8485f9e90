"""The site builds without warnings, and its generated blocks are up to date."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from document_scripts import load_script
from rifflemix.mixers import HEADLINE

REPOSITORY = Path(__file__).resolve().parents[1]
LOADED = re.compile(r"""(?:src|href)=["']?(https?://[^"' >]+)[^>]*""")


@pytest.fixture(scope="module")
def build() -> ModuleType:
    return load_script("docs/build/build.py")


SLOW_TARGETS = {"results", "plots"}


@pytest.mark.parametrize(
    "target",
    [
        pytest.param(target, marks=[pytest.mark.slow] if target in SLOW_TARGETS else [])
        for target in load_script("docs/build/build.py").TARGETS
        if target != "plots"  # their pixels depend on the versions of matplotlib and freetype
    ],
)
def test_generated_files_are_up_to_date(build: ModuleType, target: str) -> None:
    for path, content in build.files_of(target).items():
        assert path.read_bytes() == content, f"run: python docs/build/build.py {target}"


def test_an_unknown_target_is_reported(
    build: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build.main(["result"]) == 2
    assert "results" in capsys.readouterr().err


def test_every_headline_mixer_has_a_page_with_its_card_and_times() -> None:
    pages = sorted((REPOSITORY / "docs" / "mixers").glob("*.md"))
    texts = "".join(page.read_text(encoding="utf-8") for page in pages)
    for name in HEADLINE:
        assert re.search(rf"<!-- card: (\w+, )*{name}\b", texts)
        assert f"<!-- measured: {name} -->" in texts


@pytest.mark.slow
def test_the_site_builds_strictly_and_loads_nothing_from_the_network(tmp_path: Path) -> None:
    pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed")
    pytest.importorskip("material", reason="mkdocs-material is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path / "site")],
        cwd=REPOSITORY,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {
        path.relative_to(tmp_path / "site").as_posix(): path.read_text(encoding="utf-8")
        for path in (tmp_path / "site").rglob("*.html")
    }
    assert {"index.html", "mixers/csp.html", "benchmarks/index.html"} <= pages.keys()
    for notebook in (REPOSITORY / "docs" / "notebooks").glob("*.ipynb"):
        assert f"notebooks/{notebook.stem}.html" in pages
        assert (tmp_path / "site" / "notebooks" / notebook.name).is_file()  # downloadable
    assert "<math" in pages["mixers/csp.html"]
    for name, text in pages.items():
        tags = [match[0] for match in LOADED.finditer(text)]
        assert not [tag for tag in tags if tag.startswith("src")], name
        assert not re.search(r'<link[^>]*rel="?(stylesheet|preconnect)"?[^>]*https?://', text), name
    assert 'id="rifflemix.ops.group_sort"' in pages["reference/ops.html"]
    assert 'id="rifflemix.replace_attention"' in pages["reference/index.html"]
