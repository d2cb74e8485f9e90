"""Tests of batches of similar lengths: buckets, order, resume, refusals."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from toy_training import SETTINGS, ToySplit, ToyTask, make_config, make_model

from rifflemix.errors import InputError
from rifflemix.lab.train import TrainConfig, TrainResult, train
from rifflemix.lab.train.data import LengthOrder, evaluation_order, training_order
from rifflemix.lab.train.engine import check_batch
from rifflemix.lab.train.length_batches import batches_by_length, bucket_boundaries, bucket_sizes

TOKENS, LONGEST = 60, 30
LENGTHS = np.random.default_rng(3).integers(1, 45, 200)


class KnownSplit(ToySplit):
    """Split with known lengths."""

    def lengths(self) -> np.ndarray:
        return self.sizes


class KnownTask(ToyTask):
    def split(self, name: str) -> KnownSplit:
        seed = {"train": 1, "validation": 2, "test": 3}[name]
        return KnownSplit(self.samples if name == "train" else 21, seed, self.padded, None)


def run(out: Path, stop_at: int | None = None, task: ToyTask | None = None) -> TrainResult:
    steps = iter(range(1, 1000))
    return train(
        make_model(),
        task or KnownTask(padded=True),
        make_config(token_batches=(20, 6)),
        out,
        device="cpu",
        model_settings=SETTINGS,
        should_stop=lambda: stop_at is not None and next(steps) > stop_at,
    )


def test_buckets_grow_by_a_tenth() -> None:
    assert bucket_boundaries(20) == [8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19]
    assert bucket_boundaries(42)[-5:] == [28, 30, 33, 36, 39]
    assert bucket_boundaries(8) == []
    # Batches of the shortest sequences, and of sequences as long as the longest boundary.
    assert (bucket_sizes(4096, 256)[0], bucket_sizes(4096, 256)[-1]) == (512, 16)
    assert bucket_sizes(10, 30)[-1] == 1


def test_batches_have_similar_lengths_and_limited_tokens() -> None:
    batches = list(batches_by_length(LENGTHS, range(200), (TOKENS, LONGEST)))
    assert sorted(index for batch in batches for index in batch) == list(range(200))
    for batch in batches:
        lengths = LENGTHS[batch]
        if lengths.max() < LONGEST:
            assert len(batch) * lengths.max() <= TOKENS
            assert lengths.max() - lengths.min() <= 0.1 * lengths.max() or lengths.max() < 20
        else:
            assert len(batch) <= TOKENS // LONGEST


def test_every_sample_is_trained_on_equally_often() -> None:
    config = TrainConfig(max_steps=4000, token_batches=(TOKENS, LONGEST))
    order = LengthOrder(np.tile(LENGTHS, 10), config, 0)
    seen = Counter(index for batch in order for index, _ in batch)
    assert len(seen) == 2_000
    assert max(seen.values()) - min(seen.values()) <= 2  # one epoch is unfinished, one sample waits
    places = [place for batch in order for _, place in batch]
    assert places == list(range(len(places)))
    other = LengthOrder(LENGTHS, TrainConfig(max_steps=4000, token_batches=(60, 30), seed=1), 0)
    assert next(iter(other)) != next(iter(order))


@pytest.mark.parametrize("first", [1, 57])
def test_order_from_a_later_step_is_the_tail_of_the_order(first: int) -> None:
    config = TrainConfig(max_steps=80, token_batches=(TOKENS, LONGEST))
    whole = list(LengthOrder(LENGTHS, config, 0))
    order = LengthOrder(LENGTHS, config, first)
    assert (len(whole), len(order), list(order)) == (80, 80 - first, whole[first:])
    for step in range(first, 80):
        assert order.micro_batches(step) == [[index for index, _ in whole[step]]]


def test_evaluation_batches_have_similar_lengths() -> None:
    task = KnownTask(padded=True)
    split = task.split("test")
    order = evaluation_order(task, split, make_config(token_batches=(20, 6)), 0, 1)
    assert sorted(index for batch in order for index in batch) == list(range(21))
    assert order.counts == [True] * len(order)
    assert max(len(batch) for batch in order) == 20 // 6


def test_stopped_run_resumes_bit_for_bit(tmp_path: Path) -> None:
    straight = run(tmp_path / "straight")
    assert not run(tmp_path / "stopped", stop_at=9).finished
    again = run(tmp_path / "stopped")
    assert (again.validation, again.test) == (straight.validation, straight.test)
    for name in ("best.safetensors", "log.jsonl"):
        files = [(tmp_path / folder / name).read_bytes() for folder in ("straight", "stopped")]
        assert files[0] == files[1]
    assert straight.samples == sum(
        len(batch)
        for batch in training_order(
            KnownTask(padded=True),
            KnownTask(padded=True).split("train"),
            make_config(token_batches=(20, 6)),
            0,
            0,
            1,
        )
    )


def test_another_batch_size_changes_the_tokens_in_proportion() -> None:
    config = TrainConfig(batch_size=30, token_batches=(4_096, 256))
    assert config.with_batch_size(15).token_batches == (2_048, 256)
    assert config.with_batch_size(15).batch_size == 15
    assert TrainConfig().with_batch_size(7) == TrainConfig(batch_size=7)


def test_invalid_token_batches_are_refused(tmp_path: Path) -> None:
    for value in ((0, 5), (5,), 5, (5, 0), ("5", 5)):
        with pytest.raises(InputError, match="token_batches"):
            TrainConfig(token_batches=value)  # type: ignore[arg-type] # refused
    assert TrainConfig.from_dict({"token_batches": [20, 6]}).token_batches == (20, 6)
    with pytest.raises(InputError, match="accumulation"):
        TrainConfig(token_batches=(20, 6), batch_size=8, accumulation=2)
    with pytest.raises(InputError, match="token_batches"):
        run(tmp_path / "run", task=ToyTask())
    with pytest.raises(InputError, match="processes"):
        check_batch(TrainConfig(token_batches=(20, 6)), replicas=2)
