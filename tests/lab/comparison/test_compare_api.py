"""Tests of `rm.compare` and `Comparison`: objects, classes, variants and refusals."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake_comparison import table_of
from torch import Tensor, nn

import rifflemix as rm
import rifflemix.cli
from rifflemix.lab.comparison.pages.files import html_fragment
from rifflemix.mixers.registry import mixer_class

pytestmark = pytest.mark.usefixtures("registries")

TINY: dict[str, Any] = {
    "max_steps": 2, "batch_size": 8, "dim": 8, "num_layers": 1, "num_heads": 2, "threads": 1,
    "device": "cpu",
}  # fmt: skip
RANDOM = np.random.default_rng(5)


class Scale(rm.TokenMixer):
    """Multiply every channel by a number."""

    card = replace(
        mixer_class("identity").card,
        name="scale",
        title="Scale",
        equations="y = s x",
        causal=False,
        streaming=False,
    )

    def __init__(self, dim: int, *, start: float = 1.0, **shared: Any) -> None:
        super().__init__(dim, **shared)
        self.scale = nn.Parameter(start * Tensor([1.0] * dim))

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        return x * self.scale


@pytest.fixture(scope="module")
def numbers() -> rm.Task:
    """Build sequences labeled with the sum of their first column."""
    x = RANDOM.normal(size=(60, 6, 2)).astype(np.float32)
    return rm.Task.from_arrays(x, x[:, :, 0].sum(1), name="sums")


@pytest.fixture(scope="module")
def variants(numbers: rm.Task, tmp_path_factory: pytest.TempPathFactory) -> rm.Comparison:
    return rm.compare(
        numbers,
        {"csp-2": ("csp", {"num_groups": 2}), "csp": "csp", "softmax": "softmax"},
        seeds=[3, 5],
        out=tmp_path_factory.mktemp("compare") / "run",
        keep_weights=True,
        **TINY,
    )


def test_training_uses_the_chosen_settings(tmp_path: Path) -> None:
    options = {"betas": (0.8, 0.95), "warmup_steps": 1, "label_smoothing": 0.1}
    options["checkpoint_every"] = 9  # which does not change any number
    settings = {**TINY, "task_options": {"patch_size": 4}, "train_options": options}
    found = rm.compare("digits", ["identity"], out=tmp_path / "run", **settings)
    config = found.results["config"]
    expected = {"betas": [0.8, 0.95], "warmup_steps": 1, "label_smoothing": 0.1}
    assert config["train_options"] == expected
    assert {name: config["train"][name] for name in expected} == expected
    assert config["train"]["weight_decay"] == 0.01
    table = (tmp_path / "run" / "table.md").read_text()
    assert r"betas \[0.8, 0.95\], warmup_steps 1, label_smoothing 0.1, the same data" in table
    again = rm.compare("digits", ["identity"], out=tmp_path / "run", **settings)
    assert again.results["runs"] == found.results["runs"]
    with pytest.raises(rm.InputError, match=r"train\.betas = \[0\.8, 0\.95\]"):
        rm.compare(
            "digits", ["identity"], out=tmp_path / "run", **{**settings, "train_options": {}}
        )


def test_early_stops_are_reported() -> None:
    options = {"eval_every": 1, "patience": 1, "metric": "loss", "schedule": "constant"}
    changed = TINY | {"max_steps": 40, "lr": 0.3, "train_options": options}
    found = rm.compare("digits", ["tssa"], seeds=2, **changed)
    steps = [run["steps"] for run in found.results["runs"]]
    assert max(steps) < 40
    assert f"tssa {min(steps)} to {max(steps)}" in str(found) or len(set(steps)) == 1
    assert list(found.to_frame()["test_loss"].notna()) == [True]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lr": 1.0}, "train_options: .*max_steps"),
        ({"weight_deca": 1.0}, "'weight_deca'.*weight_decay"),
        ({"weight_decay": {}}, "weight_decay"),
        ([("lr", 1)], "train_options: .*got.*'lr'"),
    ],
    ids=["own name", "unknown", "kind", "list"],
)
def test_invalid_training_settings_are_refused(options: Any, words: str) -> None:
    with pytest.raises(rm.InputError, match=words):
        rm.compare("digits", ["identity"], **TINY, train_options=options)


def test_one_table_compares_two_settings_of_one_mixer(variants: rm.Comparison) -> None:
    results = variants.results
    assert [mixer["name"] for mixer in results["mixers"]] == ["csp-2", "csp", "softmax"]
    assert [mixer["title"] for mixer in results["mixers"]][:2] == ["csp-2", "CSP"]
    assert results["config"]["variants"] == {"csp-2": "csp"}
    assert results["config"]["mixer_options"] == {"csp-2": {"num_groups": 2}}
    assert results["status"] == "complete"
    assert {(run["mixer"], run["seed"]) for run in results["runs"]} == {
        (name, seed) for name in ("csp-2", "csp", "softmax") for seed in (3, 5)
    }
    scores = {(r["mixer"], r["seed"]): r["test"]["rmse"] for r in results["runs"]}
    assert scores["csp-2", 3] != scores["csp", 3]


def test_weights_are_kept_on_request(variants: rm.Comparison) -> None:
    assert variants.folder is not None
    for run in variants.results["runs"]:
        kept = (variants.folder / run["folder"] / "weights").iterdir()
        assert {path.name for path in kept} == {f"{step}.safetensors" for step in range(3)}


def test_numbers_use_the_direction_of_the_metric(variants: rm.Comparison) -> None:
    assert variants.results["protocol"]["metric"] == "rmse"
    for mixer in variants.results["mixers"]:
        assert mixer["metric"]["higher_is_better"] is False
    for run in variants.results["runs"]:
        best = min(run["validation_curve"], key=lambda entry: entry["rmse"])
        assert run["validation"]["rmse"] == best["rmse"]
        assert {"rmse", "mae", "r2"} <= set(run["test"])
        assert not any(name.startswith("_") for name in run["test"])
    assert "Test rmse" in str(variants)
    assert re.search(r"\b6 tokens", str(variants))
    assert "rmse" in variants.plot().axes[0].get_ylabel()


def test_frames_of_mixers_and_of_runs(variants: rm.Comparison) -> None:
    pytest.importorskip("pandas")
    frame = variants.to_frame()
    assert frame["mixer"].tolist() == ["csp-2", "csp", "softmax"]
    runs = variants.to_frame("run")
    assert len(runs) == 6
    for name, mean in zip(frame["mixer"], frame["test_rmse"], strict=True):
        assert runs[runs["mixer"] == name]["test_rmse"].mean() == pytest.approx(mean)
    with pytest.raises(rm.InputError, match=r"per: .*got 'seed'"):
        variants.to_frame("seed")


def test_a_frame_without_pandas_says_what_to_install(
    variants: rm.Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(rm.InputError, match=r"to_frame.*pip install pandas"):
        variants.to_frame()


def test_saved_comparison_is_loaded(variants: rm.Comparison, tmp_path: Path) -> None:
    assert variants.folder is not None
    files = {path.name for path in variants.folder.iterdir()}
    assert {"results.json", "table.md", "plot.png", "report.html"} <= files
    again = rm.Comparison.load(variants.folder)
    assert again.results == variants.results
    assert repr(again) == "Comparison(sums: csp-2, csp, softmax; 6 of 6 runs)"
    page = again._repr_html_()
    assert page.count("<tr>") == 4
    assert "data:image/png;base64," in page

    with pytest.raises(rm.InputError, match=r"folder: .*results\.json"):
        rm.Comparison.load(tmp_path)
    (tmp_path / "results.json").write_text('{"format": "another"}')
    with pytest.raises(rm.InputError, match="folder:"):
        rm.Comparison.load(tmp_path)
    for part in ("runs", "mixers", "task", "protocol"):
        broken = {key: value for key, value in variants.results.items() if key != part}
        (tmp_path / "results.json").write_text(json.dumps(broken))
        with pytest.raises(rm.InputError, match=r"results\.json"):
            rm.Comparison.load(tmp_path)


def test_titles_are_escaped_in_a_notebook(variants: rm.Comparison) -> None:
    results = json.loads(json.dumps(variants.results))
    results["mixers"][0]["title"] = "<script>alert(1)</script>"
    assert "<script>" not in html_fragment(table_of(results), [])


def test_classes_are_compared_without_output_or_files(
    numbers: rm.Task,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    states: list[str] = []
    two = {"a": (Scale, {"start": 2.0}), "b": Scale}
    done = rm.compare(numbers, two, on_status=lambda s: states.append(s.state), **TINY)
    assert done.folder is None
    assert [mixer["name"] for mixer in done.results["mixers"]] == ["a", "b"]
    assert "scale" in rm.list_mixers()
    assert states.count("done") == 2
    rm.compare(numbers, [Scale], **TINY)
    assert capsys.readouterr().out == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_task_name_gives_the_results_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = rm.compare(
        "digits", ["csp"], out=tmp_path / "a", task_options={"patch_size": 4, "max_samples": 99},
        **TINY,
    )  # fmt: skip
    words = (
        "compare --task digits --task-option patch_size=4 --task-option max_samples=99 --mixers "
        "csp --max-steps 2 --batch-size 8 --dim 8 --layers 1 --heads 2 --threads 1 --device cpu"
    )
    monkeypatch.setattr(sys, "argv", ["rifflemix", *words.split(), "--out", str(tmp_path / "b")])
    assert rifflemix.cli.main() == 0
    theirs = rm.Comparison.load(tmp_path / "b")
    assert theirs.results["config"] == ours.results["config"]
    assert theirs.results["runs"][0]["test"] == ours.results["runs"][0]["test"]
    same = rm.compare(
        rm.tasks.load_task("digits", patch_size=4, max_samples=99), ["csp"], out=tmp_path / "a",
        **TINY,
    )  # fmt: skip
    assert (
        same.results["runs"] == ours.results["runs"]
    )  # the same folder is complete, so nothing runs


WRONG: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    "task": (3, ["csp"], {}, r"task: .*got 3\b"),
    "task name": ("digit", ["csp"], {}, "'digit'.*digits"),
    "mixer": (None, ["cps"], {}, "'cps'"),
    "text": (None, "csp", {}, "mixers: .*got 'csp'"),
    "module": (None, [nn.Linear], {}, "mixers: .*TokenMixer.*Linear"),
    "twice": (None, ["csp", "csp"], {}, "got 'csp'"),
    "none": (None, [], {}, "mixers:"),
    "pair": (None, {"a": ("csp", 3)}, {}, r"mixers\['a'\]: "),
    "label": (None, {"a/b": "csp"}, {}, r"mixers: .*\b64\b.*got 'a/b'"),
    "misleading": (None, {"tssa": "csp"}, {}, "csp.*got tssa"),
    "option": (None, {"a": ("csp", {"groups": 3})}, {}, "csp.*'groups'"),
    "setting": (None, ["csp"], {"steps": 3}, "'steps'"),
    "seeds": (None, ["csp"], {"seeds": 0}, r"seeds: .*\b1\b.*\b1,000\b"),
    "precision": (None, ["csp"], {"precision": "fp8"}, r"precision: .*float32\b.*bf16\b"),
    "batch": (None, ["csp"], {"batch_size": 99}, r"batch_size: .*\b36\b"),
    "options of data": (None, ["csp"], {"task_options": {}}, "task_options: .*Task"),
    "model": (None, ["csp"], {"model": "vit_cifar10"}, "task sums .*vectors"),
    "weights": (None, ["csp"], {"keep_weights": True}, "keep_weights.*got N"),
    "tracker": (None, ["csp"], {"tracker": "tensorboard"}, "'tensorboard'"),
}  # fmt: skip


@pytest.mark.parametrize(("task", "mixers", "settings", "message"), WRONG.values(), ids=WRONG)
def test_errors_are_one_sentence(
    numbers: rm.Task, task: Any, mixers: Any, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(rm.InputError, match=message) as caught:
        rm.compare(numbers if task is None else task, mixers, **{**TINY, **settings})
    assert "\n" not in str(caught.value)


@pytest.fixture
def cli(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    def run(*words: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["rifflemix", *map(str, words)])
        return rifflemix.cli.main(), capfd.readouterr().err

    return run


@pytest.mark.slow
def test_the_command_reads_a_table_and_two_settings(tmp_path: Path, cli: Any) -> None:
    table = tmp_path / "tea.csv"
    rows = [f"leaf {i} {'green' * (i % 2)},{'yes' if i % 2 else 'no'}" for i in range(40)]
    table.write_text("\n".join(["words,milk", *rows]), encoding="utf-8")
    run = (
        *("compare", "--task", "csv", "--data", table, "--input", "words", "--label", "milk"),
        *("--mixers", "csp,csp-2=csp", "--mixer-option", "csp-2.num_groups=2", "--max-steps", 2),
        *(
            "--mixer-option",
            "csp-2.pad=true",
            "--batch-size",
            8,
            "--dim",
            8,
            "--layers",
            1,
            "--heads",
            2,
            "--threads",
            1,
        ),
    )
    code, err = cli(*run, "--out", tmp_path / "run")
    assert code == 0, err
    results = rm.Comparison.load(tmp_path / "run").results
    assert results["task"]["title"] == "tea.csv"
    assert results["task"]["options"]["data"] == "tea.csv"
    assert results["task"]["majority_share"] == {"validation": 0.5, "test": 0.5}
    assert [mixer["name"] for mixer in results["mixers"]] == ["csp", "csp-2"]

    renamed = [table.with_name("coffee.csv") if word == table else word for word in run]
    table.rename(table.with_name("coffee.csv"))
    code, err = cli(*renamed, "--out", tmp_path / "run")  # identified by content
    assert code == 0, err
    table.with_name("coffee.csv").rename(table)
    table.write_text(table.read_text() + "\nleaf 99,no\n", encoding="utf-8")
    code, err = cli(*run, "--out", tmp_path / "run")
    assert code == 2
    assert re.search("out: .*data = ", err)
    wrong = {
        ("--task", "digits", "--data", table): "unknown option of task digits 'data'",
        ("--task", "csv", "--input", "words", "--label", "milk"): "expected the path of your data",
        (
            "--task",
            "csv",
            "--data",
            table,
            "--input",
            "word",
            "--label",
            "milk",
        ): "did you mean wor",
    }
    for words, message in wrong.items():
        code, err = cli("compare", *words, "--mixers", "csp", "--out", tmp_path / "no")
        assert (code, err.count("\n")) == (2, 1), err
        assert message in err
    assert not (tmp_path / "no").exists()


@dataclass(frozen=True, eq=False)
class Labels(rm.Task):
    """Task with several labels per sample."""

    def collate(self, samples: Any) -> dict[str, Tensor]:
        batch = super().collate([(x, 0) for x, _ in samples])
        return {**batch, "labels": torch.stack([labels for _, labels in samples])}

    def loss(self, outputs: Tensor, batch: dict[str, Tensor]) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(outputs, batch["labels"])

    def metrics(self, outputs: Tensor, batch: dict[str, Tensor]) -> dict[str, tuple[float, int]]:
        count = batch["labels"].numel()
        right = ((outputs > 0) == batch["labels"].bool()).sum().item()
        loss = self.loss(outputs, batch).item()
        return {"loss": (loss * count, count), "accuracy": (float(right), count)}


class LabelledRows(list[tuple[Tensor, Tensor]]):
    """Samples with three labels each."""

    def digest(self) -> bytes:
        return str(len(self)).encode()


def test_samples_with_several_labels() -> None:
    x = torch.randn(20, 6, 3)
    rows = LabelledRows(zip(x, (x.sum(1) > 0).float(), strict=True))
    known = rm.Task.from_arrays(RANDOM.normal(size=(60, 6, 3)), np.arange(60) % 3, name="three")
    fields = {name: value for name, value in vars(known).items() if not name.startswith("_")}
    task = Labels(**fields | {"splits": dict.fromkeys(("train", "validation", "test"), rows)})
    result = rm.compare(task, ["tssa", "average"], seeds=2, **TINY)
    assert result.results["task"]["majority_share"] == {}
    assert not table_of(result.results).nothing_learned
