"""Card of a task, and the shapes and record of its samples: all that is known without the data."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol, get_args

import torch
from torch import Tensor

from rifflemix.errors import InputError, bad_argument, check_choice
from rifflemix.json_values import sealed
from rifflemix.lab.tasks.core.kinds import KINDS, Output
from rifflemix.version import VERSION

InputKind = Literal["tokens", "vectors", "images", "graphs"]
"""Kind of a sample, see `Task`."""

BYTE_IDS = 257
"""Number of ids of bytes and padding."""


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """Shapes of a task's samples.

    `Task` describes the fields with the same names.

    Attributes:
        image_shape: Channels, height and width of whole images. None for other samples.
        longest: Number of tokens of the longest sample in a typical batch: the mean over batches
            of the data, rounded. None if it is about `max_length`.
        mean_length: Root mean square of the number of tokens of a sample, rounded. None if all
            samples have about the same length.

    Example:
        >>> import rifflemix as rm
        >>> sizes = {"num_classes": 10, "max_length": 512, "vocab_size": 20}
        >>> shapes = rm.tasks.Shapes(input_kind="tokens", **sizes)
        >>> shapes.zeros(4, "classes")["inputs"].shape
        torch.Size([4, 512])
    """

    input_kind: InputKind
    num_classes: int
    max_length: int
    vocab_size: int | None = None
    num_features: int | None = None
    padding: bool = False
    num_sequences: int = 1
    image_shape: tuple[int, int, int] | None = None
    longest: int | None = None
    mean_length: int | None = None

    @property
    def tokens(self) -> int:
        """Number of tokens per sample of a typical batch, including padding."""
        return min(self.longest or self.max_length, self.max_length)

    @property
    def valid(self) -> int:
        """Root mean square of the number of valid tokens of a sample."""
        return min(self.mean_length or self.tokens, self.tokens)

    def for_task(self) -> dict[str, Any]:
        """Return the entries that `Task` also has, as name -> value."""
        names = ("input_kind", "num_classes", "max_length", "vocab_size", "num_features")
        return {name: getattr(self, name) for name in (*names, "padding", "num_sequences")}

    def zeros(self, size: int, output: str) -> dict[str, Tensor]:
        """Make a typical batch of zeros, with labels.

        Args:
            size: Number of samples.
            output: Kind of model output, see `Output`.

        Returns:
            "inputs" and "labels", and "key_padding_mask" and "decoder_inputs" if the task has them.
        """
        several = (self.num_sequences,) if self.num_sequences > 1 else ()
        shape = self.image_shape or (*several, self.tokens)
        if self.input_kind == "vectors":
            shape = (*shape, self.num_features or 1)
        dtype = torch.int64 if self.input_kind == "tokens" else torch.float32
        batch = {"inputs": torch.zeros(size, *shape, dtype=dtype)}
        if self.padding:
            batch["key_padding_mask"] = torch.zeros(size, *shape[: len(several) + 1]).bool()
        if output == "sequence":
            batch["decoder_inputs"] = torch.zeros(size, self.tokens, dtype=torch.int64)
        each = (self.tokens,) if output in ("sequence", "next_token", "tokens") else ()
        return {**batch, "labels": torch.zeros(size, *each, dtype=torch.int64)}


def known_ids(size: int | None, level: str) -> int:
    """Return the number of ids of a level.

    Raises:
        InputError: Only the data determines the number.
    """
    if size is None:
        raise InputError(f"level: expected a known number of ids without the data, got {level!r}")
    return size


RECORD_FORMAT = "rifflemix.task/1"


class InputSpec(Protocol):
    """Conversion of raw inputs, such as texts or arrays, to the inputs of samples.

    A task builds its samples with its specification. `TrainedRun.predict` uses the same one, so
    that training and prediction cannot differ. Implementations are frozen dataclasses of JSON
    values.
    """

    kind: ClassVar[str]
    """Name of the class in files."""

    def encode(self, raw: Any) -> list[Any]:
        """Convert a collection of raw inputs to the inputs of samples, one by one.

        Raises:
            InputError: An input has another type or shape, is too long, or has unknown symbols.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class TaskRecord:
    """Shapes, class names and input conversion of a task.

    The attributes have the meaning of the attributes of `Task`.

    Attributes:
        output: Kind of model output, see `Output`.
        classes: Name of each class. Empty if the task has no classes.
        kind: Name of the kind, see `Kind`.
        target_mean, target_std: Mean and standard deviation of the training targets, or one of
            each target. Outputs of regression models are standardized with them.
        target_shape: Shape of the prediction of several numbers. Empty for one number.
        inputs: Fields of the `InputSpec`, and its kind as "kind". None if the task has none.
        version: Version of rifflemix that wrote the record. Empty for old versions.
    """

    name: str
    options: dict[str, Any]
    shapes: Shapes
    pad_id: int
    output: Output
    classes: tuple[str, ...]
    kind: str = ""
    target_mean: float | tuple[float, ...] = 0.0
    target_std: float | tuple[float, ...] = 1.0
    target_shape: tuple[int, ...] = ()
    inputs: dict[str, Any] | None = None
    version: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return JSON values with a format and a checksum."""
        return sealed({"format": RECORD_FORMAT, **asdict(self), "version": VERSION})


def spec_values(spec: Any) -> dict[str, Any] | None:
    """Return the fields of an `InputSpec` and its kind as JSON values."""
    return None if spec is None else {"kind": spec.kind, **asdict(spec)}


@dataclass(frozen=True)
class Budget:
    """Default model size and training budget, equal for every mixer.

    Attributes:
        dim: Number of channels C.
        num_layers: Number of blocks.
        num_heads: Number of heads H.
        max_steps: Number of optimizer updates.
        batch_size: Sequences per update.
        lr: Peak learning rate.
        evaluations: Number of evaluations on the validation split. The best one selects the
            weights.

    Example:
        >>> import rifflemix as rm
        >>> rm.tasks.Budget(max_steps=100).lr
        0.001
    """

    dim: int = 64
    num_layers: int = 2
    num_heads: int = 4
    max_steps: int = 1000
    batch_size: int = 32
    lr: float = 1e-3
    evaluations: int = 5


@dataclass(frozen=True)
class TaskCard:
    """Description of a task and its data, for lists, tables and commands.

    Attributes:
        name: Registry name.
        title: Common name.
        source: Author and origin of the data.
        licence: License of the data.
        description: One or two sentences on inputs, labels and splits.
        needs_data: True if the task needs files or a network, False if its data is built in or
            generated.
        options: Options of the task and their defaults.
        output: Kind of model output, see `Output`.
        backbone: Registry name of a model that accepts the samples and returns this output.
        image_backbone: Registry name of a model for whole images, for option layout="image".
        causal_backbone: Registry name of a model with causal mixers, for option causal=True of a
            task with output "tokens".
        is_image: True if positions are pixels or patches of a square image, row by row. Learned
            positions can then be enlarged for a larger image.
        budget: Model size and training budget, not tuned for any mixer. A few mixers finish in
            minutes (digits) or in an hour or two (other tasks) on two cores.
        solved_at: Test accuracy from which a task with known answers counts as solved. None for
            other tasks.
        shapes: Function from all options to the shapes of the samples. None if only the data
            determines them. `rifflemix list recipes --cost` needs it.

    Example:
        >>> import rifflemix as rm
        >>> card = rm.tasks.task_card("digits")
        >>> card.needs_data, card.budget.max_steps
        (False, 400)
    """

    name: str
    title: str
    source: str
    licence: str
    description: str
    needs_data: bool
    options: Mapping[str, Any] = field(default_factory=dict)
    output: Output = "classes"
    backbone: str = "encoder"
    image_backbone: str = "vit_cifar10"
    causal_backbone: str = ""
    is_image: bool = False
    budget: Budget = Budget()
    solved_at: float | None = None
    shapes: Callable[[Mapping[str, Any]], Shapes] | None = None

    @property
    def is_generative(self) -> bool:
        """True if models predict tokens from previous tokens and must be causal."""
        return self.output in ("next_token", "sequence")

    def for_options(self, options: Mapping[str, Any]) -> TaskCard:
        """Change output and backbone of the card if the options require it.

        layout="image" needs a model of images. causal=False allows models that use all tokens.
        Option "kind" of user data names the output.

        Args:
            options: options of the task that differ from the defaults.

        Returns:
            The card for these options.
        """
        chosen = {**self.options, **options}
        if chosen.get("layout") == "image":
            return replace(self, backbone=self.image_backbone)
        kind = KINDS.get(chosen.get("kind", "")) if self.options.get("kind") == "auto" else None
        if kind is not None:
            return replace(self, output=kind.output, backbone=kind.backbone)
        if chosen.get("causal") is False and self.output == "next_token":
            return replace(self, output="tokens", backbone="encoder")
        if chosen.get("causal") is True and self.causal_backbone:
            return replace(self, backbone=self.causal_backbone)
        return self


@dataclass(frozen=True)
class TaskStatus:
    """Availability of a task, and details on its data.

    Attributes:
        name: name of the task.
        available: False if the data needs a download.
        detail: place of the data, or how to get it.

    Example:
        >>> import rifflemix as rm
        >>> status = rm.tasks.task_status("digits")
        >>> status.name, status.available
        ('digits', True)
    """

    name: str
    available: bool
    detail: str


def check_card(card: TaskCard, shared: Collection[str]) -> None:
    """Raise InputError unless the card is complete and JSON can store its options.

    Args:
        card: card of a task to register.
        shared: options that every task has.
    """
    for entry in ("title", "source", "licence", "description", "backbone", "image_backbone"):
        value = getattr(card, entry)
        if not isinstance(value, str) or not value:
            raise bad_argument(f"card of task {card.name}, {entry}", "a text", repr(value))
    check_choice(f"card of task {card.name}, output", card.output, get_args(Output))
    try:
        json.dumps(dict(card.options), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise bad_argument(
            f"card of task {card.name}, options", "values that JSON has", error
        ) from None
    for name in card.options:
        if name in shared:
            raise bad_argument(
                f"card of task {card.name}, options", f"none called {name}", "it", "all have it"
            )
