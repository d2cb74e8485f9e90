from __future__ import annotations

import base64
import copy
import re
import statistics
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from fake_comparison import comparison, table_of, unfinished, with_perplexity

from rifflemix.lab.comparison.pages.files import comparison_files, html_report
from rifflemix.lab.comparison.statistics import paired_difference
from rifflemix.lab.report import page

PLOT = b"\x89PNG not really"
VOID = {"meta", "img", "polyline", "path"}


class Page(HTMLParser):
    """Collects tags and text, and fails on tags that do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def page_of(results: dict[str, Any]) -> Page:
    return Page(html_report(table_of(results), ["a note"], PLOT, {}))


def test_page_loads_nothing_from_the_network() -> None:
    text = html_report(table_of(comparison()), ["a note"], PLOT, {})
    assert not re.search(r"https?://|//[a-z]|@import|url\(", text.replace("<!DOCTYPE html>", ""))
    page = Page(text)
    assert not page.all("script")
    assert not page.all("link")
    sources = [value for _, a in page.tags for key, value in a.items() if key in ("src", "href")]
    assert len(sources) == 1
    assert sources[0] == "data:image/png;base64," + base64.b64encode(PLOT).decode()


def test_page_is_accessible() -> None:
    page = page_of(comparison())
    assert page.all("html")[0]["lang"] == "en"
    assert "Csp: " in (page.all("img")[0]["alt"] or "")
    assert all(cell["scope"] in ("row", "col") for cell in page.all("th"))
    assert len(page.all("caption")) == len(page.all("table")) == 3
    assert all(svg["role"] == "img" and svg["aria-label"] for svg in page.all("svg"))
    ids = {a["id"] for _, a in page.tags if "id" in a}
    assert {a["aria-labelledby"] for a in page.all("section")} == ids
    assert next(tag for tag, _ in page.tags if tag in ("h1", "h2")) == "h1"


def test_page_shows_every_mixer_and_run() -> None:
    page = page_of(comparison())
    assert len(page.all("tr")) == (1 + 6) + (1 + 5) + (1 + 18)
    assert len(page.all("svg")) == 2 * 6
    assert len(page.all("polyline")) == 2 * 6 * 18


def test_every_text_is_escaped() -> None:
    evil = "<script>alert('&')</script>\""
    results = comparison(mixers=2)
    results["task"] |= {"title": evil, "name": evil}
    results["command"] = evil
    for mixer in results["mixers"]:
        mixer |= {"title": evil, "paper": evil, "complexity": evil}
    for run in results["runs"]:
        run["folder"] = evil
    page = Page(html_report(table_of(results), [evil], PLOT, {}))
    assert not page.all("script")
    assert page.text.count(evil) > 10


def test_partial_results_are_marked() -> None:
    results = comparison() | {"status": "partial", "runs_planned": 24}
    assert "18 of 24" in page_of(results).text
    assert "18 of" not in page_of(comparison()).text


def test_page_shows_the_selection_metric() -> None:
    text = page_of(with_perplexity(comparison(), accuracy=False)).text
    assert "Validation perplexity" in text
    assert "accuracy" not in text.lower()


def test_page_without_results() -> None:
    page = page_of(unfinished())
    assert "0 of 2 runs" in page.text
    assert not page.all("svg")


@pytest.mark.parametrize("results", [comparison(), unfinished()], ids=["complete", "unfinished"])
def test_all_files_are_made(results: dict[str, Any]) -> None:
    files = comparison_files(table_of(results))
    assert list(files) == ["table.md", "plot.png", "report.html"]
    assert all(files.values())


def test_flat_curves_and_single_points_are_drawn_inside_the_panel() -> None:
    results = comparison(mixers=1, seeds=1)
    results["runs"][0]["validation_curve"] = [{"step": 0, "accuracy": 0.5, "loss": 1.0}]
    results["runs"][0]["train_curve"] = []
    for line in page_of(results).all("polyline"):
        for point in (line["points"] or "").split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= 240
            assert 0 <= y <= 150


TAG = "\"'/><xss>&"


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of texts, numbers and names of entries."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*path, key)
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from leaves(inner, (*path, index))
    else:
        yield path


def with_tag(value: Any, path: tuple[Any, ...], *, in_name: bool) -> Any:
    """Replace the value at `path`, or its name, by a tag."""
    changed = copy.deepcopy(value)
    place = changed
    for step in path[:-1]:
        place = place[step]
    if in_name:
        place[TAG] = place[path[-1]]
    else:
        place[path[-1]] = TAG
    return changed


def test_fields_of_results_are_escaped_in_the_page() -> None:
    results = copy.deepcopy(comparison())
    # One run and one point per curve are enough: the same lines read all others.
    results["runs"] = results["runs"][:1]
    results["mixers"] = results["mixers"][:1]
    for name in ("validation_curve", "train_curve"):
        results["runs"][0][name] = results["runs"][0][name][:1]
    shown = 0
    for path in set(leaves(results)):
        for in_name in (False, True):
            if in_name and not isinstance(path[-1], str):
                continue
            changed = with_tag(results, path, in_name=in_name)
            try:
                text = html_report(table_of(changed), [TAG], PLOT, {})
            except (TypeError, ValueError, KeyError, AttributeError, StopIteration):
                continue  # text instead of a number: no page at all
            assert "<xss" not in text, path
            assert TAG not in text, path
            shown += text.count("&lt;xss&gt;") > 1
            if shown % 20 == 1:
                Page(text)  # the tags nest
    assert shown > 30


def test_no_template_marks_text_as_safe() -> None:
    for path in Path(page.__file__).parent.rglob("*"):
        if path.suffix in (".py", ".html"):
            text = path.read_text(encoding="utf-8")
            assert not re.search(r"\|\s*safe|Markup|autoescape\s*(=|)\s*[Ff]alse", text), path


def test_scores_with_overlapping_bars_may_differ() -> None:
    """Seeds that are hard for both mixers give long bars and still a significant difference."""
    ours = {seed: 0.5 + 0.04 * seed for seed in range(5)}
    theirs = {seed: score - 0.02 - 0.001 * (seed % 2) for seed, score in ours.items()}
    found = paired_difference(ours, theirs)
    assert found is not None
    assert found.probability < 0.001
    assert statistics.stdev(ours.values()) > found.mean
