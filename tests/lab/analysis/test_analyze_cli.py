"""Tests of `rifflemix analyze`: files, pages, resuming and refusals."""

from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rifflemix.cli import main
from rifflemix.lab.analysis import View, analyze, find_subjects
from rifflemix.lab.analysis.kinds.softmax_spread import layer_spreads, moments_of
from rifflemix.lab.runs.build_for_task import fit_model

SMALL = [
    "--dim",
    "8",
    "--layers",
    "2",
    "--heads",
    "2",
    "--max-steps",
    "2",
    "--batch-size",
    "4",
    "--threads",
    "1",
]
SIZES = {"dim": 8, "num_layers": 2, "num_heads": 2}
DIGITS = ["--task", "digits", "--task-option", "patch_size=2"]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the command line and return its exit code, stdout and stderr."""

    def run(*words: Any) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["rifflemix", *map(str, words)])
        code = main()
        return code, *capsys.readouterr()

    return run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a finished comparison of two mixers and a single run."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        for words in (
            ["compare", *DIGITS, "--mixers", "csp,tssa", "--seeds", "1", *SMALL],
            ["train", *DIGITS, "--mixer", "softmax", *SMALL, "--keep-weights"],
        ):
            patch.setattr(sys, "argv", ["rifflemix", *words, "--out", str(folder / words[0])])
            assert main() == 0
    return folder


def png_width(path: Path) -> int:
    return int.from_bytes(path.read_bytes()[16:20], "big")


@pytest.mark.slow
def test_one_kind_of_a_run(call: Any, runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "looks"
    code, printed, _ = call("analyze", "spectrum", runs / "train", "--out", out, "--samples", 5)
    assert code == 0
    assert "softmax: outputs before the output projection have effective rank" in printed
    names = {path.name for path in out.iterdir() if not path.name.startswith(".")}
    expected = {"analysis.html", "config.json", "spectrum.json", "spectrum.npz", "spectrum.png"}
    assert names == expected
    stored = json.loads((out / "spectrum.json").read_text())
    assert stored["subjects"][0]["task"] == "digits"
    assert stored["subjects"][0]["split"] == "validation"
    assert "rifflemix analyze" in stored["environment"]["command"]
    assert len(stored["data"]["models"]["softmax"]) == 2
    with np.load(out / "spectrum.npz") as arrays:
        assert arrays["softmax/blocks.0.mixer/before the output projection"].shape == (8,)
    assert png_width(out / "spectrum.png") == 1200
    page = (out / "analysis.html").read_text()
    assert "data:image/png;base64," in page
    assert "http" not in page.replace("http-equiv", "")


@pytest.mark.slow
def test_sums_over_training_use_the_weights_of_each_evaluation(runs: Path) -> None:
    """Check that the curve starts at fresh weights and contains the best weights."""
    (subject,) = find_subjects(runs / "train", View(samples=4))
    before = {name: value.clone() for name, value in subject.model.state_dict().items()}
    last = layer_spreads(subject)
    first, *others = moments_of(subject)
    assert (first.step, [at.step for at in others]) == (0, [1, 2])
    best = next(at for at in others if at.step == subject.about["step"])
    assert best.columns == [float(np.mean(layer.columns)) for layer in last]
    assert best.rows == pytest.approx([0.0, 0.0], abs=1e-6)
    assert first.columns != best.columns
    fresh = fit_model("encoder", subject.task, dict(mixer="softmax", **SIZES), 0)
    start = layer_spreads(replace(subject, model=fresh))
    assert first.columns == [float(np.mean(layer.columns)) for layer in start]
    assert all(
        torch.equal(value, before[name]) for name, value in subject.model.state_dict().items()
    )
    finding = analyze("softmax-spread", subject)
    assert finding.data["training"]["softmax"][0]["column_sums"] == first.columns
    assert re.search(r"softmax.*column sums.*\d", finding.summary[-1])


@pytest.mark.slow
def test_run_chosen_by_tuning_is_analyzed(runs: Path, tmp_path: Path) -> None:
    tuned = tmp_path / "tuned"
    shutil.copytree(runs / "compare", tuned)
    results = json.loads((tuned / "results.json").read_text())
    for run in results["runs"]:
        chosen = tuned / run["mixer"] / "lr=0.01" / "seed0"
        chosen.parent.mkdir()
        (tuned / run["folder"]).rename(chosen)
        run["folder"] = str(chosen.relative_to(tuned))
    (tuned / "results.json").write_text(json.dumps(results))
    assert [subject.label for subject in find_subjects(tuned, View(samples=1))] == ["csp", "tssa"]


@pytest.mark.slow
def test_analysis_of_a_comparison_resumes(call: Any, runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "looks"
    words = ("analyze", "all", runs / "compare", "--out", out, "--samples", 4)
    code, printed, _ = call(*words)
    assert code == 0
    page = (out / "analysis.html").read_text()
    kinds = [path.stem for path in out.glob("*.png")]
    assert {"spectrum", "collapse", "permutation", "pattern"} <= set(kinds)
    assert page.count("<figure>") == len(kinds)
    assert "csp" in page
    assert "tssa" in page
    before = {path: path.stat().st_mtime_ns for path in out.glob("*.png")}
    (out / "spectrum.json").unlink()
    code, printed, _ = call(*words, "--json")
    assert code == 0
    assert set(json.loads(printed)["findings"]) == set(kinds)
    changed = {p.stem for p in out.glob("*.png") if p.stat().st_mtime_ns != before[p]}
    assert changed == {"spectrum"}
    assert re.search("csp, tssa: [^<]*sinkhorn", page)
    # The gallery of one target is not reused for another target.
    code, _, errors = call("analyze", "all", runs / "train", "--out", out)
    assert code == 2
    assert errors.startswith("error: out: ")


def test_changed_run_is_analyzed_again(call: Any, tmp_path: Path) -> None:
    """Check that new weights are detected when folder, steps and settings are equal."""
    run, out = tmp_path / "run", tmp_path / "looks"
    look = ("analyze", "pattern", run, "--out", out, "--samples", 4)
    train = ("train", *DIGITS, "--mixer", "tssa", *SMALL, "--max-steps", 1, "--out", run)
    for seed in (0, 1):
        shutil.rmtree(run, ignore_errors=True)
        assert call(*train, "--seed", seed)[0] == 0
        code, _, errors = call(*look)
        assert code == (0 if seed == 0 else 2), errors
    assert re.search("error: out: .*weights = ", errors)


def test_a_preset_with_fresh_weights(call: Any, tmp_path: Path) -> None:
    words = [
        "--mixers",
        "csp,softmax",
        "--set",
        "dim=8",
        "--set",
        "num_layers=2",
        "--tokens",
        "6",
        "--samples",
        "2",
    ]
    code, printed, _ = call("analyze", "pattern", "encoder", *words, "--out", tmp_path / "a")
    assert code == 0
    assert "softmax: 100 %, 100 %" in printed
    code, _, errors = call("analyze", "pattern", "encoder", "--out", tmp_path / "a")
    assert code == 2
    assert errors.startswith("error: out: ")


BAD = {
    "unknown kind": (("ranks", "encoder"), "analysis 'ranks'.*spectrum"),
    "no folder": (("spectrum", "runs/nowhere"), "target: .*got runs/nowhere"),
    "unknown model": (("spectrum", "encodr"), "encodr.*encoder"),
    "no such layers": (("permutation", "gpt2_base"), "CSP.*Sliceformer"),
    "unknown mixer": (("spectrum", "encoder", "--mixers", "cps"), "'cps'.*csp"),
    "unknown setting": (("spectrum", "encoder", "--set", "dmi=3"), "model encoder 'dmi'"),
    "no samples": (("spectrum", "encoder", "--samples", "0"), "samples: .*got 0"),
    "no seed": (("spectrum", "encoder", "--seed", "-1"), "seed: .*got -1"),
    "no memory": (("macs", "encoder", "--set", f"dim={10**12}"), "encoder: "),
}


@pytest.mark.parametrize(("words", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_refused(
    call: Any, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    small = [] if "gpt2_base" not in words else ["--set", "dim=8", "--set", "num_layers=1"]
    small += [] if "gpt2_base" not in words else ["--set", "vocab_size=9", "--set", "num_heads=2"]
    code, _, errors = call("analyze", *words, *small, "--out", tmp_path / "out")
    assert code == 2
    assert re.search(message, errors)
    assert errors.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_run_without_weights_or_of_something_else(call: Any, runs: Path, tmp_path: Path) -> None:
    young = tmp_path / "young"
    young.mkdir()
    config = json.loads((runs / "train" / "run" / "config.json").read_text())
    (young / "config.json").write_text(json.dumps(config))
    other = tmp_path / "other"
    other.mkdir()
    changed = tmp_path / "changed"
    changed.mkdir()
    (changed / "best.safetensors").write_bytes(
        (runs / "train" / "run" / "best.safetensors").read_bytes()
    )
    task = {**config["task"], "fingerprint": "0" * 32}
    (changed / "config.json").write_text(json.dumps({**config, "task": task}))
    bent = tmp_path / "bent"
    bent.mkdir()
    (bent / "best.safetensors").write_bytes(
        (runs / "train" / "run" / "best.safetensors").read_bytes()
    )
    settings = {**config["model"]["settings"], "dim": 16}
    model = {**config["model"], "settings": settings}
    (bent / "config.json").write_text(json.dumps({**config, "model": model}))
    odd = tmp_path / "odd"
    odd.mkdir()
    (odd / "config.json").write_text('{"task": 3}')
    for folder, message in (
        (young, "target: .*young"),
        (other, r"target: .*other.*config\.json"),
        (changed, "task digits: .*got other data"),
        (bent, r"best\.safetensors.*model"),
        (odd, r"config\.json.*damaged"),
    ):
        code, _, errors = call("analyze", "spectrum", folder, "--out", tmp_path / "out")
        assert code == 2
        assert re.search(message, errors)
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--mixers", "identity"), "mixers: .*got.*identity"),
        (("--tokens", 5), "tokens: .*got 5"),
        (("--set", "dim=8"), "--set: .*got dim=8"),
    ],
)
def test_options_fixed_by_a_run_are_refused(
    call: Any, runs: Path, tmp_path: Path, words: tuple[Any, ...], message: str
) -> None:
    out = tmp_path / "out"
    code, _, errors = call("analyze", "spectrum", runs / "train", *words, "--out", out)
    assert code == 2
    assert re.search(message, errors)
    assert not out.exists()
