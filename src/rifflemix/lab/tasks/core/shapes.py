"""Shapes of samples, and the record of a task, that are known without the data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor

from rifflemix.errors import InputError
from rifflemix.json_values import sealed
from rifflemix.lab.tasks.core.kinds import Output
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
        """Return the fields that `Task` has."""
        names = ("input_kind", "num_classes", "max_length", "vocab_size", "num_features")
        return {name: getattr(self, name) for name in (*names, "padding", "num_sequences")}

    def zeros(self, size: int, output: str) -> dict[str, Tensor]:
        """Make a typical batch of zeros, with labels.

        Args:
            size: Number of samples.
            output: Kind of model output, see `Output`.
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
