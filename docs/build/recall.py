"""The blocks and pictures of docs/recall.md, "What can each mixer do?".

python docs/build/build.py recall-data FOLDER   store the finished runs of a suite
python docs/build/build.py recall blocks        write the pictures and the page
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from charts import Curve, curves, heat, scatter
from common import ASSETS, DATA, link, listed

from rifflemix.lab.comparison.pages.table import all_lengths
from rifflemix.lab.comparison.records import of_mixer, read_results
from rifflemix.text import Markdown, code, table_lines

TABLE = DATA / "recall.csv"
SHOWN = "mqar"
"""Task of the plots against length and state."""
MEANINGS = {
    "copying": "repeat a string",
    "in_context_recall": "recall a value by its key in every place",
    "induction": "recall what followed a token",
    "mqar": "recall several values by their keys",
    "selective_copying": "repeat the tokens between blanks",
    "state_tracking": "multiply in a group, at every position",
}


def main(words: Sequence[str]) -> int:
    """Store the finished runs of the comparisons in a folder of a suite."""
    (folder,) = words
    rows = [row for path in sorted(Path(folder).glob("*/results.json")) for row in _rows(path)]
    pd.DataFrame(rows).to_csv(TABLE, index=False, lineterminator="\n")
    print(f"{TABLE.name}: {len(rows)} rows")
    return 0


def _rows(path: Path) -> Iterable[dict[str, Any]]:
    """Yield the test accuracy of every run at every length."""
    results = read_results(path)
    if results.task.solved_at is None:
        raise ValueError(f"{path}: expected a task that counts solutions, got {results.task.name}")
    base = results.task.options["length"]
    for mixer in results.mixers:
        rate = results.setup.train.lr
        if rate is None:
            rate = float(mixer.choice["lr"]) if mixer.choice else 0.0
        for run in of_mixer(results.runs, mixer.name):
            for length in all_lengths(results) or [base]:
                name = "accuracy" if length == base else f"length_{length}_accuracy"
                yield {
                    "task": path.parent.name,
                    "mixer": mixer.name,
                    "title": mixer.title,
                    "seed": run.seed,
                    "lr": rate,
                    "max_steps": run.steps,
                    "parameters": run.parameters,
                    "state_size": mixer.state_size or 0,
                    "length": base,
                    "test_length": length,
                    "accuracy": run.metrics("test")[name],
                    "solved_at": results.task.solved_at,
                    "command": run.environment.command,
                    "commit": run.environment.git_commit,
                    "cpu": run.environment.hardware.describe_cpu(),
                }


def read_table() -> pd.DataFrame:
    """Read one line per run and test length."""
    return pd.read_csv(TABLE)


def summary() -> pd.DataFrame:
    """Return one line per task and mixer, tested at the length of training."""
    rows = read_table()
    rows = rows[rows.test_length == rows.length]
    rows = rows.assign(solved=rows.accuracy >= rows.solved_at)
    return rows.groupby(["task", "mixer"], sort=False, as_index=False).agg(
        title=("title", "first"),
        seeds=("seed", "size"),
        solved=("solved", "sum"),
        accuracy=("accuracy", "mean"),
        state_size=("state_size", "first"),
    )


def _cells() -> dict[str, dict[str, Any]]:
    """Return the row of `summary` of each mixer and task."""
    cells: dict[str, dict[str, Any]] = {}
    for of in summary().itertuples():
        cells.setdefault(of.mixer, {})[of.task] = of
    return cells


def _heat() -> tuple[str, str]:
    """Draw the accuracies and the solved seeds; return the title and the picture."""
    found = summary()
    tasks, rows = list(found.task.unique()), {}
    for mixer, by_task in _cells().items():
        state = max(of.state_size for of in by_task.values())
        cells = [
            (of.accuracy, f"{100 * of.accuracy:.0f} ({of.solved}/{of.seeds})") if of else (0.0, "-")
            for of in map(by_task.get, tasks)
        ]
        rows[mixer] = [*cells, (0.0, f"{state:,}")]
    every = found.assign(every=found.solved == found.seeds).groupby("task", sort=False).every
    counts = [f"{of.sum()} of {len(of)} mixers solve {task}" for task, of in every]
    title = f"{listed(counts)} in all seeds"
    return title, heat(title, [*tasks, "state"], rows)


def _lengths() -> tuple[str, str]:
    """Draw the mean accuracies on `SHOWN` against the length; return the title and the picture."""
    rows = read_table()
    rows = rows[rows.task == SHOWN].assign(percent=100 * rows.accuracy)
    drawn = [
        Curve(mixer, tuple(of.groupby("test_length").percent.mean().items()))
        for mixer, of in rows.groupby("mixer", sort=False)
    ]
    longest = drawn[0].points[-1][0]
    keeping = [curve.name for curve in drawn if curve.points[-1][1] >= 90]
    title = (
        f"Accuracy on {SHOWN} in percent, against tokens: {listed(keeping) or 'no mixer'} "
        f"keep{'' if len(keeping) > 1 else 's'} 90 % up to {longest:,.0f}"
    )
    return title, curves(title, drawn)


def _states() -> tuple[str, str]:
    """Draw the accuracies on `SHOWN` against the state; return the title and the picture."""
    found = summary()
    found = found[found.task == SHOWN]
    points = [(of.mixer, of.state_size, 100 * of.accuracy) for of in found.itertuples()]
    rank = found.accuracy.rank().corr(found.state_size.rank())
    title = f"Accuracy on {SHOWN} and state size: rank correlation {rank:.2f}"
    labels = "numbers in the state, all layers", f"accuracy on {SHOWN}, %"
    return title, scatter(title, points, *labels, decades=True)


_PICTURES = {"recall": _heat, "recall-lengths": _lengths, "recall-states": _states}


def files() -> dict[Path, str]:
    """Return the pictures."""
    return {ASSETS / f"{name}.svg": draw()[1] for name, draw in _PICTURES.items()}


def picture(page: Path, words: list[str]) -> str:
    """Write a picture with its title."""
    (name,) = words
    return f"![{_PICTURES[name]()[0]}.]({link(page, ASSETS / f'{name}.svg')})"


def sentences(page: Path, _: list[str]) -> str:
    """Write which mixers solved each task, and what the seeds can resolve."""
    table = []
    for task, rows in summary().groupby("task", sort=False):
        every, none = rows.solved == rows.seeds, rows.solved == 0
        solvers = (", ".join(map(code, rows.mixer[of])) for of in (every, ~every & ~none, none))
        table.append(
            [Markdown(f"{code(str(task))}: {MEANINGS[str(task)]}"), *map(Markdown, solvers)]
        )
    headers = ["task", "solved in all seeds", "in some seeds", "in no seed"]
    lines = [*table_lines(headers, table), ""]
    cells = _cells()
    for name, by_task in cells.items():
        hybrid = cells.get(f"{name}_hybrid", {})
        ends = {task: (100 * of.accuracy, 100 * hybrid[task].accuracy)
                for task, of in by_task.items() if task in hybrid}  # fmt: skip
        changes = [f"{task} from {a:.0f} to {b:.0f} %" for task, (a, b) in ends.items()
                   if abs(a - b) >= 1]  # fmt: skip
        if changes:
            lines.append(
                "- With softmax in the second layer, the accuracy changes: "
                f"`{name}` on {listed(changes)}."
            )
    few = summary().seeds.min()
    most = 100 * (1 - 0.05 ** (1 / few))
    return "\n".join([
        *lines,
        f"- If 0 of {few} seeds solve a task, up to {most:.0f} % of all seeds can still solve it "
        "(one-sided 95 % bound).",
    ])  # fmt: skip


def commands(page: Path, _: list[str]) -> str:
    """Write the commands that made the results, and their processor."""
    rows = read_table()
    build = "python docs/build/build.py"
    return "\n".join([
        "```",
        *rows.command.unique(),
        f"{build} recall-data runs/recall-small",
        f"{build} recall",
        "```",
        "",
        "Unfinished tasks are left out. The folders of all tasks belong into `runs/recall-small`. "
        f"Processor: {rows.cpu[0]}. All numbers are in [data/recall.csv](data/recall.csv).",
    ])  # fmt: skip


WRITERS = {"recall-picture": picture, "recall-sentences": sentences, "recall-commands": commands}
