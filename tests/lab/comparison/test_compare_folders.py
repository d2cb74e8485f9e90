"""Output folders of comparisons: other files, other settings, damage and full disks."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_comparison import results_of_plan
from short_comparison import settings, start

from rifflemix.errors import InputError
from rifflemix.lab.comparison import (
    plan_comparison,
)
from rifflemix.lab.runs.folder import check_folder
from rifflemix.lab.runs.status import RunStatus
from rifflemix.lab.tasks import load_task


@pytest.fixture(scope="module")
def one_mixer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("one") / "out"
    start(out, mixers=("tssa",), seeds=(0, 1))
    return out


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_heads": 3}, r"softmax.*num_heads.*dim = 16.*got 3\b"),
        ({"task_options": {"patch_size": 3}}, r"patch_size: .*\b1\b.*\b2\b.*\b4\b"),
        ({"task_options": {"nonsense": 3}}, "digits.*'nonsense'"),
        ({"mixer_options": {"tssa": {"nonsense": 1}}}, "tssa.*tssa.*got 'nonsense'"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_shapes_write_no_files(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words):
        plan_comparison(settings(**changes), tmp_path / "deep" / "out")
    assert not list(tmp_path.iterdir())


def test_nan_in_the_data_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = load_task("digits", patch_size=4)

    class Broken:
        def __len__(self) -> int:
            return 64

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            inputs, label = task.split("train")[index]
            return inputs * float("nan"), label

        def digest(self) -> bytes:
            return b""

    splits = {**task.splits, "train": Broken()}
    broken = replace(task, splits=splits)
    monkeypatch.setattr("rifflemix.lab.comparison.plan.load_task", lambda *_, **__: broken)
    with pytest.raises(InputError, match=r"digits.*got NaN"):
        plan_comparison(settings(), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_planning_writes_no_files(tmp_path: Path) -> None:
    plan_comparison(settings(), tmp_path / "deep" / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({"dim": 8}, "dim = 16, got 8"),
        ({"seeds": (0, 1, 2)}, "seeds"),
        ({"mixers": ("softmax",)}, "mixers"),
        ({"task_options": {"patch_size": 2}}, "task_options.patch_size = 4, got 2"),
        ({"train": replace(settings().train, lr=0.5)}, "train.lr = 0.001, got 0.5"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_folder_of_another_configuration_is_refused(
    changes: dict[str, Any], setting: str, finished: tuple[Path, dict[str, Any]]
) -> None:
    out, _ = finished
    before = sorted(p.name for p in out.rglob("*"))
    with pytest.raises(InputError, match=setting):
        plan_comparison(settings(**{"seeds": (0, 1), **changes}), out)
    assert sorted(p.name for p in out.rglob("*")) == before


def test_folder_of_changed_data_is_refused(
    finished: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rifflemix.lab.tasks.Task.fingerprint", lambda _: "other")
    with pytest.raises(InputError, match=r"out: .*got 'other'"):
        plan_comparison(settings(seeds=(0, 1)), finished[0])


def test_folder_of_other_files_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(InputError, match=r"thesis.tex"):
        plan_comparison(settings(), tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match="out:"):
        plan_comparison(settings(), tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match="damaged"):
        plan_comparison(settings(), tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "thesis.tex"]


def test_comparison_starts_after_a_kill_at_the_start(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    leftover = tmp_path / ".rifflemix-0123456789abcdef.tmp"
    leftover.mkdir()
    (leftover / "file").write_text("{")
    assert start(tmp_path, mixers=("tssa",))["status"] == "complete"
    assert not leftover.exists()


def test_two_processes_cannot_share_a_folder(tmp_path: Path) -> None:
    plan = plan_comparison(settings(mixers=("tssa",)), tmp_path)
    errors: list[str] = []

    def start_again(status: RunStatus) -> None:
        if status.state == "measuring":
            with pytest.raises(InputError, match=re.escape(str(tmp_path))) as caught:
                results_of_plan(plan)
            errors.append(str(caught.value))

    results_of_plan(plan, on_status=start_again)
    assert len(errors) == 1


@pytest.mark.parametrize("out", ["/proc/nothing", "/dev/null", "/dev/null/x"])
def test_folder_that_cannot_be_written(out: str) -> None:
    with pytest.raises(InputError, match="out:"):
        check_folder(Path(out))


def test_a_folder_whose_name_is_not_text() -> None:
    with pytest.raises(InputError, match=r"UTF-8\b"):
        check_folder(Path("runs/\udcff"))


@pytest.mark.parametrize("damage", ["", "{", '{"format": "rifflemix.run/1"}', "a digit"])
def test_a_damaged_record_is_named(damage: str, one_mixer: Path, tmp_path: Path) -> None:
    out = shutil.copytree(one_mixer, tmp_path / "out")
    plan = plan_comparison(settings(mixers=("tssa",), seeds=(0, 1)), out)
    path = out / "tssa" / "seed0" / "record.json"
    whole = path.read_text()
    path.write_text(whole.replace('"seed": 0', '"seed": 1') if damage == "a digit" else damage)
    with pytest.raises(InputError, match=r"record\.json"):
        results_of_plan(plan)


def test_lost_or_changed_summary_is_computed_again(one_mixer: Path, tmp_path: Path) -> None:
    out = shutil.copytree(one_mixer, tmp_path / "out")
    plan = plan_comparison(settings(mixers=("tssa",), seeds=(0, 1)), out)
    results = results_of_plan(plan)
    path = out / "results.json"
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 7'))
    assert results_of_plan(plan) == results
    path.unlink()
    assert results_of_plan(plan) == results
    assert json.loads(path.read_text()) == results


def test_full_disk_at_the_first_write_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise InputError("cannot write: no space left on device")

    plan = plan_comparison(settings(), tmp_path / "out")
    monkeypatch.setattr("rifflemix.files.write_json", full)
    with pytest.raises(InputError, match=r"(?i)no space left"):
        results_of_plan(plan)
    assert not (tmp_path / "out").exists()
