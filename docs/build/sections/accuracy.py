"""Sections on the accuracy of mixers: the small suite, every mixer, converted models."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from charts import Mark, Row, dots, scatter
from common import Section, listed, results_of, table_of
from store import FOLDER, Result, load, names, newest

from rifflemix.json_values import encode
from rifflemix.lab.comparison.decisions import Decisions
from rifflemix.lab.comparison.merging import merged_results
from rifflemix.lab.comparison.rows import Row as Compared
from rifflemix.lab.comparison.rows import Table
from rifflemix.lab.comparison.suites.catalog import get_suite
from rifflemix.lab.comparison.suites.report import Overall, SuiteReport
from rifflemix.lab.report.units import format_duration
from rifflemix.text import bold, bullet_lines, code, table_lines

SUITE, EVERY_MIXER, WITHOUT_MIXING = "lra-small", "every-mixer", "identity"
_SCORES = (
    "Bold: no other mixer is significantly better on the task, and another mixer is worse. "
    "Speed and memory are geometric means over tasks, relative to softmax attention."
)


def suite_tasks() -> dict[str, Result]:
    """Return the comparison of each task of the suite."""
    tasks = load(f"suites/{SUITE}").content["tasks"]
    return {name: load(f"suites/{SUITE}/{name}") for name in tasks}


def which_mixer() -> Section:
    """Rank the mixers over the tasks of the suite."""
    whole, tasks = load(f"suites/{SUITE}"), suite_tasks()
    report = SuiteReport({name: table_of(result.name) for name, result in tasks.items()})
    contents = {name: result.content for name, result in tasks.items()}
    parts = [of["command"] for of in contents.values() if "merged" not in of]
    in_table = ("Less training memory", "Slower to train")
    answers = [answer for answer in report.answers if not answer.startswith(in_table)]
    return Section(
        "Small suite",
        "\n".join([*bullet_lines(answers), "", _how(whole.content, contents)]),
        "suite",
        [_line(mixer, report) for mixer in report.mixers],
        [whole, *tasks.values()],
        commands=parts or [of["command"] for of in contents.values()],
        below=_table(report),
    )


def _table(report: SuiteReport) -> str:
    """Write a table of accuracy, speed and memory, sorted by rank."""
    accuracy = next(part for part in report.parts if part.heading == "Accuracy, %")
    by_title = {title.text: cells for title, *cells in accuracy.rows}
    headers = ["Mixer", *(f"{name}, %" for name in report.tables), "Speed", "Memory"]
    rows = [
        [
            mixer.title,
            *(bold(cell.text) if cell.best else cell.text for cell in by_title[mixer.title]),
            f"{mixer.speed:.2f}x",
            f"{mixer.memory:.2f}x",
        ]
        for mixer in sorted(report.mixers, key=lambda mixer: mixer.standing.rank)
    ]
    return "\n".join([*table_lines(headers, rows, range(1, len(headers))), "", _SCORES])


def _line(mixer: Overall, report: SuiteReport) -> dict[str, Any]:
    line: dict[str, Any] = {
        "mixer": mixer.name,
        "title": mixer.title,
        "rank": mixer.standing.rank,
        "rank_low": mixer.standing.low,
        "rank_high": mixer.standing.high,
        "x_softmax_speed": mixer.speed,
        "x_softmax_memory": mixer.memory,
    }
    for name, table in report.tables.items():
        (score,) = (row.test for row in table.rows if row.name == mixer.name)
        line |= {f"{name}_test": score.mean, f"{name}_std": score.std}
    return line


def _how(whole: Mapping[str, Any], tasks: Mapping[str, Any]) -> str:
    """Describe the runs, and name the tasks of the suite that were not run."""
    missing = [name for name in get_suite(SUITE).tasks if name not in tasks]
    trainings = sum(len(content["tuning"]["trials"]) for content in tasks.values())
    spent = math.fsum(task["wall_seconds"] for task in whole["tasks"].values())
    return (
        f"The table is sorted by mean rank. {trainings} "
        f"trainings on one thread took {format_duration(spent)}. Speeds are approximate, since the "
        f"machine did other work, too.{f' Not run yet: {listed(missing)}.' if missing else ''}"
    )


def every_mixer() -> Section:
    """Compare every mixer with a model without mixing, on the images of the suite."""
    found = [suite_tasks()["image"], *map(load, sorted(names(f"{EVERY_MIXER}/*")))]
    merged = merged_results({Path(result.name): results_of(result) for result in found}, FOLDER)
    content = encode(merged)
    finished = [row for row in Table(merged).rows if row.test is not None]
    rows = sorted(finished, key=lambda row: -row.test.mean)
    (without,) = (row for row in rows if row.name == WITHOUT_MIXING)
    scores = {row.name: row.test for row in rows}
    decided = Decisions(scores, higher_is_better=True, baseline=WITHOUT_MIXING)
    drawn, table, is_loss = [], [], []
    for row in rows:
        if row is without:
            continue
        of = decided.from_baseline(row.name, WITHOUT_MIXING)
        mean, low, high = (100 * getattr(of.difference, key) for key in ("mean", "low", "high"))
        if of.is_shown:
            is_loss.append(of.is_loss)
        mark = Mark(mean, "main" if of.is_shown else "other", low, high)
        drawn.append(Row(row.name, (mark,), f"{row.test} %"))
        compared = {"above": mean, "above_low": low, "above_high": high}
        table.append(_scores(row) | compared | {"above_p": of.probability})
    task, rates = content["task"], len(content["tuning"]["grid"]["lr"])
    text = (
        f"Of {len(drawn)} tuned mixers on {task['title']} (N = {task['max_length']}), "
        f"{is_loss.count(False)} are significantly better than a model without mixing and "
        f"{is_loss.count(True)} worse. A model without mixing reaches "
        f"{without.test} %, and {rows[0].title} {rows[0].test} %. Each mixer has the best of "
        f"{rates} learning rates and {len(content['seeds'])} seeds."
    )
    title = "Test accuracy above a model without mixing, points"
    return Section("Every mixer on CIFAR-10", text, EVERY_MIXER, [*table, _scores(without)], found,
                   dots(title, drawn, rule=0.0))  # fmt: skip


def _scores(row: Compared) -> dict[str, Any]:
    """Return a line of a table: the scores of one mixer in a comparison."""
    line = {"result": EVERY_MIXER, "mixer": row.name, "title": row.title, "metric": row.metric}
    for split in ("test", "validation"):
        score = getattr(row, split)
        line |= {split: score.mean, f"{split}_std": score.std}
    costs = ("steps_per_second", "peak_memory_bytes", "parameters")
    return line | {"seeds": row.test.n, **{key: getattr(row, key) for key in costs}}


TRAINED_ON = "original trained on"
# Trainings of the table -> title of the column.
CONVERTED = {
    "hybrid with labels": "3 of 6 layers",
    "layers, outputs with labels": "All layers",
    "tuned, hybrid": "3 of 6 layers, fine-tuned first",
    "tuned, layers, outputs": "All layers, fine-tuned first",
}


def conversion() -> Section:
    """Compare ways to convert a trained sentence encoder, and the controls."""
    result = newest("conversion-study-*")
    content = result.content
    rows = sorted(
        content["rows"], key=lambda row: (row["mixer"] != "softmax", row["mixer"], row["steps"])
    )
    scores = pd.DataFrame(rows).set_index(["mixer", "arm", "steps", "seed"]).test_spearman
    before = scores.xs("original", level="arm").iloc[0]
    trained = scores.xs(TRAINED_ON, level="arm").droplevel("mixer")
    means = trained.groupby("steps", sort=False).mean()
    reached = [f"{mean:.3f} after {steps} steps" for steps, mean in means.items()]
    drawn, losses, means_of, seen = [], {}, {}, ""
    for (mixer, arm, steps), of_seeds in scores.groupby(["mixer", "arm", "steps"], sort=False):
        if mixer != seen:
            drawn.append(Row("the original" if mixer == "softmax" else f"softmax to {mixer}"))
            seen = mixer
        seeds = f"{len(of_seeds)} seed{'s' * (len(of_seeds) > 1)}"
        marks = tuple(map(Mark, of_seeds))
        drawn.append(Row(f"{arm}, {steps} steps, {seeds}", marks, f"{of_seeds.mean():.3f}"))
        if arm in CONVERTED:
            lost = trained[steps] - of_seeds[mixer, arm, steps]
            ends = dict.fromkeys((f"{lost.min():.3f}", f"{lost.max():.3f}"))
            losses.setdefault(mixer, {})[arm] = " to ".join(ends)
            means_of[mixer, arm] = lost.mean()
    mixer, arm = min(means_of, key=means_of.__getitem__)
    text = (
        f"The smallest loss of correlation is {losses[mixer][arm]}: {mixer}, {CONVERTED[arm]}. "
        f"The original has a rank correlation of {before:.3f} with human judgments. Trained on, "
        f"it reaches {' and '.join(reached)}. The model is all-MiniLM-L6-v2, judged by "
        "Spearman's correlation of cosines and relatedness on the 4,927 test pairs of SICK. Losses "
        "are differences to the original, trained on for as many steps. With "
        '"fine-tuned first" ("tuned" in the picture), half of the steps train the original.'
    )
    table = [[code(mixer), *(of.get(arm, "") for arm in CONVERTED)] for mixer, of in losses.items()]
    below = "\n".join(table_lines(["Mixer", *CONVERTED.values()], table, range(1, 5)))
    script, arm = "python benchmarks/", "--arms 'layers, outputs with labels'"
    commands = [
        "make trained-models",
        f"{script}conversion.py --data data --work runs/conversion --mixers csp butterfly {arm}",
        f"{script}conversion.py --data data --work runs/conversion --seeds 3 --mixers linear tssa "
        "--arms 'layers, outputs with labels' 'hybrid with labels' fine-tune 'from scratch'",
        f"{script}{content['command']}",
    ]
    heading = "Spearman correlation of each seed; the dashed line is the original"
    picture = dots(heading, drawn, before, 1.4)
    title = "Converting a trained sentence encoder"
    return Section(title, text, "conversion", rows, [result], picture, commands, below)


ALL_LAYERS, HALF = "layers, outputs with labels", "hybrid with labels"
# Training -> number of layers with the new mixer, and the words of the table.
ON_IMAGES = {
    HALF: (3, "stages"),
    ALL_LAYERS: (6, "stages"),
    "fine-tune": (6, "fine-tuning only"),
    "from scratch": (6, "from scratch"),
}


def vision_transformer() -> Section:
    """Compare conversions of a vision transformer, and the controls."""
    result = newest("conversion-vit-*")
    order = {arm: place for place, arm in enumerate(ON_IMAGES)}
    rows = sorted(
        result.content["rows"],
        key=lambda row: (row["mixer"], order.get(row["arm"], -1), row["steps"], row["seed"]),
    )
    frame = pd.DataFrame(rows)
    of_arm = frame.set_index(["arm", "steps"]).test_accuracy.groupby(level=[0, 1]).mean()
    reached = [f"{100 * of:.1f} % after {steps} steps" for steps, of in of_arm[TRAINED_ON].items()]
    kinds = ["mixer", "layers"]
    frame["layers"] = [ON_IMAGES.get(arm, (0, ""))[0] for arm in frame.arm]
    speed_ups = frame.groupby(kinds)[["speedup_64", "speedup_1024"]].median()
    table, points = [], []
    new = frame[frame.layers > 0].groupby(["mixer", "arm", "steps"], sort=False)
    for (mixer, arm, steps), of in new:
        layers, training = ON_IMAGES[arm]
        lost, faster = 100 * of.lost, speed_ups.loc[mixer, layers]
        spread = f" ({lost.min():.1f} to {lost.max():.1f})" if len(of) > 1 else ""
        staged = 100 * of[f"after_{'keep_3' if arm == HALF else 'layers'}"].mean()
        table.append([
            mixer, f"{layers} of 6", training, str(steps), str(len(of)),
            f"{lost.mean():.1f}{spread}", f"{100 * of.standard_error.mean():.1f}",
            "" if pd.isna(staged) else f"{staged:.1f}",
            f"{100 * of.validation_accuracy.mean():.1f}", *(f"{x:.1f}" for x in faster),
        ])  # fmt: skip
        if training == "stages" and steps == 320:
            points.append((f"{mixer}, {layers} of 6", faster.iloc[1], lost.mean()))
    ends = (min(points, key=lambda of: of[2]), max(points, key=lambda of: of[1]))
    least, fastest = (
        f"{name.replace(',', ' in')} layers loses {lost:.1f} points of accuracy and is {times:.1f} "
        "times as fast"
        for name, times, lost in ends
    )
    text = (
        f"At 1,024 tokens, {least} as softmax. {fastest}. The original reaches "
        f"{100 * of_arm['original', 0]:.1f} % on the test images of CIFAR-10. Trained on, it "
        f"reaches {listed(reached)} of {result.content['batch_size']} images. Losses are "
        "differences to this control with the same seed and steps. Speed-ups are medians for one "
        "image on one thread; images of CIFAR-10 have 64 tokens."
    )
    headers = ["Mixer", "Layers", "Training", "Steps", "Seeds", "Lost, points (range of seeds)",
               "Paired standard error of one seed",
               "Validation after the stage layers, %", "Validation at the end, %",
               *(f"Speed-up, {n} tokens" for n in ("64", "1,024"))]  # fmt: skip
    script = "python benchmarks/conversion_vit.py --data data --work runs/conversion-vit"
    picture = scatter("Accuracy lost against speed gained", points, "Speed-up at 1,024 tokens",
                      "Points of accuracy lost")  # fmt: skip
    return Section(
        "Converting a vision transformer", text, "conversion-vit", rows, [result], picture,
        [f"{script} --arms '{HALF}' '{ALL_LAYERS}'",
         f"{script} --seeds 1",
         f"{script} --seeds 1 --steps 640 --mixers linear --arms '{HALF}'"],
        "\n".join(table_lines(headers, table, range(3, len(headers)))),
    )  # fmt: skip


RECALL_ARMS = ("layers, outputs", ALL_LAYERS, "fine-tune", "from scratch")


def recall() -> Section:
    """Compare the recall of a small language model before and after conversions."""
    result = newest("conversion-recall-*")
    rows = sorted(result.content["rows"], key=lambda row: (row["mixer"], row["arm"], row["seed"]))
    scores = 100 * pd.DataFrame(rows).set_index(["arm", "mixer", "seed"]).test_accuracy.sort_index()
    table = []
    for mixer in dict.fromkeys(row["mixer"] for row in rows if row["mixer"] != "softmax"):
        cells = [scores.loc[arm, mixer] for arm in RECALL_ARMS]
        table.append(
            [mixer, *(f"{of.mean():.0f} ({of.min():.0f} to {of.max():.0f})" for of in cells)]
        )
    labels = scores.loc[ALL_LAYERS].groupby("mixer").mean()
    kept = [code(mixer) for mixer in labels.index if labels[mixer] >= 90]
    lost = [f"`{mixer}` {of:.0f} %" for mixer, of in labels.items() if of < 90]
    text = (
        f"A language model that recalls {scores.loc['original'].iloc[0]:.0f} % of the values keeps "
        f"over 90 % after a conversion to {listed(kept)}, but {listed(lost)}. The model has two "
        "layers and learned `mqar` (recall of values by their keys) at 16 tokens. "
        f"{max(row['steps'] for row in rows)} steps of {result.content['batch_size']} sequences "
        "convert all layers. The table has test accuracies in percent, with ranges over "
        f"{scores.index.get_level_values('seed').nunique()} seeds."
    )
    headers = ["Mixer", "Stages without labels", "Stages with labels", "Fine-tuning only",
               "From scratch"]  # fmt: skip
    return Section(
        "Recall of a converted language model", text, "conversion-recall", rows, [result],
        commands=["python benchmarks/conversion_recall.py --work runs/conversion-recall"],
        below="\n".join(table_lines(headers, table, range(1, len(headers)))),
    )  # fmt: skip
