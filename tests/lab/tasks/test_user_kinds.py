"""Tests of the kinds of user data: targets, splits, metrics and refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rifflemix as rm
from rifflemix.errors import InputWarning
from rifflemix.lab.tasks import card_of, load_task
from rifflemix.lab.tasks.core.forecasts import ForecastTask
from rifflemix.lab.tasks.core.kinds import KINDS
from rifflemix.lab.tasks.core.recorded import HasReference
from rifflemix.lab.tasks.core.token_labels import MaskedTokenTask

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(30, 4, 2))
TEXTS = [" ".join([f"cat{i}", *RANDOM.choice(["the", "runs"], size=2 + i % 4)]) for i in range(30)]
TAGS = [["V" if word == "runs" else "N" for word in text.split()] for text in TEXTS]
SERIES = np.stack([np.sin(np.arange(120) / 3), 5 + np.arange(120) % 4], axis=1)
INTEGERS = [RANDOM.integers(0, 4, 3 + i % 5) for i in range(30)]
SETS = [["a"], [], ["a", "b"], ["b"], ["c", "a"]] * 6


@pytest.mark.parametrize(
    ("x", "y", "kind"),
    [
        pytest.param(X, np.arange(30) % 3, "classification", id="integers"),
        pytest.param(X, X.mean(axis=(1, 2)), "regression", id="floats"),
        pytest.param(X, X.mean(axis=1), "regression", id="columns of floats"),
        pytest.param(X, (X.mean(axis=1) > 0), "multilabel", id="columns of bools"),
        pytest.param(X, SETS, "multilabel", id="lists of names"),
        pytest.param(TEXTS, TAGS, "tokens", id="a tag for each word"),
        pytest.param(INTEGERS, [row % 2 for row in INTEGERS], "tokens", id="a label for each id"),
    ],
)
def test_auto_chooses_the_kind_and_gives_the_reason(x: Any, y: Any, kind: str) -> None:
    task = rm.Task.from_arrays(x, y)
    assert task.kind == kind
    assert task.metric == KINDS[kind].metric
    assert card_of(task).backbone == KINDS[kind].backbone
    assert "because" in card_of(task).description


ONE_HOT = np.eye(3, dtype=int)[np.arange(30) % 3]
WRONG: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    "one-hot": (X, ONE_HOT, {}, r"kind: .*'classification'.*'multilabel'"),
    "0 and 1 of every token": (X, np.arange(120).reshape(30, 4) // 7 % 2, {}, "kind: .*'tokens'"),
    "columns of integers": (X, np.arange(60).reshape(30, 2), {}, "kind: .*'regression'"),
    "equal lists": (np.ones((30, 2)), [["a", "b"], ["c", "a"]] * 15, {}, "kind: .*'tokens'"),
    "no labels": (X, None, {}, "y: .*'auto'.*forecast"),
    "labels of a forecast": (SERIES, SERIES, {"kind": "forecast"}, "y: .*None"),
    "unknown kind": (X, ONE_HOT, {"kind": "class"}, "kind: .*'class'"),
    "not binary": (X, ONE_HOT + 1, {"kind": "multilabel"}, r"y: .*got 2 for sample 0"),
    "no label at all": (X, ONE_HOT * 0, {"kind": "multilabel"}, "y: "),
    "short tags": (TEXTS, [TAGS[0][:1], *TAGS[1:]], {"kind": "tokens"}, "y: .*sample 0"),
    "negative class": (INTEGERS, [row - 1 for row in INTEGERS], {"kind": "tokens"}, "y: .*-1 in"),
    "cut tokens": (INTEGERS, INTEGERS, {"kind": "tokens", "max_length": 3}, "max_length: "),
    "NaN target": (X, np.where(X.mean(1) > 0.2, np.nan, 1.0), {"kind": "regression"}, "y: .*nan"),
    "equal column": (X, X.mean(1) * [1, 0], {"kind": "regression"}, "y: .*column 1"),
    "no horizon": (SERIES, None, {"kind": "forecast", "context": 4}, "horizon: "),
    "long horizon": (SERIES, None, {"kind": "forecast", "context": 4, "horizon": 90}, "horizon: "),
    "NaN in a series": (
        np.where(SERIES > 7.5, np.nan, SERIES),
        None,
        {"kind": "forecast", "context": 4, "horizon": 2},
        r"x: .*got nan .*\b3\b.*\b1\b",
    ),
    "constant channel": (
        np.ones((60, 1)), None, {"kind": "forecast", "context": 4, "horizon": 2}, "x: .*channel 0",
    ),
    "vectors without labels": (X, None, {"kind": "next_token"}, "x: .*'forecast'"),
    "context of texts": (TEXTS, None, {"kind": "next_token", "context": 3}, "context: "),
    "mixed pair": (TEXTS, INTEGERS, {"kind": "seq2seq"}, "y: .*integers"),
    "missing targets": (TEXTS, TEXTS[:3], {"kind": "seq2seq"}, "y: .*3"),
    "set of samples": (set(TEXTS), np.arange(30) % 2, {}, "^x: "),
    "set of labels": (X[:2], {"a", "b"}, {}, "^y: "),
    "labels in a dictionary": (X, {"a": 1}, {}, "^y: "),
    "dates as labels": (X, [date(2020, 1, 1 + i % 2) for i in range(30)], {}, "^y: .*got date"),
    "equal times": (X, np.arange(30) % 2, {"times": [3] * 30}, "^times: .*different"),
    "NaN in images": (
        np.full((30, 4, 4, 1), np.nan), np.arange(30) % 2, {}, r"^x: .*nan in sample 0$",
    ),
    "patches of texts": (TEXTS, TAGS, {"patch_size": 2}, "patch_size"),
}  # fmt: skip


@pytest.mark.parametrize(("x", "y", "options", "message"), WRONG.values(), ids=WRONG)
def test_wrong_data_is_refused_in_one_sentence(
    x: Any, y: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(rm.InputError, match=message) as caught:
        rm.Task.from_arrays(x, y, **options)
    assert "\n" not in str(caught.value)


def test_most_samples_of_one_class_cause_a_warning() -> None:
    with pytest.warns(InputWarning, match=r"'0'.*90\.0%.*balanced_accuracy"):
        rm.Task.from_arrays(RANDOM.normal(size=(100, 3)), (np.arange(100) % 10 == 0).astype(int))


@pytest.mark.parametrize(
    ("x", "y", "kind"),
    [
        (TEXTS, [*TAGS[:29], ["X"] * len(TAGS[29])], "tokens"),
        (X, [*SETS[:29], ["a", "X"]], "multilabel"),
        (X, ["V", "N", "N"] * 9 + ["V", "N", "X"], "classification"),
    ],
    ids=["tokens", "multilabel", "classification"],
)
def test_a_class_without_training_samples_is_refused(x: Any, y: Any, kind: str) -> None:
    split = ["train"] * 20 + ["validation"] * 5 + ["test"] * 5
    with pytest.raises(rm.InputError, match=r"^split: .*'X' in test \(sample 29\)"):
        rm.Task.from_arrays(x, y, kind=kind, split=split)


@pytest.mark.parametrize("seed", range(4))
def test_drawn_splits_have_training_samples_of_rare_classes(seed: int) -> None:
    tags = [[f"T{i // 2}", *row[1:]] for i, row in enumerate(TAGS)]
    task = rm.Task.from_arrays(TEXTS, tags, kind="tokens", seed=seed)
    assert len(task.classes) == 17
    sets = [[*names, f"T{i // 2}"] for i, names in enumerate(SETS)]
    assert rm.Task.from_arrays(X, sets, seed=seed).num_classes == 18


def test_tokens_that_are_not_scored_are_minus_100() -> None:
    labels = [[None, *tags[1:]] for tags in TAGS]
    task = rm.Task.from_arrays(TEXTS, labels, kind="tokens")
    assert all(task.split("train")[i][1][0] == -100 for i in range(18))
    assert task.classes == ("N", "V")


def test_forecast_targets_stay_in_their_part_of_the_time() -> None:
    task = rm.Task.from_arrays(
        [SERIES, SERIES[:60]], kind="forecast", context=8, horizon=3, season=2
    )
    assert isinstance(task, ForecastTask)
    assert [len(task.split(name)) for name in ("train", "validation", "test")] == [62 + 26, 32, 32]
    inputs, (target, _) = task.split("validation")[0]
    assert target.tolist() == SERIES[72:75].tolist()
    assert inputs.shape == (8, 2)
    mean = np.concatenate([SERIES[:72], SERIES[:36]]).mean(axis=0)
    assert task.target_mean == pytest.approx(tuple(mean))
    found = inputs * torch.tensor(task.target_std) + torch.tensor(task.target_mean)
    assert found.numpy() == pytest.approx(SERIES[64:72], abs=1e-5)


def test_the_seasonal_forecast_of_a_season_has_no_error() -> None:
    noise = 0.1 * RANDOM.normal(size=120)
    season = np.arange(120) % 4 + np.where(np.arange(120) < 72, noise, 0.0)
    task = rm.Task.from_arrays(season, kind="forecast", context=8, horizon=3, season=4)
    assert isinstance(task, ForecastTask)
    scores = task.reference_scores("test")
    assert scores["mase"] == pytest.approx(0.0, abs=1e-5)
    differences = np.abs(season[4:72] - season[:68]).mean()
    assert task.naive_errors[0] == pytest.approx((differences,))


def test_channels_that_are_known_in_advance_are_inputs_over_the_horizon() -> None:
    x = np.concatenate([SERIES, np.arange(120)[:, None] % 7], axis=1)
    task = rm.Task.from_arrays(x, kind="forecast", context=8, horizon=3, known=[0, 2])
    assert isinstance(task, ForecastTask)
    assert (task.max_length, task.num_features, task.num_classes) == (11, 3, 3)
    assert (task.target_shape, task.options["known"]) == ((3, 1), [0, 2])
    inputs, (target, _) = task.split("validation")[0]
    assert target.tolist() == x[72:75, 1:2].tolist()
    scaled = (x[64:75] - x[:72].mean(axis=0)) / x[:72].std(axis=0)
    scaled[8:, 1] = 0
    assert inputs.numpy() == pytest.approx(scaled, abs=1e-5)
    future = x[:75].copy()
    future[72:, 1] = np.nan
    assert task.inputs is not None
    assert task.inputs.encode([future])[0].equal(inputs)
    ends = np.arange(96, 118)
    errors = [np.abs(x[end + step, 1] - x[end - 1, 1]) for end in ends for step in range(3)]
    assert task.reference_scores("test")["mae"] == pytest.approx(np.mean(errors))
    with pytest.raises(rm.InputError, match="nan"):
        task.inputs.encode([np.where(np.arange(75)[:, None] == 74, np.nan, x[:75])])


@pytest.mark.parametrize("known", [[], [0, 1], [2], ["a"], "b", [-1]])
def test_unusable_known_channels_are_refused(known: Any) -> None:
    with pytest.raises(rm.InputError, match=r"^known: "):
        rm.Task.from_arrays(SERIES, kind="forecast", context=8, horizon=3, known=known)
    with pytest.raises(rm.InputError, match=r"^known: "):
        rm.Task.from_arrays(X, np.arange(30) % 3, known=known)


def test_columns_of_a_table_can_be_known_in_advance(tmp_path: Path) -> None:
    columns = {"a": SERIES[:, 0].tolist(), "b": SERIES[:, 1].tolist()}
    path = write_table(tmp_path / "t.csv", columns)
    options = {"kind": "forecast", "context": 6, "horizon": 2, "known": "b"}
    task = load_task("csv", data=str(path), input="a,b", **options)
    assert isinstance(task, ForecastTask)
    assert task.target_shape == (2, 1)
    assert task.split("train")[0][1][0][:, 0].tolist() == SERIES[6:8, 0].tolist()


@pytest.mark.parametrize("metric", ["mase", "mae", "rmse"])
def test_the_standard_error_of_a_forecast_counts_windows_without_overlap(metric: str) -> None:
    """Compare with the spread of the error over many series of independent errors."""
    options: dict[str, Any] = {"context": 4, "horizon": 5}
    found = []
    for _ in range(150):
        errors = RANDOM.exponential(size=(400, 2)) * [1.0, 3.0]
        task = rm.Task.from_arrays(errors, kind="forecast", **options).with_metric(metric)
        assert isinstance(task, ForecastTask)
        task = replace(task, naive_errors=((1.0, 3.0),), target_mean=(0.0, 0.0))
        split = task.split("test")
        batch = task.collate([split[i] for i in range(len(split))])
        sums = task.metrics(torch.zeros(len(split), 10), batch)
        means = {name: total / count for name, (total, count) in sums.items()}
        summary = means | task.summarise(means)
        found.append((summary[metric], summary[f"{metric}_deviation"] / len(split) ** 0.5))
    values, errors_of = np.array(found).T
    assert errors_of.mean() == pytest.approx(values.std(), rel=0.2)
    assert not any("deviation" in name for name in task.reference_scores("test"))


def test_each_next_token_is_predicted_once() -> None:
    task = rm.Task.from_arrays(TEXTS, kind="next_token", max_length=5)
    split = task.split("train")
    total = sum(len(split[i][1]) for i in range(len(split)))
    texts = dict.fromkeys(("train",), 0)
    division = rm.Task.from_arrays(TEXTS, kind="next_token")
    whole = division.split("train")
    texts["train"] = sum(len(whole[i][1]) for i in range(len(whole)))
    assert total == texts["train"]
    assert max(len(split[i][0]) for i in range(len(split))) == 5


def test_one_text_is_split_in_its_order() -> None:
    text = "abcdefghij" * 10
    task = rm.Task.from_arrays(text, kind="next_token", max_length=200)
    inputs, labels = task.split("test")[0]
    assert bytes(inputs.tolist()).decode() == text[80:99]
    assert bytes(labels.tolist()).decode() == text[81:100]


def test_training_masks_change_and_test_masks_do_not() -> None:
    task = rm.Task.from_arrays(INTEGERS, kind="masked_token")
    assert isinstance(task, MaskedTokenTask)
    split = task.split("test")
    assert all(torch.equal(a, b) for a, b in zip(split[0], split[0], strict=True))
    batch = task.collate([split[i] for i in range(4)])
    changed = task.augment(batch, [1, 2, 3, 4])
    same = task.augment(batch, [1, 2, 3, 4])
    assert torch.equal(changed["inputs"], same["inputs"])

    def tokens(one: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.where(one["labels"] == -100, one["inputs"], one["labels"])

    assert torch.equal(tokens(batch), tokens(changed))
    assert not torch.equal(batch["labels"], task.augment(batch, [5, 6, 7, 8])["labels"])
    assert ((changed["labels"] != -100).sum(dim=1) >= 1).all()


def write_table(path: Path, columns: dict[str, list[Any]]) -> Path:
    rows = zip(*columns.values(), strict=True)
    lines = [",".join(columns), *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


FLAT = X.reshape(30, 8)
NUMBERS = {f"x{i}": FLAT[:, i].round(6).tolist() for i in range(2)}
TABLES: dict[str, tuple[dict[str, list[Any]], dict[str, Any]]] = {
    "multilabel": (
        {**NUMBERS, "a": (FLAT[:, 0] > 0).astype(int).tolist(), "b": [0, 1, 1] * 10},
        {"input": "x0,x1", "label": "a,b"},
    ),
    "multilabel names": (
        {"text": TEXTS, "y": [";".join(names) or "none" for names in SETS]},
        {"input": "text", "label": "y", "kind": "multilabel"},
    ),
    "regression": (
        {**NUMBERS, "a": FLAT[:, 2].tolist(), "b": FLAT[:, 3].tolist()},
        {"input": "x0,x1", "label": "a,b"},
    ),
    "tokens": (
        {"text": TEXTS, "y": [" ".join(tags) for tags in TAGS]},
        {"input": "text", "label": "y", "kind": "tokens"},
    ),
    "forecast": (
        {"a": SERIES[:, 0].tolist(), "b": SERIES[:, 1].tolist(), "s": [0] * 60 + [1] * 60},
        {"input": "a,b", "group": "s", "kind": "forecast", "context": 6, "horizon": 2},
    ),
    "next_token": ({"text": TEXTS}, {"input": "text", "kind": "next_token"}),
    "masked_token": ({"text": TEXTS}, {"input": "text", "kind": "masked_token"}),
    "seq2seq": (
        {"text": TEXTS, "y": [text.upper() for text in TEXTS]},
        {"input": "text", "label": "y", "kind": "seq2seq"},
    ),
}


@pytest.mark.parametrize(("columns", "options"), TABLES.values(), ids=TABLES)
def test_tables_and_commands_have_every_kind(
    columns: dict[str, list[Any]], options: dict[str, Any], tmp_path: Path, request: Any
) -> None:
    path = write_table(tmp_path / "t.csv", columns)
    task = load_task("csv", data=str(path), **options)
    assert task.kind == request.node.callspec.id.split()[0]
    assert json.dumps(dict(task.options))
    if task.kind == "forecast":
        assert isinstance(task, ForecastTask)
        assert len(task.split("train").series) == 2  # type: ignore[attr-defined]


def test_data_sets_have_several_columns_of_labels() -> None:
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"text": TEXTS, "a": [0, 1] * 15, "b": [1, 1, 0] * 10})
    task = rm.Task.from_datasets(data, input="text", label=["a", "b"])
    assert (task.kind, task.classes) == ("multilabel", ("a", "b"))
    tags = datasets.Dataset.from_dict({"words": [t.split() for t in TEXTS], "tags": TAGS})
    assert rm.Task.from_datasets(tags, input="words", label="tags").kind == "tokens"
    test = datasets.Dataset.from_dict({"text": [text.upper() for text in TEXTS[:5]]})
    lines = datasets.DatasetDict({"train": data, "test": test})
    task = rm.Task.from_datasets(lines, input="text", kind="next_token")
    assert len(task.split("test")) == 5


@pytest.mark.parametrize("name", ["seasonal", "digit_sets", "dna_motifs"])
def test_examples_have_a_reference_and_limits_of_samples(name: str) -> None:
    options = {"seasonal": {"steps": 600}, "digit_sets": {"pairs": 60}}.get(name, {"sequences": 60})
    task = load_task(name, seed=1, max_samples=20, **options)
    assert task.kind == KINDS[task.kind].name
    assert task.fingerprint() != load_task(name, seed=2, **options).fingerprint()
    if name == "dna_motifs":
        counts = task.class_counts("test")
        assert counts is not None
        assert max(counts) / sum(counts) < 0.5
    else:
        assert isinstance(task, HasReference)
        value = task.reference_scores("test")[task.metric]
        assert 0 < value < 2
