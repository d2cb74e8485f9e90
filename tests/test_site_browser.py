"""The site, try.html and a report in a real browser: errors, overflow on a phone, search."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
PAGES = (
    "index.html",
    "choose.html",
    "mixers/csp.html",
    "results.html",
    "comparing.html",
    "reference/ops.html",
    "try.html",
)
PROBE = """
<script>
window.failures = [];
addEventListener("error", event => failures.push(String(event.message || event.target.src)), true);
addEventListener("load", () => setTimeout(() => {
  const root = document.documentElement;
  const wide = [...document.querySelectorAll("p, li, h1, h2, h3")]
    .filter(part => part.checkVisibility() && !part.closest("[class*=scroll], .md-search, nav"))
    .filter(part => part.getBoundingClientRect().right > innerWidth + 1)
    .map(part => part.textContent.slice(0, 40));
  const query = document.querySelector("[data-md-component=search-query]");
  const filter = document.querySelector("input.filter");
  const shown = () =>
    [...document.querySelectorAll("article tbody tr")].filter(row => row.checkVisibility());
  const report = {inner: innerWidth, scroll: root.scrollWidth, wide, failures};
  if (filter) {
    report.rows = shown().length;
    filter.value = "MNIST vision";
    filter.dispatchEvent(new Event("input", {bubbles: true}));
    report.filtered = shown().map(row => row.textContent.trim());
  }
  const write = () => {
    report.found = [...document.querySelectorAll(".md-search-result__item")]
      .map(item => item.textContent).join(" ");
    parent.postMessage({probe: JSON.stringify(report)}, "*");
  };
  if (query && location.hash == "#search") {
    document.querySelector("[data-md-toggle=search]").click();
    query.focus();
    query.value = "renormalize_every";
    query.dispatchEvent(new Event("keyup", {bubbles: true}));
    query.dispatchEvent(new Event("input", {bubbles: true}));
    setTimeout(write, 4000);
  } else write();
}, 500));
</script>
"""
FRAME = """<!doctype html><body><iframe src="{page}" width="390" height="800"></iframe><script>
addEventListener("message", event => {{
  if (!event.data.probe) return;
  const element = document.createElement("pre");
  element.id = "probe";
  element.textContent = event.data.probe;
  document.body.append(element);
}});
</script>"""


@pytest.fixture(scope="module")
def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("chromium is not installed")
    return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed")
    pytest.importorskip("material", reason="mkdocs-material is not installed")
    folder = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "-q", "-d", str(folder)],
        cwd=REPOSITORY,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        check=True,
    )
    return folder


def probe(chromium: str, page: Path, folder: Path, anchor: str = "") -> dict[str, Any]:
    """Load a copy of a page in a frame of 390 px; return measurements of the page."""
    copy = page.with_name(f"probe-{page.name}")
    text = page.read_text(encoding="utf-8")
    copy.write_text(text.replace("<head>", f"<head>{PROBE}", 1), encoding="utf-8")
    frame = folder.with_suffix(".html")
    frame.write_text(FRAME.format(page=f"{copy.as_uri()}{anchor}"), encoding="utf-8")
    options = "--headless --no-sandbox --disable-gpu --virtual-time-budget=9000"
    done = subprocess.run(
        [chromium, *options.split(), f"--user-data-dir={folder}", "--dump-dom",
         frame.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    found = re.search(r'<pre id="probe">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, "the page did not finish loading"
    return json.loads(found[1].replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">"))


def check(measured: dict[str, Any]) -> None:
    assert not measured["failures"]
    assert measured["scroll"] <= measured["inner"] + 1
    assert not measured["wide"]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_pages_fit_a_phone_and_have_no_errors(
    chromium: str, site: Path, tmp_path: Path, page: str
) -> None:
    check(probe(chromium, site / page, tmp_path))


@pytest.mark.slow
def test_the_search_finds_an_option_of_a_mixer(chromium: str, site: Path, tmp_path: Path) -> None:
    found = probe(chromium, site / "index.html", tmp_path, "#search")["found"]
    assert "renormalize_every" in found or "TSSA" in found


@pytest.mark.slow
def test_the_filter_hides_rows_without_its_words(chromium: str, site: Path, tmp_path: Path) -> None:
    measured = probe(chromium, site / "models.html", tmp_path)
    check(measured)
    assert 0 < len(measured["filtered"]) < measured["rows"] / 10
    assert any(row.startswith("vit_mnist") for row in measured["filtered"])
    assert all("mnist" in row.lower() for row in measured["filtered"])


@pytest.mark.slow
def test_the_report_of_a_comparison_fits_a_phone(chromium: str, tmp_path: Path) -> None:
    import rifflemix as rm

    rm.compare(
        "digits",
        ["identity", "softmax"],
        max_steps=2,
        batch_size=8,
        dim=8,
        num_layers=1,
        num_heads=2,
        threads=1,
        task_options={"patch_size": 4},
        out=tmp_path / "run",
    )
    check(probe(chromium, tmp_path / "run" / "report.html", tmp_path / "browser"))
