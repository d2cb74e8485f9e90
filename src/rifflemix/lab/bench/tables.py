"""Format benchmark results as tables and notes, for the terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rifflemix.lab.bench import describe_hardware
from rifflemix.lab.bench.peers import PeerRatio, peer_ratios
from rifflemix.lab.bench.rows import (
    AXES,
    BenchTable,
    Key,
    Show,
    StoredRow,
    by_axis,
    extra,
    label,
    milliseconds,
    pass_names,
    pivot,
    ratio_to,
    shape_text,
    shown_name,
    spread,
    status,
    table_of,
    time_and_ratio,
    timed,
)
from rifflemix.lab.report.units import (
    MISSING,
    format_bytes,
    format_count,
    format_duration,
    format_percent,
    format_rate,
)
from rifflemix.text import bold, bullet_lines, table_lines

PASS_TITLES = {
    "forward": "forward",
    "forward_backward": "forward and backward",
    "training_step": "training step",
    "step": "one more token",
    "alone": "forward and backward, one process",
}
_IN_PLACE = "softmax, cache in place"
_SHORT = {
    "scaled_dot_product_attention": "attention",
    "two linear maps": "maps",
    _IN_PLACE: "softmax in place",
}
_SOFTMAX, _MAPS = "softmax", "two linear maps"
_MILLISECONDS = "ms (x softmax)"


def bench_tables(result: Mapping[str, Any]) -> list[BenchTable]:
    """Return the tables of a result.

    Most benchmarks have one table per shape and pass. Benchmarks over many lengths have one column
    per N instead, and so have models whose shapes differ only in N.
    """
    rows = result["rows"]
    if result["benchmark"] == "scaling":
        axis = axis_of(result)
        tables = [_growth_table(result["growth"], axis), *_tables_by_axis(rows, axis)]
        pairs = list(peer_ratios(result))
        return [*tables, _ratio_table(pairs, axis)] if pairs else tables
    if result["benchmark"] == "decode":
        return _tables_by_context(rows)
    if result["benchmark"] == "parallel":
        return _tables_of_processes(rows, result["settings"]["processes"])
    if result["benchmark"] == "lra":
        return _tables_beside_printed(rows, result["printed"])
    if result["benchmark"] == "models" and _differ_in_tokens(rows):
        return _model_tables_by_tokens(rows)
    tables = []
    for shape in dict.fromkeys(shape_text(row) for row in rows):
        here = [row for row in rows if shape_text(row) == shape]
        tables += [_pass_table(shape, name, here) for name in pass_names(here)]
    return tables


def bench_notes(result: Mapping[str, Any]) -> list[str]:
    """Describe the machine and the settings, and each row that was not measured."""
    notes = [_caption(result)]
    if result["status"] != "complete":
        notes.append("Partial: it was stopped before everything was measured.")
    notes += [
        f"{label(row)} at {shape_text(row)}: {row['status']}: {row['note']}"
        for row in result["rows"]
        if row["status"] != "measured"
    ]
    peers = (peer for peer in result.get("peers", ()) if not peer["takes_part"])
    notes += [f"{peer['name']}: {peer['detail']}" for peer in peers]
    if result["benchmark"] == "scaling" and axis_of(result) == "tokens":
        notes += _fastest_layer(result["rows"])
    return notes


def _fastest_layer(rows: Sequence[StoredRow]) -> list[str]:
    """Compare the fastest mixer with softmax attention at the largest N that both have."""
    timings = {
        (row["shape"]["tokens"], row["name"]): row["passes"]["forward_backward"]
        for row in rows
        if row["kind"] == "layer" and "forward_backward" in row["passes"]
    }
    others = {key: one for key, one in timings.items() if "softmax" in one["ratios"]}
    others = {key: one for key, one in others.items() if key[1] not in (_SOFTMAX, _MAPS)}
    if not others:
        return []
    tokens = max(n for n, _ in others)
    best, name = min((one["p50"], name) for (n, name), one in others.items() if n == tokens)
    softmax, mixer = timings[tokens, _SOFTMAX], others[tokens, name]
    where = f"softmax attention at {format_count(tokens)} tokens"
    if mixer["p80"] >= softmax["p20"]:
        return [f"On this machine no mixer trains clearly faster than {where}."]
    ratio = format_rate(softmax["p50"] / best)
    return [f"On this machine {name} trains {ratio}x faster than {where}."]


def bench_markdown(result: Mapping[str, Any]) -> str:
    """Format all tables and notes as Markdown."""
    parts = []
    for table in bench_tables(result):
        lines = table_lines(table.headers, table.rows, range(1, len(table.headers)))
        parts.append("\n".join([bold(table.title), "", *lines]))
    parts.append("\n".join(bullet_lines(bench_notes(result))))
    return "\n\n".join(parts) + "\n"


def axis_of(result: Mapping[str, Any]) -> str:
    """Return the axis of a scaling result: "tokens" or "channels".

    Older files have no axis; the default is "tokens".
    """
    return result["settings"].get("axis", "tokens")


def key_of(entry: Mapping[str, Any]) -> Key:
    """Return the kind and name of a row or growth entry."""
    return entry["kind"], entry["name"]


def crossover_text(crossover: Mapping[str, Any] | None) -> str:
    """Format the N from which a layer is faster than softmax."""
    if crossover is None:
        return MISSING
    if crossover["tokens"] is None:
        return f"none up to {format_count(crossover['last_tokens'])}"
    if crossover["always"]:
        return f"{format_count(crossover['first_tokens'])} or less"
    return format_count(round(crossover["tokens"]))


def _pass_table(shape: str, name: str, rows: Sequence[StoredRow]) -> BenchTable:
    """Show time, spread, memory, ratios and other numbers of one pass."""
    columns: list[tuple[str, Show]] = [("Name", shown_name)]
    if any(row["backend"] for row in rows):
        columns.append(("Backend", lambda row: row["backend"] or MISSING))
    columns += [
        ("p50, ms", timed(name, lambda t: milliseconds(t["p50"]), status)),
        ("p20 to p80", timed(name, spread)),
        ("Memory", timed(name, lambda t: format_bytes(t["peak_memory_bytes"]))),
    ]
    timings = [row["passes"][name] for row in rows if name in row["passes"]]
    for peer in dict.fromkeys(peer for timing in timings for peer in timing["ratios"]):
        columns.append((f"x {_SHORT.get(peer, peer)}", timed(name, ratio_to(peer))))
    known = {key for row in rows for key in row["extra"]}
    described = _EXTRA.get(name, ())
    columns += [(title, extra(key, show)) for key, title, show in described if key in known]
    return table_of(f"{shape}: {PASS_TITLES[name]}", columns, rows)


def _growth_table(growth: Sequence[Mapping[str, Any]], axis: str) -> BenchTable:
    """Show measured and claimed exponents, and crossovers with softmax."""
    passes = list(dict.fromkeys(entry["pass"] for entry in growth))
    headers = ["Name", "Claimed exponent"]
    for name in passes:
        headers += [f"Exponent, {PASS_TITLES[name]}", f"faster than softmax from {AXES[axis]}"]
    by_key: dict[Key, list[Mapping[str, Any]]] = {}
    for entry in growth:
        by_key.setdefault(key_of(entry), []).append(entry)
    rows = []
    for entries in by_key.values():
        claimed = entries[0]["claimed_exponent"]
        cells = [shown_name(entries[0]), MISSING if claimed is None else f"{claimed:g}"]
        for entry in entries:
            cells += [_exponent_text(entry), crossover_text(entry["crossover"])]
        rows.append(cells)
    return BenchTable(f"growth with {AXES[axis]}, and the crossover with softmax", headers, rows)


def _exponent_text(entry: Mapping[str, Any]) -> str:
    fit = entry["fit"]
    if fit is None:
        return MISSING
    mark = " (above the claim)" if entry["contradicts_claim"] else ""
    return f"{fit['exponent']:.2f} ± {fit['standard_error']:.2f}{mark}"


def _tables_by_axis(rows: Sequence[StoredRow], axis: str) -> list[BenchTable]:
    """Show times, ratios and memory by layer and N (or C)."""
    forward, both = "forward", "forward_backward"
    columns: list[tuple[str, str, Show]] = [
        (f"forward, {_MILLISECONDS}", forward, time_and_ratio(_SOFTMAX)),
        ("forward, peak memory", forward, _memory),
        (f"forward and backward, {_MILLISECONDS}", both, time_and_ratio(_SOFTMAX)),
        ("forward and backward, x two linear maps", both, ratio_to(_MAPS)),
        ("forward and backward, peak memory", both, _memory),
    ]
    return [by_axis(title, timed(name, show, status), rows, axis) for title, name, show in columns]


def _ratio_table(pairs: Sequence[PeerRatio], axis: str) -> BenchTable:
    """Compare mixers with packages: one row per pair, one column per N (or C)."""
    cells = {
        (f"{pair.mixer} / {pair.package}", pair.shape[axis]): f"{format_rate(pair.time)} "
        f"({format_rate(pair.low)} to {format_rate(pair.high)}), {format_rate(pair.memory)}"
        for pair in pairs
    }
    title = "forward and backward, ours / the package's: time (by its spread), peak memory"
    return pivot(title, cells, axis)


def _differ_in_tokens(rows: Sequence[StoredRow]) -> bool:
    sizes = {tuple(n for axis, n in row["shape"].items() if axis != "tokens") for row in rows}
    return len(sizes) == 1 and len({row["shape"]["tokens"] for row in rows}) > 1


def _model_tables_by_tokens(rows: Sequence[StoredRow]) -> list[BenchTable]:
    """Show times, ratios, shares of kernels and memory.

    One row per model, one column per N.
    """
    shares = {"forward": "forward_kernel_share", "training_step": "kernel_share"}

    def time_and_share(name: str) -> Show:
        time, share = timed(name, time_and_ratio(_SOFTMAX), status), extra(shares[name], _whole)
        return lambda row: f"{time(row)}, {share(row)}" if row["passes"] else time(row)

    return [
        by_axis(f"{PASS_TITLES[name]}, {title}", cell, rows, "tokens")
        for name in shares
        for title, cell in (
            (f"{_MILLISECONDS}, % in kernels", time_and_share(name)),
            ("peak memory", timed(name, _memory)),
        )
    ]


def _whole(fraction: float) -> str:
    return f"{100 * fraction:.0f} %"


def _tables_by_context(rows: Sequence[StoredRow]) -> list[BenchTable]:
    """Show the time of a decoding step, its ratio, and the state.

    One row per mixer, one column per context.
    """
    state = extra("state_bytes", format_bytes)
    return [
        by_axis(
            "one more token, ms (x softmax in place)",
            timed("step", time_and_ratio(_IN_PLACE), status),
            rows,
            "tokens",
        ),
        by_axis("state", state, rows, "tokens"),
    ]


def _tables_of_processes(rows: Sequence[StoredRow], processes: int) -> list[BenchTable]:
    """Compare all processes with one process, and bytes with the formula.

    One row per mixer, one column per N.
    """
    share = f"{processes} processes / one"
    columns: list[tuple[str, Show]] = [
        (
            f"forward and backward, ms: {share}",
            _beside_alone(lambda t: milliseconds(t["p50"])),
        ),
        (f"peak memory of a process: {share}", _beside_alone(_memory)),
        ("bytes sent for a token, forward: counted / formula", _sent_per_token),
    ]
    return [by_axis(title, cell, rows, "tokens") for title, cell in columns]


def _beside_alone(show: Show) -> Show:
    """Show a pass of all processes and of one process.

    An unmeasured row shows its status.
    """
    ours, alone = timed("forward_backward", show), timed("alone", show)
    return lambda row: f"{ours(row)} / {alone(row)}" if row["passes"] else status(row)


def _sent_per_token(row: StoredRow) -> str:
    found = row["extra"]
    if "sent_bytes" not in found:
        return MISSING
    tokens = row["shape"]["batch"] * row["shape"]["tokens"] / found["processes"]
    counts = (found[key] / tokens for key in ("sent_bytes", "expected_bytes"))
    return " / ".join(format_rate(count) if count else "0" for count in counts)


def _tables_beside_printed(
    rows: Sequence[StoredRow], printed: Mapping[str, Mapping[str, Any]]
) -> list[BenchTable]:
    """Show measured and reported values: one row per model, one column per N."""
    training, forward = "training_step", "forward"
    measures: list[tuple[str, str, str, Show]] = [
        ("training, steps/s", training, training, _per_second),
        ("inference, steps/s", forward, forward, _per_second),
        ("training, peak memory, GB", training, "memory", _gigabytes),
    ]
    tables = []
    for title, name, figure, show in measures:
        ours = timed(name, show, status)
        cells = {
            (row["name"], n): f"{ours(row)} / {_printed(printed[row['name']][figure], n)}"
            for row in rows
            for n in [row["shape"]["tokens"]]
        }
        table = pivot(f"{title}: ours / printed (other code, other machine)", cells, "tokens")
        table.headers.insert(1, "Printed as")
        for line in table.rows:
            line.insert(1, str(printed[line[0]]["title"]))
        tables.append(table)
    return tables


def _printed(figures: Mapping[str, float | None], tokens: int) -> str:
    if str(tokens) not in figures:
        return MISSING
    value = figures[str(tokens)]
    return "OOM" if value is None else f"{value:.2f}"


def _per_second(timing: Mapping[str, Any]) -> str:
    return format_rate(1 / timing["p50"])


def _gigabytes(timing: Mapping[str, Any]) -> str:
    return f"{timing['peak_memory_bytes'] / 1e9:.2f}"


def _memory(timing: Mapping[str, Any]) -> str:
    return format_bytes(timing["peak_memory_bytes"])


def machine(result: Mapping[str, Any]) -> str:
    """Describe the machine: the GPU, or the CPU with cores and threads."""
    made_in = result["environment"]
    if result["settings"]["device"] == "cpu":
        made_in = {**made_in, "hardware": {**made_in["hardware"], "gpu": None}}
    return describe_hardware(made_in)


def _caption(result: Mapping[str, Any]) -> str:
    made_in = result["environment"]
    commit = (made_in["git_commit"] or "unknown")[:12]
    return (
        f"{machine(result)}, {result['settings']['dtype']}, torch {made_in['libraries']['torch']}, "
        f"{made_in['time'][:10]}, commit {commit}"
        f"{' with changes' if made_in['git_dirty'] else ''}, "
        f"{format_duration(result['wall_seconds'])}: `{made_in['command']}`"
    )


# Columns that only some passes have: key of `Row.extra`, header and format.
_EXTRA: Mapping[str, tuple[tuple[str, str, Show], ...]] = {
    "forward": (
        ("package_calls", "Calls in rifflemix", format_count),
        ("forward_samples_per_second", "Samples/s", format_rate),
        ("forward_kernel_share", "In kernels, %", format_percent),
    ),
    "training_step": (
        ("samples_per_second", "Samples/s", format_rate),
        ("forward_samples_per_second", "Inference, samples/s", format_rate),
        ("tokens_per_second", "Tokens/s", format_rate),
        ("kernel_share", "In kernels, %", format_percent),
        ("parameters", "Parameters", format_count),
        ("printed_seconds", "Paper's, ms", lambda seconds: milliseconds(seconds)),
        ("printed_memory_bytes", "Paper's memory", format_bytes),
    ),
}
