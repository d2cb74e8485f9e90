"""Notes for judging the table: task, budget, protocol, and where softmax wins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from rifflemix.lab.comparison.decisions import BASELINE, RULE
from rifflemix.lab.comparison.differences import RowDifference, differences_from_softmax
from rifflemix.lab.comparison.table import (
    Row,
    baseline_row,
    comparison_rows,
    counts_samples,
    is_slower,
    nothing_learned,
)
from rifflemix.lab.comparison.tuning import tuning_notes
from rifflemix.lab.report.units import (
    format_count,
    format_duration,
    format_percent,
    metric_title,
    metric_value,
)
from rifflemix.lab.runs.environment import describe_cpu
from rifflemix.lab.tasks.core.base import SPLITS

_BLIND_ANSWER = "always giving the commonest answer"
_ERRORS_OF_NUMBERS = ("rmse", "mae")
"""The metrics of tasks that ask for a number instead of a class."""


def comparison_notes(results: Mapping[str, Any]) -> list[str]:
    """Plain sentences under the table, in the order a sceptical reader asks."""
    notes = [_task(results), _budget(results)]
    notes += [*(tuning_notes(results) if "tuning" in results else ())]
    notes += [_seeds(results), bold_note(results)]
    notes.append(_protocol(results))
    notes += [_speed(results), *_mixed_places(results), _memory()]
    notes += [*_further_tests(results), *_failures(results), softmax_note(results)]
    if results["status"] != "complete":
        notes.insert(0, partial_note(results))
    return notes


def brief_notes(results: Mapping[str, Any]) -> list[str]:
    """What is special to one of several comparisons: task, budget, failures, where softmax wins."""
    notes = [_task(results), _budget(results), *_mixed_places(results), *_failures(results)]
    return [*notes, softmax_note(results)]


def partial_note(results: Mapping[str, Any]) -> str:
    """The share of the plan that has been done."""
    done = done_so_far(results)
    return f"Partial results: {done} are done; run the same command to continue."


def done_so_far(results: Mapping[str, Any]) -> str:
    """Such as "2 of 4 runs", with the trials before them where settings are tuned."""
    done = f"{results['runs_done']} of {results['runs_planned']} runs"
    if "tuning" not in results:
        return done
    tuning = results["tuning"]
    tried = len(tuning["trials"]) + len(tuning["failed_trials"])
    return f"{tried} of {tuning['trials_planned']} trials and {done}"


def bold_note(results: Mapping[str, Any]) -> str:
    """The meaning of bold, or that nothing is bold because nothing was learned."""
    rows = comparison_rows(results)
    if not nothing_learned(rows) and len(results["seeds"]) == 1:
        return "Bold: the least memory, the fewest parameters; with one seed no score and no speed."
    if not nothing_learned(rows):
        return (
            "Bold: no other mixer is significantly better; if that holds for every mixer, nothing "
            f"is bold. Scores are compared seed by seed ({RULE}; variance estimated from all rows, "
            f"{_split_error(rows)}). Speeds differ if every seed of one mixer is faster than every "
            "seed of the other. A mixer with one seed, or with fewer than two seeds in common with "
            "the best, is not compared."
        )
    best = max((row for row in rows if row.test), key=lambda row: row.test.mean if row.test else 0)
    task = results["task"]
    is_known = task.get("majority_share") is not None
    answer = task.get("blind_answer", _BLIND_ANSWER) if is_known else "guessing"
    return (
        f"Nothing learned: the best test accuracy, {best.test} %, is within noise of {answer} "
        f"({format_percent(best.chance or 0.0)} %). Nothing is bold."
    )


def _split_error(rows: Sequence[Row]) -> str:
    if counts_samples(rows):
        return "with the error of the finite split"
    return "without the error of the finite split, which was not measured"


def softmax_note(results: Mapping[str, Any]) -> str:
    """Against whom, and in what, softmax attention comes out ahead."""
    rows = comparison_rows(results)
    softmax = baseline_row(rows)
    if softmax is None or softmax.test is None:
        return f"{BASELINE} has no finished run here, so nothing is said relative to it."
    others = [row for row in rows if row is not softmax and row.test is not None]
    differences = differences_from_softmax(rows)
    contests = {
        f"better mean test {_metric(softmax)}": [
            of.row for of in differences if of.decision.is_loss
        ],
        "faster training": [row for row in others if is_slower(row, softmax)],
        "less memory": [row for row in others if _is_larger(row, softmax)],
        "fewer parameters": [row for row in others if row.parameters > softmax.parameters],
        "fewer diverged runs": [
            row for row in rows if _diverged(row, results) > _diverged(softmax, results)
        ],
    }
    wins = [
        f"{what} than {', '.join(row.title for row in beaten)}"
        for what, beaten in contests.items()
        if beaten
    ]
    sentence = (
        f"Where softmax attention wins: {'; '.join(wins)}."
        if wins
        else "Softmax attention wins against no mixer in any column here."
    )
    if nothing_learned(rows):
        return sentence
    if len(results["seeds"]) == 1:
        return f"{sentence} One seed shows no difference in test {_metric(softmax)}."
    return sentence + _no_difference(_metric(softmax), others, differences)


def _no_difference(metric: str, others: list[Row], differences: list[RowDifference]) -> str:
    known = {of.row.name for of in differences}
    unknown = [row.title for row in others if row.name not in known]
    alike = [of.row.title for of in differences if not of.decision.is_shown]
    said = ""
    if alike:
        is_all = len(alike) == len(others)
        whom = "" if is_all else f" from {', '.join(alike)}"
        said = f" No significant difference in test {metric}{whom}."
    if unknown:
        said += f" Not compared, with fewer than two common seeds: {', '.join(unknown)}."
    return said


def _diverged(row: Row, results: Mapping[str, Any]) -> int:
    return sum(run["mixer"] == row.name for run in results["failed_runs"])


def _metric(row: Row) -> str:
    return row.metric.replace("_", " ")


def _is_larger(row: Row, softmax: Row) -> bool:
    ours, theirs = row.peak_memory_bytes, softmax.peak_memory_bytes
    return ours is not None and theirs is not None and ours > theirs


def _task(results: Mapping[str, Any]) -> str:
    task = results["task"]
    sizes = ", ".join(f"{format_count(n)} {name}" for name, n in task["sizes"].items())
    options = ", ".join(f"{name}={value}" for name, value in task["options"].items())
    name = f"{task['name']} ({options})" if options else task["name"]
    is_number = results["protocol"].get("metric") in _ERRORS_OF_NUMBERS
    asked = "one number" if is_number else f"{task['num_classes']} classes"
    return (
        f"Task {name}: {task['title']}; {asked}, up to "
        f"{format_count(task['max_length'])} tokens; samples: {sizes}; data: "
        f"{task['data_source']}."
    )


def _budget(results: Mapping[str, Any]) -> str:
    config = results["config"]
    train = config["train"]
    rate = "" if "tuning" in results else f"learning rate {train['lr']:g}, "
    tuned = "" if "tuning" in results else " No mixer was tuned."
    chosen = "".join(f"{name} {value}, " for name, value in config.get("train_options", {}).items())
    return (
        f"Every mixer: model {config['model']}, dim {config['dim']}, {config['num_layers']} "
        f"layers, {config['num_heads']} heads, {format_count(train['max_steps'])} steps of "
        f"{train['batch_size']} sequences, {rate}{chosen}the same data order and, outside the "
        f"mixers, the same initial weights for each seed.{tuned}"
    )


def _seeds(results: Mapping[str, Any]) -> str:
    count = len(results["seeds"])
    if count == 1:
        return "One seed: the spread is unknown, and small differences mean nothing."
    return f"Mean ± sample standard deviation over {count} seeds."


def _protocol(results: Mapping[str, Any]) -> str:
    protocol = results["protocol"]
    metric = protocol.get("metric", "accuracy").replace("_", " ")
    return (
        f"The {protocol['model_chosen_on']} split chose the weights (best {metric} there); the "
        f"test split chose nothing. Splits: {protocol['split_note'].rstrip('.')}."
    )


def _further_tests(results: Mapping[str, Any]) -> list[str]:
    """What the mixers score on each further test of the task."""
    names = [name for name in results["task"]["sizes"] if name not in SPLITS]
    if not names or not results["runs"]:
        return []
    title = metric_title(results["protocol"]["metric"])
    return [
        f"Tested on {name} as well, {title}: {', '.join(_means(results, name))}." for name in names
    ]


def _means(results: Mapping[str, Any], test: str) -> Iterator[str]:
    """The mean of each mixer on a further test, with the deviation over the seeds."""
    metric = results["protocol"]["metric"]
    for mixer in results["mixers"]:
        runs = [run["test"] for run in results["runs"] if run["mixer"] == mixer["name"]]
        values = [metric_value(metric, run[f"{test}_{metric}"]) for run in runs]
        if values:
            spread = f" ± {stdev(values):.2g}" if len(values) > 1 else ""
            yield f"{mixer['name']} {fmean(values):.4g}{spread}"


def _speed(results: Mapping[str, Any]) -> str:
    environment, config = results["environment"], results["config"]
    hardware = environment["hardware"]
    precision = "bf16 autocast" if config["train"]["precision"] == "bf16" else "float32"
    is_gpu = config["device"].startswith("cuda")
    machine = hardware["gpu"] if is_gpu else describe_cpu(hardware)
    processes = max((run.get("processes", 1) for run in results["runs"]), default=1)
    several = f"{processes} processes, each on " if processes > 1 else ""
    return (
        f"Steps/s: median over seeds, during the runs themselves, on {several}{machine}, torch "
        f"{environment['libraries']['torch']}, {precision}; all runs together took "
        f"{format_duration(results['wall_seconds'])}."
    )


def _mixed_places(results: Mapping[str, Any]) -> list[str]:
    """A warning where the runs do not all come from one machine and one version of the code."""
    keys = ("hardware", "libraries", "git_commit", "git_dirty")
    found = [{key: run["environment"][key] for key in keys} for run in results["runs"]]
    if all(one == found[0] for one in found):
        return []
    return [
        "The runs were not all made on one machine with one version of the code and its libraries "
        "(results.json says which where): their speeds do not compare."
    ]


def _memory() -> str:
    return (
        "Peak memory: the peak of torch's allocator over the first two training steps (weights, "
        "gradients, optimiser state and activations), on the same real batch for all."
    )


def _failures(results: Mapping[str, Any]) -> list[str]:
    return [f"{run['mixer']}, seed {run['seed']}: {run['error']}" for run in results["failed_runs"]]
