"""Folds and splits by time of user data."""

import numpy as np
import pytest

import rifflemix as rm
from rifflemix.errors import InputError
from rifflemix.lab.comparison.plan import fold_seeds, user_seeds
from rifflemix.lab.comparison.statistics import paired_difference

pytest.importorskip("sklearn", reason="needs scikit-learn")

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(60, 4, 1))
Y = np.arange(60) % 3
SPLITS = ("train", "validation", "test")


def numbers(task, split):
    """Return the rows of X in a split."""
    first = {float(np.float32(x[0, 0])): row for row, x in enumerate(X)}
    samples = task.split(split)
    return sorted(first[samples[index][0][0, 0].item()] for index in range(len(samples)))


def test_every_sample_is_tested_once_and_classes_are_balanced():
    task = rm.Task.from_arrays(X, Y, folds=5)
    tests = [numbers(task.for_seed(seed), "test") for seed in range(5)]
    assert sorted(row for test in tests for row in test) == list(range(60))
    for seed in range(5):
        fold = task.for_seed(seed)
        assert fold.class_counts("test") == [4, 4, 4]
        assert numbers(fold, "validation") == tests[(seed + 1) % 5]
        assert sorted(row for name in SPLITS for row in numbers(fold, name)) == list(range(60))
        assert fold.options["fold"] == seed


def test_seeds_share_the_folds():
    task = rm.Task.from_arrays(X, Y, folds=3)
    assert task.for_seed(7).fingerprint() == task.for_seed(1).fingerprint()
    assert task.for_seed(1).fingerprint() != task.for_seed(2).fingerprint()
    one = rm.Task.from_arrays(X, Y, folds=3, fold=1)
    assert one.for_seed(5) is one
    assert one.fingerprint() == task.for_seed(1).fingerprint()
    assert fold_seeds((0, 2), 3) == (0, 1, 2, 6, 7, 8)
    assert user_seeds((0, 1, 2, 6, 7, 8), 3) == (0, 2)


def test_groups_stay_in_one_fold():
    groups = np.arange(60) // 4
    task = rm.Task.from_arrays(X, Y, groups=groups, folds=4)
    for seed in range(4):
        of = [set(groups[numbers(task.for_seed(seed), name)]) for name in SPLITS]
        assert not of[0] & of[1] | of[0] & of[2] | of[1] & of[2]


def test_numbers_have_folds_too():
    task = rm.Task.from_arrays(X, X.mean(axis=(1, 2)), folds=6)
    assert sorted(len(task.for_seed(2).split(name)) for name in SPLITS) == [10, 10, 40]


DATES = [f"2024-{1 + n // 28:02}-{1 + n % 28:02}" for n in range(60)]


@pytest.mark.parametrize(
    "times", [np.arange(60)[::-1], DATES, [f"{date}T12:00:00Z" for date in DATES]]
)
def test_the_latest_samples_are_the_test(times):
    task = rm.Task.from_arrays(X, Y, times=times)
    order = np.argsort(np.array(times))
    assert numbers(task, "train") == sorted(order[:36])
    assert numbers(task, "test") == sorted(order[48:])


def test_samples_with_equal_times_stay_together():
    task = rm.Task.from_arrays(X, Y, times=np.arange(60) // 10)
    ends = [np.array(numbers(task, name)) // 10 for name in SPLITS]
    assert ends[0].max() < ends[1].min() <= ends[1].max() < ends[2].min()


def test_folds_by_time_train_on_the_past():
    task = rm.Task.from_arrays(X, Y, times=np.arange(60), folds=4)
    for seed in range(4):
        fold = task.for_seed(seed)
        train, validation, test = (numbers(fold, name) for name in SPLITS)
        assert train == list(range(10 * (seed + 1)))
        assert validation == list(range(10 * (seed + 1), 10 * (seed + 2)))
        assert test == list(range(10 * (seed + 2), 10 * (seed + 3)))


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"folds": 2}, "folds"),
        ({"folds": 21}, "folds"),
        ({"fold": 1}, "fold"),
        ({"folds": 4, "fold": 4}, "fold"),
        ({"folds": 4, "split": (0.8, 0.1, 0.1)}, "split"),
        ({"folds": 4, "groups": np.arange(60) // 20}, "folds"),
        ({"times": np.arange(59)}, "times"),
        ({"times": ["yesterday"] * 60}, "times"),
        ({"times": [np.nan] * 60}, "times"),
        ({"times": np.arange(60), "groups": Y}, "groups"),
        ({"times": np.zeros(60)}, "times"),
    ],
)
def test_impossible_splits_are_refused(options, name):
    with pytest.raises(InputError, match=rf"^{name}\b"):
        rm.Task.from_arrays(X, Y, **options)


def test_tables_name_a_column_of_times(tmp_path):
    lines = [
        "a,y,day",
        *(f"{x},{y},{60 - n}" for n, (x, y) in enumerate(zip(X[:, 0, 0], Y, strict=True))),
    ]
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    options = {"data": str(tmp_path / "rows.csv"), "input": "a,", "label": "y", "time": "day"}
    task = rm.tasks.load_task("csv", **options)
    assert len(task.split("test")) == 12
    earliest = task.split("train")[0][0].item()
    assert earliest == pytest.approx(X[59, 0, 0])
    folds = rm.tasks.load_task("csv", **options, folds=4, max_samples=3)
    assert [len(folds.for_seed(1).split(name)) for name in SPLITS] == [3, 3, 3]
    assert folds.for_seed(1).name == "csv"


def test_overlapping_training_splits_widen_the_interval():
    ours, theirs = {0: 0.5, 1: 0.6, 2: 0.9}, {0: 0.3, 1: 0.5, 2: 0.6}
    plain, wide = paired_difference(ours, theirs), paired_difference(ours, theirs, overlap=0.25)
    ratio = (wide.high - wide.low) / (plain.high - plain.low)
    assert ratio == pytest.approx(((1 / 3 + 0.25) / (1 / 3)) ** 0.5)
    assert wide.probability > plain.probability


def test_a_comparison_trains_every_mixer_on_every_fold(tmp_path):
    task = rm.Task.from_arrays(X, Y, folds=3)
    small = {"max_steps": 2, "dim": 8, "num_layers": 1, "threads": 1, "batch_size": 10}
    found = rm.compare(task, ["csp", "tssa"], seeds=1, out=tmp_path / "runs", **small)
    assert sorted({run.seed for run in found.record.runs}) == [0, 1, 2]
    assert "3 folds" in str(found)
    run = rm.load_run(tmp_path / "runs", mixer="csp", seed=1)
    assert run.task.options["fold"] == 1
    assert run.predict(X[:3]).shape == (3,)
    again = rm.compare(task, ["csp", "tssa"], seeds=1, out=tmp_path / "runs", **small)
    assert again.record.runs == found.record.runs


def test_folds_of_forecasts_are_periods_in_the_order_of_time():
    series = np.arange(120.0) + np.random.default_rng(1).normal(size=120)
    options = {"kind": "forecast", "context": 6, "horizon": 2, "folds": 4}
    task = rm.Task.from_arrays(series, **options)
    for fold in range(4):
        of = task.for_seed(fold)
        windows = {name: of.split(name) for name in SPLITS}
        steps = {name: split.starts[:, 1] + 6 for name, split in windows.items()}
        assert (steps["train"].min(), steps["train"].max()) == (6, 20 * (fold + 1) - 2)
        assert (steps["validation"].min(), steps["test"].min()) == (20 * fold + 20, 20 * fold + 40)
        assert steps["test"].max() == 20 * (fold + 3) - 2
        assert of.target_mean == pytest.approx((series[: 20 * (fold + 1)].mean(),))
        assert f"fold {fold} of 4" in of.split_note
    with pytest.raises(InputError, match=r"^times: "):
        rm.Task.from_arrays(series, times=range(120), **options)
    with pytest.raises(InputError, match="horizon"):
        rm.Task.from_arrays(series[:20], **options)
