"""The blocks and the plot of docs/recall.md, "What can each mixer do?".

python docs/build/build.py recall-data FOLDER   store the finished runs of a suite
python docs/build/build.py recall blocks        write the plot and the page
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from charts import Curve, curves
from common import ASSETS, DATA, link, listed

from rifflemix.lab.comparison.pages.table import all_lengths
from rifflemix.lab.comparison.records import of_mixer, read_results
from rifflemix.text import table_lines

TABLE, PLOT = DATA / "recall.csv", ASSETS / "recall-lengths.svg"


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


def files() -> dict[Path, str]:
    """Return the plot."""
    task, drawn = by_length()
    return {PLOT: curves(f"Test accuracy on {task} in percent, against tokens", drawn)}


def by_length() -> tuple[str, list[Curve]]:
    """Return the first task with several lengths, and the mean accuracy of each mixer."""
    rows = read_table()
    longer = rows[rows.test_length != rows.length]
    task = (longer if len(longer) else rows).task.iloc[0]
    rows = rows[rows.task == task].assign(percent=100 * rows.accuracy)
    return task, [
        Curve(mixer, tuple(of.groupby("test_length").percent.mean().items()))
        for mixer, of in rows.groupby("mixer", sort=False)
    ]


def plot(page: Path, _: list[str]) -> str:
    """Write the plot of accuracy against length."""
    task, drawn = by_length()
    ends = [f"{c.name} from {c.points[0][1]:.0f} to {c.points[-1][1]:.0f} %" for c in drawn]
    (short, _), (long, _) = drawn[0].points[0], drawn[0].points[-1]
    alt = f"Accuracy on {task} from {short:,.0f} to {long:,.0f} tokens: {listed(ends)}."
    return f"![{alt}]({link(page, PLOT)})"


def table(page: Path, _: list[str]) -> str:
    """Write the solved seeds of each mixer as a table, in words, and what they show."""
    found = summary()
    tasks = list(found.task.unique())
    cells, sentences = [], []
    for title, rows in found.groupby("title", sort=False):
        by_task = {of.task: of for of in rows.itertuples()}
        counts = [
            f"{of.solved} of {of.seeds} ({100 * of.accuracy:.1f})" if of else "-"
            for of in map(by_task.get, tasks)
        ]
        cells.append([title, *counts, f"{rows.state_size.max():,}"])
        every, none = rows.solved == rows.seeds, rows.solved == 0
        parts = {"solved": every, "solved in some seeds": ~every & ~none, "did not solve": none}
        words = [f"{verb} {listed(list(rows.task[of]))}" for verb, of in parts.items() if of.any()]
        sentences.append(f"- {title} {'; '.join(words)}.")
    few, least = found.seeds.min(), read_table().solved_at[0]
    headers = ["Mixer", *tasks, "State, numbers"]
    return "\n".join([
        f"A seed solved a task if its test accuracy is at least {100 * least:.0f} %. In brackets: "
        "mean test accuracy in percent. The state is the number of values that a stream stores per "
        "sequence at the longest test length, in all layers.",
        "",
        *table_lines(headers, cells, range(1, len(headers))),
        "",
        *sentences,
        "",
        f"Every mixer has {few} seed{'s' if few > 1 else ''} per task or more. 0 of {few} solved "
        f"seeds still allow a share of up to {100 * (1 - 0.05 ** (1 / few)):.0f} % (one-sided "
        "95 % bound), so few seeds cannot tell such mixers apart.",
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
        "The table leaves out tasks of this command without a finished comparison. "
        f"Processor: {rows.cpu[0]}. All numbers are in [data/recall.csv](data/recall.csv).",
    ])  # fmt: skip


WRITERS = {"recall-table": table, "recall-plot": plot, "recall-commands": commands}
