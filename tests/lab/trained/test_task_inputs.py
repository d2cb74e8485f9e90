"""Every task of the registry converts raw inputs to its samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from task_inputs import CASES, SAME_CODE, Case
from trained_runs import train_into

import rifflemix as rm
from rifflemix.errors import InputError
from rifflemix.lab.tasks import Task, list_tasks, load_task
from rifflemix.lab.tasks.text import text
from rifflemix.lab.trained.load import read_spec

ELSEWHERE = {"image_folder", "image_bytes"}  # tests below
USER_DATA = {
    "csv",
    "jsonl",
    "npz",
    "folder",
    "parquet",
    "fasta",
}  # other files
# Same conversions as user data.
EXAMPLES = {"seasonal", "digit_sets", "dna_motifs", "ptb_segmentation"}


@pytest.fixture(autouse=True)
def _few_reviews(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(text, "_TEXTS_PER_CLASS", 12)
    monkeypatch.setenv("RIFFLEMIX_CACHE", str(tmp_path / "cache"))


def load(case: Case, folder: Path) -> Task:
    folder.mkdir()
    case.write(folder)
    where = {"data_dir": folder} if any(folder.iterdir()) else {}
    return load_task(case.name, **where, **case.options)


def assert_equal(found: Any, wanted: Any) -> None:
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        for name in wanted:
            assert_equal(found[name], wanted[name])
    elif isinstance(wanted, tuple):
        for one, other in zip(found, wanted, strict=True):
            assert_equal(one, other)
    else:
        assert found.dtype == wanted.dtype
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_raw_inputs_are_converted_to_samples(case: Case, tmp_path: Path) -> None:
    task = load(case, tmp_path / "data")
    split = task.split("test")
    raw = case.raw(task, split)
    record = task.record()
    spec = read_spec(record)
    assert spec == task.inputs or task.inputs is None
    assert spec is not None
    encoded = spec.encode(raw)
    assert len(encoded) == len(raw) > 1
    for index, inputs in enumerate(encoded):
        assert_equal(inputs, split[index][0])
    if record.output == "classes":
        assert len(set(record.classes)) == record.shapes.num_classes


def test_every_task_is_covered() -> None:
    tested = {case.name for case in CASES.values()} | ELSEWHERE | USER_DATA | EXAMPLES
    assert tested | set(SAME_CODE) == set(list_tasks())
    assert set(SAME_CODE.values()) <= tested


def test_image_folders(tmp_path: Path) -> None:
    from PIL import Image

    random = np.random.default_rng(0)
    for part in ("train", "val", "test"):
        for name in ("cat", "dog"):
            folder = tmp_path / "data" / part / name
            folder.mkdir(parents=True)
            for index in range(12):
                values = random.integers(0, 256, (12, 10, 3)).astype(np.uint8)
                Image.fromarray(values).save(folder / f"{index}.png")
    options = {"size": 8, "patch_size": 4, "crop_share": 0.9}
    task = load_task("image_folder", data_dir=tmp_path / "data", **options)
    paths = sorted((tmp_path / "data" / "test").glob("*/*.png"))
    run = rm.load_run(train_into(tmp_path / "run", task))
    assert run.classes == ("cat", "dog")
    encoded = {inputs.numpy().tobytes() for inputs in run.inputs.encode(paths)}  # type: ignore[union-attr]
    split = task.split("test")
    assert encoded == {split[index][0].numpy().tobytes() for index in range(len(split))}
    assert set(run.predict(paths)) <= {"cat", "dog"}


def test_image_bytes(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    random = np.random.default_rng(0)
    arrays = {
        f"{part}_{kind}": values
        for part in ("train", "test")
        for kind, values in (
            ("x_diff", random.integers(0, 256, (20, 3, 32, 32)).astype(np.uint8)),
            ("y", (np.arange(20) % 10).astype(np.uint8)),
        )
    }
    np.savez(folder / "arrays.npz", **arrays)
    import lzma

    packed = lzma.compress((folder / "arrays.npz").read_bytes(), preset=0)
    (folder / "cifar10_rgb.npz.xz").write_bytes(packed)
    task = load_task("image_bytes", data_dir=folder)
    spec = read_spec(task.record())
    assert spec is not None
    inputs, labels = task.split("test")[0]
    assert_equal(spec.encode([labels[:-1].numpy()])[0], inputs)
    assert spec.encode([[]])[0].tolist() == [256]
    for wrong in ([256], [-1], [0.5], labels.numpy()):
        with pytest.raises(InputError, match="input 0"):
            spec.encode([wrong])


def run_of(case: str, tmp_path: Path, model: str, **settings: Any) -> tuple[Any, Task, Any]:
    task = load(CASES[case], tmp_path / "data")
    mixer = settings.pop("mixer", "tssa")
    run = rm.load_run(train_into(tmp_path / "run", task, mixer, model, **settings))
    return run, task, CASES[case].raw(task, task.split("test"))


def test_language_models_predict_the_next_token(tmp_path: Path) -> None:
    run, task, raw = run_of("shakespeare-characters", tmp_path, "gpt")
    found = run.predict(raw[:3])
    with torch.no_grad():
        logits = torch.stack([run.model(task.split("test")[i][0][None])[0, -1] for i in range(3)])
    vocabulary = task.vocabulary  # type: ignore[attr-defined]
    assert found.tolist() == [vocabulary.decode([i]) for i in logits.argmax(1).tolist()]
    np.testing.assert_allclose(run.predict_proba(raw[:3]), logits.softmax(1), atol=1e-6)
    assert run.predict(["The", "so"]).shape == (2,)
    with pytest.raises(InputError, match=r"input 1.*'é'"):
        run.predict(["The", "fé"])
    with pytest.raises(InputError, match=r"16.*18 in input 0"):
        run.predict(["so" * 9])


def test_sequences_are_written(tmp_path: Path) -> None:
    run, _, raw = run_of("sort", tmp_path, "seq2seq")
    together = run.predict(raw)
    assert together == [run.predict([symbols])[0] for symbols in raw]
    assert all(
        len(written) <= len(symbols) + 1 for written, symbols in zip(together, raw, strict=True)
    )
    assert all(0 <= symbol < 9 for written in together for symbol in written)
    with pytest.raises(InputError, match="predict_proba"):
        run.predict_proba(raw)
    with pytest.raises(InputError, match="9 in input 0"):
        run.predict([[9]])


def test_molecules_are_predicted(tmp_path: Path) -> None:
    run, _, raw = run_of("esol", tmp_path, "graphormer_pcqm4m", mixer="softmax")
    found = run.predict(["CCO", "c1ccccc1", *raw])
    assert found.dtype == np.float64
    np.testing.assert_allclose(found[:2], [run.predict([s])[0] for s in ("CCO", "c1ccccc1")])
    assert set(run.encode(["CCO", "C"])) == {
        "inputs", "key_padding_mask", "distances", "path_edges",
    }  # fmt: skip
    with pytest.raises(InputError, match=r"'C\(' .*in input 1"):
        run.predict(["C", "C("])


def test_pairs_are_predicted(tmp_path: Path) -> None:
    run, _, raw = run_of("snli", tmp_path, "encoder", num_sequences=2)
    found = run.predict_proba(raw)
    alone = np.concatenate([run.predict_proba([pair]) for pair in raw])
    np.testing.assert_allclose(found, alone, atol=1e-6)
    assert run.classes == ("entailment", "neutral", "contradiction")
    for wrong in (["one text"], [("a", "b", "c")], [("a", 2)]):
        with pytest.raises(InputError, match="input 0"):
            run.predict(wrong)


def test_wrong_expressions_are_refused(tmp_path: Path) -> None:
    run, _, raw = run_of("listops", tmp_path, "encoder")
    assert run.predict(raw).tolist() == [run.predict([text])[0] for text in raw]
    for wrong in ("[MAX 1 2", "[AVG 1 2 ]", "1 2", "", "[MAX " + "1 " * 60 + "]"):
        with pytest.raises(InputError, match="input 0"):
            run.predict([wrong])
