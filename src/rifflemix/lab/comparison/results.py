"""Results of a comparison, derived from the records of its runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rifflemix.errors import bad_argument
from rifflemix.lab.comparison.config import FORMAT, CompareConfig
from rifflemix.lab.comparison.plan import ComparePlan, FinishedRuns, read_speeds
from rifflemix.lab.comparison.records import (
    ChosenMetric,
    FailedRun,
    MixerSummary,
    MixerTuning,
    Results,
    RunEntry,
    TaskSummary,
    Tried,
    Tuning,
    of_mixer,
    with_checksum,
)
from rifflemix.lab.comparison.trials import SCORE, EarlyStops, Trials
from rifflemix.lab.experiments import Records, RunRecord, newest_environment
from rifflemix.lab.runs.environment import this_environment
from rifflemix.lab.runs.status import Point, Summary, point_label, protocol, summarise
from rifflemix.lab.tasks import Task, card_of
from rifflemix.lab.tasks.core.base import SPLITS
from rifflemix.lab.tasks.core.kinds import MOST_SHOWN
from rifflemix.lab.tasks.core.recorded import AnswersBlindly, HasReference
from rifflemix.mixers import mixer_card


def assemble(plan: ComparePlan, records: Records) -> Results:
    """Derive the results from the records so far."""
    done = plan.finished_runs(records)
    runs = _run_entries(done.runs, read_speeds(plan.out))
    failed = [_failed_run(record) for record in done.failed]
    tuning = _tuning(plan, done) if plan.config.tuned else None
    memory = [done.peak_memory(mixer) for mixer in plan.config.mixers]
    here = newest_environment(records) or this_environment()
    count, planned = len(runs) + len(failed), len(plan.runs)
    results = Results(
        format=FORMAT,
        status="complete" if count == planned else "partial",
        runs_done=count,
        runs_planned=planned,
        command=here.command,
        config=dict(plan.settings),
        seeds=list(plan.config.seeds),
        task=_task(plan),
        protocol=protocol(plan.task),
        environment=here,
        wall_seconds=cost_of(runs, [] if tuning is None else tuning.all_trials),
        peak_memory_bytes=max((bytes_ for bytes_ in memory if bytes_), default=None),
        mixers=[_mixer(plan, name, done, runs, tuning) for name in plan.config.mixers],
        runs=runs,
        failed_runs=failed,
        tuning=tuning,
    )
    return with_checksum(results)


def _run_entries(records: Sequence[RunRecord], speeds: Mapping[str, float]) -> list[RunEntry]:
    """Return the entries of runs.

    A speed that was measured apart replaces the speed of a run that shared the machine. Other
    shared runs of the same mixer then have no speed.
    """
    measured = {record.subject for record in records if record.beside and record.name in speeds}
    entries = []
    for record in records:
        entry = _run_entry(record)
        if record.beside and record.subject in measured:
            new, old, tokens = speeds.get(record.name), entry.steps_per_second, None
            if new and old and entry.tokens_per_second:
                tokens = new * entry.tokens_per_second / old
            changed = replace(entry, sha256=None, measured_apart=True)
            entry = with_checksum(replace(changed, steps_per_second=new, tokens_per_second=tokens))
        entries.append(entry)
    return entries


def _run_entry(
    record: RunRecord, settings: Point | None = None, stopped_at: int | None = None
) -> RunEntry:
    result = record.trained
    entry = RunEntry(
        mixer=record.subject,
        seed=record.seed,
        folder=record.name,
        started_from=record.started_from,
        settings=settings,
        stopped_at=stopped_at,
        steps=result.step,
        best_step=result.best_step,
        parameters=result.parameters,
        processes=result.processes,
        steps_per_second=result.steps_per_second,
        tokens_per_second=result.tokens_per_second,
        wall_seconds=record.wall_seconds,
        seconds=result.seconds,
        validation=record.chosen_validation(),
        test=result.test if settings is None else None,
        confusion=result.confusion if settings is None else None,
        validation_curve=result.validation,
        train_curve=record.train_curve,
        environment=record.environment,
        beside=record.beside,
    )
    return with_checksum(entry)


def _failed_run(record: RunRecord) -> FailedRun:
    return FailedRun(
        mixer=record.subject, seed=record.seed, folder=record.name, error=str(record.error)
    )


def _tuning(plan: ComparePlan, done: FinishedRuns) -> Tuning:
    return Tuning(
        grid={name: list(values) for name, values in plan.config.tuned.items()},
        trials_planned=len(plan.trials.all),
        early_stops=_early_stops(plan.trials),
        trials=[
            _run_entry(record, record.settings, plan.trials.stopped_at(record.name))
            for record in done.trials
        ],
        failed_trials=[
            replace(_failed_run(record), settings=record.settings, wall_seconds=record.wall_seconds)
            for record in done.failed_trials
        ],
    )


def _early_stops(trials: Trials) -> EarlyStops | None:
    if not trials.rungs:
        return None
    return EarlyStops(rungs=list(trials.rungs), score=SCORE.format(metric=trials.metric))


def cost_of(runs: Sequence[RunEntry], trials: Sequence[RunEntry | FailedRun]) -> float:
    """Add the seconds of all trials and runs; a run's time includes the trial it continued."""
    within = {run.folder for run in runs} | {run.started_from for run in runs}
    others = [trial for trial in trials if trial.folder not in within]
    return math.fsum(run.wall_seconds or 0.0 for run in (*runs, *others))


def title_of(config: CompareConfig, mixer: str) -> str:
    """Return the title of a mixer in tables: of its card, or the label of a variant.

    Args:
        config: the comparison.
        mixer: label of a mixer.

    Returns:
        The title.

    Example:
        >>> import rifflemix as rm
        >>> from rifflemix.lab.comparison import resolve, title_of
        >>> config = resolve(rm.tasks.task_card("digits"), {"tssa": "tssa"}, [0])
        >>> title_of(config, "tssa")
        'Token statistics (TSSA)'
    """
    return mixer if mixer in config.variants else mixer_card(mixer).title


def _mixer(
    plan: ComparePlan,
    name: str,
    done: FinishedRuns,
    runs: Sequence[RunEntry],
    tuning: Tuning | None,
) -> MixerSummary:
    card, task = mixer_card(plan.config.mixer_name(name)), plan.task
    empty = MixerSummary(
        name=name,
        title=title_of(plan.config, name),
        paper=card.paper,
        complexity=card.complexity,
        parameters=plan.parameters[name],
        state_size=plan.state_sizes.get(name),
        peak_memory_bytes=done.peak_memory(name),
    )
    summary = with_scores(empty, runs, task.metric, higher_is_better=task.higher_is_better)
    if tuning is None:
        return summary
    ended = len(tuning.all_trials) == len(plan.trials.all)
    points, chosen = plan.config.points, plan.chosen(done.records, name) if ended else None
    return with_tuning(summary, runs, tuning, points, chosen, task.metric)


def with_scores(
    mixer: MixerSummary, runs: Sequence[RunEntry], metric: str, *, higher_is_better: bool
) -> MixerSummary:
    """Add scores and speed over the runs of a mixer to its summary."""
    own = of_mixer(runs, mixer.name)
    speeds = [run.steps_per_second for run in own if run.steps_per_second is not None]
    chosen = ChosenMetric(
        name=metric,
        higher_is_better=higher_is_better,
        validation=_summary(own, "validation", metric),
        test=_summary(own, "test", metric),
    )
    return replace(
        mixer,
        validation=_summary(own, "validation", "accuracy"),
        test=_summary(own, "test", "accuracy"),
        metric=None if metric == "accuracy" else chosen,
        steps_per_second=statistics.median(speeds) if speeds else None,
    )


def _summary(runs: Sequence[RunEntry], split: str, metric: str) -> Summary | None:
    """Summarize a metric over seeds; None if the task does not have it."""
    found = [run.metrics(split) for run in runs]
    return summarise([metrics[metric] for metrics in found if metric in metrics])


def with_tuning(
    mixer: MixerSummary,
    runs: Sequence[RunEntry],
    tuning: Tuning,
    points: Sequence[Point],
    chosen: Point | None,
    metric: str,
) -> MixerSummary:
    """Add the trials of a mixer and their time to its summary.

    Args:
        mixer: the summary.
        runs: runs of all mixers.
        tuning: trials of all mixers.
        points: settings that were tried.
        chosen: settings that validation chose.
        metric: metric that chose.
    """
    own, trials = of_mixer(runs, mixer.name), of_mixer(tuning.trials, mixer.name)
    failed = of_mixer(tuning.failed_trials, mixer.name)
    tried = [
        _tried(point, [trial for trial in trials if trial.settings == point], failed, metric)
        for point in points
    ]
    seconds = cost_of(own, [*trials, *failed])
    return replace(
        mixer,
        tuning=MixerTuning(tried=tried, chosen=chosen if trials else None, wall_seconds=seconds),
    )


def _tried(
    point: Point, trials: Sequence[RunEntry], failed: Sequence[FailedRun], metric: str
) -> Tried:
    """Summarize the trials of one setting.

    Raises:
        InputError: merged comparisons stopped the setting at different rungs.
    """
    rungs = {trial.stopped_at for trial in trials}
    if len(rungs) > 1:
        raise bad_argument(
            "merge",
            f"trials of {trials[0].mixer} with {point_label(point)} that stopped at one step",
            " and ".join("the end" if rung is None else str(rung) for rung in rungs),
            "Tune it with all seeds at once",
        )
    return Tried(
        settings=point,
        validation=_summary(trials, "validation", metric),
        diverged=sum(trial.settings == point for trial in failed),
        stopped_at=rungs.pop() if rungs else None,
    )


def _task(plan: ComparePlan) -> TaskSummary:
    card, task = card_of(plan.task), plan.task
    return TaskSummary(
        name=card.name,
        title=card.title,
        source=card.source,
        licence=card.licence,
        options=dict(task.options),
        data_source=task.data_source,
        fingerprint=plan.settings["data"],
        num_classes=task.num_classes,
        max_length=task.max_length,
        sizes={name: len(task.split(name)) for name in (*SPLITS, *task.further_tests)},
        majority_share=None if plan.blind_accuracy is None else dict(plan.blind_accuracy),
        solved_at=card.solved_at,
        blind_answer=task.blind_answer if isinstance(task, AnswersBlindly) else None,
        kind=task.kind,
        classes=class_names(task),
        **_reference(task, plan.blind_accuracy),
    )


def class_names(task: Task) -> list[str] | None:
    """Return the names of the classes of a confusion matrix; None for many classes."""
    has_classes = task.output in ("classes", "tokens") and task.num_classes <= MOST_SHOWN
    if not has_classes:
        return None
    return list(task.classes or map(str, range(task.num_classes)))


def _reference(task: Task, blind: Mapping[str, float] | None) -> dict[str, Any]:
    """Return the reference of the table; for tokens, the most frequent class."""
    if task.output == "tokens" and blind:
        scores = {name: {"accuracy": share} for name, share in blind.items()}
        return {"reference": scores, "reference_answer": "the most frequent class"}
    if not isinstance(task, HasReference):
        return {}
    scores = {name: dict(task.reference_scores(name)) for name in ("validation", "test")}
    return {"reference": scores, "reference_answer": task.reference_answer}
