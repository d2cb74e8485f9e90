"""Settings of one training run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from typing import Any

from rifflemix.errors import bad_argument, check_choice, unknown_name

OPTIMIZERS = ("adamw", "adam", "sgd", "adafactor")
PRECISIONS = ("no", "bf16")
SCHEDULES = {
    "constant": 0,
    "linear": 0,
    "cosine": 0,
    "cosine_restarts": 0,
    "rsqrt": 1,
    "rsqrt_decay": 1,
    "inverse_sqrt": 1,
    "one_cycle": 2,
    "multistep": 0,
}
"""Schedule -> minimum number of warm-up steps."""
BALANCED = "balanced"

_MOST_WORKERS = 1_024  # a larger number is most likely a typing error
# Settings that change neither the results nor the log.
_WITHOUT_EFFECT = ("num_workers", "checkpoint_every", "checkpoint_seconds")

# Setting -> schedules that read it. Other schedules would ignore a value without a message.
_SCHEDULE_FIELDS = {
    "warmup_init": ("constant", "linear", "cosine", "inverse_sqrt", "multistep"),
    "warmup_power": ("constant", "linear", "cosine", "inverse_sqrt", "multistep"),
    "min_lr": ("linear", "cosine"),
    "schedule_steps": ("linear", "cosine", "cosine_restarts", "one_cycle"),
    "cycle_beta1": ("one_cycle",),
    "milestones": ("multistep",),
    "decay_factor": ("multistep",),
}


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Settings of a run: budget, optimizer, learning rate, evaluation, checkpoints and seed.

    Attributes:
        max_steps: number of optimizer updates.
        batch_size: samples per update over all processes and accumulation steps.
        token_batches: (tokens, length), or None for batches of `batch_size` samples. The pair
            selects batches of similar lengths, as in Tensor2Tensor, in training and in evaluation.
            A batch has at most `tokens` tokens including padding. Samples of `length` tokens or
            more share one bucket. `batch_size` is then the typical number of samples, used only
            for cost estimates.
        optimizer: name of the algorithm.
            "adamw": decoupled weight decay, as `weight_decay` of flax's Adam.
            "adam": weight decay added to the gradient.
            "sgd": weight decay added to the gradient; betas[0] is the momentum.
            "adafactor": decoupled weight decay; Shazeer and Stern 2018, algorithm 4, without
            momentum. An update is lr times the root mean square of the parameter. The effective
            lr is at most 1 / sqrt(step).
        lr: peak learning rate. For "rsqrt" and "rsqrt_decay" the peak is lr / sqrt(warmup).
        betas: decay rates of Adam. SGD reads only betas[0], Adafactor reads none.
        eps: constant of Adam.
        weight_decay: decay of parameters with two or more dimensions. Biases and parameters that
            a module excludes are not decayed.
        decay_all: apply the decay to every parameter including biases and norms, as in flax's
            Adam.
        schedule: constant, linear, cosine, cosine_restarts, rsqrt, rsqrt_decay, inverse_sqrt,
            one_cycle or multistep; rifflemix.lab.train.optim has the formulas.
        schedule_steps: step at which the decay ends, or length of one cycle; None means
            max_steps.
        schedule_interval: steps between changes of the rate and of beta1, for per-epoch
            schedules.
        warmup_steps: number of updates in which the rate rises.
        warmup_init: rate before the first update.
        warmup_power: the rate rises with (step / warmup_steps) ** warmup_power.
        min_lr: final rate of linear and cosine.
        milestones: steps at which multistep lowers the rate.
        decay_factor: factor of the rate at each milestone.
        cycle_beta1: (high, low) range of beta1 for one_cycle. beta1 falls when the rate rises, as
            in torch's OneCycleLR with (0.95, 0.85). None keeps betas[0].
        clip_norm: largest total norm of the gradients.
        clip_value: largest absolute value of an element of a gradient.
        label_smoothing: share of each training label that is spread evenly over all classes.
        class_weights: one weight per class for the training loss, or "balanced" for
            samples / (classes x samples of the class), as in scikit-learn. The loss is the weighted
            sum divided by the number of samples.
        mixup: parameter of the Beta distribution for averaging two training images and their
            labels. 0 turns it off. Images are mixed within one backward pass and process.
        cutmix: parameter of the Beta distribution for pasting a rectangle of one image into
            another. If mixup and cutmix are over 0, each batch uses one of them, with equal
            probability.
        accumulation: backward passes per update; the gradient equals the gradient of the whole
            batch.
        precision: "no" (float32) or "bf16" (autocast).
        compile: run the model through torch.compile.
        eval_every: steps between evaluations on the validation split. The last step is always
            evaluated; None evaluates only the last step.
        metric: metric of the validation split that selects the best weights. None uses the task's
            metric.
        patience: early stopping: the run ends after this many evaluations in a row that are not
            better than the best. None trains for `max_steps`.
        checkpoint_every: steps between checkpoints.
        checkpoint_seconds: seconds between checkpoints.
        log_every: steps between lines of log.jsonl; a line contains the mean loss since the
            previous line.
        seed: seed of the data order, dropout and other noise.
        num_workers: processes that load and augment samples; 0 loads in the training process.

    Raises:
        InputError: a value is out of range; the message names the field.

    Example:
        >>> import rifflemix as rm
        >>> config = rm.train.TrainConfig(max_steps=1000, batch_size=64, lr=3e-3, warmup_steps=100)
        >>> config.schedule
        'cosine'
    """

    max_steps: int = 1000
    batch_size: int = 32
    token_batches: tuple[int, int] | None = None
    optimizer: str = "adamw"
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    decay_all: bool = False
    schedule: str = "cosine"
    schedule_steps: int | None = None
    schedule_interval: int = 1
    warmup_steps: int = 0
    warmup_init: float = 0.0
    warmup_power: float = 1.0
    min_lr: float = 0.0
    milestones: tuple[int, ...] = ()
    decay_factor: float = 0.1
    cycle_beta1: tuple[float, float] | None = None
    clip_norm: float | None = None
    clip_value: float | None = None
    label_smoothing: float = 0.0
    class_weights: str | tuple[float, ...] | None = None
    mixup: float = 0.0
    cutmix: float = 0.0
    accumulation: int = 1
    precision: str = "no"
    compile: bool = False
    eval_every: int | None = None
    metric: str | None = None
    patience: int | None = None
    checkpoint_every: int | None = None
    checkpoint_seconds: float | None = 300.0
    log_every: int = 10
    seed: int = 0
    num_workers: int = 0

    def __post_init__(self) -> None:
        """Convert lists to tuples and check every field."""
        for name in ("betas", "milestones", "cycle_beta1", "token_batches", "class_weights"):
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        _check_numbers(self)
        for name in ("decay_all", "compile"):
            if not isinstance(getattr(self, name), bool):
                raise bad_argument(name, "True or False", repr(getattr(self, name)))
        if self.seed >= 2**63:
            raise bad_argument("seed", "a whole number under 2**63", self.seed)
        _check_pairs(self)
        _check_class_weights(self.class_weights)
        if self.metric is not None and not isinstance(self.metric, str):
            raise bad_argument("metric", "the name of a metric, or None", repr(self.metric))
        if self.patience is not None and self.eval_every is None:
            raise bad_argument("patience", "None without eval_every", self.patience)
        check_choice("optimizer", self.optimizer, OPTIMIZERS)
        _check_optimizer(self)
        check_choice("precision", self.precision, PRECISIONS)
        check_choice("schedule", self.schedule, SCHEDULES)
        _check_schedule(self)
        if self.clip_norm is not None and self.clip_value is not None:
            raise bad_argument(
                "clip_value", "None beside clip_norm", self.clip_value, "clip one way"
            )

    def with_batch_size(self, batch_size: int) -> TrainConfig:
        """Return a copy with this batch size and proportional `token_batches`.

        Args:
            batch_size: samples per update.

        Returns:
            The changed settings.
        """
        if self.token_batches is None:
            return replace(self, batch_size=batch_size)
        tokens = max(1, round(self.token_batches[0] * batch_size / self.batch_size))
        pair = (tokens, self.token_batches[1])
        return replace(self, batch_size=batch_size, token_batches=pair)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as JSON values for `from_dict`.

        Returns:
            Name -> JSON value.
        """
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainConfig:
        """Read the settings from JSON values; missing settings get their defaults.

        Args:
            values: result of `to_dict`.

        Returns:
            The settings.

        Raises:
            InputError: a name is unknown (the message suggests the nearest) or a value is invalid.
        """
        if not isinstance(values, Mapping):
            raise bad_argument("config", "a mapping of setting names to values", repr(values))
        known = [field.name for field in fields(cls)]
        for name in values:
            if name not in known:
                raise unknown_name("training setting", str(name), known)
        return cls(**values)


# Setting -> (smallest value, whether None is allowed).
_WHOLE_NUMBERS = {
    "max_steps": (1, False),
    "batch_size": (1, False),
    "schedule_interval": (1, False),
    "accumulation": (1, False),
    "log_every": (1, False),
    "schedule_steps": (1, True),
    "eval_every": (1, True),
    "checkpoint_every": (1, True),
    "patience": (1, True),
    "warmup_steps": (0, False),
    "num_workers": (0, False),
    "seed": (0, False),
}
_POSITIVE_NUMBERS = {
    "lr": False,
    "eps": False,
    "warmup_power": False,
    "decay_factor": False,
    "clip_norm": True,
    "clip_value": True,
    "checkpoint_seconds": True,
}
_OTHER_NUMBERS = ("weight_decay", "warmup_init", "min_lr", "mixup", "cutmix")


def _check_numbers(config: TrainConfig) -> None:
    for name, (least, may_be_none) in _WHOLE_NUMBERS.items():
        value = getattr(config, name)
        if not (_is_count(value, least) or (may_be_none and value is None)):
            expected = f"a whole number of at least {least}{', or None' if may_be_none else ''}"
            raise bad_argument(name, expected, repr(value))
    for name, may_be_none in _POSITIVE_NUMBERS.items():
        value = getattr(config, name)
        if not ((_is_number(value) and value > 0) or (may_be_none and value is None)):
            expected = f"a number over 0{', or None' if may_be_none else ''}"
            raise bad_argument(name, expected, repr(value))
    for name in _OTHER_NUMBERS:
        value = getattr(config, name)
        if not (_is_number(value) and value >= 0):
            raise bad_argument(name, "a number of at least 0", repr(value))
    if not (_is_number(config.label_smoothing) and 0 <= config.label_smoothing < 1):
        raise bad_argument("label_smoothing", "a number in [0, 1)", repr(config.label_smoothing))


def _check_pairs(config: TrainConfig) -> None:
    if not _are_betas(config.betas):
        raise bad_argument("betas", "two numbers in [0, 1)", repr(config.betas))
    if config.num_workers > _MOST_WORKERS:
        expected = f"at most {_MOST_WORKERS:,} processes"
        raise bad_argument("num_workers", expected, f"{config.num_workers:,}")
    if config.cycle_beta1 is not None and not _are_betas(config.cycle_beta1):
        raise bad_argument("cycle_beta1", "two numbers in [0, 1)", repr(config.cycle_beta1))
    _check_token_batches(config)
    marks = config.milestones
    if not isinstance(marks, tuple) or not all(_is_count(mark, 1) for mark in marks):
        raise bad_argument("milestones", "whole numbers of at least 1", repr(marks))
    if list(marks) != sorted(set(marks)):
        raise bad_argument("milestones", "increasing steps", repr(marks))


def _check_class_weights(weights: str | tuple[float, ...] | None) -> None:
    if weights is None or weights == BALANCED:
        return
    numbers = weights if isinstance(weights, tuple) else ()
    if not numbers or not all(_is_number(weight) and weight > 0 for weight in numbers):
        expected = f"{BALANCED!r}, one number over 0 per class, or None"
        raise bad_argument("class_weights", expected, repr(weights))


def _check_token_batches(config: TrainConfig) -> None:
    pair = config.token_batches
    if pair is None:
        return
    is_pair = isinstance(pair, tuple) and len(pair) == 2
    if not (is_pair and all(_is_count(number, 1) for number in pair)):
        expected = "None, or two whole numbers of at least 1: tokens and a length"
        raise bad_argument("token_batches", expected, repr(pair))
    if config.accumulation > 1:
        raise bad_argument("accumulation", "1 with token_batches", config.accumulation)


_UNREAD = {
    "sgd": (("eps",), "it divides by no second moment"),
    "adafactor": (
        ("betas", "eps", "cycle_beta1"),
        "its decay rate follows the step, and it has no momentum",
    ),
}
"""Optimizer -> (settings that it ignores, reason)."""


def _check_optimizer(config: TrainConfig) -> None:
    names, reason = _UNREAD.get(config.optimizer, ((), ""))
    for field in fields(config):
        value = getattr(config, field.name)
        if field.name in names and value != field.default:
            expected = f"{field.default} with optimizer {config.optimizer!r}"
            raise bad_argument(field.name, expected, repr(value), reason)


def _check_schedule(config: TrainConfig) -> None:
    for field in fields(config):
        readers = _SCHEDULE_FIELDS.get(field.name)
        value = getattr(config, field.name)
        if readers and config.schedule not in readers and value != field.default:
            default = "unset" if field.default is MISSING else repr(field.default)
            raise bad_argument(
                field.name,
                f"{default} with schedule {config.schedule!r}",
                repr(value),
                f"only {', '.join(readers)} read it",
            )
    least = SCHEDULES[config.schedule]
    if config.warmup_steps < least:
        expected = f"at least {least} with schedule {config.schedule!r}"
        raise bad_argument("warmup_steps", expected, config.warmup_steps)
    if config.schedule == "multistep" and not config.milestones:
        raise bad_argument("milestones", "at least one with schedule 'multistep'", "none")
    total = config.schedule_steps or config.max_steps
    falls = config.schedule in ("linear", "cosine") and config.schedule_steps is not None
    if falls and config.warmup_steps >= total:
        expected = f"more than the {config.warmup_steps} of warmup_steps, after which it decays"
        raise bad_argument("schedule_steps", expected, total)
    if config.schedule == "one_cycle":
        if config.warmup_steps >= total:
            raise bad_argument(
                "warmup_steps", f"fewer than the cycle's {total}", config.warmup_steps
            )
        if config.max_steps > total:
            raise bad_argument("schedule_steps", f"at least max_steps = {config.max_steps}", total)


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _are_betas(value: object) -> bool:
    return (
        isinstance(value, tuple)
        and len(value) == 2
        and all(_is_number(beta) and 0.0 <= beta < 1.0 for beta in value)
    )


def free_settings(prefix: str) -> list[str]:
    """List the settings that a resumed run may change, as `prefix`.NAME."""
    return [f"{prefix}.{name}" for name in _WITHOUT_EFFECT]
