"""The settings of a comparison."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rifflemix.errors import bad_argument, unregistered_name
from rifflemix.lab.comparison.budgets import train_config
from rifflemix.lab.runs.device import check_device
from rifflemix.lab.runs.grid import Grid, Point, check_grid, grid_points, point_label
from rifflemix.lab.runs.options import (
    ContextParallel,
    Dim,
    Heads,
    Layers,
    Threads,
    check_options,
)
from rifflemix.lab.runs.outside import outside_code
from rifflemix.lab.tasks import TaskCard, task_card
from rifflemix.lab.train.config import TrainConfig, free_settings
from rifflemix.mixers import HEADLINE, list_mixers, mixer_card, usable_mixers
from rifflemix.models import list_models, model_card
from rifflemix.models.graphs.graphormer import MIXERS as GRAPH_MIXERS

FORMAT = "rifflemix.compare/1"

_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+-]{0,63}")

# Beyond this a typing error is likelier than a wish.
MOST_SEEDS = 1_000


@dataclass(frozen=True, kw_only=True)
class CompareConfig:
    """The mixers, task, backbone and budget of a comparison.

    Attributes:
        task: name of the task.
        mixers: registry names, or labels of `variants`, in the order of the table.
        seeds: every mixer is trained once with each.
        dim, num_layers, num_heads: size of the backbone.
        train: training settings; its own seed is replaced by those of `seeds`.
        task_options: options of the task that differ from its card.
        mixer_options: mixer name or label -> its options.
        variants: label -> registry name of the mixer that it stands for, so that one mixer can be
            compared in several settings.
        own_card: of a task that is in no registry; None where the registry has it.
        tuned: training setting -> values that every mixer tries, each with every seed; the
            validation split chooses. Empty where nothing is tuned.
        model: registry name of a backbone that takes any mixer.
        device: "cpu", "cuda", "cuda:1" ...
        threads: CPU threads.
        context_parallel: processes of torchrun that share each sequence.

    Raises:
        InputError: an unknown name, a repeated or missing mixer or seed, a mixer that looks ahead
            where tokens are predicted, a device that is not
            there.
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
    variants: Mapping[str, str] = field(default_factory=dict)
    own_card: TaskCard | None = None
    tuned: Grid = field(default_factory=dict)
    model: str = "encoder"
    device: str = "cpu"
    threads: Threads = 1
    context_parallel: ContextParallel = 1

    def __post_init__(self) -> None:
        """Check all that can be told without data."""
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

    @property
    def points(self) -> list[Point]:
        """What every mixer tries: the combinations of `tuned`, or an empty one where that is so."""
        return grid_points(self.tuned)

    def at(self, point: Point) -> CompareConfig:
        """The comparison of one of `points`, with nothing to tune."""
        return replace(self, train=replace(self.train, **point), tuned={})

    def folder(self, mixer: str, seed: int, point: Point) -> str:
        """Where a run lies, relative to the results."""
        return "/".join([mixer, *([point_label(point)] if point else []), f"seed{seed}"])

    @property
    def card(self) -> TaskCard:
        """The task's card."""
        return self.own_card or task_card(self.task)

    @property
    def train_options(self) -> dict[str, Any]:
        """The settings of `train` that are not those of every comparison, as JSON values."""
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
        """The registry name of the mixer behind one of `mixers`."""
        return self.variants.get(label, label)

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        free = free_settings("train")  # which change no number
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
            **({"variants": dict(self.variants)} if self.variants else {}),
            "seeds": list(self.seeds),
            **({"tuned": {k: list(v) for k, v in self.tuned.items()}} if self.tuned else {}),
            "train": {k: v for k, v in self.train.to_dict().items() if k not in self.tuned},
            "device": self.device,
            "threads": self.threads,
            **({"context_parallel": self.context_parallel} if self.context_parallel != 1 else {}),
            **_plugins(map(self.mixer_name, self.mixers), self.model),
        }

    def model_settings(self, mixer: str) -> dict[str, Any]:
        """The settings of the model with `mixer`, as JSON values."""
        return {
            "model": self.model,
            "mixer": self.mixer_name(mixer),
            "mixer_options": dict(self.mixer_options.get(mixer, {})),
            "dim": self.dim,
            "num_layers": self.num_layers,
            "num_heads": self.num_heads,
            **_plugins([self.mixer_name(mixer)], self.model),
        }


def _plugins(mixers: Iterable[str], model: str) -> dict[str, Any]:
    """Code that is not the package's; a run goes on with the same only."""
    found = outside_code(mixers, [model])
    return {"plugins": found} if found else {}


def default_mixers(task: str | TaskCard) -> tuple[str, ...]:
    """Mixers of a comparison that names none: softmax and the papers' mixers that fit the task."""
    names = all_mixers(task)
    return tuple(name for name in HEADLINE if name in names)


def all_mixers(task: str | TaskCard) -> tuple[str, ...]:
    """All registered mixers that can be compared on a task."""
    card = task_card(task) if isinstance(task, str) else task
    if takes_graphs(card):
        return tuple(GRAPH_MIXERS)
    can_all = not card.is_generative
    return tuple(name for name in usable_mixers() if can_all or mixer_card(name).causal)


def takes_graphs(card: TaskCard) -> bool:
    """Whether the samples of a task are graphs, which few mixers take."""
    return model_card(card.backbone).inputs == "graphs"


def default_model(task: str | TaskCard, options: Mapping[str, Any] | None = None) -> str:
    """The backbone that a task's card names for its samples with these options."""
    card = task_card(task) if isinstance(task, str) else task
    return card.backbone_for(options or {})


def _check_list(name: str, values: tuple[Any, ...]) -> None:
    if not values:
        raise bad_argument(name, "at least one", "none")
    value, count = Counter(values).most_common(1)[0]
    if count > 1:
        raise bad_argument(name, "each only once", f"{value!r} twice")


def _check_labels(mixers: tuple[str, ...], variants: Mapping[str, str]) -> None:
    """Raise unless labels are texts that folders and commands can hold, and mislead nobody."""
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
