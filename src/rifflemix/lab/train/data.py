"""Batches: order of the samples, loading, and transfer to the device."""

from __future__ import annotations

import re
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

from rifflemix.errors import InputError, RunFailed, bad_argument
from rifflemix.lab.train.config import TrainConfig
from rifflemix.lab.train.length_batches import (
    batches_by_length,
    endless_batches,
    sample_lengths,
)
from rifflemix.lab.train.protocols import Batch, HasFurtherTests, Split, TrainableTask
from rifflemix.lab.train.seeds import derive_seed, seed_sequence
from rifflemix.lab.train.targets import change_batch

_ORDER, _WORKERS = 1, 2  # purposes of derived seeds
# torch's messages for a killed loading process and for a lack of shared memory.
_LOST = re.compile(r"DataLoader worker \(pid.*|unable to allocate shared memory.*")


@lru_cache(maxsize=2)
def epoch_order(length: int, seed: int, epoch: int) -> np.ndarray:
    """Return the order of samples in `epoch`, (length,) int64.

    The order depends only on length, seed and epoch.
    """
    return np.random.default_rng(seed_sequence(seed, _ORDER, epoch)).permutation(length)


def batch_indices(length: int, config: TrainConfig, step: int) -> list[int]:
    """Return the samples of the global batch at `step`.

    A batch may contain the end of one epoch and the start of the next. No sample is dropped, and
    all samples are used equally often.
    """
    first = step * config.batch_size
    return [
        int(epoch_order(length, config.seed, position // length)[position % length])
        for position in range(first, first + config.batch_size)
    ]


class TrainOrder(Sampler[list[tuple[int, int]]]):
    """Sampler of the micro-batches of one process from `first_step` to the end of the run.

    A global batch is split into accumulation x processes equal parts, in order. A sample is a
    pair: index in the split, and position in the sample order of the whole run.
    """

    def __init__(
        self, length: int, config: TrainConfig, first_step: int, rank: int, processes: int
    ) -> None:
        self.length = length
        self.config = config
        self.first_step = first_step
        self.rank = rank
        self.processes = processes

    def __len__(self) -> int:
        return (self.config.max_steps - self.first_step) * self.config.accumulation

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for step in range(self.first_step, self.config.max_steps):
            batches = zip(self.micro_batches(step), self.positions(step), strict=True)
            yield from (list(zip(indices, at, strict=True)) for indices, at in batches)

    def micro_batches(self, step: int) -> list[list[int]]:
        """Return the micro-batches of one update, one per accumulation step."""
        indices = batch_indices(self.length, self.config, step)
        size = micro_batch_size(self.config, self.processes)
        parts = [indices[start : start + size] for start in range(0, len(indices), size)]
        return parts[self.rank :: self.processes]

    def positions(self, step: int) -> list[range]:
        """Return the positions of each micro-batch in the run's sample order."""
        size = micro_batch_size(self.config, self.processes)
        first = step * self.config.batch_size
        starts = range(first, first + self.config.batch_size, size)
        return [range(start, start + size) for start in starts][self.rank :: self.processes]


class EvaluationOrder(Sampler[list[int]]):
    """Sampler of the batches of one process over a whole split, in order.

    All processes get equally many batches, because sharded models run in lockstep. If no samples
    are left for a batch, the batch contains sample 0 and its entry of `counts` is False.
    """

    def __init__(self, length: int, size: int, rank: int, processes: int) -> None:
        starts = range(0, length, size * processes)
        shares = [
            range(length)[start + rank * size : min(start + (rank + 1) * size, length)]
            for start in starts
        ]
        self.counts = [len(share) > 0 for share in shares]
        self.batches = [list(share) or [0] for share in shares]

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


def micro_batch_size(config: TrainConfig, processes: int) -> int:
    """Return the number of samples in one forward pass of one process."""
    return config.batch_size // (config.accumulation * processes)


class LengthOrder(Sampler[list[tuple[int, int]]]):
    """Sampler of batches of similar lengths from `first_step` to the end of the run.

    Replaces `TrainOrder` if `token_batches` is set, and supports only one group of processes.
    """

    def __init__(self, lengths: np.ndarray, config: TrainConfig, first_step: int) -> None:
        self.lengths = lengths
        self.config = config
        self.first_step = first_step
        self._asked = iter(self)

    def __len__(self) -> int:
        return self.config.max_steps - self.first_step

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        config = self.config
        if config.token_batches is None:
            raise bad_argument("token_batches", "tokens and a length", "None")
        order = partial(epoch_order, len(self.lengths), config.seed)
        batches = endless_batches(self.lengths, order, config.token_batches, self.first_step)
        return islice(batches, len(self))

    def micro_batches(self, step: int) -> list[list[int]]:
        """Return the samples of the next update.

        Call this method once per update, in order.
        """
        return [[index for index, _ in next(self._asked)]]


def training_order(
    task: TrainableTask,
    split: Split,
    config: TrainConfig,
    first_step: int,
    rank: int,
    replicas: int,
) -> TrainOrder | LengthOrder:
    """Return the sampler for training on a split in one process."""
    if config.token_batches is None:
        return TrainOrder(len(split), config, first_step, rank, replicas)
    return LengthOrder(sample_lengths(split, task.name), config, first_step)


def evaluation_order(
    task: TrainableTask, split: Split, config: TrainConfig, rank: int, replicas: int
) -> EvaluationOrder:
    """Return the sampler for evaluating a split in one process."""
    order = EvaluationOrder(len(split), micro_batch_size(config, replicas), rank, replicas)
    if config.token_batches is not None:
        lengths = sample_lengths(split, task.name)
        order.batches = list(batches_by_length(lengths, range(len(split)), config.token_batches))
        order.counts = [True] * len(order.batches)
    return order


def training_batches(
    task: TrainableTask,
    split: Split,
    order: TrainOrder | LengthOrder,
    config: TrainConfig,
    device: torch.device,
) -> Iterator[Batch]:
    """Yield CPU batches of `split` in `order`, with training augmentation.

    Raises:
        InputError: the split or the task raised it, also in a loading process.
    """
    collate = _Changed(task, config)
    return _load(task, _Placed(split), order, collate, config, device)


def evaluation_batches(
    task: TrainableTask,
    split: Split,
    order: EvaluationOrder,
    config: TrainConfig,
    device: torch.device,
) -> Iterator[Batch]:
    """Yield CPU batches of `split` in `order`.

    Raises:
        InputError: the split or the task raised it, also in a loading process.
    """
    return _load(task, split, order, task.collate, config, device)


@dataclass(frozen=True)
class _Placed:
    """Split that is indexed with (index, position) pairs and also returns the positions."""

    split: Split

    def __getitems__(self, where: list[tuple[int, int]]) -> tuple[list[Any], list[int]]:
        indices, positions = [index for index, _ in where], [place for _, place in where]
        at_once = getattr(self.split, "__getitems__", None)
        samples = at_once(indices) if at_once else [self.split[index] for index in indices]
        return samples, positions


@dataclass(frozen=True)
class _Changed:
    """Collate function for `_Placed` that augments batches in the loading processes."""

    task: TrainableTask
    config: TrainConfig

    def __call__(self, placed: tuple[list[Any], list[int]]) -> Batch:
        samples, positions = placed
        return change_batch(self.task, self.config, self.task.collate(samples), positions)


@dataclass(frozen=True)
class _Shared:
    """Collate function that moves batches to shared memory.

    The queue of the loader would also do this. But if shared memory is full, the queue loses the
    error and the training process waits forever.
    """

    collate: Callable[[Any], Batch]

    def __call__(self, samples: Any) -> Batch:
        return {name: values.share_memory_() for name, values in self.collate(samples).items()}


def _load(
    task: TrainableTask,
    split: Any,
    order: TrainOrder | LengthOrder | EvaluationOrder,
    collate: Callable[[Any], Batch],
    config: TrainConfig,
    device: torch.device,
) -> Iterator[Batch]:
    # A separate generator, because the loader must not change the training noise.
    generator = torch.Generator().manual_seed(derive_seed(config.seed, _WORKERS))
    loader: DataLoader[Any] = DataLoader(
        split,
        batch_sampler=order,
        collate_fn=_Shared(collate) if config.num_workers else collate,
        num_workers=config.num_workers,
        worker_init_fn=_leave_interrupts_to_parent if config.num_workers else None,
        pin_memory=device.type == "cuda",
        generator=generator,
    )
    batches = _one_sentence_errors(iter(loader), len(order), task.name)
    return _ending_processes(batches) if config.num_workers else batches


def _ending_processes(batches: Iterator[Batch]) -> Iterator[Batch]:
    """End the loading processes immediately after an error.

    Otherwise the traceback keeps the loader alive until garbage collection. Garbage collection
    deletes the queues first and then waits five seconds for each process.
    """
    try:
        yield from batches
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:
            traceback.clear_frames(cause.__traceback__)
            cause = cause.__cause__
        raise


def _one_sentence_errors(batches: Iterator[Batch], count: int, name: str) -> Iterator[Batch]:
    """Reduce the traceback that a loading process reports to its last line.

    A StopIteration raised by a sample is an error, not the end of the samples.
    """
    try:
        for _ in range(count):
            yield next(batches)
    except StopIteration as error:
        raise InputError(f"task {name}: a sample raised StopIteration, as next() does") from error
    except InputError as error:
        last_line = str(error).rstrip().rpartition("\n")[2]
        raise InputError(last_line.rpartition("InputError: ")[2]) from error


@contextmanager
def loading_processes() -> Iterator[None]:
    """Replace torch's errors for a failed loading process.

    torch can raise them at any time in the training process.

    Raises:
        RunFailed: a loading process failed.
    """
    try:
        yield
    except RuntimeError as error:
        told = _LOST.findall(str(error.__cause__ or error))
        if not told:
            raise
        raise RunFailed(
            f"a process that loads samples failed ({told[-1].strip(' .')}); is memory short, or "
            "its shared part, /dev/shm? The same command goes on, also with a smaller num_workers"
        ) from error


def check_splits(task: TrainableTask, *, validates: bool = True) -> None:
    """Raise InputError if a split is empty.

    With `validates=False` the validation split may be empty.
    """
    for name in ("train", "validation", "test", *further_tests(task)):
        if len(task.split(name)) == 0 and (validates or name != "validation"):
            raise bad_argument(f"split {name!r} of task {task.name!r}", "at least one sample", 0)


def further_tests(task: TrainableTask) -> Sequence[str]:
    """Return the names of the additional test splits of a task."""
    return list(task.further_tests) if isinstance(task, HasFurtherTests) else []


def check_finite(batch: Batch, indices: list[int], split_name: str) -> None:
    """Raise InputError if a sample contains NaN or infinity."""
    for name, values in batch.items():
        if not values.is_floating_point() or values.shape[:1] != (len(indices),):
            continue
        # The sum shows NaN and infinity, and is faster than a test of every number.
        if bool(values.sum().isfinite()) or bool((finite := torch.isfinite(values)).all()):
            continue
        row = int((~finite.reshape(len(indices), -1).all(1)).nonzero()[0])
        value = values[row][~finite[row]][0].item()
        where = "" if name == "inputs" else f" of {name}"
        raise InputError(
            f"{split_name} data: expected finite numbers{where}, got {value} in sample "
            f"{indices[row]}"
        )


def to_device(batch: Batch, device: torch.device) -> dict[str, Tensor]:
    """Move the batch to `device`."""
    return {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}


def count_tokens(batch: Batch) -> int:
    """Count the valid tokens or the pixels in a CPU batch."""
    mask = batch.get("key_padding_mask")
    if mask is not None:
        return int(mask.numel() - mask.sum())
    shape = batch["inputs"].shape
    return shape[0] * (shape[2] * shape[3] if len(shape) == 4 else shape[1])


def _leave_interrupts_to_parent(_: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
