"""Trained models in onnxruntime and in transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from task_inputs import CASES
from trained_runs import images, ragged, tasks, texts, train_into, vectors

import rifflemix as rm
from rifflemix.errors import InputError
from rifflemix.lab.tasks.data_io.files import Array
from rifflemix.lab.tasks.text.next_token import NextTokenTask, PromptInputs, WindowSplit
from rifflemix.lab.tasks.text.vocabulary import build_vocabulary
from rifflemix.lab.trained.export import export_model
from rifflemix.mixers import list_mixers, mixer_card

LENGTH = 16


# tests/mixers/test_export.py exports the step of every mixer; these have states of every kind.
STREAMS = ("softmax+csp+tssa", "local+mamba2")
STEPS_ONLY = ("mega", "mega_chunk", "s4", "s5", "exp_smoothing", "spade", "hyena")


def language_task() -> NextTokenTask:
    vocabulary = build_vocabulary("byte", "")
    text = b"the quick brown fox jumps over the lazy dog. " * 8
    windows = WindowSplit(Array(np.frombuffer(text, np.uint8).astype(np.int32)), LENGTH, LENGTH)
    return NextTokenTask(
        name="language",
        options={},
        input_kind="tokens",
        vocab_size=256,
        num_features=None,
        num_classes=256,
        max_length=LENGTH,
        padding=False,
        split_note="all splits are one text",
        data_source="this file",
        splits=dict.fromkeys(("train", "validation", "test"), windows),
        metric="perplexity",
        higher_is_better=False,
        vocabulary=vocabulary,
        inputs=PromptInputs.of(vocabulary, max_length=LENGTH),
    )


def session(path: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # no warnings about constants that it does not fold
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def assert_same(run: Any, path: Path, raw: Any, sizes: Any) -> None:
    """Compare logits of several batches with the model."""
    loaded = session(path)
    assert [output.name for output in loaded.get_outputs()] == ["logits"]
    for start, end in sizes:
        arrays = run.encode(raw[start:end])
        assert {given.name for given in loaded.get_inputs()} == set(arrays)
        (found,) = loaded.run(["logits"], arrays)
        batch = {name: torch.from_numpy(values) for name, values in arrays.items()}
        with torch.no_grad():
            wanted = run.model(batch.pop("inputs"), **batch)
        np.testing.assert_allclose(found, wanted, atol=1e-5, rtol=1e-5)


SIZES = ((0, 1), (0, 5), (3, 4), (0, 40))
# tests/mixers/test_export.py exports every mixer as a layer.
EXPORTED = ("softmax", "csp", "sliceformer", "tssa", "butterfly", "sinkhorn", "mega", "deltanet")
REFUSED = [name for name in list_mixers() if mixer_card(name).one_length]


@pytest.mark.slow
@pytest.mark.parametrize("mixer", [*EXPORTED, *REFUSED])
def test_mixers_at_any_length(mixer: str, tmp_path: Path) -> None:
    x = [np.arange(2 + 3 * row // 2) % 9 for row in range(40)]  # up to 60 tokens
    task = rm.Task.from_arrays(x, [float(row.sum()) for row in x])
    run = rm.load_run(train_into(tmp_path / "run", task, mixer))
    card = mixer_card(mixer)
    if card.no_onnx or card.one_length:
        with pytest.raises(InputError, match=f"mixer {mixer} .*{card.no_onnx or card.one_length}"):
            run.export_onnx(tmp_path / "model.onnx")
        assert not (tmp_path / "model.onnx").exists()
        return
    (tmp_path / "model.step.onnx").write_bytes(b"of an earlier model")
    assert run.export_onnx(tmp_path / "model.onnx") == [tmp_path / "model.onnx"]
    assert_same(run, tmp_path / "model.onnx", x, SIZES)
    assert not (tmp_path / "model.step.onnx").exists()


@pytest.mark.slow
@pytest.mark.parametrize("mixer", STREAMS)
def test_steps_of_states_of_every_kind(mixer: str, tmp_path: Path) -> None:
    options = {"max_length": LENGTH, "num_layers": mixer.count("+") + 1}
    run = rm.load_run(train_into(tmp_path / "run", language_task(), mixer, "gpt", **options))
    paths = run.export_onnx(tmp_path / "model.onnx")
    assert paths == [tmp_path / "model.onnx", tmp_path / "model.step.onnx"]
    assert_same(run, paths[0], ["a", "the qu", "jumps "], ((0, 1), (1, 3)))
    assert_steps_equal(run, paths[1])


@pytest.mark.slow
def test_mixers_without_a_whole_graph_export_their_step(tmp_path: Path) -> None:
    mixer = "+".join(STEPS_ONLY)
    options = {"max_length": LENGTH, "num_layers": len(STEPS_ONLY)}
    run = rm.load_run(train_into(tmp_path / "run", language_task(), mixer, "gpt", **options))
    paths = run.export_onnx(tmp_path / "model.onnx")
    assert paths == [tmp_path / "model.step.onnx"]
    assert not (tmp_path / "model.onnx").exists()
    assert_steps_equal(run, paths[0])


def assert_steps_equal(run: Any, path: Path) -> None:
    """Compare the logits of an exported decoding step with the model, token by token."""
    step, tokens = session(path), run.encode(["the quick brown ", "jumps over the l"])["inputs"]
    state = json.loads(step.get_modelmeta().custom_metadata_map["state"])
    values = {s["input"]: np.full((2, *s["shape"][1:]), s["initial"], s["dtype"]) for s in state}
    names, logits = [output.name for output in step.get_outputs()], []
    for token in tokens.T:
        found = dict(zip(names, step.run(names, {"tokens": token, **values}), strict=True))
        logits.append(found["logits"])
        values = {s["input"]: found[s["output"]] for s in state}
    with torch.no_grad():
        wanted = run.model(torch.from_numpy(tokens))
    np.testing.assert_allclose(np.stack(logits, axis=1), wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["vectors", "texts", "images"])
def test_kinds_of_user_data(kind: str, tmp_path: Path) -> None:
    task, raw = tasks()[kind]
    run = rm.load_run(train_into(tmp_path / "run", task, "csp"))
    run.export_onnx(tmp_path / "new" / "model.onnx")
    assert_same(run, tmp_path / "new" / "model.onnx", raw, SIZES)
    about = session(tmp_path / "new" / "model.onnx").get_modelmeta().custom_metadata_map
    assert tuple(json.loads(about["classes"])) == run.classes
    assert (about["task"], about["output"]) == ("arrays", "classes")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "mixer", "model", "settings"),
    [
        ("snli", "tssa", "encoder", {"num_sequences": 2}),
        ("esol", "softmax", "graphormer_pcqm4m", {}),
        ("mnist-image", "tssa", "vit_cifar10", {"patch_size": 7}),
    ],
)
def test_other_tasks_have_exported_models(
    case: str, mixer: str, model: str, settings: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("RIFFLEMIX_CACHE", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    CASES[case].write(tmp_path / "data")
    task = rm.tasks.load_task(CASES[case].name, data_dir=tmp_path / "data", **CASES[case].options)
    raw = CASES[case].raw(task, task.split("test"))
    run = rm.load_run(train_into(tmp_path / "run", task, mixer, model, **settings))
    run.export_onnx(tmp_path / "model.onnx")
    assert_same(run, tmp_path / "model.onnx", raw, ((0, 1), (0, 3)))


@pytest.mark.slow
def test_a_graph_for_some_lengths_only_is_refused(tmp_path: Path) -> None:
    x = [np.arange(length) % 7 for length in range(50, 90)]
    task = rm.Task.from_arrays(x, [float(len(row)) for row in x])
    run = rm.load_run(train_into(tmp_path / "run", task, "nystromformer"))
    with pytest.raises(InputError, match=r"^export_onnx: .*64.*89"):
        run.export_onnx(tmp_path / "model.onnx")


@pytest.mark.slow
def test_regression_outputs_are_standardized(tmp_path: Path) -> None:
    x, y = ragged()
    run = rm.load_run(train_into(tmp_path / "run", rm.Task.from_arrays(x, y)))
    run.export_onnx(tmp_path / "model.onnx")
    loaded = session(tmp_path / "model.onnx")
    about = loaded.get_modelmeta().custom_metadata_map
    (logits,) = loaded.run(None, run.encode(x))
    numbers = logits[:, 0] * float(about["target_std"]) + float(about["target_mean"])
    np.testing.assert_allclose(numbers, run.predict(x), rtol=1e-5)


@pytest.mark.parametrize("mixer", [name for name in list_mixers() if mixer_card(name).no_onnx])
def test_mixers_without_onnx_are_refused(mixer: str, tmp_path: Path) -> None:
    run = rm.load_run(train_into(tmp_path / "run", rm.Task.from_arrays(*vectors()), mixer))
    with pytest.raises(InputError, match=f"mixer {mixer} .*{mixer_card(mixer).no_onnx}"):
        run.export_onnx(tmp_path / "model.onnx")


def test_export_to_a_folder_is_refused(tmp_path: Path) -> None:
    run = rm.load_run(train_into(tmp_path / "run", rm.Task.from_arrays(*vectors())))
    with pytest.raises(InputError, match=r"^file: .*run"):
        export_model(run.model, run.task, tmp_path / "run")


@pytest.mark.parametrize("package", ["onnx", "onnxscript"])
def test_missing_packages(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    run = rm.load_run(train_into(tmp_path / "run", rm.Task.from_arrays(*vectors())))
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == package else find(name)
    )
    with pytest.raises(InputError, match=rf"{package}.*rifflemix\[onnx\]"):
        run.export_onnx(tmp_path / "model.onnx")


def test_classifiers_of_texts_in_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    x, y = texts()
    run = rm.load_run(train_into(tmp_path / "run", rm.Task.from_arrays(x, y)))
    run.save_pretrained(tmp_path / "saved")
    rm.register_hf()
    auto = transformers.AutoModelForSequenceClassification
    loaded = auto.from_pretrained(tmp_path / "saved")
    assert tuple(loaded.config.id2label[i] for i in range(2)) == run.classes
    arrays = {name: torch.from_numpy(values) for name, values in run.encode(x[:9]).items()}
    with torch.no_grad():
        found = loaded(
            input_ids=arrays["inputs"], attention_mask=(~arrays["key_padding_mask"]).long()
        ).logits
    np.testing.assert_allclose(found.softmax(1), run.predict_proba(x[:9]), atol=1e-6)


def test_language_models_in_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    stored = train_into(tmp_path / "run", language_task(), "tssa", "gpt", max_length=LENGTH)
    run = rm.load_run(stored)
    run.save_pretrained(tmp_path / "saved")
    rm.register_hf()
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    ids = torch.from_numpy(run.encode(["the fox"])["inputs"])
    with torch.no_grad():
        assert torch.equal(loaded(input_ids=ids).logits, run.model(ids))


def test_classifiers_of_images_and_numbers_in_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    rm.register_hf()
    x, y = images()
    task = rm.Task.from_arrays(x, y, layout="image")
    run = rm.load_run(train_into(tmp_path / "i", task, model="vit_cifar10", patch_size=4))
    run.save_pretrained(tmp_path / "images")
    auto = transformers.AutoModelForImageClassification
    pixels = torch.from_numpy(run.encode(x[:4])["inputs"])
    with torch.no_grad():
        found = auto.from_pretrained(tmp_path / "images")(pixel_values=pixels).logits
        assert torch.equal(found, run.model(pixels))
    rows, numbers = ragged()
    run = rm.load_run(train_into(tmp_path / "n", rm.Task.from_arrays(rows, numbers)))
    run.save_pretrained(tmp_path / "numbers")
    config = transformers.AutoConfig.from_pretrained(tmp_path / "numbers")
    assert (config.num_labels, config.problem_type) == (1, "regression")
    assert config.target_std == run.task.target_std


def test_models_without_an_auto_class_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    run = rm.load_run(train_into(tmp_path / "run", rm.Task.from_arrays(*vectors())))
    with pytest.raises(InputError, match=r"^save_pretrained: .*vectors"):
        run.save_pretrained(tmp_path / "saved")
    run.model.save_pretrained(tmp_path / "saved")
    again = rm.models.from_pretrained(tmp_path / "saved")
    inputs = torch.from_numpy(run.encode(vectors()[0])["inputs"])
    with torch.no_grad():
        assert torch.equal(again(inputs), run.model(inputs))
