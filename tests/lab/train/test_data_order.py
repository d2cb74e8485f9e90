"""Check that batches depend only on settings, not on the division of the work."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from toy_training import ToyTask, make_config

from rifflemix.errors import InputError, RunFailed
from rifflemix.lab.train.data import (
    EvaluationOrder,
    TrainOrder,
    batch_indices,
    check_finite,
    count_tokens,
    epoch_order,
    evaluation_batches,
    loading_processes,
    micro_batch_size,
    training_batches,
)
from rifflemix.lab.train.protocols import Batch

CPU = torch.device("cpu")


@pytest.mark.parametrize("length", [1, 2, 7, 50])
def test_epoch_contains_every_sample_once(length: int) -> None:
    for epoch in range(3):
        assert sorted(epoch_order(length, 0, epoch)) == list(range(length))


def test_epochs_and_seeds_differ() -> None:
    orders = {tuple(epoch_order(50, seed, epoch)) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9


@pytest.mark.parametrize("batch_size", [1, 3, 8, 50, 64, 130])
def test_batches_continue_across_epochs(batch_size: int) -> None:
    config = make_config(batch_size=batch_size)
    stream = [i for step in range(60) for i in batch_indices(50, config, step)]
    epochs = [int(i) for epoch in range(60 * batch_size // 50) for i in epoch_order(50, 0, epoch)]
    assert stream[: len(epochs)] == epochs


def test_any_step_can_be_loaded_directly() -> None:
    config = make_config()
    epoch_order.cache_clear()
    assert batch_indices(50, config, 17) == [batch_indices(50, config, s) for s in range(18)][17]


@pytest.mark.parametrize("processes", [1, 2, 4])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_parts_of_processes_make_the_whole_batch(processes: int, accumulation: int) -> None:
    config = make_config(accumulation=accumulation)
    orders = [TrainOrder(50, config, 0, rank, processes) for rank in range(processes)]
    for step in range(20):
        parts = [order.micro_batches(step) for order in orders]
        assert all(len(part) == accumulation for part in parts)
        assert {len(micro) for part in parts for micro in part} == {
            micro_batch_size(config, processes)
        }
        turns = [part[turn] for turn in range(accumulation) for part in parts]
        assert [i for micro in turns for i in micro] == batch_indices(50, config, step)


@pytest.mark.parametrize("first", [0, 5, 22])
def test_order_from_a_later_step_is_the_tail_of_the_order(first: int) -> None:
    config = make_config(accumulation=2)
    whole = list(TrainOrder(50, config, 0, 0, 1))
    assert list(TrainOrder(50, config, first, 0, 1)) == whole[2 * first :]


@pytest.mark.parametrize("length", [1, 7, 8, 9, 21, 32])
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_evaluation_covers_the_split_in_lockstep(length: int, processes: int) -> None:
    orders = [EvaluationOrder(length, 4, rank, processes) for rank in range(processes)]
    assert len({len(order) for order in orders}) == 1
    counted = [
        index
        for turn in range(len(orders[0]))
        for order in orders
        if order.counts[turn]
        for index in order.batches[turn]
    ]
    assert counted == list(range(length))
    assert all(len(batch) in range(1, 5) for order in orders for batch in order)


class Failing:
    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> Any:
        raise InputError(f"sample {index}: expected a label, got none")


@pytest.mark.parametrize("workers", [0, 1])
def test_errors_of_loading_processes_are_one_sentence(workers: int) -> None:
    config = make_config(num_workers=workers)
    order = EvaluationOrder(50, 4, 0, 1)
    with pytest.raises(InputError, match=r"^sample 0: expected a label, got none$"):
        next(evaluation_batches(ToyTask(), Failing(), order, config, CPU))


class Ending(Failing):
    def __getitem__(self, index: int) -> Any:
        return [torch.zeros(6, 4).numpy(), 0] if index < 5 else next(iter(()))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", ["training", "evaluation"])
def test_stop_iteration_in_a_sample_is_an_error(kind: str, workers: int) -> None:
    config = make_config(num_workers=workers, batch_size=4, max_steps=30)
    if kind == "evaluation":
        evaluated = EvaluationOrder(50, 4, 0, 1)
        batches = evaluation_batches(ToyTask(), Ending(), evaluated, config, CPU)
    else:
        trained = TrainOrder(50, config, 0, 0, 1)
        batches = training_batches(ToyTask(), Ending(), trained, config, CPU)
    with pytest.raises(InputError, match=r"^task toy: .*StopIteration"):
        list(batches)


def test_loading_processes_end_with_an_error() -> None:
    """Check prompt exit; garbage collection would wait five seconds for each process."""
    order = EvaluationOrder(50, 4, 0, 1)
    before = set(multiprocessing.active_children())
    gc.disable()
    try:
        with pytest.raises(InputError) as caught:
            list(evaluation_batches(ToyTask(), Ending(), order, make_config(num_workers=2), CPU))
        assert set(multiprocessing.active_children()) <= before, caught
    finally:
        gc.enable()


class Killed(Failing):
    def __getitem__(self, index: int) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_killed_loading_process_is_reported() -> None:
    order = EvaluationOrder(50, 4, 0, 1)
    batches = evaluation_batches(ToyTask(), Killed(), order, make_config(num_workers=1), CPU)
    with pytest.raises(RunFailed, match=r"\(.*: Killed\)"), loading_processes():
        next(batches)


def test_batch_too_large_for_shared_memory_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(values: Tensor) -> Tensor:
        raise RuntimeError("unable to allocate shared memory(shm) for file </torch_1>: full (28)")

    monkeypatch.setattr(Tensor, "share_memory_", full)  # which a forked process inherits
    order, split = EvaluationOrder(50, 4, 0, 1), ToyTask().split("train")
    batches = evaluation_batches(ToyTask(), split, order, make_config(num_workers=1), CPU)
    with pytest.raises(RunFailed, match=r"\(unable .*full \(28\)\)"), loading_processes():
        next(batches)


@pytest.mark.parametrize("error", [RuntimeError("shapes"), KeyError("x")], ids=repr)
def test_other_errors_are_not_changed(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, loading_processes():
        raise error
    assert caught.value is error


class Jittered(ToyTask):
    """Add seeded noise to each sample, without state of the current process."""

    def augment(self, batch: Batch, seeds: Sequence[int]) -> Batch:
        noise = torch.stack([torch.full((6, 4), seed % 1009 / 1009) for seed in seeds])
        here = torch.full((len(seeds),), os.getpid())
        return {**batch, "inputs": batch["inputs"] + noise, "process": here}


class AtOnce:
    """Split that returns the samples of a batch at once, as image splits do."""

    def __init__(self) -> None:
        self.samples = ToyTask().split("train")

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        raise AssertionError

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self.samples[index] for index in indices]


def test_loading_processes_augment_samples_as_training_does() -> None:
    def batches(workers: int) -> list[Batch]:
        config = make_config(num_workers=workers, batch_size=8, accumulation=2, max_steps=5)
        order = TrainOrder(50, config, 2, 0, 1)
        return list(training_batches(Jittered(), AtOnce(), order, config, CPU))

    here, there = batches(0), batches(2)
    assert len(here) == len(there) == 6
    for own, others in zip(here, there, strict=True):
        assert torch.equal(own["inputs"], others["inputs"])
        assert torch.equal(own["labels"], others["labels"])
    assert {int(batch["process"][0]) for batch in here} == {os.getpid()}
    assert len({int(batch["process"][0]) for batch in there} - {os.getpid()}) == 2


class Refusing(ToyTask):
    def augment(self, batch: Batch, seeds: Sequence[int]) -> Batch:
        raise InputError("task toy: expected images, got words")


@pytest.mark.parametrize("workers", [0, 1])
def test_errors_of_augmentations_are_one_sentence(workers: int) -> None:
    config = make_config(num_workers=workers)
    order = TrainOrder(50, config, 0, 0, 1)
    with pytest.raises(InputError) as caught:
        next(training_batches(Refusing(), ToyTask().split("train"), order, config, CPU))
    assert str(caught.value) == "task toy: expected images, got words"


def test_loading_does_not_change_the_random_state_of_training() -> None:
    before = torch.get_rng_state()
    order = EvaluationOrder(8, 4, 0, 1)
    list(evaluation_batches(ToyTask(), ToyTask().split("train"), order, make_config(), CPU))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_check_finite(value: float) -> None:
    inputs = torch.zeros(3, 2, 2)
    check_finite({"inputs": inputs}, [7, 8, 9], "test")
    check_finite({"inputs": torch.zeros(3, 2, dtype=torch.int64)}, [7, 8, 9], "test")
    inputs[1, 0, 1] = value
    with pytest.raises(InputError, match=rf"^test data: .*got {value}\b.*\b8$"):
        check_finite({"inputs": inputs}, [7, 8, 9], "test")


def test_a_batch_that_is_a_view_is_checked() -> None:
    inputs = torch.zeros(2, 3, 4).transpose(1, 2)
    inputs[1, 2, 0] = torch.nan
    with pytest.raises(InputError, match=r"^train data: .*got nan\b.*\b9$"):
        check_finite({"inputs": inputs}, [5, 9], "train")


@pytest.mark.parametrize("inputs", [torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 3, 5)])
def test_count_tokens(inputs: torch.Tensor) -> None:
    assert count_tokens({"inputs": inputs}) == 6
    mask = torch.tensor([[False, False, True], [True, True, True]])
    assert count_tokens({"inputs": inputs, "key_padding_mask": mask}) == 2


@pytest.mark.parametrize("processes", [1, 2])
def test_positions_contain_every_sample_of_the_run_once(processes: int) -> None:
    config = make_config(max_steps=3, batch_size=8, accumulation=2)
    orders = [TrainOrder(20, config, 0, rank, processes) for rank in range(processes)]
    for step in range(3):
        found: dict[int, int] = {}
        for order in orders:
            for positions, indices in zip(
                order.positions(step), order.micro_batches(step), strict=True
            ):
                found |= dict(zip(positions, indices, strict=True))
        assert sorted(found) == list(range(8 * step, 8 * step + 8))
        assert [found[position] for position in sorted(found)] == batch_indices(20, config, step)
