"""Tests of results that are read back and shown as tables of the papers."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from document_scripts import load_script
from rifflemix.errors import InputError
from rifflemix.lab.recipes import Recipe, get_recipe, list_recipes
from rifflemix.lab.reproduction import FORMAT, load_results
from rifflemix.lab.reproduction.page import report_files
from rifflemix.lab.reproduction.tables import report_entries, summary_rows
from small_recipes import QUICK, made_up, record_of, small, write


def test_results_are_found_at_any_depth(tmp_path: Path) -> None:
    one = write(tmp_path / "a" / "b" / "results.json", made_up())
    two = write(tmp_path / "seed-1.json", made_up(seed=1))
    write(tmp_path / "other.json", {"format": "rifflemix.compare/1"})
    write(tmp_path / "list.json", [1])  # type: ignore[arg-type]
    (tmp_path / "broken.json").write_text('{"format": ')
    assert [path for path, _ in load_results([tmp_path])] == [one, two]
    assert [path for path, _ in load_results([two, tmp_path / "a"])] == [one, two]
    assert [path for path, _ in load_results([tmp_path, two, two])] == [one, two]


def test_truncated_results_are_reported(tmp_path: Path) -> None:
    cut = write(tmp_path / "a" / "results.json", made_up())
    cut.write_text(cut.read_text()[:-20])
    write(tmp_path / "b" / "results.json", made_up(seed=1))
    with pytest.raises(InputError, match=r"a/results\.json.*JSON"):
        load_results([tmp_path])


def test_a_copy_of_a_run_counts_once(tmp_path: Path) -> None:
    first = write(tmp_path / "a.json", made_up())
    write(tmp_path / "b.json", made_up())
    assert [path for path, _ in load_results([tmp_path])] == [first]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ": "),
        ("{}", "results of `rifflemix reproduce`"),
        ("{", r"results\.json .*JSON"),
        (json.dumps({"format": FORMAT}), r"results\.json .*recipe"),
    ],
    ids=["absent", "foreign", "no JSON", "damaged"],
)
def test_folders_without_results_are_refused(
    tmp_path: Path, content: str | None, words: str
) -> None:
    path = tmp_path / "results.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=words):
        load_results([path])


def changed(place: str, value: Any) -> dict[str, Any]:
    """Copy results with one entry changed; "recipe.width" is a nested entry."""
    results = made_up()
    *outer, last = place.split(".")
    inside = results
    for name in outer:
        inside = inside[name]
    inside[last] = value
    return results


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("recipe", {}), ("recipe", []), ("recipe", None), ("recipe.train", 3),
        ("recipe.train.batch_size", "8"), ("recipe.train.new", 1), ("recipe.newer", 1),
        ("recipe.name", 3), ("recipe.row", None), ("recipe.printed", "50"), ("recipe.notes", 3),
        ("recipe.width", "1"), ("seed", "0"), ("ours", "x"), ("task", {}), ("task.options", []),
        ("task.sizes", {"train": 5}), ("task.sizes", {"test": "many"}), ("task.name", 3),
        ("ours", float("nan")), ("ours", True), ("validation", []), ("steps", None),
        ("steps", 8.5), ("steps_planned", 0), ("parameters", None),
        ("steps_per_second", "fast"), ("utilisation", {}), ("utilisation", 0.25),
        ("peak_memory_bytes", "much"), ("result", {}), ("result", None),
        ("result.validation", {}), ("result.validation", [{"accuracy": 0.5}]),
        ("result.validation", [{"step": 4, "accuracy": None}]), ("started_from", "x"),
        ("started_from", {"recipe": "a", "blake2b": "b"}), ("batch_size_planned", "8"),
    ],
)  # fmt: skip
def test_damaged_results_are_refused_by_name(tmp_path: Path, place: str, value: Any) -> None:
    write(tmp_path / "good.json", made_up())
    path = write(tmp_path / "bad.json", changed(place, value))
    with pytest.raises(InputError, match=r"bad\.json\b.*damaged") as raised:
        load_results([tmp_path])
    assert str(raised.value).startswith(str(path))
    assert "\n" not in str(raised.value)


def test_stored_results_of_the_repository_are_reported(tmp_path: Path) -> None:
    store = load_script("benchmarks/store.py")
    found = [
        (Path(name), record_of(store.load(name).content)) for name in store.names("reproduce/*")
    ]
    assert found
    text = report_files(found, tmp_path)["report.md"].decode()
    for _, result in found:
        steps = f"{result.steps:,} of {result.steps_planned:,}"
        assert re.search(rf"\| {steps} \| \d+ of \d+ \| \d+ \|", text), result["recipe"]


class Page(HTMLParser):
    """Collects links, text by table row, and every resource that a browser would fetch."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.rows: list[list[str]] = []
        self.is_cell = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.append(tag)
        if tag == "a":
            self.links.append(str(values["href"]))
        if "id" in values:
            self.ids.append(str(values["id"]))
        self.fetched += [str(values[name]) for name in ("src", "data") if name in values]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.is_cell = True
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self.is_cell = False

    def handle_data(self, data: str) -> None:
        if self.is_cell:
            self.rows[-1][-1] += data


def test_report_tables(tmp_path: Path, found: list[tuple[Path, dict[str, Any]]]) -> None:
    page = Page(report_files(found, tmp_path / "report")["report.html"].decode())
    overview = page.rows.index(["Table", "Recipes", "Run", "In full"])
    assert page.rows[overview + 1] == ["Nobody: Table 0", "3", "2", "1"]
    matrix = page.rows.index(["Row", "Digits, %"])
    assert page.rows[matrix + 1 : matrix + 4] == [
        ["TSSA", "50.0062.00 ± 2.00"],
        ["CSP", "-80.00 (val.)*"],
        ["Never | run", "70.25"],
    ]
    runs = next(place for place, row in enumerate(page.rows) if row[0] == "Run")
    assert page.rows[runs + 1 :] == [
        ["TSSA", "Digits", "50.00", "20.00", "", "best", "", "20.00", "4 of 8", "64 of 64", "1",
         "1", "12,345", "20.0", "25.00", "256 MiB", "seed 0"],
        ["TSSA", "Digits", "50.00", "62.00 ± 2.00", "+12.00 (0.70)", "best", "", "62.00", "8 of 8",
         "64 of 64", "1", "3", "12,345", "20.0", "25.00", "256 MiB", "seed 0, seed 1, seed 2"],
        ["CSP", "Digits", "-", "80.00 (val.)", "", "best", "", "", "3 of 8", "64 of 64", "1", "1",
         "12,345", "20.0", "", "256 MiB", "seed 0"],
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["report.md", "report.html"])
def test_links_resolve(tmp_path: Path, found: list[tuple[Path, dict[str, Any]]], name: str) -> None:
    out = tmp_path / "some" / "report"
    out.mkdir(parents=True)
    content = report_files(found, out)[name].decode()
    links = re.findall(r"\]\(([^)\s]*)\)|href=\"([^\"#]+)\"", content)
    targets = {(out / unquote(a or b)).resolve() for a, b in links}
    assert targets == {path.resolve() for path, _ in found}


def test_markdown_tables_are_whole(
    tmp_path: Path, found: list[tuple[Path, dict[str, Any]]]
) -> None:
    text = report_files(found, tmp_path)["report.md"].decode()
    blocks = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    widths = [
        {len(re.findall(r"(?<!\\)\|", row)) for row in block.splitlines()} for block in blocks
    ]
    assert widths == [{5}, {3}, {18}]
    assert "| TSSA | 50.00 / **62.00 ± 2.00** |" in text
    assert "| CSP | - / **80.00 (val.)**\\* |" in text
    assert "| Never \\| run | 70.25 |" in text


def test_html_is_self_contained_and_escaped(tmp_path: Path, listed: list[Recipe]) -> None:
    hostile = '<script>alert("x")</script>'
    recipe = small(
        train=QUICK, name="gone/away", paper=hostile, row=hostile, column=hostile, unit="<b>"
    )
    path = write(tmp_path / "a<b>.json", made_up(recipe=recipe))
    write(tmp_path / "other.json", made_up(recipe=recipe, ours=61.0, seed=1, steps=4))
    html = report_files(load_results([tmp_path]), tmp_path)["report.html"].decode()
    page = Page(html)
    assert not {"script", "b", "link", "img", "iframe"} & set(page.tags)
    assert page.fetched == []
    assert "http" not in html
    assert "url(" not in html
    assert len(page.ids) == len(set(page.ids))
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in page.ids)
    assert unquote(page.links[-1]) == path.name or unquote(page.links[-2]) == path.name


def test_runs_of_removed_recipes_are_last(tmp_path: Path, listed: list[Recipe]) -> None:
    write(tmp_path / "a.json", made_up(recipe=small(train=QUICK, name="gone/away", row="Gone")))
    entries = report_entries(load_results([tmp_path]))
    assert [entry["name"] for entry in entries] == [r.name for r in listed] + ["gone/away"]
    assert entries[-1]["ours"] == [60.0]


def test_curves_of_equal_runs_do_not_hide_each_other(tmp_path: Path, listed: list[Recipe]) -> None:
    full = small(train=QUICK)
    write(tmp_path / "a.json", made_up(recipe=full))
    write(tmp_path / "b.json", made_up(recipe=full.scaled(0.5)))
    smaller_batch = replace(full, train=replace(QUICK, batch_size=4))
    write(tmp_path / "c.json", made_up(recipe=smaller_batch))
    html = report_files(load_results([tmp_path]), tmp_path)["report.html"].decode()
    assert html.count('<polyline class="own"') == 3
    for label in ("TSSA, 8 steps<", "TSSA, 8 steps, [^<]* 4<", r"TSSA, 8 steps, [^<]* 0\.5<"):
        assert re.search(label, html)


def test_table_shows_the_whole_run(tmp_path: Path, listed: list[Recipe]) -> None:
    full = small(train=QUICK)
    write(tmp_path / "narrow.json", made_up(recipe=full.scaled(0.5), ours=71.0))
    write(tmp_path / "short.json", made_up(recipe=full.shortened(4), steps=4, ours=72.0))
    write(tmp_path / "full.json", made_up(recipe=full, ours=60.0))
    text = report_files(load_results([tmp_path]), tmp_path)["report.md"].decode()
    assert "| TSSA | 50.00 / **60.00** |" in text


def test_a_seed_in_two_precisions_counts_once(tmp_path: Path, listed: list[Recipe]) -> None:
    rounded = small(train=replace(QUICK, precision="bf16"))
    write(tmp_path / "a.json", made_up(recipe=rounded, ours=90.0))
    write(tmp_path / "b.json", made_up(ours=60.0))
    write(tmp_path / "c.json", made_up(recipe=rounded, ours=64.0, seed=1))
    files = report_files(load_results([tmp_path]), tmp_path)
    text = files["report.md"].decode()
    assert "| TSSA | 50.00 / **62.00 ± 2.83** |" in text
    assert "[seed 0 in bf16](a.json), [seed 0 in float32](b.json), [seed 1](c.json) |" in text
    assert '<a href="a.json">seed 0 in bf16</a>' in files["report.html"].decode()


@pytest.mark.parametrize("is_listed", [True, False])
def test_smaller_batches_are_reduced_runs(
    tmp_path: Path, listed: list[Recipe], is_listed: bool
) -> None:
    """Use the listed batch size, because older files do not store the recipe's batch size."""
    name = "test/digits" if is_listed else "gone/away"
    recipe = small(train=replace(QUICK, batch_size=4), name=name, row="Fewer")
    told = {} if is_listed else {"batch_size_planned": 64}
    write(tmp_path / "a.json", made_up(recipe=recipe, **told))
    text = report_files(load_results([tmp_path]), tmp_path)["report.md"].decode()
    assert "**60.00**\\* |" in text
    assert "| 8 of 8 | 4 of 64 | 1 |" in text


ORIGIN = {"recipe": "test/other", "step": 1234, "blake2b": "00"}


def test_table_shows_runs_from_released_weights(tmp_path: Path, listed: list[Recipe]) -> None:
    full = small(train=QUICK)
    path = write(tmp_path / "other.json", made_up(ours=71.0, started_from=ORIGIN))
    text = report_files(load_results([path]), tmp_path)["report.md"].decode()
    assert "| TSSA | 50.00 / **71.00** |" in text
    write(tmp_path / "own.json", made_up(recipe=full.scaled(0.5), ours=60.0, started_from=None))
    files = report_files(load_results([tmp_path]), tmp_path)
    assert "| TSSA | 50.00 / **60.00**\\* |" in files["report.md"].decode()
    assert re.search(r"\| TSSA, .*test/other.* 1,234 \|", files["report.md"].decode())
    html = files["report.html"].decode()
    assert re.search(r"TSSA, 8 steps, [^<]*test/other[^<]* 1,234<", html)
    assert re.search(r"TSSA, 8 steps, [^<]*0\.5<", html)


def test_small_metrics_keep_their_decimals(tmp_path: Path, listed: list[Recipe]) -> None:
    recipe = small(
        train=QUICK, name="gone/away", metric="loss", unit="eV", printed=0.1287, row="Small"
    )
    runs = [
        made_up(recipe=recipe.scaled(width), ours=ours, difference=ours - 0.1287)
        for width, ours in ((1.0, 0.1308), (0.5, 0.1311))
    ]
    assert dict(summary_rows(record_of(runs[0] | {"is_reduced": False})))["difference"] == "+0.0021"
    assert dict(summary_rows(record_of(made_up())))["difference"] == "+10.00"
    for number, run in enumerate(runs):
        write(tmp_path / f"{number}.json", run)
    html = report_files(load_results([tmp_path]), tmp_path)["report.html"].decode()
    assert "0.1308" in html
    assert "0.1311" in html


def test_every_table_of_the_papers_is_there(tmp_path: Path) -> None:
    page = Page(report_files([], tmp_path)["report.html"].decode())
    anchors = [link.removeprefix("#") for link in page.links]
    assert set(anchors) <= set(page.ids)
    recipes = [get_recipe(name) for name in list_recipes()]
    assert len(anchors) == len({(recipe.paper, recipe.table) for recipe in recipes})
    cells = {cell for row in page.rows for cell in row[1:]}
    for recipe in recipes:
        printed = recipe.printed
        assert printed is None or cells & {f"{printed:.2f}", f"{printed:.4f}"}, recipe.name


def test_report_without_results(tmp_path: Path, listed: list[Recipe]) -> None:
    files = report_files([], tmp_path)
    assert b"Never" in files["report.md"]
    assert b"polyline" not in files["report.html"].split(b"</style>")[1]
