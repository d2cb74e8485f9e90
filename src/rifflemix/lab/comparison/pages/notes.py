"""Notes for judging the table: task, budget, protocol, and columns that softmax wins."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean, stdev

from rifflemix.lab.comparison.decisions import BASELINE, RULE
from rifflemix.lab.comparison.pages.tuning import tuning_notes
from rifflemix.lab.comparison.plan import folds_of
from rifflemix.lab.comparison.records import Results, of_mixer
from rifflemix.lab.comparison.rows import Row, RowDifference, Table
from rifflemix.lab.report.units import (
    format_count,
    format_duration,
    format_percent,
    metric_title,
    metric_value,
)
from rifflemix.lab.tasks.core.base import SPLITS
from rifflemix.lab.tasks.core.kinds import IMBALANCED

_BLIND_ANSWER = "the majority-class baseline"
_ERRORS_OF_NUMBERS = ("rmse", "mae", "mse", "r2", "mase")
"""The metrics of tasks that ask for numbers instead of a class."""

FEW_TESTS = 10
"""Fewer test labels of a class are too few for its scores."""


def comparison_notes(table: Table) -> list[str]:
    """Write the sentences under the table."""
    results = table.results
    notes = [_task(results), *_solved(results), _budget(results), *_early_stops(results)]
    if results.tuning is not None:
        notes += tuning_notes(results, results.tuning)
    notes += [_seeds(results), bold_note(table), *_rare_classes(results), _protocol(results)]
    notes += [_speed(results), *_shared_speeds(table), *_mixed_places(results), _memory()]
    notes += [*_further_tests(results), *_failures(results), softmax_note(table)]
    if not results.is_complete:
        notes.insert(0, partial_note(results))
    return notes


def _solved(results: Results) -> list[str]:
    """Describe the threshold of solved tasks, and what the number of seeds can resolve."""
    least = results.task.solved_at
    if least is None:
        return []
    return [f"A seed solved the task if its test accuracy is at least {format_percent(least)} %."]


def brief_notes(table: Table) -> list[str]:
    """Write the notes that differ between comparisons: task, budget, failures, softmax."""
    results = table.results
    notes = [_task(results), _budget(results), *_early_stops(results)]
    notes += [*_shared_speeds(table), *_mixed_places(results), *_failures(results)]
    return [*notes, softmax_note(table)]


def partial_note(results: Results) -> str:
    """Describe the finished share of the plan."""
    done = done_so_far(results)
    return f"Partial results: {done} are done; run the same command to continue."


def done_so_far(results: Results) -> str:
    """Count the finished runs and trials, such as "2 of 4 runs"."""
    done = f"{results.runs_done} of {results.runs_planned} runs"
    if results.tuning is None:
        return done
    return f"{len(results.tuning.all_trials)} of {results.tuning.trials_planned} trials and {done}"


def bold_note(table: Table) -> str:
    """Describe the meaning of bold, or why nothing is bold."""
    if not table.nothing_learned and len(table.results.seeds) == 1:
        return "Bold: the least memory, the fewest parameters; with one seed no score and no speed."
    if not table.nothing_learned:
        return (
            "Bold: no other mixer is significantly better; if that holds for every mixer, nothing "
            f"is bold. Scores are compared seed by seed ({RULE}; variance estimated from all rows, "
            f"{_split_error(table)}). Speeds differ if every seed of one mixer is faster than "
            "every seed of the other. A mixer with one seed, or with fewer than two seeds in "
            "common with the best, is not compared."
        )
    best = max((row for row in table.rows if row.test), key=lambda r: r.test.mean if r.test else 0)
    task = table.results.task
    known = task.blind_answer or _BLIND_ANSWER
    answer = "guessing" if task.majority_share is None else known
    return (
        f"Nothing learned: the best test accuracy, {best.test} %, is within noise of {answer} "
        f"({format_percent(best.chance or 0.0)} %). Nothing is bold."
    )


def _split_error(table: Table) -> str:
    if folds_of(table.results.task.options) is not None:
        return "corrected for training splits that share samples (Nadeau and Bengio 2003)"
    if table.counts_samples:
        return "with the error of the finite split"
    return "without the error of the finite split, which was not measured"


def softmax_note(table: Table) -> str:
    """Name the mixers that softmax attention beats, by column."""
    softmax = table.baseline
    if softmax is None or softmax.test is None:
        return f"{BASELINE} has no finished run here, so there is no comparison with it."
    others = [row for row in table.rows if row is not softmax and row.test is not None]
    failed = [run.mixer for run in table.results.failed_runs]
    contests = {
        f"better mean test {table.metric_words}": [
            difference.row for difference in table.differences if difference.decision.is_loss
        ],
        "faster training": [row for row in others if row.is_slower(softmax)],
        "less memory": [row for row in others if _is_larger(row, softmax)],
        "fewer parameters": [row for row in others if row.parameters > softmax.parameters],
        "fewer diverged runs": [
            row for row in table.rows if failed.count(row.name) > failed.count(softmax.name)
        ],
    }
    wins = [
        f"{column} than {', '.join(row.title for row in beaten)}"
        for column, beaten in contests.items()
        if beaten
    ]
    sentence = (
        f"Where softmax attention wins: {'; '.join(wins)}."
        if wins
        else "Softmax attention wins against no mixer in any column here."
    )
    if table.nothing_learned:
        return sentence
    if len(table.results.seeds) == 1:
        return f"{sentence} One seed shows no difference in test {table.metric_words}."
    return sentence + _no_difference(table.metric_words, others, table.differences)


def _no_difference(metric: str, others: list[Row], differences: list[RowDifference]) -> str:
    known = {found.row.name for found in differences}
    unknown = [row.title for row in others if row.name not in known]
    alike = [found.row.title for found in differences if not found.decision.is_shown]
    said = ""
    if alike:
        whom = "" if len(alike) == len(others) else f" from {', '.join(alike)}"
        said = f" No significant difference in test {metric}{whom}."
    if unknown:
        said += f" Not compared, with fewer than two common seeds: {', '.join(unknown)}."
    return said


def _is_larger(row: Row, softmax: Row) -> bool:
    ours, theirs = row.peak_memory_bytes, softmax.peak_memory_bytes
    return ours is not None and theirs is not None and ours > theirs


def _task(results: Results) -> str:
    task = results.task
    sizes = ", ".join(f"{format_count(n)} {name}" for name, n in task.sizes.items())
    options = ", ".join(f"{name}={value}" for name, value in task.options.items())
    name = f"{task.name} ({options})" if options else task.name
    is_number = results.protocol.metric in _ERRORS_OF_NUMBERS
    asked = f"{task.num_classes} classes"
    if is_number:
        asked = "one number" if task.num_classes == 1 else f"{task.num_classes} numbers"
    return (
        f"Task {name}: {task.title}; {asked}, up to {format_count(task.max_length)} tokens; "
        f"samples: {sizes}; data: {task.data_source}."
    )


def _rare_classes(results: Results) -> list[str]:
    """Name the classes with too few test samples, and the share of the most frequent class."""
    tables = [run.confusion for run in results.runs if run.confusion is not None]
    names = results.task.classes
    if not tables or names is None:
        return []
    counts = [sum(row) for row in tables[0]]
    rare = [f"{name} ({n})" for name, n in zip(names, counts, strict=True) if n < FEW_TESTS]
    found = []
    share = max(counts) / max(sum(counts), 1)
    if share >= IMBALANCED:
        means = ", ".join(_means_of(results, "balanced_accuracy"))
        most = names[counts.index(max(counts))]
        found.append(
            f"Imbalanced: class {most} has {format_percent(share)} % of the test labels. Balanced "
            f"accuracy, %: {means or 'not measured'}."
        )
    if rare:
        found.append(
            f"Rare classes, with less than {FEW_TESTS} test labels: {', '.join(rare)}. Their "
            "scores are imprecise."
        )
    return found


def _means_of(results: Results, metric: str) -> Iterator[str]:
    """Average a test metric of each mixer over its runs."""
    for mixer in results.mixers:
        found = [run.metrics("test") for run in of_mixer(results.runs, mixer.name)]
        values = [metric_value(metric, test[metric]) for test in found if metric in test]
        if values:
            yield f"{mixer.name} {fmean(values):.4g}"


def _budget(results: Results) -> str:
    setup, train = results.setup, results.setup.train
    is_tuned = results.tuning is not None
    rate = "" if is_tuned or train.lr is None else f"learning rate {train.lr:g}, "
    tuned = "" if is_tuned else " No mixer was tuned."
    chosen = "".join(f"{name} {value}, " for name, value in setup.train_options.items())
    return (
        f"Every mixer: model {setup.model}, dim {setup.dim}, {setup.num_layers} "
        f"layers, {setup.num_heads} heads, {format_count(train.max_steps)} steps of "
        f"{train.batch_size} sequences, {rate}{chosen}the same data order and, outside the "
        f"mixers, the same initial weights for each seed.{tuned}"
    )


def _early_stops(results: Results) -> Iterator[str]:
    """Report the steps of runs that ended before the budget."""
    budget = results.setup.train.max_steps
    steps: dict[str, list[int]] = {}
    for run in results.runs:
        steps.setdefault(run.mixer, []).append(run.steps)
    if any(min(found) < budget for found in steps.values()):
        spans = (
            f"{mixer} {min(found):,}" + (f" to {max(found):,}" if len(set(found)) > 1 else "")
            for mixer, found in steps.items()
        )
        yield f"Early stopping: steps of each mixer's runs, of {budget:,}: {', '.join(spans)}."


def _seeds(results: Results) -> str:
    count, folds = len(results.seeds), folds_of(results.task.options)
    if folds is not None:
        more = f" and {count // folds} seeds" if count > folds else ""
        return (
            f"Mean ± sample standard deviation over {folds} folds{more}: run s tests on fold s mod "
            f"{folds}, and every mixer has the same folds."
        )
    if count == 1:
        return "One seed: the spread is unknown, and small differences mean nothing."
    return f"Mean ± sample standard deviation over {count} seeds."


def _protocol(results: Results) -> str:
    protocol = results.protocol
    return (
        f"The {protocol.model_chosen_on} split chose the weights (best "
        f"{protocol.metric.replace('_', ' ')} there); the test split chose nothing. "
        f"Splits: {protocol.split_note.rstrip('.')}."
    )


def _further_tests(results: Results) -> list[str]:
    """List the scores of the mixers on each further test of the task."""
    names = [name for name in results.task.sizes if name not in SPLITS]
    if not names or not results.runs:
        return []
    title = metric_title(results.protocol.metric)
    return [
        f"Tested on {name} as well, {title}: {', '.join(_means(results, name))}." for name in names
    ]


def _means(results: Results, test: str) -> Iterator[str]:
    """Average each mixer on a further test, with the deviation over the seeds."""
    metric = results.protocol.metric
    for mixer in results.mixers:
        runs = of_mixer(results.runs, mixer.name)
        values = [metric_value(metric, run.metrics("test")[f"{test}_{metric}"]) for run in runs]
        if values:
            spread = f" ± {stdev(values):.2g}" if len(values) > 1 else ""
            yield f"{mixer.name} {fmean(values):.4g}{spread}"


def _speed(results: Results) -> str:
    environment, hardware = results.environment, results.environment.hardware
    precision = "bf16 autocast" if results.setup.train.precision == "bf16" else "float32"
    is_gpu = results.setup.device.startswith("cuda")
    machine = hardware.gpu if is_gpu else hardware.describe_cpu()
    processes = max((run.processes for run in results.runs), default=1)
    several = f"{processes} processes, each on " if processes > 1 else ""
    return (
        f"Steps/s: median over seeds, {_when(results)}, on {several}{machine}, torch "
        f"{environment.libraries['torch']}, {precision}; all runs together took "
        f"{format_duration(results.wall_seconds)}."
    )


def _when(results: Results) -> str:
    apart = [bool(run.measured_apart) for run in results.runs]
    if any(apart):
        return "measured alone after the runs" if all(apart) else "during the runs or after them"
    return "during the runs themselves"


def _shared_speeds(table: Table) -> list[str]:
    """Name the mixers whose speeds are too low."""
    shared = [row.title for row in table.rows if row.has_shared_speed]
    if not shared:
        return []
    return [
        f"Speeds of {', '.join(shared)} are too low and do not compare: other trainings ran on the "
        "same device or processor."
    ]


def _mixed_places(results: Results) -> list[str]:
    """Warn if the runs come from several machines or versions of the code."""
    found = [
        (at.hardware, at.libraries, at.git_commit, at.git_dirty)
        for at in (run.environment for run in results.runs)
    ]
    if all(place == found[0] for place in found):
        return []
    return [
        "The runs were not all made on one machine with one version of the code and its libraries "
        "(results.json says which where): their speeds do not compare."
    ]


def _memory() -> str:
    return (
        "Peak memory: the peak of torch's allocator over the first two training steps (weights, "
        "gradients, optimizer state and activations), on the same real batch for all."
    )


def _failures(results: Results) -> list[str]:
    return [f"{run.mixer}, seed {run.seed}: {run.error}" for run in results.failed_runs]
