"""The page "What can each mixer do?": finished runs of a recall suite as a table, plots and text.

python docs/build/build.py recall-data FOLDER   store the finished runs of a suite
python docs/build/build.py recall               write the page and its plots
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import fmean

from charts import Curve, curves
from paths import ASSETS, DATA, DOCS, link, listed

from rifflemix.lab.comparison.pages.table import all_lengths
from rifflemix.lab.comparison.records import Results, of_mixer, read_results
from rifflemix.text import table_lines

TABLE, PAGE = DATA / "recall.csv", DOCS / "recall.md"
_LENGTHS = ASSETS / "recall-lengths.svg"


@dataclass(frozen=True)
class Tested:
    """Test accuracy of a run at one length."""

    task: str
    mixer: str
    title: str
    seed: int
    lr: float
    max_steps: int
    parameters: int
    state_size: int
    length: int
    test_length: int
    accuracy: float
    solved_at: float
    command: str
    commit: str
    cpu: str


def main(words: Sequence[str]) -> int:
    """Store the finished runs of the comparisons in a folder of a suite."""
    (folder,) = words
    found = [row for path in sorted(Path(folder).glob("*/results.json")) for row in _rows(path)]
    kinds = [field.name for field in fields(Tested)]
    text = io.StringIO()
    writer = csv.DictWriter(text, kinds, lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in found)
    TABLE.write_text(text.getvalue(), encoding="utf-8")
    print(f"{TABLE.name}: {len(found)} rows")
    return 0


def _rows(path: Path) -> Iterable[Tested]:
    results = read_results(path)
    least = results.task.solved_at
    if least is None:
        raise ValueError(f"{path}: expected a task that counts solutions, got {results.task.name}")
    base = results.task.options["length"]
    lengths = all_lengths(results) or [base]
    for mixer in results.mixers:
        for run in of_mixer(results.runs, mixer.name):
            for length in lengths:
                name = "accuracy" if length == base else f"length_{length}_accuracy"
                yield Tested(
                    path.parent.name, mixer.name, mixer.title, run.seed, _rate(results, mixer.name),
                    run.steps, run.parameters, mixer.state_size or 0, base, length,
                    run.metrics("test")[name], least, run.environment.command,
                    str(run.environment.git_commit), run.environment.hardware.describe_cpu(),
                )  # fmt: skip


def _rate(results: Results, mixer: str) -> float:
    if results.setup.train.lr is not None:
        return results.setup.train.lr
    (chosen,) = [one.choice for one in results.mixers if one.name == mixer]
    return 0.0 if chosen is None else float(chosen["lr"])


def read_table() -> list[Tested]:
    """Read the table."""
    kinds = {field.name: {"int": int, "float": float}.get(str(field.type), str)
             for field in fields(Tested)}  # fmt: skip
    with TABLE.open(encoding="utf-8", newline="") as file:
        return [
            Tested(**{name: kinds[name](value) for name, value in row.items()})
            for row in csv.DictReader(file)
        ]


def files() -> dict[Path, str]:
    """Return the page and its plots."""
    rows = read_table()
    return {
        _LENGTHS: _length_plot(rows),
        PAGE: _page(rows),
    }


def _names(rows: Iterable[Tested]) -> dict[str, str]:
    return {row.mixer: row.title for row in rows}


def _at_training_length(rows: Iterable[Tested]) -> dict[tuple[str, str], list[Tested]]:
    """Collect the runs of each task and mixer, tested at the length of training."""
    found: dict[tuple[str, str], list[Tested]] = {}
    for row in rows:
        if row.test_length == row.length:
            found.setdefault((row.task, row.mixer), []).append(row)
    return found


def _solved(runs: Sequence[Tested]) -> int:
    return sum(run.accuracy >= run.solved_at for run in runs)


def _by_length(rows: Sequence[Tested]) -> tuple[str, list[Curve]]:
    """Return the first task with several lengths, and the mean accuracy of each mixer."""
    tasks = [row.task for row in rows if row.test_length != row.length]
    task = tasks[0] if tasks else rows[0].task
    drawn = []
    for mixer in _names(rows):
        by_length: dict[int, list[float]] = {}
        for row in rows:
            if (row.task, row.mixer) == (task, mixer):
                by_length.setdefault(row.test_length, []).append(100 * row.accuracy)
        if by_length:
            means = ((float(length), fmean(by_length[length])) for length in sorted(by_length))
            drawn.append(Curve(mixer, tuple(means)))
    return task, drawn


def _length_plot(rows: Sequence[Tested]) -> str:
    task, drawn = _by_length(rows)
    return curves(f"Test accuracy on {task} in percent, against tokens", drawn)


def _finding(rows: Sequence[Tested]) -> str:
    """Return the text alternative of the plot."""
    task, drawn = _by_length(rows)
    ends = (f"{c.name} from {c.points[0][1]:.0f} to {c.points[-1][1]:.0f} %" for c in drawn)
    (short, _), (long, _) = drawn[0].points[0], drawn[0].points[-1]
    return f"Accuracy on {task} from {short:,.0f} to {long:,.0f} tokens: {listed(list(ends))}."


def _page(rows: Sequence[Tested]) -> str:
    found, mixers = _at_training_length(rows), _names(rows)
    tasks = list(dict.fromkeys(task for task, _ in found))
    seeds = {len(runs) for runs in found.values()}
    few = min(seeds)
    upper = 1 - 0.05 ** (1 / few)
    cells = [
        [
            mixers[mixer],
            *(
                f"{_solved(runs)} of {len(runs)} ({100 * fmean(r.accuracy for r in runs):.1f})"
                if (runs := found.get((task, mixer)))
                else "-"
                for task in tasks
            ),
            f"{max(runs[0].state_size for (_, m), runs in found.items() if m == mixer):,}",
        ]
        for mixer in mixers
    ]
    headers = ["Mixer", *tasks, "State, numbers"]
    commands = list(dict.fromkeys(row.command for row in rows))
    return "\n".join(
        [
            "# What can each mixer do?",
            "",
            "Generated tasks with known answers show which abilities a mixer has: to copy, or to "
            "recall a value by its key (`mqar`).",
            "",
            f"A seed solved a task if its test accuracy is at least {100 * rows[0].solved_at:.0f} "
            "%. In brackets: mean test accuracy in percent. The state is the number of values "
            "that a stream stores per sequence at the longest test length, in all layers.",
            "",
            *table_lines(headers, cells, range(1, len(headers))),
            "",
            *(f"- {sentence}" for sentence in _sentences(found, mixers)),
            "",
            f"Every mixer has {few} seed{'s' if few > 1 else ''} per task or more. "
            f"0 of {few} solved seeds still allow a share of up to {100 * upper:.0f} % "
            "(one-sided 95 % bound), so few seeds cannot tell such mixers apart.",
            "",
            "## Accuracy against length",
            "",
            f"![{_finding(rows)}]({link(PAGE, _LENGTHS)})",
            "",
            "## Reproduce",
            "",
            "```",
            *commands,
            "python docs/build/build.py recall-data runs/recall-small",
            "python docs/build/build.py recall",
            "```",
            "",
            "The table leaves out tasks of this command without a finished comparison. "
            f"Processor: {rows[0].cpu}. All numbers are in [data/recall.csv](data/recall.csv).",
            "",
        ]
    )


def _sentences(
    found: Mapping[tuple[str, str], Sequence[Tested]], mixers: Mapping[str, str]
) -> list[str]:
    """Describe each mixer by the tasks that its seeds solved."""
    sentences = []
    for mixer, title in mixers.items():
        own = {task: runs for (task, name), runs in found.items() if name == mixer}
        every = [task for task, runs in own.items() if _solved(runs) == len(runs)]
        some = [task for task, runs in own.items() if 0 < _solved(runs) < len(runs)]
        no = [task for task, runs in own.items() if not _solved(runs)]
        parts = [
            f"{words} {listed(names)}"
            for words, names in (
                ("solved", every), ("solved in some seeds", some), ("did not solve", no)
            )
            if names
        ]  # fmt: skip
        sentences.append(f"{title} {'; '.join(parts)}.")
    return sentences
