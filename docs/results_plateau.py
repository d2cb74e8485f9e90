"""The question of docs/results.md about the commonest answer, which mixers leave late or never."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from results_common import Answer, by_time, listed, read
from results_host import host_files, left_above, left_at, mixer_of
from results_pictures import Mark, Row, dots


def plateau() -> Answer:
    """Shorter ListOps beside the rows that were run in full, in one host."""
    shorter, full = by_time("plateau-*.json"), host_files()
    lines = [_line(read(path), row) for path in shorter for row in read(path)["rows"]]
    above = left_above()
    lines += [_line_in_full(read(path)) for path in full]
    lines.sort(key=lambda line: (line["positions"], line["left"] or line["steps"], line["mixer"]))
    lengths = sorted({line["positions"] for line in lines})
    drawn: list[Row] = []
    for length in lengths:
        of = [line for line in lines if line["positions"] == length]
        drawn.append(Row(f"{length:,} positions"))
        drawn += [_drawn([line for line in of if line["form"] == form])
                  for form in dict.fromkeys(line["form"] for line in of)]  # fmt: skip
    commands = [read(path)["environment"]["command"] for path in shorter]
    return Answer(
        "When do mixers leave the commonest answer on ListOps?",
        _says(lines, lengths, read(full[0])["recipe"]["train"]["warmup_steps"], above),
        "plateau",
        dots(f"Step of the first validation accuracy above {100 * above:.0f} %", drawn),
        lines,
        [*shorter, *full],
        [*(f"python benchmarks/{command}" for command in commands),
         *(read(path)["command"] for path in full)],
    )  # fmt: skip


def _line(result: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    mixer = row["form"].partition("/")[0]
    return {
        "form": _form(mixer, row["mixer_options"]),
        "mixer": mixer,
        "positions": result["length"],
        **{key: row[key] for key in ("seed", "left", "steps")},
    }


def _line_in_full(result: Mapping[str, Any]) -> dict[str, Any]:
    settings = result["recipe"]["model_settings"]
    precision = result["result"]["precision"]
    form = _form(mixer_of(result), settings.get("mixer_options", {}))
    return {
        "form": form if precision == "no" else f"{form}, {precision}",
        "mixer": mixer_of(result),
        "positions": settings["max_length"],
        "seed": result["seed"],
        "left": left_at(result),
        "steps": result["steps"],
    }


def _form(mixer: str, options: Mapping[str, Any]) -> str:
    landmarks = options.get("num_landmarks")
    return mixer if landmarks is None else f"{mixer}, {landmarks} landmarks"


def _drawn(lines: list[dict[str, Any]]) -> Row:
    """Disks where seeds left, rings where they ended without."""
    marks = [Mark(line["left"] or line["steps"], "main" if line["left"] else "other")
             for line in lines]  # fmt: skip
    steps = [f"{line['left']:,}" if line["left"] else "never" for line in lines]
    words = steps[0] if len(set(steps)) == 1 else listed(steps)
    if len(steps) > 3:  # no room for more
        words = f"{steps[0]} to {steps[-1]}"
    return Row(lines[0]["form"], tuple(marks), words)


def _says(
    lines: Sequence[Mapping[str, Any]], lengths: Sequence[int], warmup: int, above: float
) -> str:
    short, full = lengths[0], lengths[-1]
    there, here = _left(lines, short), _left(lines, full)
    never = {mixer for mixer, steps in here.items() if not any(steps)}
    partly = [
        f"{sum(map(bool, steps))} of {len(steps)} trainings of {mixer}"
        for mixer, steps in sorted(here.items())
        if any(steps) and not all(steps)
    ]
    by_chance = (
        f"At full length chance decides for some: {listed(partly)} left it. " if partly else ""
    )
    tried = never & there.keys()
    freed = sorted(mixer for mixer in tried if any(there[mixer]))
    softmax = sorted(filter(None, here["softmax"]))
    return (
        "In the host of Table 5 models first predict the commonest answer. They leave this "
        f"plateau while the learning rate, which falls from step {warmup:,} on, is still high, or "
        f"never. Long inputs delay that: with {short:,} positions instead of {full:,}, softmax "
        f"attention leaves it at step {there['softmax'][0]:,}, not at {softmax[0]:,} to "
        f"{softmax[-1]:,}. {by_chance}Of the mixers that never left it at full length, "
        f"{listed(freed) or 'none'} do with {short:,} positions, and "
        f"{listed(sorted(tried - set(freed))) or 'none'} still not. {_landmarks(lines, short)}"
        f"Disks are the first evaluation above {100 * above:.0f} %, rings the end of a training "
        "without one; bf16 is in the name."
    )


def _left(lines: Iterable[Mapping[str, Any]], length: int) -> dict[str, list[int | None]]:
    """Mixer -> the step at which each of its trainings left; None where it never did."""
    left: dict[str, list[int | None]] = {}
    for line in lines:
        if line["positions"] == length:
            left.setdefault(line["mixer"], []).append(line["left"])
    return left


def _landmarks(lines: Iterable[Mapping[str, Any]], short: int) -> str:
    """What more landmarks change."""
    steps = [
        f"with {line['form'].partition(', ')[2]} at {line['left']:,}"
        for line in lines
        if (line["mixer"], line["positions"]) == ("nystromformer", short) and line["left"]
    ]
    return f"Nystromformer leaves it {listed(steps)}. " if steps else ""
