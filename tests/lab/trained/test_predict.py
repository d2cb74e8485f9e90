"""Predictions from raw inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from trained_runs import images, ragged, tasks, texts, train_into, vectors

import rifflemix as rm
from rifflemix.errors import InputError, InputWarning
from rifflemix.lab.train.evaluate import run_model
from rifflemix.lab.trained.load import read_spec
from rifflemix.mixers import list_mixers

PIXELS = np.load(Path(rm.__file__).parent / "lab" / "tasks" / "images" / "files" / "digits.npz")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], tuple[Any, Any, Any]]:
    """Return run, task and raw inputs of three mixers on each kind of user data."""
    out = tmp_path_factory.mktemp("runs")
    return {
        (kind, mixer): (rm.load_run(train_into(out / f"{kind}-{mixer}", task, mixer)), task, raw)
        for kind, (task, raw) in tasks().items()
        for mixer in ("csp", "tssa", "softmax")
    }


@pytest.mark.parametrize("mixer", ["csp", "tssa", "softmax"])
@pytest.mark.parametrize("kind", ["vectors", "ragged", "texts", "images"])
def test_predictions_equal_the_model_on_the_samples(runs: Any, kind: str, mixer: str) -> None:
    """Check that raw inputs become the samples of the task."""
    run, task, raw = runs[kind, mixer]
    split = task.split("test")
    chosen = [raw[row] for row in split.rows.tolist()]
    encoded = run.inputs.encode(chosen)
    for index, inputs in enumerate(encoded):
        assert torch.equal(inputs, split[index][0])
        assert inputs.dtype == split[index][0].dtype
    with torch.no_grad():
        outputs = [run_model(run.model, task.collate([split[i]])) for i in range(len(split))]
    logits = torch.cat(outputs)
    found = run.predict(chosen)
    if kind == "ragged":
        wanted = logits[:, 0].double().numpy() * task.target_std + task.target_mean
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)
        with pytest.raises(InputError, match="predict_proba"):
            run.predict_proba(chosen)
        return
    assert found.tolist() == [task.classes[i] for i in logits.argmax(1).tolist()]
    np.testing.assert_allclose(run.predict_proba(chosen), logits.softmax(1), atol=1e-6)


def test_regression_is_in_the_units_of_the_targets(tmp_path: Path) -> None:
    x, y = ragged()
    task = rm.Task.from_arrays(x, [1e6 + 1000 * value for value in y])
    found = rm.load_run(train_into(tmp_path, task)).predict(x)
    assert found.dtype == np.float64
    assert abs(found.mean() - 1.03e6) < 3e4


def test_encode_names_the_inputs_of_the_model(runs: Any) -> None:
    run, _, raw = runs["ragged", "tssa"]
    arrays = run.encode(raw[:5])
    assert set(arrays) == {"inputs", "key_padding_mask"}
    longest = max(len(row) for row in raw[:5])
    assert arrays["inputs"].shape == arrays["key_padding_mask"].shape == (5, longest)
    assert (~arrays["key_padding_mask"]).sum(1).tolist() == [len(row) for row in raw[:5]]
    assert set(runs["vectors", "tssa"][0].encode(vectors()[0])) == {"inputs"}


FORMS = {
    "tensors": lambda x: torch.from_numpy(x),
    "lists": lambda x: x.tolist(),
    "list of arrays": lambda x: list(x),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_array_types_and_shapes(runs: Any, form: Any) -> None:
    run, _, raw = runs["vectors", "csp"]
    assert run.predict(form(raw)).tolist() == run.predict(raw).tolist()


WRONG = {
    "vectors": [
        (vectors()[0][:, :3], "6 vectors, got 3"),
        (vectors()[0][:, :, :1], r"\(N, 2\).*\(6, 1\)"),
        (vectors()[0] * np.nan, "nan in input 0"),
        ([["a", "b"]], "numbers"),
        (3.0, "inputs: .*3.0"),
        ([], "inputs: .*none"),
    ],
    "ragged": [
        ([[1, 2], [3, 99]], "99 in input 1"),
        ([[1, -2]], "-2 in input 0"),
        ([[1] * 50], "50 in input 0"),
        ([[]], "input 0"),
        ([[1.5]], "float64"),
    ],
    "texts": [
        ("one text", "inputs: .*'one text'"),
        (["a", 3], "3 in input 1"),
        ([""], "0 in input 0"),
        (["long " * 9], "45 in input 0"),
    ],
    "images": [
        (images()[0][:, :4], r"\(4, 8, 3\) in input 0"),
        (images()[0][..., 0], r"\(8, 8\) in input 0"),
        (images()[0] / 255, "float64 in input 0"),
        (images()[0].astype(int) + 200, r"input 0"),
        (["nowhere.png"], r"nowhere\.png"),
    ],
}


@pytest.mark.parametrize(
    ("kind", "inputs", "match"),
    [(kind, *case) for kind, cases in WRONG.items() for case in cases],
    ids=[f"{kind}-{match}" for kind, cases in WRONG.items() for _, match in cases],
)
def test_wrong_inputs_are_refused(runs: Any, kind: str, inputs: Any, match: str) -> None:
    with pytest.raises(InputError, match=match):
        runs[kind, "tssa"][0].predict(inputs)


def test_texts_are_truncated_as_in_training(tmp_path: Path) -> None:
    x, y = texts()
    with pytest.warns(InputWarning, match="longer than max_length"):
        task = rm.Task.from_arrays([f"{text} and more" for text in x], y, max_length=12)
    run = rm.load_run(train_into(tmp_path, task))
    once, again = run.predict_proba(["good 1 and more", "good 1 and m"])
    assert once.tolist() == again.tolist()


@pytest.mark.parametrize("patch_size", [1, 2, 4])
def test_digits_are_predicted_from_pixels(tmp_path: Path, patch_size: int) -> None:
    task = rm.tasks.load_task("digits", patch_size=patch_size)
    spec = read_spec(task.record())
    assert spec is not None
    split = task.split("test")
    rows = split.rows[:20].tolist()  # type: ignore[attr-defined]
    for index, inputs in enumerate(spec.encode(PIXELS["images"][rows])):
        assert torch.equal(inputs, split[index][0])
    run = rm.load_run(train_into(tmp_path, task))
    assert set(run.predict(PIXELS["images"][rows])) <= set("0123456789")
    with pytest.raises(InputError, match="16, got 17"):
        run.predict(np.full((1, 8, 8), 17))


def test_image_files_are_predicted(runs: Any, tmp_path: Path) -> None:
    from PIL import Image

    run, _, raw = runs["images", "csp"]
    for index in range(3):
        Image.fromarray(raw[index]).save(tmp_path / f"{index}.png")
    paths = [tmp_path / f"{index}.png" for index in range(3)]
    assert run.predict_proba(paths).tolist() == run.predict_proba(raw[:3]).tolist()
    Image.fromarray(np.kron(raw[0], np.ones((2, 2, 1), np.uint8))).save(tmp_path / "large.png")
    assert run.predict([tmp_path / "large.png"]).shape == (1,)


def test_a_task_without_raw_inputs_is_refused(tmp_path: Path) -> None:
    from rifflemix.lab.tasks.images.pixels import WholeImages

    x, y = images()
    task = rm.Task.from_arrays(x, y, layout="image")
    assert isinstance(task, WholeImages)
    hidden = type(task)(**{**vars(task), "inputs": None})
    run = rm.load_run(train_into(tmp_path, hidden, model="vit_cifar10", patch_size=4))
    with pytest.raises(InputError, match=r"Task\.inputs"):
        run.predict(x)


@pytest.mark.parametrize("mixer", list_mixers())
def test_other_samples_do_not_change_a_prediction(tmp_path: Path, mixer: str) -> None:
    """Check every mixer on a batch of several lengths."""
    x, y = ragged()
    run = rm.load_run(train_into(tmp_path, rm.Task.from_arrays(x, y), mixer))
    together = run.predict(x)
    alone = np.concatenate([run.predict([row]) for row in x[:6]])
    scale = run.task.target_std
    np.testing.assert_allclose(together[:6] / scale, alone / scale, atol=1e-6)
