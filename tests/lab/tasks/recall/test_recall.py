"""Tests of the recall tasks against solvers that share no code with the generators."""

from __future__ import annotations

from collections import Counter
from itertools import groupby, pairwise, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rifflemix as rm
from rifflemix.errors import InputError
from rifflemix.lab.tasks import load_task
from rifflemix.lab.tasks.core.base import Task
from rifflemix.lab.tasks.synthetic.associative import distinct, weighted_distinct

SIZES = {"num_train": 40, "num_validation": 30, "num_test": 30}
NAMES = (
    "mqar", "in_context_recall", "noisy_recall", "fuzzy_recall", "selective_copying",
    "compression", "memorization", "copying", "induction", "needle",
    "state_tracking",
)  # fmt: skip


def rows(task: Task, split: str = "test") -> list[tuple[list[int], list[int]]]:
    samples = task.split(split)
    pairs = (samples[index] for index in range(len(samples)))
    return [(inputs.tolist(), labels.tolist()) for inputs, labels in pairs]


def scored(labels: list[int]) -> dict[int, int]:
    return {place: label for place, label in enumerate(labels) if label != -100}


def recall(name: str, **options: Any) -> Task:
    return load_task(name, **{**SIZES, **options})


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("length", "pairs", "vocab"), [(64, 4, 256), (33, 8, 40), (16, 4, 10)])
def test_mqar_queries_every_key_once(causal: bool, length: int, pairs: int, vocab: int) -> None:
    task = recall("mqar", length=length, pairs=pairs, vocab_size=vocab, causal=causal)
    for inputs, labels in rows(task):
        keys, values = inputs[0 : 2 * pairs : 2], inputs[1 : 2 * pairs : 2]
        known = dict(zip(keys, values, strict=True))
        assert len(known) == pairs == len(set(values))
        assert all(0 < key < vocab // 2 for key in keys)
        assert all(vocab // 2 <= value < vocab for value in values)
        answers = scored(labels)
        assert sorted(inputs[place] for place in answers) == sorted(keys)
        assert all(known[inputs[place]] == value for place, value in answers.items())
        assert all(place >= 2 * pairs and place % 2 == 0 for place in answers)


def test_mqar_can_have_gaps_between_queries() -> None:
    for inputs, labels in rows(recall("mqar", random_non_queries=False)):
        places = set(scored(labels))
        assert {inputs[place] for place in range(8, 64) if place not in places} == {0}


def motifs(inputs: list[int], half: int, own: int) -> list[tuple[str, tuple[int, ...]]]:
    """Split a sequence into runs of key, value and noise tokens."""

    def kind(token: int) -> str:
        return "noise" if token >= own else "value" if token >= half else "key"

    return [(name, tuple(run)) for name, run in groupby(inputs, kind)]


@pytest.mark.parametrize(
    ("name", "half", "own"),
    [("in_context_recall", 8, 16), ("noisy_recall", 8, 16), ("fuzzy_recall", 8, 16)],
)
def test_recall_scores_exactly_the_values_of_known_keys(name: str, half: int, own: int) -> None:
    count = 0
    for inputs, labels in rows(recall(name)):
        stream = [*inputs, labels[-1] if labels[-1] != -100 else own]
        known: dict[tuple[int, ...], tuple[int, ...]] = {}
        expected: dict[int, int] = {}
        place, key = 0, None
        for kind, run in motifs(stream, half, own):
            if kind == "key":
                key = run
            if kind == "value" and key is not None:
                if key in known:
                    for offset, token in enumerate(run):
                        expected[place + offset - 1] = token
                        assert known[key][offset] == token
                else:
                    known[key] = run
            place += len(run)
        assert scored(labels) == expected
        count += len(expected)
    assert count > 30 * 20


def test_recall_is_trained_on_every_next_token() -> None:
    for inputs, labels in rows(recall("in_context_recall"), "train"):
        assert labels[:-1] == inputs[1:]
        assert labels[-1] != -100


@pytest.mark.parametrize("name", ["in_context_recall", "noisy_recall", "fuzzy_recall"])
@pytest.mark.parametrize("split", ["train", "test"])
def test_bidirectional_models_are_scored_on_the_last_key_only(name: str, split: str) -> None:
    for inputs, labels in rows(recall(name, causal=False), split):
        runs = motifs(inputs, 8, 16)
        asked = runs[-1][1]
        answers = {
            value[1][0]
            for key, value in pairwise(runs)
            if key[0] == "key" and key[1] == asked and value[0] == "value"
        }
        assert scored(labels) == {len(inputs) - 1: answers.pop()}
        assert not answers


def test_selective_copying_keeps_the_order() -> None:
    for inputs, labels in rows(recall("selective_copying")):
        context = inputs[:240]
        assert inputs[240:] == [15] + [14] * 15
        assert labels == [-100] * 240 + [token for token in context if token < 14]


@pytest.mark.parametrize("causal", [True, False])
def test_compression_scores_every_token(causal: bool) -> None:
    seen: Counter[int] = Counter()
    for inputs, labels in rows(recall("compression", causal=causal)):
        assert inputs == labels
        assert inputs[-1] == 15
        seen.update(inputs[:-1])
    assert set(seen) == set(range(15))


@pytest.mark.parametrize("causal", [True, False])
def test_compressor_decodes_all_tokens_from_one_vector(causal: bool) -> None:
    torch.manual_seed(0)
    model = rm.create_model("compressor", mixer="csp", dim=16, causal=causal, max_length=12).eval()
    tokens, mask = torch.randint(16, (2, 12)), torch.zeros(2, 12, dtype=torch.bool)
    mask[:, 9:] = True
    alone = model(tokens[:, :9])
    padded = model(tokens, key_padding_mask=mask)
    torch.testing.assert_close(padded[:, :9], alone)
    vectors = model.encode(tokens[:, :9])
    assert vectors.shape == (2, 16)
    other = model.encode(tokens[:, :9].flip(0))
    torch.testing.assert_close(other, vectors.flip(0))


def test_compression_compares_mixers_with_one_vector(tmp_path: Path) -> None:
    options = {**SIZES, "length": 8, "causal": True, "test_lengths": [12]}
    found = rm.compare("compression", ["linear", "csp"], task_options=options, **TINY)
    assert (found.to_frame("run")["test_length_12_accuracy"] >= 0).all()
    assert found.record.setup.model == "causal_compressor"
    with pytest.raises(InputError, match="butterfly"):
        rm.compare("compression", ["butterfly"], task_options=options, **TINY)
    options["causal"] = False
    found = rm.compare("compression", ["butterfly"], task_options=options, **TINY)
    assert found.record.setup.model == "compressor"


@pytest.mark.parametrize("causal", [True, False])
def test_copying_repeats_the_string(causal: bool) -> None:
    for inputs, labels in rows(recall("copying", causal=causal)):
        assert labels == [-100] * 32 + inputs[:32]
        assert inputs[32] == 31
        assert inputs[33:] == (inputs[:31] if causal else [30] * 31)


def test_induction_scores_the_token_after_the_trigger() -> None:
    for inputs, labels in rows(recall("induction")):
        assert inputs.count(15) == 2
        assert inputs[-1] == 15
        assert scored(labels) == {255: inputs[inputs.index(15) + 1]}


@pytest.mark.parametrize(("depth", "place"), [(0.0, 0), (0.5, 48), (1.0, 97), (-1.0, None)])
def test_needle_is_at_the_given_depth(depth: float, place: int | None) -> None:
    found = set()
    for inputs, labels in rows(recall("needle", length=100, depth=depth)):
        at = inputs.index(inputs[-1])
        found.add(at)
        assert scored(labels) == {99: inputs[at + 1]}
        assert inputs.count(inputs[-1]) == 2
    assert found == {place} if place is not None else len(found) > 10


def test_facts_are_the_same_in_all_splits_of_a_seed() -> None:
    facts: list[dict[int, set[int]]] = []
    for seed in (0, 1):
        known: dict[int, set[int]] = {}
        task = recall("memorization", seed=seed)
        for split in ("train", "validation", "test"):
            for inputs, labels in rows(task, split):
                for place, value in scored(labels).items():
                    assert inputs[place] == 255
                    known.setdefault(inputs[place - 1], set()).add(value)
        assert all(len(values) == 1 for values in known.values())
        facts.append(known)
    assert facts[0] != facts[1]


def is_even(p: tuple[int, ...]) -> bool:
    sign = np.linalg.det(np.eye(len(p))[list(p)])
    return bool(sign > 0)


@pytest.mark.parametrize(("group", "size"), [("S3", 3), ("S5", 5), ("A5", 5)])
def test_states_are_products_of_permutations(group: str, size: int) -> None:
    elements = list(permutations(range(size)))
    elements = [p for p in elements if group[0] == "S" or is_even(p)]
    matrices = np.stack([np.eye(size, dtype=int)[list(p)] for p in elements])
    for inputs, labels in rows(recall("state_tracking", group=group))[:10]:
        state = np.eye(size, dtype=int)
        for token, label in zip(inputs, labels, strict=True):
            # Row k of the matrix of p is the unit vector p(k), so a b has the matrix B A.
            state = matrices[token] @ state
            assert (matrices[label] == state).all() or (matrices[label] == state.T).all()


@pytest.mark.parametrize(("group", "size"), [("Z2", 2), ("Z60", 60)])
def test_states_of_cyclic_groups_are_sums(group: str, size: int) -> None:
    for inputs, labels in rows(recall("state_tracking", group=group)):
        assert labels == (np.cumsum(inputs) % size).tolist()


@pytest.mark.parametrize("name", NAMES)
def test_samples_depend_on_seed_and_split_only(name: str) -> None:
    task, again, other = recall(name), recall(name, num_train=12), recall(name, seed=1)
    assert rows(task, "train")[:12] == rows(again, "train")
    assert rows(task, "validation") == rows(again, "validation")
    assert rows(task, "train") != rows(other, "train")
    assert rows(task, "validation") != rows(task, "test")
    assert task.fingerprint() != other.fingerprint() != again.fingerprint()
    assert recall(name).fingerprint() == task.fingerprint()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("causal", [True, False])
def test_longer_sequences_are_further_tests(name: str, causal: bool) -> None:
    task = recall(name, length=48, test_lengths=[96, 64], causal=causal)
    assert list(task.further_tests) == ["length_96", "length_64"]
    assert task.max_length == 96
    for split, length in (("train", 48), ("test", 48), ("length_96", 96), ("length_64", 64)):
        inputs, labels = task.split(split)[3]
        assert inputs.shape == labels.shape == (length,)
        assert inputs.min() >= 0
        assert inputs.max() < task.vocab_size
        assert (labels != -100).any()


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("mqar", {"pairs": 20}, "length"),
    ("mqar", {"pairs": 0}, "pairs"),
    ("mqar", {"power": 0}, "power"),
    ("mqar", {"vocab_size": 3}, "vocab_size"),
    ("noisy_recall", {"noise_share": 1.0}, "noise_share"),
    ("noisy_recall", {"noise_vocab_size": 30}, "noise_vocab_size"),
    ("fuzzy_recall", {"keys": 9}, "keys"),
    ("fuzzy_recall", {"length": 10}, "length"),
    ("selective_copying", {"tokens": 200}, "length"),
    ("induction", {"length": 2}, "length"),
    ("needle", {"depth": 2}, "depth"),
    ("state_tracking", {"group": "S9"}, "group"),
    ("copying", {"causal": "no"}, "causal"),
    ("copying", {"test_lengths": 128}, "test_lengths"),
    ("copying", {"test_lengths": [128, 128]}, "test_lengths"),
    ("induction", {"test_lengths": [2]}, "length"),
]


@pytest.mark.parametrize(("name", "options", "argument"), BAD)
def test_bad_options_are_refused(name: str, options: dict[str, Any], argument: str) -> None:
    with pytest.raises(InputError, match=argument):
        recall(name, **options)


@pytest.mark.parametrize(("count", "choices"), [(3, 4), (2, 9)])
def test_distinct_draws_are_uniform(count: int, choices: int) -> None:
    drawn = distinct(np.random.default_rng(0), 60_000, count, choices)
    found = Counter(map(tuple, drawn.tolist()))
    expected = list(permutations(range(choices), count))
    assert set(found) == set(expected)
    mean = 60_000 / len(expected)
    chi_square = sum((found[draw] - mean) ** 2 / mean for draw in expected)
    assert chi_square < len(expected) + 5 * (2 * len(expected)) ** 0.5


def test_weighted_draws_without_replacement_follow_the_weights() -> None:
    weights = np.array([4.0, 2.0, 1.0])
    drawn = weighted_distinct(np.random.default_rng(0), 70_000, 2, weights)
    found = Counter(map(tuple, drawn.tolist()))
    for first, second in permutations(range(3), 2):
        rest = 7 - weights[first]
        assert found[first, second] / 70_000 == pytest.approx(
            weights[first] / 7 * weights[second] / rest, abs=0.01
        )


TINY: dict[str, Any] = {
    "max_steps": 2, "batch_size": 8, "dim": 8, "num_layers": 1, "num_heads": 2, "threads": 1,
    "device": "cpu",
}  # fmt: skip


@pytest.mark.parametrize("causal", [True, False])
def test_comparisons_report_every_length(causal: bool, tmp_path: Path) -> None:
    options = {**SIZES, "length": 16, "pairs": 2, "test_lengths": [32], "causal": causal}
    mixers = ["linear", "tssa"] if causal else ["linear", "sliceformer"]
    found = rm.compare("mqar", mixers, task_options=options, **TINY)
    frame = found.to_frame("run")
    assert (frame["test_length_32_accuracy"] >= 0).all()
    assert list(frame["mixer"]) == mixers


def test_an_encoder_with_token_outputs_ignores_padding() -> None:
    torch.manual_seed(0)
    model = rm.create_model(
        "encoder", mixer="csp", pool="none", vocab_size=9, num_classes=4, max_length=12
    ).eval()
    tokens = torch.randint(9, (2, 7))
    alone = model(tokens)
    assert alone.shape == (2, 7, 4)
    mask = torch.zeros(2, 10, dtype=torch.bool)
    mask[:, 7:] = True
    padded = torch.cat((tokens, torch.zeros(2, 3, dtype=torch.int64)), 1)
    torch.testing.assert_close(model(padded, key_padding_mask=mask)[:, :7], alone)
    packed = model(tokens.reshape(1, 14), cu_seqlens=torch.tensor([0, 7, 14]))
    torch.testing.assert_close(packed.reshape(2, 7, 4), alone)


def test_pairs_need_one_vector_per_sequence() -> None:
    with pytest.raises(InputError, match="pool"):
        rm.create_model("encoder", pool="none", num_sequences=2, vocab_size=5)
