"""Results of a sweep over temperature and iterations of sparse Sinkhorn attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from rifflemix.lab.analysis.drawing import COLOURS, GREY, legend, line_style, tidy
from rifflemix.lab.analysis.finding import Subject, Trial

SETTINGS = {
    "mixer_options.temperature": "temperature",
    "mixer_options.num_iterations": "iterations",
}
_MOST_LINES = 6


def trials_of(subjects: Sequence[Subject]) -> list[Trial]:
    """Return the trials of a sweep over temperature or iterations.

    The list is empty for other subjects.
    """
    trials = [subject.trial for subject in subjects if subject.trial is not None]
    return trials if swept_settings(trials) else []


def swept_settings(trials: Sequence[Trial]) -> list[str]:
    """Return the settings in `SETTINGS` with several values."""
    return [s for s in SETTINGS if len({t.settings.get(s) for t in trials}) > 1]


def curves(trials: Sequence[Trial], setting: str) -> dict[str, list[Trial]]:
    """Group trials by all other settings, sorted by the value of `setting`."""
    lines: dict[str, list[Trial]] = {}
    for trial in sorted(trials, key=lambda trial: float(trial.settings[setting])):
        others = {name: value for name, value in trial.settings.items() if name != setting}
        words = ", ".join(f"{_short(name)} {value}" for name, value in others.items())
        lines.setdefault(words, []).append(trial)
    return lines


def means(trials: Sequence[Trial], setting: str) -> dict[float, float]:
    """Return setting value -> mean score over all other settings."""
    values = sorted({float(trial.settings[setting]) for trial in trials})
    return {
        value: float(np.mean([t.mean for t in trials if float(t.settings[setting]) == value]))
        for value in values
    }


def quality_sentences(trials: Sequence[Trial]) -> list[str]:
    """Describe the score at each value, one sentence per setting."""
    found = []
    for setting in swept_settings(trials):
        scores = ", ".join(f"{m:.4g} at {v:g}" for v, m in means(trials, setting).items())
        what = f"{trials[0].split} {trials[0].metric}"
        others = " (mean over the others)" if len(trials[0].settings) > 1 else ""
        found.append(f"the sweep reached, {what}, by {SETTINGS[setting]}{others}: {scores}.")
    return found


def quality_rows(trials: Sequence[Trial]) -> list[tuple[str, ...]]:
    """Return the trials as rows of the `sinkhorn` table."""
    return [
        (
            ", ".join(f"{_short(k)}={v}" for k, v in trial.settings.items()),
            f"{trial.split} {trial.metric}",
            f"{trial.mean:.4g}" + ("" if trial.std is None else f" ± {trial.std:.2g}"),
            "-",
            "-",
        )
        for trial in trials
    ]


def quality_data(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Return the trials as JSON values."""
    return [{**vars(trial), "settings": dict(trial.settings)} for trial in trials]


def draw_quality(axes: Axes, trials: Sequence[Trial], setting: str) -> None:
    """Draw the score against a setting.

    There is one line per combination of other settings. Many lines are gray, with the mean of all
    lines in color.
    """
    lines = curves(trials, setting)
    few = len(lines) <= _MOST_LINES
    for number, (words, line) in enumerate(lines.items()):
        style = line_style(number) if few else {"color": GREY, "linewidth": 1.0}
        axes.errorbar(
            [float(trial.settings[setting]) for trial in line],
            [trial.mean for trial in line],
            yerr=[trial.std or 0.0 for trial in line] if few and line[0].std is not None else None,
            label=words if few and words else None,
            capsize=3,
            **style,
        )
    if not few:
        mean = means(trials, setting)
        axes.plot(
            list(mean), list(mean.values()), "o-", color=COLOURS[0], label="mean of all settings"
        )
    tidy(
        axes,
        title="what the runs of the sweep reached",
        x=SETTINGS[setting],
        y=f"{trials[0].split} {trials[0].metric}",
    )
    values = list(means(trials, setting))
    axes.set_xticks(values, [f"{value:g}" for value in values])
    if not few or any(lines):
        legend(axes)


def _short(name: str) -> str:
    return SETTINGS.get(name, name.rpartition(".")[2])
