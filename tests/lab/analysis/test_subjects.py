"""Load models with the chosen weights from runs and presets."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import rifflemix as rm
from rifflemix.errors import InputError
from rifflemix.files import read_tensors
from rifflemix.lab.analysis import View, find_subjects, own_subject, trace
from rifflemix.lab.analysis.finding import Subject, progress
from rifflemix.lab.reproduction import plan_reproduction, run_reproduction
from rifflemix.lab.runs.build_for_task import fit_model
from rifflemix.lab.train import TrainConfig, train
from small_recipes import QUICK, small


@pytest.mark.parametrize(
    ("name", "lowest", "highest"),
    [("samples", 1, None), ("batch_size", 1, None), ("tokens", 1, 65_536), ("seed", 0, 2**63 - 1)],
)
def test_limits_of_a_view(name: str, lowest: int, highest: int | None) -> None:
    for value in (lowest, lowest if highest is None else highest):
        assert getattr(View(**{name: value}), name) == value
    for value in (lowest - 1, 2**70 if highest is None else highest + 1):
        with pytest.raises(InputError, match=f"^{name}: .*got "):
            View(**{name: value})


def test_progress_is_reported_before_the_first_batch_and_after_each() -> None:
    seen: list[object] = []
    subject = Subject("mine", nn.Identity(), batches=[1, 2])
    items = progress(subject, "ab", lambda *told: seen.append(told))
    seen.extend(items)
    assert seen == [("mine", 0, 2), "a", ("mine", 1, 2), "b", ("mine", 2, 2)]


def test_a_run_of_reproduce(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rifflemix.lab.reproduction.run.matmul_flops_per_second", lambda *_: 1.0)
    run_reproduction(plan_reproduction(small(train=QUICK), tmp_path / "run"))
    (subject,) = find_subjects(tmp_path / "run", View(samples=10, batch_size=4))
    weights, about = read_tensors(tmp_path / "run" / "run" / "best.safetensors")
    state = subject.model.state_dict()
    assert all(torch.equal(state[name], weights[name]) for name in weights)
    assert subject.about["step"] == about["step"]
    assert [len(batch["inputs"]) for batch in subject.batches] == [4, 4, 2]
    assert subject.task is not None
    split = subject.task.split("validation")
    assert torch.equal(subject.batches[0]["inputs"][1], split[1][0])
    assert len(list(trace(subject.model, subject.batches))) == 3


def test_presets_with_images_tokens_and_vectors() -> None:
    small_image = {"dim": 8, "num_layers": 1, "num_heads": 2}
    (vit,) = find_subjects("vit_mnist", View(samples=3, settings=small_image))
    assert vit.batches[0].shape == (3, 1, 28, 28)
    sizes = {"dim": 8, "num_layers": 1, "num_heads": 2, "vocab_size": 7, "max_length": 5}
    (gpt,) = find_subjects("gpt", View(samples=2, settings=sizes))
    assert gpt.batches[0].shape == (2, 5)
    first, second = find_subjects("encoder", View(samples=2, tokens=6, mixers=("csp", "tssa")))
    assert (first.label, second.label) == ("csp", "tssa")
    assert torch.equal(first.batches[0], second.batches[0]), "all see the same inputs"
    again = find_subjects("encoder", View(samples=2, tokens=6, mixers=("csp",)))[0]
    assert torch.equal(next(again.model.parameters()), next(first.model.parameters())), (
        "the same seed, the same weights"
    )


def trained(task: rm.tasks.Task, out: Path) -> Path:
    settings = {"mixer": "csp", "dim": 8, "num_layers": 1, "num_heads": 2}
    model = fit_model("encoder", task, settings, 0)
    config = TrainConfig(max_steps=1, batch_size=4)
    train(model, task, config, out, device="cpu", model_settings={"model": "encoder"} | settings)
    return out


def test_a_run_on_arrays_in_memory(tmp_path: Path) -> None:
    """Check that a run on arrays needs the caller to pass the same arrays again."""
    x, y = torch.randn(30, 6, 3), torch.arange(30) % 2
    task = rm.Task.from_arrays(x, y)
    run = trained(task, tmp_path / "run")
    with pytest.raises(InputError, match=r"^task arrays: .*View\(task=\.\.\.\)"):
        find_subjects(run)
    (subject,) = find_subjects(run, View(task=task, samples=3))
    assert torch.equal(subject.batches[0]["inputs"][1], task.split("validation")[1][0])
    with pytest.raises(InputError, match=r"^task arrays: .*got other data"):
        find_subjects(run, View(task=rm.Task.from_arrays(x + 1, y)))
    with pytest.raises(InputError, match=r"^target: .*got encoder"):
        find_subjects("encoder", View(task=task))


def test_run_on_a_moved_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = "".join(f"{i / 7},{i % 5},{'ab'[i % 2]}\n" for i in range(40))
    table = tmp_path / "mine.csv"
    table.write_text("u,v,kind\n" + rows)
    options = {"input": "u,v", "label": "kind"}
    run = trained(rm.tasks.load_task("csv", data=str(table), **options), tmp_path / "run")
    (tmp_path / "there").mkdir()
    moved = table.rename(tmp_path / "there" / "yours.csv")
    with pytest.raises(InputError, match=r"^task csv: .*mine\.csv.*--data"):
        find_subjects(run)
    assert find_subjects(run, View(data=moved))[0].task is not None  # identified by content
    assert trained(rm.tasks.load_task("csv", data=str(moved), **options), run) == run
    with pytest.raises(InputError, match=r"^task csv: .*yours\.csv.*--data"):
        find_subjects(run, View(data_dir=tmp_path))
    same = moved.rename(tmp_path / "there" / "mine.csv")
    trained(rm.tasks.load_task("csv", data=str(same), **options), run)
    monkeypatch.chdir(same.parent)
    for view in (View(data=same), View(data_dir=same.parent), View()):
        (subject,) = find_subjects(run, view)
        assert subject.task is not None
    same.write_text("u,v,kind\n" + rows.replace("a", "c"))
    with pytest.raises(InputError, match=r"^task csv: .*got other data.*--data"):
        find_subjects(run, View(data=same))


def test_invalid_subjects_are_refused() -> None:
    with pytest.raises(InputError, match=r"patch_only_cifar10_l7.*mixer"):
        find_subjects("patch_only_cifar10_l7", View(mixers=("csp",)))
    with pytest.raises(InputError, match="graphormer_pcqm4m"):
        find_subjects("graphormer_pcqm4m")
    with pytest.raises(InputError, match="seq2seq"):
        find_subjects("seq2seq")
    with pytest.raises(InputError, match=r"^batches: "):
        own_subject(torch.nn.Identity(), [])
    with pytest.raises(InputError, match=r"^model: .*torch\.nn\.Module"):
        own_subject(3, [1])  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^batches: .*None"):
        rm.analysis.analyze("spectrum", "encoder", [torch.ones(1)])
    with pytest.raises(InputError, match="batch_size: expected"):
        View(batch_size=0)
