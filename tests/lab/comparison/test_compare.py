from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_comparison import results_of_plan

from rifflemix.errors import InputError
from rifflemix.lab.comparison import (
    CompareConfig,
    build_model,
    default_budget,
    plan_comparison,
    train_config,
    train_mixer,
    training_memory,
)
from rifflemix.lab.runs.folder import check_folder
from rifflemix.lab.runs.status import RunStatus, summarise
from rifflemix.lab.tasks import list_tasks, load_task
from rifflemix.mixers import TokenMixer


def settings(**changes: Any) -> CompareConfig:
    """Return settings for a short training."""
    train = train_config(
        default_budget("digits"), max_steps=6, batch_size=64, lr=1e-3, precision="no"
    )
    base = CompareConfig(
        task="digits",
        mixers=("softmax", "tssa"),
        seeds=(0,),
        dim=16,
        num_layers=1,
        num_heads=2,
        train=replace(train, eval_every=3),
        task_options={"patch_size": 4},
    )
    return replace(base, **changes)


def start(out: Path, **changes: Any) -> dict[str, Any]:
    return results_of_plan(plan_comparison(settings(**changes), out))


def stop_after(polls: int) -> Callable[[], bool]:
    left = iter(range(polls))
    return lambda: next(left, None) is None


def measured(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the values that do not depend on clock and stops."""
    keys = ("mixer", "seed", "validation", "test", "validation_curve", "train_curve", "best_step")
    return [{key: run[key] for key in keys} for run in results["runs"]]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("compare") / "deep" / "out"
    return out, start(out, seeds=(0, 1))


@pytest.fixture(scope="module")
def one_mixer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("one") / "out"
    start(out, mixers=("tssa",), seeds=(0, 1))
    return out


def test_results_have_all_required_fields(finished: tuple[Path, dict[str, Any]]) -> None:
    out, results = finished
    assert results == json.loads((out / "results.json").read_text())
    assert results["status"] == "complete"
    assert results["runs_done"] == results["runs_planned"] == 4
    assert results["config"]["train"]["max_steps"] == 6
    assert results["protocol"]["model_chosen_on"] == "validation"
    assert results["environment"]["libraries"]["torch"] == str(torch.__version__)
    assert results["environment"]["hardware"]["threads"] == 1
    assert "git_commit" in results["environment"]
    assert results["command"]
    assert results["peak_memory_bytes"] > 0
    assert results["wall_seconds"] > 0
    shares = results["task"]["majority_share"]
    assert shares.keys() == {"validation", "test"}
    labels = [label for _, label in load_task("digits", patch_size=4).split("test")]
    assert shares["test"] == max(labels.count(k) for k in range(10)) / len(labels)


def test_runs_are_ordered_by_seed(finished: tuple[Path, dict[str, Any]]) -> None:
    order = [(run["seed"], run["mixer"]) for run in finished[1]["runs"]]
    assert order == [(0, "softmax"), (0, "tssa"), (1, "softmax"), (1, "tssa")]


def test_summary_is_computed_from_raw_numbers(finished: tuple[Path, dict[str, Any]]) -> None:
    _, results = finished
    for mixer in results["mixers"]:
        runs = [run for run in results["runs"] if run["mixer"] == mixer["name"]]
        for split in ("validation", "test"):
            values = [run[split]["accuracy"] for run in runs]
            assert mixer[split]["values"] == values
            assert mixer[split]["mean"] == pytest.approx(sum(values) / 2)
            assert mixer[split]["std"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
        speeds = [run["steps_per_second"] for run in runs]
        assert mixer["steps_per_second"] == pytest.approx(sum(speeds) / 2)


def test_validation_selects_the_weights(finished: tuple[Path, dict[str, Any]]) -> None:
    for run in finished[1]["runs"]:
        best = max(run["validation_curve"], key=lambda entry: entry["accuracy"])
        assert run["validation"] == best
        assert run["best_step"] == best["step"]


def test_curves_cover_the_run(finished: tuple[Path, dict[str, Any]]) -> None:
    for run in finished[1]["runs"]:
        assert [entry["step"] for entry in run["validation_curve"]] == [3, 6]
        assert [entry["step"] for entry in run["train_curve"]] == [1, 2, 3, 4, 5, 6]


def test_finished_folder_is_read_without_training(finished: tuple[Path, dict[str, Any]]) -> None:
    out, results = finished
    before = (out / "results.json").read_bytes()
    statuses: list[RunStatus] = []
    plan = plan_comparison(settings(seeds=(0, 1)), out)
    again = results_of_plan(plan, on_status=statuses.append)
    assert again == results
    assert not statuses
    assert (out / "results.json").read_bytes() == before


@pytest.mark.parametrize(
    "polls",
    [pytest.param(0, marks=pytest.mark.slow), 3, pytest.param(9, marks=pytest.mark.slow)],
    ids="stop at poll {}".format,
)
def test_stopped_comparison_resumes_bit_for_bit(
    polls: int, tmp_path: Path, finished: tuple[Path, dict[str, Any]]
) -> None:
    plan = plan_comparison(settings(seeds=(0, 1)), tmp_path / "out")
    stopped = results_of_plan(plan, should_stop=stop_after(polls))
    assert stopped["status"] == "partial"
    assert stopped["runs_done"] < stopped["runs_planned"] == 4
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == stopped
    train = replace(settings().train, num_workers=polls % 2)  # which does not change any number
    complete = start(tmp_path / "out", seeds=(0, 1), train=train)
    assert complete["status"] == "complete"
    assert measured(complete) == measured(finished[1])


def test_results_are_kept_after_every_run(tmp_path: Path) -> None:
    out = tmp_path / "out"
    seen: list[int] = []

    def watch(status: RunStatus) -> None:
        if status.state == "measuring" and (out / "results.json").exists():
            seen.append(json.loads((out / "results.json").read_text())["runs_done"])

    results_of_plan(plan_comparison(settings(), out), on_status=watch)
    assert seen == [1]


@pytest.mark.slow
def test_a_run_without_its_entry_is_found_again(
    tmp_path: Path, finished: tuple[Path, dict[str, Any]]
) -> None:
    """Kill the process between the end of a run and the write of results.json."""
    start(tmp_path / "out")
    (tmp_path / "out" / "results.json").unlink()
    statuses: list[RunStatus] = []
    plan = plan_comparison(settings(), tmp_path / "out")
    results = results_of_plan(plan, on_status=statuses.append)
    assert measured(results) == measured(finished[1])[:2]
    assert not [status for status in statuses if status.state == "training"]


def test_statuses_follow_the_run(tmp_path: Path) -> None:
    statuses: list[RunStatus] = []
    plan = plan_comparison(settings(mixers=("tssa",)), tmp_path)
    results_of_plan(plan, on_status=statuses.append)
    assert [statuses[0].state, statuses[-1].state] == ["measuring", "done"]
    training = [status for status in statuses if status.state == "training"]
    assert [s.step for s in training if s.step] == sorted(s.step for s in training if s.step)
    last = statuses[-1]
    assert last.step == last.max_steps == 6
    assert last.loss is not None
    assert last.score is not None
    assert last.steps_per_second is not None


def test_finished_run_is_reported_at_its_last_step(tmp_path: Path) -> None:
    config, task = settings(mixers=("tssa",)), load_task("digits", patch_size=4)
    train_mixer(config, task, "tssa", 0, tmp_path)
    statuses: list[RunStatus] = []
    train_mixer(config, task, "tssa", 0, tmp_path, on_status=statuses.append)
    assert [(status.state, status.step) for status in statuses] == [("done", 6)]


def test_diverged_run_is_reported_and_other_runs_continue(tmp_path: Path) -> None:
    train = replace(settings().train, lr=1e30, warmup_steps=0, clip_norm=None)
    results = start(tmp_path / "out", train=train)
    assert results["status"] == "complete"
    assert {run["mixer"] for run in results["failed_runs"]} == {"softmax", "tssa"}
    assert all("diverged" in run["error"] for run in results["failed_runs"])
    assert results["mixers"][0]["test"] is None
    again = start(tmp_path / "out", train=train)
    assert again == results


def test_models_of_a_seed_differ_only_in_the_mixer() -> None:
    config = settings(mixers=("softmax", "tssa", "csp"))
    task = load_task("digits", patch_size=4)
    models = {mixer: build_model(config, task, mixer, 0) for mixer in config.mixers}
    inside = "blocks.0.mixer."
    outside = {
        name: {k: v for k, v in model.state_dict().items() if not k.startswith(inside)}
        for name, model in models.items()
    }
    assert isinstance(models["tssa"].get_submodule("blocks.0.mixer"), TokenMixer)
    for name in ("tssa", "csp"):
        assert outside[name].keys() == outside["softmax"].keys()
        for key, value in outside["softmax"].items():
            torch.testing.assert_close(outside[name][key], value, rtol=0, atol=0)
    other = build_model(config, task, "tssa", 1).state_dict()
    assert not torch.equal(other["head.weight"], outside["tssa"]["head.weight"])


def test_weights_do_not_depend_on_the_other_mixers() -> None:
    task = load_task("digits", patch_size=4)
    alone = build_model(settings(mixers=("tssa",)), task, "tssa", 0).state_dict()
    together = build_model(settings(), task, "tssa", 0).state_dict()
    for name, value in alone.items():
        torch.testing.assert_close(together[name], value, rtol=0, atol=0)


def test_memory_counts_weights_and_grows_with_the_batch() -> None:
    task = load_task("digits", patch_size=4)
    small = settings()
    large = settings(train=replace(small.train, batch_size=256))
    parameters = sum(p.numel() for p in build_model(small, task, "tssa", 0).parameters())
    of_small = training_memory(small, task, "tssa")
    assert of_small >= 4 * 4 * parameters  # weights, gradients and Adam's two moments
    assert training_memory(large, task, "tssa") > of_small


def test_memory_is_measured_on_the_parts_of_a_batch() -> None:
    """With accumulation, only one part of the batch is in memory next to the gradients."""
    task, base = load_task("digits", patch_size=4), settings()

    def memory(**changes: int) -> int:
        return training_memory(replace(base, train=replace(base.train, **changes)), task, "tssa")

    in_parts = memory(batch_size=256, accumulation=8)
    assert memory(batch_size=32) < in_parts < memory(batch_size=256) / 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"task": "digit"}, "'digit'.*digits"),
        ({"mixers": ("sofmax",)}, "'sofmax'.*softmax"),
        ({"model": "encodr"}, "'encodr'.*encoder"),
        ({"mixers": ()}, "mixers:"),
        ({"mixers": ("csp", "csp")}, "'csp' twice"),
        ({"seeds": ()}, "seeds:"),
        ({"seeds": (3, 3)}, "3 twice"),
        ({"mixer_options": {"csp": {}}}, "mixer_options: .*softmax.*tssa"),
        ({"dim": 0}, r"dim: .*\b1\b.*\b65,536\b.*got 0\b"),
        ({"num_layers": 0}, r"num_layers: .*\b1\b"),
        ({"threads": 0}, r"threads: .*\b1\b"),
        ({"device": "nonsense"}, "device:"),
        ({"device": "meta"}, "device:"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_settings_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        settings(**changes)


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


def test_a_single_training_sample_is_enough(tmp_path: Path) -> None:
    from rifflemix.lab.comparison import train_config

    budget = default_budget("digits")
    train = train_config(budget, max_steps=1, batch_size=1, lr=1e-3, precision="no")
    options = {"patch_size": 4, "max_samples": 1}
    plan = plan_comparison(settings(task_options=options, train=train), tmp_path / "out")
    assert len(plan.task.split("train")) == 1


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

    def meddle(status: RunStatus) -> None:
        if status.state == "measuring":
            with pytest.raises(InputError, match=re.escape(str(tmp_path))) as caught:
                results_of_plan(plan)
            errors.append(str(caught.value))

    results_of_plan(plan, on_status=meddle)
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


@pytest.mark.parametrize(
    ("values", "mean", "std"),
    [([0.5], 0.5, None), ([0.4, 0.6], 0.5, 0.1 * 2**0.5), ([0.1] * 3, 0.1, 0.0)],
)
def test_summarise_of_runs(values: list[float], mean: float, std: float | None) -> None:
    summary = summarise(values)
    assert summary is not None
    assert summary.mean == pytest.approx(mean)
    assert summary.std == (None if std is None else pytest.approx(std))
    assert summary.n == len(values)
    assert summarise([]) is None


@pytest.mark.parametrize("task", list_tasks())
def test_every_task_has_a_workable_budget(task: str) -> None:
    budget = default_budget(task)
    assert budget.dim % budget.num_heads == 0
    config = train_config(
        budget, max_steps=budget.max_steps, batch_size=8, lr=budget.lr, precision="no"
    )
    assert config.eval_every is not None
    assert -(-budget.max_steps // config.eval_every) == budget.evaluations
    tiny = train_config(budget, max_steps=1, batch_size=8, lr=budget.lr, precision="bf16")
    assert tiny.eval_every == tiny.log_every == 1
