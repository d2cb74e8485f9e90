"""Every kind of user data through comparison, prediction in a new process, and export."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rifflemix as rm
from rifflemix.lab.tasks import Task
from rifflemix.lab.tasks.core.kinds import CLASSIFICATION

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(40, 5))
DEEP = RANDOM.normal(size=(40, 5, 2))
TEXTS = [f"cat{i} {'runs ' * (1 + i % 3)}fast" for i in range(40)]
TAGS = [["V" if word == "runs" else "N" for word in text.split()] for text in TEXTS]
SERIES = 50 + 9 * np.stack([np.sin(np.arange(100) / 3), np.cos(np.arange(100) / 5)], axis=1)
SETS = np.stack([X[:, 0] > 0, X[:, 1] > 0, X[:, 0] < X[:, 1]], axis=1).astype(int)
NUMBERS = 900 + X[:, :2].cumsum(axis=1)
CLASSES = (np.arange(40) % 3).tolist()
UPPER = [text.upper() for text in TEXTS]
VECTORS = {f"x{i}": X[:, i].tolist() for i in range(5)}
KINDS: dict[str, tuple[Any, Any, dict[str, Any], Any]] = {
    "classification": (X, CLASSES, {}, X[:2].tolist()),
    "multilabel": (X, SETS, {}, X[:2].tolist()),
    "regression": (X, NUMBERS, {}, X[:2].tolist()),
    "tokens": (TEXTS, TAGS, {}, TEXTS[:2]),
    "forecast": (SERIES, None, {"context": 8, "horizon": 3}, [SERIES[:8].tolist()]),
    "next_token": (TEXTS, None, {"tokenizer": "words"}, TEXTS[:2]),
    "masked_token": (TEXTS, None, {"tokenizer": "words"}, ["cat1 [MASK] fast", "[MASK] runs"]),
    "seq2seq": (TEXTS, UPPER, {}, TEXTS[:2]),
}
"""Samples, labels, options, and inputs to predict."""

TABLES: dict[str, tuple[dict[str, list[Any]], Any, Any]] = {
    "classification": ({**VECTORS, "y": CLASSES}, list(VECTORS), "y"),
    "multilabel": (
        {**VECTORS, **{f"y{i}": SETS[:, i].tolist() for i in range(3)}},
        list(VECTORS), ["y0", "y1", "y2"],
    ),
    "regression": (
        {**VECTORS, "a": NUMBERS[:, 0].tolist(), "b": NUMBERS[:, 1].tolist()},
        list(VECTORS), ["a", "b"],
    ),
    "tokens": ({"text": TEXTS, "tags": [" ".join(tags) for tags in TAGS]}, "text", "tags"),
    "forecast": ({"a": SERIES[:, 0].tolist(), "b": SERIES[:, 1].tolist()}, ["a", "b"], None),
    "next_token": ({"text": TEXTS}, "text", None),
    "masked_token": ({"text": TEXTS}, "text", None),
    "seq2seq": ({"text": TEXTS, "upper": UPPER}, "text", "upper"),
}  # fmt: skip
"""Columns of the same data, and the names of inputs and labels."""

SOURCES = ("arrays", "table", "datasets")
PREDICT = """
import json, sys
import numpy as np
import rifflemix as rm
found = {}
for kind, (folder, raw) in json.loads(sys.argv[1]).items():
    rows = rm.load_run(folder, mixer="softmax", seed=1).predict(raw)
    found[kind] = [np.asarray(r).tolist() if hasattr(r, "tolist") else r for r in rows]
print(json.dumps(found))
"""


def task_from(source: str, kind: str, folder: Path) -> Task:
    x, y, options, _ = KINDS[kind]
    columns, input, label = TABLES[kind]
    if source == "arrays":
        return rm.Task.from_arrays(x, y, kind=kind, **options)
    named = {"input": input, "label": label, "kind": kind, **options}
    if source == "table":
        rows = zip(*columns.values(), strict=True)
        lines = [",".join(columns), *(",".join(map(str, row)) for row in rows)]
        (folder / "t.csv").write_text("\n".join(lines))
        return rm.Task.from_csv(folder / "t.csv", **named)
    datasets = pytest.importorskip("datasets")
    lists = {**columns, "tags": TAGS} if kind == "tokens" else columns
    return rm.Task.from_datasets(datasets.Dataset.from_dict(lists), **named)


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_tables_and_data_sets_give_the_same_samples(kind: str, tmp_path: Path) -> None:
    tasks = [task_from(source, kind, tmp_path) for source in SOURCES]
    for name in ("train", "validation", "test"):
        assert len({task.split(name).digest() for task in tasks}) == 1
    assert {task.kind for task in tasks} == {kind}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Compare three mixers over two seeds for each kind, with sources in turn."""
    found = {}
    for number, kind in enumerate(KINDS):
        folder = tmp_path_factory.mktemp(kind)
        task = task_from(SOURCES[number % 3], kind, folder)
        is_causal = kind in ("next_token", "seq2seq")
        mixers = ["softmax", "linear", "mega"] if is_causal else ["softmax", "csp", "tssa"]
        result = rm.compare(
            task, mixers, seeds=2, max_steps=2, dim=8, num_layers=1, num_heads=2, batch_size=8,
            threads=1, out=folder / "run",
        )  # fmt: skip
        assert len(result.results["runs"]) == 6
        assert all(task.metric in run["test"] for run in result.results["runs"])
        found[kind] = folder / "run"
    return found


@pytest.mark.slow
def test_predictions_of_every_kind_are_equal_in_a_new_process(runs: dict[str, Path]) -> None:
    asked = {kind: (str(folder), KINDS[kind][3]) for kind, folder in runs.items()}
    done = subprocess.run(
        [sys.executable, "-c", PREDICT, json.dumps(asked)],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    found = json.loads(done.stdout)
    for kind, (folder, raw) in asked.items():
        rows = rm.load_run(folder, mixer="softmax", seed=1).predict(raw)
        here = [np.asarray(row).tolist() if hasattr(row, "tolist") else row for row in rows]
        assert found[kind] == here
    assert np.asarray(found["regression"]) == pytest.approx(900, abs=10)
    assert np.asarray(found["forecast"]).shape == (1, 3, 2)
    assert np.asarray(found["forecast"]) == pytest.approx(50, abs=60)
    assert [len(row) for row in found["tokens"]] == [3, 4]
    assert found["masked_token"][1].endswith(" runs")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_an_exported_model(kind: str, runs: dict[str, Path], tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    run = rm.load_run(runs[kind], mixer="softmax", seed=0)
    [file, *_] = run.export_onnx(tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    arrays = run.encode(KINDS[kind][3])
    [logits] = session.run(["logits"], arrays)
    tensors = {name: torch.from_numpy(values) for name, values in arrays.items()}
    with torch.no_grad():
        wanted = run.model(tensors.pop("inputs"), **tensors).numpy()
    assert logits == pytest.approx(wanted, abs=1e-4)


class Ordered(Task):
    """Classes in an order, judged by the distance of the predicted class."""

    of_kind = replace(CLASSIFICATION, name="ordered", metrics={"distance": False, "loss": False})

    def metrics(
        self, outputs: torch.Tensor, batch: dict[str, torch.Tensor]
    ) -> dict[str, tuple[float, int]]:
        distance = (outputs.argmax(dim=1) - batch["labels"]).abs().sum()
        found = super().metrics(outputs, batch)
        return {**found, "distance": (float(distance), len(outputs))}


@pytest.mark.slow
def test_plugin_defines_its_kind_of_task(tmp_path: Path) -> None:
    plain = rm.Task.from_arrays(DEEP, np.arange(40) % 3)
    values = {field.name: getattr(plain, field.name) for field in fields(plain)}
    task = Ordered(**{**values, "metric": "distance", "higher_is_better": False})
    result = rm.compare(
        task, ["tssa"], max_steps=2, dim=8, num_heads=2, batch_size=8, threads=1, out=tmp_path / "r"
    )
    assert 0 <= result.results["runs"][0]["test"]["distance"] <= 2
    assert "auroc" not in result.results["runs"][0]["test"]
    assert rm.load_run(tmp_path / "r").task.kind == "ordered"


@pytest.mark.slow
def test_auroc_selects_weights_and_the_page_shows_classes(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        task = rm.Task.from_arrays(DEEP, (np.arange(40) % 10 == 0).astype(int))
    result = rm.compare(
        task, ["tssa", "csp"], max_steps=4, dim=8, num_heads=2, batch_size=8, threads=1,
        train_options={"metric": "auroc", "eval_every": 2}, out=tmp_path / "r",
    )  # fmt: skip
    run = result.results["runs"][0]
    assert run["validation"]["auroc"] == max(at["auroc"] for at in run["validation_curve"])
    assert sum(map(sum, run["confusion"])) == len(task.split("test"))
    page = (tmp_path / "r" / "report.html").read_text()
    assert "Confusion matrix" in page
    assert "Rare classes" in page
    assert "Imbalanced" in page
