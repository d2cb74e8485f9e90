"""The settings of a comparison."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rifflemix.errors import bad_argument, unregistered_name
from rifflemix.lab.comparison.defaults import all_mixers
from rifflemix.lab.comparison.trials import Rung, plan_rungs
from rifflemix.lab.runs.build_for_task import outside_code
from rifflemix.lab.runs.environment import check_device, default_threads
from rifflemix.lab.runs.options import ContextParallel, Dim, Heads, Layers, Threads, check_options
from rifflemix.lab.runs.status import Grid, Point, check_grid, grid_points, point_label
from rifflemix.lab.tasks import Budget, Task, TaskCard, task_card
from rifflemix.lab.train.config import TrainConfig, free_settings
from rifflemix.mixers import list_mixers, mixer_card
from rifflemix.models import list_models

NO_OPTIONS: Mapping[str, Any] = {}
_ELSEWHERE = ("max_steps", "batch_size", "lr", "precision", "seed")
"""Training settings that a comparison has under their own names."""


def train_config(
    budget: Budget,
    *,
    max_steps: int,
    batch_size: int,
    lr: float,
    precision: str,
    options: Mapping[str, Any] = NO_OPTIONS,
) -> TrainConfig:
    """Return the training settings: AdamW, warm-up for a tenth of the steps, then a cosine.

    Args:
        budget: budget of the task.
        max_steps: updates of each run.
        batch_size: sequences of an update.
        lr: peak learning rate.
        precision: "no" or "bf16".
        options: further settings, which win.

    Returns:
        The training settings.

    Raises:
        InputError: an unknown setting, one of those before, or a value out of range.

    Example:
        >>> from rifflemix.lab.comparison import default_budget, train_config
        >>> budget = default_budget("digits")
        >>> config = train_config(budget, max_steps=100, batch_size=32, lr=1e-3, precision="no")
        >>> config.schedule, config.warmup_steps
        ('cosine', 10)
    """
    for name in options:
        if name in _ELSEWHERE:
            expected = f"none of {', '.join(_ELSEWHERE)}"
            raise bad_argument("train_options", expected, name, "set it by its own name")
    settings = {
        "max_steps": max_steps,
        "batch_size": batch_size,
        "lr": lr,
        "weight_decay": 0.01,
        "schedule": "cosine",
        "warmup_steps": max_steps // 10,
        "clip_norm": 1.0,
        "precision": precision,
        "eval_every": max(1, -(-max_steps // budget.evaluations)),
        "checkpoint_seconds": 20.0,
        "log_every": max(1, max_steps // 100),
    }
    if options.get("clip_value") is not None:
        settings["clip_norm"] = None  # only one kind of gradient clipping is possible
    return TrainConfig.from_dict({**settings, **options})


FORMAT = "rifflemix.compare/1"

_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+-]{0,63}")

_AS_STORED = (
    "dim", "num_layers", "num_heads", "mixer_options", "model_options", "variants", "model",
    "device", "threads", "context_parallel", "stop_early",
)  # fmt: skip

# A larger number is probably a typing error.
MOST_SEEDS = 1_000


@dataclass(frozen=True, kw_only=True)
class CompareConfig:
    """The mixers, task, backbone and budget of a comparison.

    Attributes:
        task: name of the task.
        mixers: registry names, or labels of `variants`, in the order of the table.
        seeds: every mixer is trained once with each seed.
        dim: channels of the backbone.
        num_layers: blocks of the backbone.
        num_heads: heads, for mixers with heads.
        train: training settings; `seeds` replace the seed.
        task_options: options of the task that differ from its card.
        mixer_options: mixer name or label -> its options.
        model_options: further settings of the backbone, equal for all mixers.
        variants: label -> registry name of its mixer, to compare one mixer in several settings.
        own_card: card of an unregistered task; None for registered tasks.
        tuned: training setting -> values that every mixer tries with every seed. The validation
            split chooses. Empty without tuning.
        model: registry name of a backbone that accepts any mixer.
        device: "cpu", "cuda", "cuda:1" ...
        threads: CPU threads; None chooses by the size of the model when the data is loaded.
        context_parallel: processes of torchrun that share each sequence.
        stop_early: stop the worse half of the tuned settings at rungs, see `plan_rungs`.

    Raises:
        InputError: an unknown name, a repeated or missing mixer or seed, a mixer that is not
            causal for a task that predicts tokens, or a missing device.

    Example:
        >>> import rifflemix as rm
        >>> from rifflemix.lab.comparison import resolve
        >>> config = resolve(rm.tasks.task_card("digits"), {"tssa": "tssa"}, [0, 1], max_steps=100)
        >>> config.mixers, config.seeds, config.train.max_steps
        (('tssa',), (0, 1), 100)
    """

    task: str
    mixers: tuple[str, ...]
    seeds: tuple[int, ...]
    dim: Dim
    num_layers: Layers
    num_heads: Heads
    train: TrainConfig
    task_options: Mapping[str, Any] = field(default_factory=dict)
    mixer_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    model_options: Mapping[str, Any] = field(default_factory=dict)
    variants: Mapping[str, str] = field(default_factory=dict)
    own_card: TaskCard | None = None
    tuned: Grid = field(default_factory=dict)
    model: str = "encoder"
    device: str = "cpu"
    threads: Threads | None = 1
    context_parallel: ContextParallel = 1
    stop_early: bool = False

    def __post_init__(self) -> None:
        """Check everything that does not need the data."""
        card = self.card
        _check_list("mixers", self.mixers)
        _check_labels(self.mixers, self.variants)
        _check_seeds(self.seeds)
        _check_list("seeds", self.seeds)
        for name in self.mixers:
            if not mixer_card(self.mixer_name(name)).causal and card.is_generative:
                raise bad_argument(
                    "mixers",
                    f"causal ones, since task {self.task} predicts tokens from those before them",
                    name,
                    f"causal are {', '.join(all_mixers(card))}",
                )
        for name in self.mixer_options:
            if name not in self.mixers:
                raise bad_argument("mixer_options", f"one of {', '.join(self.mixers)}", name)
        if self.model not in list_models():
            raise unregistered_name("model", self.model, list_models())
        check_options(self)
        check_device(self.device)
        check_grid(self.tuned)
        for point in self.points if self.tuned else ():
            self.at(point)
        _ = self.rungs

    @property
    def rungs(self) -> tuple[Rung, ...]:
        """Rungs that stop trials; none without `stop_early`."""
        return plan_rungs(len(self.points), self.train) if self.stop_early else ()

    @property
    def points(self) -> list[Point]:
        """Combinations of the values in `tuned`; one empty combination without tuning."""
        return grid_points(self.tuned)

    def at(self, point: Point) -> CompareConfig:
        """Return the comparison with the settings of one point of `points`, without tuning."""
        return replace(self, train=replace(self.train, **point), tuned={}, stop_early=False)

    def folder(self, mixer: str, seed: int, point: Point, step: int | None = None) -> str:
        """Return the folder of a run, relative to the results folder.

        Args:
            mixer: label of the mixer.
            seed: seed of the run.
            point: settings of a trial; empty for a run.
            step: rung at which the trial ends; None for a whole training.
        """
        return "/".join(filter(None, [mixer, trial_label(point, step), f"seed{seed}"]))

    @property
    def card(self) -> TaskCard:
        """The task's card."""
        return (self.own_card or task_card(self.task)).for_options(self.task_options)

    @property
    def train_options(self) -> dict[str, Any]:
        """Settings of `train` that differ from the defaults of a comparison, as JSON values."""
        own, train = self.train.to_dict(), self.train
        usual = train_config(
            self.card.budget,
            max_steps=train.max_steps,
            batch_size=train.batch_size,
            lr=train.lr,
            precision=train.precision,
            options={"clip_value": train.clip_value},
        ).to_dict() | {"clip_value": None}
        return {name: own[name] for name in own if own[name] != usual[name] and name != "seed"}

    def mixer_name(self, label: str) -> str:
        """Return the registry name of the mixer with a label of `mixers`."""
        return self.variants.get(label, label)

    def with_threads(self, task: Task, out: Path) -> CompareConfig:
        """Return the configuration with a number of threads; see `default_threads`.

        Args:
            task: the data.
            out: folder of the comparison.
        """
        if self.threads is not None:
            return self
        parameters = 12 * self.num_layers * self.dim**2
        tokens = self.train.batch_size * task.max_length
        return replace(self, threads=default_threads(parameters, tokens, self.device, out))

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as JSON values.

        Returns:
            Name -> JSON value.
        """
        free = free_settings("train")  # settings without an effect on numbers
        options = {k: v for k, v in self.train_options.items() if f"train.{k}" not in free}
        return {
            "format": FORMAT,
            "task": self.task,
            "task_options": dict(self.task_options),
            "model": self.model,
            "dim": self.dim,
            "num_layers": self.num_layers,
            "num_heads": self.num_heads,
            "mixers": list(self.mixers),
            "mixer_options": {name: dict(options) for name, options in self.mixer_options.items()},
            **({"train_options": options} if options else {}),
            **({"model_options": dict(self.model_options)} if self.model_options else {}),
            **({"variants": dict(self.variants)} if self.variants else {}),
            "seeds": list(self.seeds),
            **({"tuned": {k: list(v) for k, v in self.tuned.items()}} if self.tuned else {}),
            "train": {k: v for k, v in self.train.to_dict().items() if k not in self.tuned},
            "device": self.device,
            "threads": self.threads,
            **({"context_parallel": self.context_parallel} if self.context_parallel != 1 else {}),
            **({"stop_early": True} if self.stop_early else {}),
            **_plugins(map(self.mixer_name, self.mixers), self.model),
        }

    @classmethod
    def from_dict(
        cls, values: Mapping[str, Any], own_card: TaskCard | None = None
    ) -> CompareConfig:
        """Read the configuration from the JSON values of `to_dict`.

        Args:
            values: the JSON values; other entries are ignored.
            own_card: card of a task that is not in the registry.

        Returns:
            The configuration.

        Raises:
            InputError: an entry is missing, or has a wrong type or value.
        """
        try:
            tuned = {name: tuple(tried) for name, tried in values.get("tuned", {}).items()}
            first = {name: tried[0] for name, tried in tuned.items()}
            known = {"seed": 0, **(own_card or task_card(values["task"])).options}
            options = {
                name: value
                for name, value in values["task_options"].items()
                if value != known.get(name)
            }
            return cls(
                task=values["task"],
                mixers=tuple(values["mixers"]),
                seeds=tuple(values["seeds"]),
                train=TrainConfig.from_dict({**values["train"], **first}),
                task_options=options,
                own_card=own_card,
                tuned=tuned,
                **{name: values[name] for name in _AS_STORED if name in values},
            )
        except (KeyError, TypeError, AttributeError) as error:
            got = f"{type(error).__name__}: {error}"
            raise bad_argument("config.json", "the settings of a comparison", got) from error

    def model_settings(self, mixer: str) -> dict[str, Any]:
        """Return the model settings for a mixer label, as name -> JSON value."""
        return {
            "model": self.model,
            "mixer": self.mixer_name(mixer),
            "mixer_options": dict(self.mixer_options.get(mixer, {})),
            "dim": self.dim,
            "num_layers": self.num_layers,
            "num_heads": self.num_heads,
            **({"model_options": dict(self.model_options)} if self.model_options else {}),
            **_plugins([self.mixer_name(mixer)], self.model),
        }


def trial_label(point: Point, step: int | None = None) -> str:
    """Return the name of a trial, such as "lr=0.003/step50"; empty for an empty point."""
    return "/".join(filter(None, [point_label(point), "" if step is None else f"step{step}"]))


def _plugins(mixers: Iterable[str], model: str) -> dict[str, Any]:
    """Return the versions of third-party code. A run continues only with equal code."""
    found = outside_code(mixers, [model])
    return {"plugins": found} if found else {}


def _check_list(name: str, values: tuple[Any, ...]) -> None:
    if not values:
        raise bad_argument(name, "at least one", "none")
    value, count = Counter(values).most_common(1)[0]
    if count > 1:
        raise bad_argument(name, "each only once", f"{value!r} twice")


def _check_labels(mixers: tuple[str, ...], variants: Mapping[str, str]) -> None:
    """Check that labels are valid names of folders, and not names of other mixers."""
    for label, name in variants.items():
        if label not in mixers:
            raise bad_argument("variants", f"one of {', '.join(mixers)}", label)
        if not isinstance(label, str) or not _LABEL.fullmatch(label):
            raise bad_argument(
                "mixers", "labels of at most 64 letters, digits, _, + and -", repr(label)
            )
        if label != name and label in list_mixers():
            raise bad_argument("mixers", f"another label for {name}", f"{label}, which is a mixer")


def _check_seeds(seeds: tuple[int, ...]) -> None:
    if len(seeds) > MOST_SEEDS:
        raise bad_argument("seeds", f"at most {MOST_SEEDS:,} of them", f"{len(seeds):,}")
    for seed in seeds:
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
            raise bad_argument("seed", "a whole number from 0 to 2**63 - 1", repr(seed))
