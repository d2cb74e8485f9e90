from __future__ import annotations

import itertools
import re
import struct

import fake_bench
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rifflemix.lab.bench.plots import _curves, _looks, scaling_plot, spread
from rifflemix.lab.bench.tables import bench_markdown, bench_notes, bench_tables, crossover_text

LAYERS = ["two linear maps", "softmax", "csp", "tssa"]


def test_a_table_for_every_pass_with_ratios_and_failures() -> None:
    tables = bench_tables(fake_bench.ops())
    assert [table.title for table in tables] == [
        "(1, 64, 16), 2 heads: forward",
        "(1, 64, 16), 2 heads: forward and backward",
    ]
    assert tables[0].headers == [
        "Name", "Backend", "p50, ms", "p20 to p80", "Memory", "x copy", "x eager",
    ]  # fmt: skip
    assert tables[0].rows == [
        ["copy", "-", "1.00", "1.00 to 1.06", "256 B", "1.00", "-"],
        ["group_sort", "eager", "8.00", "8.00 to 8.48", "256 B", "8.00", "-"],
        ["group_sort", "cpu", "2.00", "2.00 to 2.12", "256 B", "2.00", "0.25"],
        ["wrong|one", "cpu", "failed", "-", "-", "-", "-"],
    ]


def test_training_steps_show_rates() -> None:
    (table,) = bench_tables(fake_bench.models())
    assert table.headers[-5:] == [
        "Samples/s", "Inference, samples/s", "Tokens/s", "In kernels, %", "Parameters"
    ]  # fmt: skip
    assert table.rows[0][-5:] == ["2.00", "8.00", "128", "50.00", "1,234"]


def test_scaling_shows_growth_and_then_one_column_per_length() -> None:
    growth, forward, least, both, floor, memory = bench_tables(fake_bench.scaling(LAYERS))
    rows = {row[0]: row for row in growth.rows}
    assert rows["softmax"][1:4] == ["2", "2.00 ± 0.00", "-"]
    assert rows["tssa"][1:3] == ["1", "1.00 ± 0.00"]
    assert rows["csp"][3].startswith("256 ")
    assert forward.headers == ["Name", *(f"N={n:,}" for n in fake_bench.TOKENS)]
    cells = {row[0]: row[1:] for row in both.rows}
    assert cells["softmax"][0] == "0.262 (1.00)"
    assert cells["softmax"][-1] == "left out"
    assert cells["tssa"][-1] == "16.1"  # no ratio if softmax was not measured
    assert floor.rows[0][1:] == ["1.00"] * 7
    assert memory.rows[3][1] == "1.00 KiB"
    assert least.title.startswith("forward, ")
    assert memory.title.startswith("forward and backward, ")
    assert least.rows[3][0] == memory.rows[3][0]


def test_a_claim_below_the_measurement_is_marked() -> None:
    result = fake_bench.scaling(LAYERS)
    for entry in result["growth"]:
        entry["contradicts_claim"] = entry["name"] == "csp"
    marked = [row[0] for row in bench_tables(result)[0].rows if "claim" in row[2]]
    assert marked == ["csp"]


def test_notes_name_missing_measurements() -> None:
    caption, partial, failure = bench_notes(fake_bench.ops())
    assert "float32, torch " in caption
    assert partial
    assert failure.startswith("wrong|one (cpu) at (1, 64, 16), 2 heads: ")
    assert failure.endswith(": error is 1")
    notes = bench_notes(fake_bench.scaling(LAYERS))
    assert any(note.startswith("softmax at (1, 16384, 16), 2 heads: ") for note in notes)
    assert notes[-2].startswith("linformer: ")


def test_the_last_note_compares_the_fastest_mixer_with_softmax() -> None:
    result = fake_bench.scaling(LAYERS)
    at_8192 = {row["name"]: row for row in result["rows"] if row["shape"]["tokens"] == 8192}
    softmax, csp = (
        at_8192[name]["passes"]["forward_backward"]["p50"] for name in ("softmax", "csp")
    )
    words = f"csp trains {softmax / csp:.1f}x faster than softmax attention at 8,192 "
    assert words in bench_notes(result)[-1]
    for row in result["rows"]:
        if row["name"] == "csp" and row["shape"]["tokens"] == 8192:
            row["passes"]["forward_backward"]["p50"] = 1e9
    assert " tssa trains " in bench_notes(result)[-1]
    for row in result["rows"]:
        if row["name"] == "softmax" and row["passes"]:
            row["passes"]["forward_backward"]["p20"] = 0.0
    assert "no mixer trains clearly faster" in bench_notes(result)[-1]
    result["rows"] = [row for row in result["rows"] if row["name"] in ("softmax", LAYERS[0])]
    assert bench_notes(result)[-1].startswith("linformer: ")


def test_markdown_tables_are_whole() -> None:
    for result in (fake_bench.ops(), fake_bench.models(), fake_bench.scaling(LAYERS)):
        lines = bench_markdown(result).replace("\\|", "/").splitlines()
        for above, below in itertools.pairwise(lines):
            if above.startswith("|") and below.startswith("|"):
                assert above.count("|") == below.count("|")
    assert "wrong\\|one" in bench_markdown(fake_bench.ops())


@pytest.mark.parametrize(
    ("tokens", "always", "text"),
    [(None, False, " 4,096$"), (256.0, True, "^256 "), (1499.6, False, "^1,500$")],
)
def test_crossovers_in_words(tokens: float | None, always: bool, text: str) -> None:
    found = {"tokens": tokens, "always": always, "first_tokens": 256, "last_tokens": 4096}
    assert re.search(text, crossover_text(found))
    assert crossover_text(None) == "-"


def size_of(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    return width, height


@pytest.mark.parametrize("count", [1, pytest.param(30, marks=pytest.mark.slow)])
def test_plot_draws_any_number_of_layers(count: int) -> None:
    names = ["two linear maps", "softmax", *(f"mixer_{i}" for i in range(count))]
    width, height = size_of(scaling_plot(fake_bench.scaling(names)))
    assert width == 1788
    assert height >= 708


def test_plot_of_one_length_or_no_results() -> None:
    scaling_plot(fake_bench.scaling(LAYERS, tokens=(256,)))
    empty = fake_bench.scaling(LAYERS)
    for row in empty["rows"]:
        row["passes"] = {}
    scaling_plot(empty)


@pytest.mark.slow
def test_plot_is_deterministic() -> None:
    result = fake_bench.scaling(LAYERS)
    assert scaling_plot(result) == scaling_plot(result)


def test_thirty_layers_look_different() -> None:
    names = ["softmax", "two linear maps", *(f"mixer_{i}" for i in range(30))]
    looks = _looks([("layer", name) for name in names])
    assert len(set(looks.values())) == len(names)
    assert len({colour for colour, _ in looks.values()}) == len(names)


def test_table_shows_mixers_next_to_their_packages() -> None:
    result = fake_bench.scaling(
        [*LAYERS, "linformer"], peers=("linformer", "reformer-pytorch"), tokens=(256, 1024)
    )
    table = bench_tables(result)[-1]
    assert table.title.startswith("forward and backward, ")
    assert table.headers == ["Name", "N=256", "N=1,024"]
    ((name, *cells),) = table.rows  # our reformer was not measured
    assert name == "linformer / linformer"
    ratio = 1.35 ** (4 - 10)
    expected = f"{ratio:.3f} ({ratio / 1.06:.3f} to {ratio * 1.06:.3f}), 1.00"
    assert cells == [expected, expected]


def test_mixer_and_package_with_one_name_are_separate() -> None:
    result = fake_bench.scaling([*LAYERS, "linformer"], peers=("linformer",))
    alone = fake_bench.scaling([*LAYERS, "linformer"])
    *tables, _ = bench_tables(result)
    for table, without in zip(tables, bench_tables(alone), strict=True):
        assert table.headers == without.headers
        assert {len(row) for row in table.rows} == {len(table.headers)}
        rows = {row[0]: row for row in table.rows}
        assert len(rows) == len(table.rows)
        *others, package = table.rows
        assert others == without.rows  # the package does not change our rows
        assert package[0] == "linformer (package)"
    growth, forward, *_ = bench_tables(result)
    claims = {row[0]: row[1] for row in growth.rows}
    assert claims["linformer (package)"] == "-"
    times = {row[0]: float(row[1].split()[0]) for row in forward.rows}
    assert times["linformer"] == pytest.approx(1e3 * fake_bench._seconds(4, "", 256), rel=1e-2)
    assert times["linformer (package)"] == pytest.approx(
        1e3 * fake_bench._seconds(10, "", 256), rel=1e-2
    )
    curves = {curve.key: curve.points[0][1] for curve in _curves(result, "forward")}
    assert curves["layer", "linformer"] < curves["peer", "linformer"]


def test_a_package_that_is_named_as_the_baseline_is_not_the_baseline() -> None:
    result = fake_bench.scaling(LAYERS, peers=("softmax", "two linear maps"))
    alone = fake_bench.scaling(LAYERS)
    kept = [row for row in result["rows"] if row["kind"] == "layer"]
    assert [row["passes"] for row in kept] == [row["passes"] for row in alone["rows"]]
    assert [e for e in result["growth"] if e["kind"] == "layer"] == alone["growth"]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(0, 300), min_size=1, max_size=40))
def test_labels_are_spread_in_order_and_inside(heights: list[float]) -> None:
    heights.sort()
    placed = spread(heights, 10.0, 0.0, 300.0)
    gap = min(10.0, 300.0 / max(len(heights) - 1, 1))
    assert all(b - a >= gap - 1e-6 for a, b in itertools.pairwise(placed))
    assert placed[0] >= -1e-6
    assert placed[-1] <= 300 + 1e-6


def test_labels_with_room_are_not_moved() -> None:
    assert spread([10.0, 50.0, 90.0], 10.0, 0.0, 100.0) == pytest.approx([10.0, 50.0, 90.0])
    assert spread([49.0, 51.0], 10.0, 0.0, 100.0) == pytest.approx([45.0, 55.0])
