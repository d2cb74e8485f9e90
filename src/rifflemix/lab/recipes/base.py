"""Recipes: one number of one table of one paper, and all settings that it takes to make it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rifflemix.errors import InputError, bad_argument, check_choice
from rifflemix.lab.train import TrainConfig
from rifflemix.lab.train.run_folder import WEIGHTS, Weights
from rifflemix.lab.train.schedules import LEAST_WARMUP
from rifflemix.models import model_settings

# Settings of models that are widths; `scaled` multiplies those that a model has.
_WIDTHS = (
    "dim", "qkv_dim", "inner_dim", "mlp_dim", "hidden_dim", "z_dim", "head_dim", "planes"
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A row of a table: task, model and training settings, and the number that was printed.

    Attributes:
        name: PAPER/ROW, "csp/table4-image".
        paper: authors, year and short title.
        table: "Table 4".
        row: which model.
        column: which data, or which figure of it.
        printed: the number that the paper prints; None where it prints none (or FAIL).
        metric: the task's metric that it is of.
        unit: of the printed number: "%" (ours is multiplied by 100) or the metric's own.
        task: registry name, with `task_options`.
        task_options: options that differ from the task's own.
        model: registry name of a preset, with `model_settings`.
        model_settings: settings that differ from the preset's; vocabulary, classes and lengths
            come from the task.
        train: the whole training configuration.
        notes: where this differs from the printed run, and why.
        width: the factor that `scaled` has applied to the widths.
        new_head: the paper's run starts from trained weights (`--start-from`) of other classes:
            the head of the model is its own.
        planned_steps: what the paper's run trains; None means `train.max_steps`.
        weights: the weights whose test value counts: "best" of the evaluations on the validation
            split, or of the "last" update.
        not_comparable: the reason why no difference from the printed number is shown; empty if
            the two numbers measure the same.
    """

    name: str
    paper: str
    table: str
    row: str
    column: str
    printed: float | None
    metric: str = "accuracy"
    unit: str = "%"
    task: str
    task_options: Mapping[str, Any] = field(default_factory=dict)
    model: str
    model_settings: Mapping[str, Any] = field(default_factory=dict)
    train: TrainConfig
    notes: tuple[str, ...] = ()
    width: float = 1.0
    new_head: bool = False
    planned_steps: int | None = None
    weights: Weights = "best"
    not_comparable: str = ""

    @property
    def steps_of_the_paper(self) -> int:
        """Updates of the printed run."""
        return self.planned_steps or self.train.max_steps

    def shown(self, value: float) -> float:
        """A value of the metric in the unit of the printed number."""
        return 100.0 * value if self.unit == "%" else value

    def choosing(self, weights: Weights) -> Recipe:
        """Return the recipe with other weights that count.

        "best" needs a validation split. A task that goes without one cuts it again.
        """
        check_choice("weights", weights, WEIGHTS)
        options = dict(self.task_options)
        if weights == "best" and options.get("validation") is False:
            options["validation"] = True
        return replace(self, weights=weights, task_options=options)

    def shortened(self, max_steps: int) -> Recipe:
        """The same with fewer updates: warm-up, decay and evaluations shrink in proportion.

        Raises:
            InputError: not a whole number from 1 to the planned steps.
        """
        planned = self.train.max_steps
        if isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1:
            raise bad_argument("max_steps", "a whole number of at least 1", repr(max_steps))
        if max_steps > planned:
            raise bad_argument("max_steps", f"at most the {planned:,} of {self.name}", max_steps)
        if max_steps == planned:
            return self
        train = _shortened(self.train, max_steps / planned, max_steps)
        return replace(self, train=train, planned_steps=self.steps_of_the_paper)

    def scaled(self, width: float) -> Recipe:
        """The same with every width of the model times `width`, in whole heads.

        Raises:
            InputError: not over 0 and at most 1, or the model has no such width.
        """
        if isinstance(width, bool) or not isinstance(width, int | float) or not 0 < width <= 1:
            raise bad_argument("scale", "a number over 0 and at most 1", repr(width))
        if width == 1:
            return self
        known = model_settings(self.model) | dict(self.model_settings)
        heads = known.get("num_heads")
        multiple = heads if isinstance(heads, int) else 1
        smaller = _smaller(known, width, multiple)
        inside = known.get("mixer_options") or {}
        if _smaller(inside, width, multiple):
            smaller["mixer_options"] = {**inside, **_smaller(inside, width, multiple)}
        if not smaller:
            raise bad_argument(
                "scale", f"1 for {self.name}", width, f"model {self.model} has no width to scale"
            )
        return replace(
            self, model_settings={**self.model_settings, **smaller}, width=self.width * width
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        values = asdict(replace(self, train=None))  # type: ignore[arg-type] # has its own to_dict
        return {**values, "notes": list(self.notes), "train": self.train.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Recipe:
        """The recipe that `to_dict` wrote."""
        train = TrainConfig.from_dict(values["train"])
        return cls(**{**values, "notes": tuple(values["notes"]), "train": train})


def _smaller(settings: Mapping[str, Any], width: float, multiple: int) -> dict[str, Any]:
    return {
        name: max(multiple, round(settings[name] * width / multiple) * multiple)
        for name in _WIDTHS
        if isinstance(settings.get(name), int) and not isinstance(settings[name], bool)
    }


def _evaluations(planned: int | None, share: int | None, max_steps: int) -> int | None:
    """Steps between evaluations: in proportion, but in a short run not more than ten in all."""
    if planned is None or share is None:
        return None
    return max(share, min(planned, max_steps // 10))


def _shortened(train: TrainConfig, factor: float, max_steps: int) -> TrainConfig:
    def share(steps: int | None, least: int) -> int | None:
        return None if steps is None else max(least, round(steps * factor))

    warmup_steps = share(train.warmup_steps, LEAST_WARMUP.get(train.schedule, 0))
    # The peak of these is lr / sqrt(warmup_steps), and stays what it was.
    falls_from_warmup = train.schedule in ("rsqrt", "rsqrt_decay")
    shrunk = warmup_steps / train.warmup_steps if falls_from_warmup and warmup_steps else 1.0
    milestones = sorted({max(1, round(mark * factor)) for mark in train.milestones})
    changes: dict[str, Any] = {
        "max_steps": max_steps,
        "lr": train.lr * math.sqrt(shrunk),
        "warmup_steps": warmup_steps,
        "schedule_steps": share(train.schedule_steps, 1 + (warmup_steps or 0)),
        "schedule_interval": max(1, round(train.schedule_interval * factor)),
        "milestones": tuple(milestones),
        "eval_every": _evaluations(train.eval_every, share(train.eval_every, 1), max_steps),
    }
    try:
        return replace(train, **changes)
    except InputError as error:
        raise InputError(
            f"max_steps: {max_steps} is too short for the schedule: {error}"
        ) from error
