"""Forecasts of several series: groups of a table, one file per series, one series per cell."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rifflemix as rm
from rifflemix.lab.tasks.core.forecasts import ForecastTask
from rifflemix.lab.trained.data import read_inputs

RANDOM = np.random.default_rng(0)
SERIES = {
    name: scale * np.cumsum(RANDOM.normal(size=steps))
    for name, scale, steps in (("b", 1.0, 90), ("a.1", 10.0, 100), ("a.2", 0.1, 120))
}
OPTIONS: dict[str, Any] = {"kind": "forecast", "context": 8, "horizon": 3}


def write_series(path: Path, rows: list[tuple[str, float]]) -> Path:
    path.write_text("shop,sales\n" + "".join(f"{name},{value!r}\n" for name, value in rows))
    return path


def interleaved(start: int = 0, stop: int = 120) -> list[tuple[str, float]]:
    """List the steps of all series in the order of time."""
    steps = range(start, stop)
    return [(n, float(s[i])) for i in steps for n, s in SERIES.items() if i < len(s)]


def forecasts(task: rm.Task) -> ForecastTask:
    assert isinstance(task, ForecastTask)
    return task


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "shops"
    path.mkdir()
    for name, values in SERIES.items():
        write_series(path / f"{name}.csv", [(name, float(value)) for value in values])
    return path


def test_groups_files_and_lists_give_the_same_forecasts(tmp_path: Path, folder: Path) -> None:
    table = write_series(tmp_path / "t.csv", interleaved())
    ordered = [SERIES[name] for name in sorted(SERIES)]
    tasks = [
        rm.Task.from_csv(table, input="sales", group="shop", **OPTIONS),
        rm.Task.from_folder(folder, input="sales", **OPTIONS),
        rm.tasks.load_task("folder", data=str(folder), input="sales", **OPTIONS),
        rm.Task.from_arrays(ordered, **OPTIONS),
        rm.Task.from_arrays(
            np.concatenate(ordered), groups=np.repeat(sorted(SERIES), [100, 120, 90]), **OPTIONS
        ),
    ]
    first = tasks[0].split("train").digest()
    assert all(task.split("train").digest() == first for task in tasks)
    labels = read_inputs(tasks[0].inputs, table).labels
    assert list(labels) == ["a.1", "a.2", "b"]
    assert list(read_inputs(tasks[1].inputs, folder).labels) == ["a.1.csv", "a.2.csv", "b.csv"]


def test_mase_has_the_scale_of_each_series() -> None:
    task = forecasts(rm.Task.from_arrays(list(SERIES.values()), season=2, **OPTIONS))
    split, errors = task.split("test"), list[float]()
    for index in range(len(split)):
        _, (target, number) = split[index]
        values = list(SERIES.values())[number]
        at = int(split.starts[index, 1]) + 8  # type: ignore[attr-defined]
        train = values[: round(0.6 * len(values))]
        forecast = values[[at - 2, at - 1, at - 2]]
        assert target[:, 0].tolist() == values[at : at + 3].tolist()
        errors.append(
            np.abs(forecast - target[:, 0]).mean() / np.abs(train[2:] - train[:-2]).mean()
        )
    assert task.reference_scores("test")["mase"] == pytest.approx(np.mean(errors), rel=1e-5)


@pytest.mark.parametrize("has_validation", [True, False])
def test_each_series_has_the_periods_of_the_files(has_validation: bool, tmp_path: Path) -> None:
    ends = {"train": (0, 60), "val": (60, 70), "test": (70, 120)}
    if not has_validation:
        ends = {"train": (0, 70), "test": (70, 120)}
    for name, (start, stop) in ends.items():
        write_series(tmp_path / f"{name}.csv", interleaved(start, stop))
    task = rm.Task.from_folder(tmp_path, input="sales", group="shop", **OPTIONS)
    first = 60 if has_validation else 56
    for number, name in enumerate(sorted(SERIES)):
        splits = [task.split(split) for split in ("validation", "test")]
        starts = [split.starts[split.starts[:, 0] == number, 1] for split in splits]  # type: ignore[attr-defined]
        assert [int(of.min()) + 8 for of in starts] == [first, 70]
        assert int(starts[1].max()) + 11 == len(SERIES[name])


def test_a_column_can_name_the_splits_of_the_steps(tmp_path: Path) -> None:
    parts = np.repeat(["train", "val", "test"], [60, 20, 20])
    lines = [f"{i % 7},{part}\n" for i, part in enumerate(parts)]
    (tmp_path / "t.csv").write_text("a,part\n" + "".join(lines))
    task = rm.Task.from_csv(tmp_path / "t.csv", input="a", split="part", **OPTIONS)
    assert [len(task.split(name)) for name in ("train", "validation", "test")] == [50, 18, 18]


def test_series_in_cells_are_several_series(tmp_path: Path) -> None:
    rows = [f'{{"s": {values[:90].tolist()}}}\n' for values in SERIES.values()]
    (tmp_path / "t.jsonl").write_text("".join(rows))
    task = forecasts(rm.Task.from_csv(tmp_path / "t.jsonl", input="s", **OPTIONS))
    assert len(task.naive_errors) == 3
    assert [len(v) for v in read_inputs(task.inputs, tmp_path / "t.jsonl").values] == [90] * 3


def test_future_values_in_a_table_can_be_blank(tmp_path: Path) -> None:
    x = RANDOM.normal(size=(100, 2))
    options = {"input": ["sales", "price"], "known": "price", **OPTIONS}
    rows = [f"{a!r},{b!r}\n" for a, b in x.tolist()]
    (tmp_path / "t.csv").write_text("sales,price\n" + "".join(rows))
    task = rm.Task.from_csv(tmp_path / "t.csv", **options)
    rows[-3:] = [f",{price!r}\n" for price in x[-3:, 1].tolist()]
    (tmp_path / "new.csv").write_text("sales,price\n" + "".join(rows))
    assert task.inputs is not None
    [given] = task.inputs.encode(read_inputs(task.inputs, tmp_path / "new.csv").values)
    assert given.isfinite().all()


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"horizon": 30}, r"^horizon: .*series a.1"),
        ({"context": 70}, r"^context \+ horizon: .*series a.1"),
        ({"split": ["test"] * 310}, r"series a.1"),
    ],
)
def test_errors_name_the_series(changed: dict[str, Any], match: str, tmp_path: Path) -> None:
    path = write_series(tmp_path / "t.csv", interleaved())
    with pytest.raises(rm.InputError, match=match):
        rm.Task.from_csv(path, **{"input": "sales", "group": "shop", **OPTIONS, **changed})
