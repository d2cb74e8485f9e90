"""rifflemix convert for trained runs of rifflemix."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rifflemix as rm
from command_line import Cli
from rifflemix.lab.conversion.own_runs import as_own_model

DATA = {"num_train": 60, "num_validation": 12, "num_test": 12}
QUICK = ("--steps", "layers=2,outputs=1", "--device", "cpu")
SIZES: dict[str, Any] = {"dim": 16, "num_layers": 2, "num_heads": 2, "num_classes": 3}
MODELS: dict[str, dict[str, Any]] = {
    "encoder": {**SIZES, "vocab_size": 12, "max_length": 20},
    "encoder, rotary": {**SIZES, "vocab_size": 12, "max_length": 20, "positions": "rope"},
    "encoder, options": {
        **SIZES, "vocab_size": 12, "max_length": 20, "mixer_options": {"bias": False}
    },
    "gpt": {**SIZES, "vocab_size": 12, "max_length": 20, "num_classes": 12},
    "vit_mnist": {**SIZES, "image_size": 8, "patch_size": 4, "head_dim": 4},
    "lra_text": {**SIZES, "vocab_size": 12, "max_length": 20, "num_layers": 2},
}  # fmt: skip


def build(case: str) -> rm.Model:
    torch.manual_seed(0)
    name = case.partition(",")[0]
    known = rm.models.model_settings(name)
    settings = {key: value for key, value in MODELS[case].items() if key in known}
    return rm.create_model(name, mixer="softmax", **settings).eval()


def takes_rotary(mixer: str) -> bool:
    return "rotary" in rm.mixers.mixer_options(mixer)


def check_own_model(case: str, mixer: str, layers: Any) -> None:
    original, converted = build(case), build(case)
    options = {"rotary": True} if "rotary" in case and takes_rotary(mixer) else {}
    rm.replace_attention(converted, mixer, layers=layers, mixer_options=options)
    model = as_own_model(original, converted)
    x = torch.rand(3, 1, 8, 8) if case == "vit_mnist" else torch.randint(12, (3, 9))
    with torch.no_grad():
        torch.manual_seed(1)
        expected = converted(x)
        torch.manual_seed(1)
        assert torch.equal(model(x), expected), mixer


@pytest.mark.filterwarnings("ignore:.*rotary")
@pytest.mark.parametrize("case", MODELS)
def test_converted_models_become_models_of_rifflemix(case: str) -> None:
    for mixer in rm.list_mixers():
        if case != "gpt" or rm.mixer_card(mixer).causal:
            check_own_model(case, mixer, layers=[1])
    for mixer in ("linear", "csp"):
        check_own_model(case, mixer, layers="all")


def test_layers_of_a_hybrid_keep_their_other_mixers() -> None:
    settings = {**MODELS["encoder"], "num_layers": 4, "mixer": "csp+softmax"}
    original, converted = (rm.create_model("encoder", **settings).eval() for _ in range(2))
    rm.replace_attention(converted, "tssa", layers=[1])
    model = as_own_model(original, converted)
    names = [type(block.mixer).__name__ for block in model.blocks]
    assert names == ["CSP", "SoftmaxAttention", "CSP", "TSSA"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of short trainings: a comparison, a language model and a regression."""
    out = tmp_path_factory.mktemp("runs")
    rows = np.random.default_rng(0).normal(size=(60, 5, 2))
    table = out / "series.npz"
    np.savez(table, x=rows, y=rows.mean(axis=(1, 2)))
    quick: dict[str, Any] = {"max_steps": 2, "batch_size": 6, "dim": 16, "threads": 1}
    options = {**DATA, "length": 8, "pairs": 2, "vocab_size": 16}
    rm.compare("mqar", ["softmax"], out=out / "mqar", task_options=options, **quick)
    rm.compare("digits", ["csp", "softmax"], out=out / "two", seeds=2, **quick)
    regression = {"data": str(table), "kind": "regression"}
    rm.compare("npz", ["softmax"], out=out / "numbers", task_options=regression, **quick)
    return out


@pytest.mark.parametrize("name", ["two", "mqar", "numbers"])
def test_the_converted_run_predicts_as_the_converted_model(
    cli: Cli, runs: Path, tmp_path: Path, name: str
) -> None:
    out = tmp_path / "out"
    data = ("--data", runs / "series.npz") if name == "numbers" else ()
    options = ("--mixer", "tssa", "--keep", 1, "--out", out, *QUICK, *data)
    done = cli("convert", runs / name, *options)
    assert done.code == 0, done.err
    report = json.loads((out / "report.json").read_text())
    run, before = rm.load_run(out / "model"), rm.load_run(runs / name, **chosen(name))
    assert report["after"]["test"] == run.metrics["test"][report["metric"]]
    assert report["before"]["test"] == before.metrics["test"][report["metric"]]
    assert report["stages"][-1]["score"] == report["after"]["validation"]
    names = [type(block.mixer).__name__ for block in run.model.blocks]
    assert sorted("Softmax" in name for name in names) == [False, True]
    assert cli("convert", runs / name, *options).code == 0
    assert json.loads((out / "report.json").read_text())["after"] == report["after"]


def chosen(name: str) -> dict[str, Any]:
    return {"mixer": "softmax"} if name == "two" else {}


def test_a_converted_run_is_exported_and_analyzed(cli: Cli, runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = cli(
        "convert",
        runs / "two",
        "--run-seed",
        1,
        "--mixer",
        "linear",
        "--out",
        out,
        *QUICK,
        "--json",
    )
    assert done.code == 0, done.err
    assert json.loads(done.out)["model"] == str(out / "model")
    assert cli("export", out / "model", "--out", tmp_path / "model.onnx").code == 0
    looks = tmp_path / "looks"
    assert cli("analyze", "spectrum", out / "model", "--samples", 4, "--out", looks).code == 0
    again = cli("convert", out / "model", "--mixer", "csp", "--out", tmp_path / "more", *QUICK)
    assert again.code == 2
    assert "softmax" in again.err


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        (("--length", 8), "--length"),
        (("--lengths", "8"), "--lengths"),
        (("--run-seed", 7), "seed"),
        (("--mixer", "none"), "mixer"),
        (("--batch-size", 5000), "batch_size"),
        (("--keep", 2), "keep"),
        (("--data", "texts.txt"), "data"),
    ],
)
def test_wrong_options_of_runs_write_nothing(
    cli: Cli, runs: Path, tmp_path: Path, changed: tuple[str, Any], name: str
) -> None:
    out = tmp_path / "out"
    done = cli("convert", runs / "two", "--mixer", "tssa", "--out", out, *QUICK, *changed)
    assert done.code == 2
    assert name in done.err.splitlines()[-1]
    assert not out.exists()


def test_other_data_and_a_damaged_run_are_refused(cli: Cli, runs: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.npz"
    np.savez(other, x=np.ones((60, 5, 2)), y=np.arange(60.0))
    options = ("--mixer", "tssa", "--out", tmp_path / "out", *QUICK)
    done = cli("convert", runs / "numbers", "--data", other, *options)
    assert done.code == 2
    assert "--data" in done.err
    shutil.copytree(runs / "mqar", tmp_path / "damaged")
    (weights,) = (tmp_path / "damaged").rglob("best.safetensors")
    weights.write_bytes(weights.read_bytes()[:-8])
    assert cli("convert", tmp_path / "damaged", *options).code == 2
    assert cli("convert", tmp_path / "nowhere", *options).code == 2
    assert not (tmp_path / "out").exists()
