"""Recipes: a number in a table of a paper, and all settings to reproduce it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rifflemix.errors import InputError, bad_argument, check_choice
from rifflemix.lab.train import TrainConfig
from rifflemix.lab.train.config import SCHEDULES
from rifflemix.lab.train.run_folder import WEIGHTS, Weights
from rifflemix.models import model_settings

# Model settings that `scaled` multiplies.
_WIDTHS = (
    "dim", "qkv_dim", "inner_dim", "mlp_dim", "hidden_dim", "z_dim", "head_dim", "planes"
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Entry of a table: task, model and training settings, and the reported number.

    Attributes:
        name: PAPER/ENTRY, such as "csp/table4-image".
        paper: authors, year and short title.
        table: name of the table, such as "Table 4".
        row: name of the model in the table.
        column: name of the data or of the metric in the table.
        printed: reported number; None if the paper reports no number (or FAIL). The registry reads
            the numbers of the built-in recipes from printed.csv.
        metric: metric of the task that corresponds to the reported number.
        unit: unit of the reported number: "%" (the metric times 100) or the unit of the metric.
        task: registry name of the task.
        task_options: options that differ from the defaults of the task.
        model: registry name of the preset.
        model_settings: settings that differ from the preset; vocabulary, classes and lengths
            come from the task.
        train: training configuration.
        notes: differences from the paper's run, with reasons. The registry reads the notes of the
            built-in recipes from notes.toml.
        width: factor that `scaled` applied to the widths.
        new_head: whether the head of the model is new. The paper's run starts from weights
            (`--start-from`) that were trained on other classes.
        planned_steps: updates of the paper's run; None means `train.max_steps`.
        weights: weights that are compared with the reported number: "best" evaluation on the
            validation split, or "last" update.
        not_comparable: reason why the difference from the reported number is not shown; empty if
            both numbers measure the same quantity.

    Example:
        >>> import rifflemix as rm
        >>> recipe = rm.recipes.get_recipe("csp/table4-image")
        >>> recipe.task, recipe.model, recipe.printed
        ('image', 'lra_image', 48.02)
    """

    name: str
    paper: str
    table: str
    row: str
    column: str
    printed: float | None = None
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
        """Number of updates of the paper's run."""
        return self.planned_steps or self.train.max_steps

    def shown(self, value: float) -> float:
        """Convert a metric's value to the unit of the reported number.

        Args:
            value: value of the metric.

        Returns:
            The value in `unit`.
        """
        return 100.0 * value if self.unit == "%" else value

    def choosing(self, weights: Weights) -> Recipe:
        """Return the recipe with another selection of the weights.

        "best" needs a validation split, so it also turns on the task option `validation`.

        Args:
            weights: "best" or "last".

        Returns:
            The changed recipe.
        """
        check_choice("weights", weights, WEIGHTS)
        options = dict(self.task_options)
        if weights == "best" and options.get("validation") is False:
            options["validation"] = True
        return replace(self, weights=weights, task_options=options)

    def shortened(self, max_steps: int) -> Recipe:
        """Return the recipe with fewer updates and proportional warm-up, decay and evaluations.

        Args:
            max_steps: number of updates.

        Returns:
            The changed recipe.

        Raises:
            InputError: `max_steps` is not an integer from 1 to the planned steps.
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
        """Return the recipe with all model widths multiplied by `width`.

        Widths are rounded to multiples of the number of heads.

        Args:
            width: factor of the width, over 0 and at most 1.

        Returns:
            The changed recipe.

        Raises:
            InputError: `width` is not in (0, 1], or the model has no width to scale.
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
        """Return the recipe as JSON values.

        Returns:
            Name -> JSON value.
        """
        values = asdict(replace(self, train=None))  # type: ignore[arg-type] # has its own to_dict
        return {**values, "notes": list(self.notes), "train": self.train.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Recipe:
        """Read a recipe that `to_dict` wrote.

        Args:
            values: result of `to_dict`.

        Returns:
            The recipe.
        """
        train = TrainConfig.from_dict(values["train"])
        return cls(**{**values, "notes": tuple(values["notes"]), "train": train})


def _smaller(settings: Mapping[str, Any], width: float, multiple: int) -> dict[str, Any]:
    return {
        name: max(multiple, round(settings[name] * width / multiple) * multiple)
        for name in _WIDTHS
        if isinstance(settings.get(name), int) and not isinstance(settings[name], bool)
    }


def _evaluations(planned: int | None, share: int | None, max_steps: int) -> int | None:
    """Return the steps between evaluations: proportional, at most ten evaluations if short."""
    if planned is None or share is None:
        return None
    return max(share, min(planned, max_steps // 10))


def _shortened(train: TrainConfig, factor: float, max_steps: int) -> TrainConfig:
    def share(steps: int | None, least: int) -> int | None:
        return None if steps is None else max(least, round(steps * factor))

    warmup_steps = share(train.warmup_steps, SCHEDULES[train.schedule])
    # Keep the peak lr / sqrt(warmup_steps) of these schedules.
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
