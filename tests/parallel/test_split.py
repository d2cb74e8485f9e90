"""`--context-parallel`: training on sharded sequences gives the results of one process."""

from __future__ import annotations

import copy
import json
import re
import shlex
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cases
import pytest
import torch
import torch.nn.functional as F

import rifflemix as rm
import rifflemix.cli
from command_line import Cli
from fsdp_on_cpu import shard_training
from processes import Processes
from rifflemix.files import read_tensors
from rifflemix.json_values import encode
from rifflemix.lab.reproduction import ReproduceOptions, plan_reproduction, run_reproduction
from rifflemix.lab.runs.build_for_task import check_split, split_model
from rifflemix.lab.train import engine
from rifflemix.lab.train.engine import Engine
from small_recipes import QUICK, small

# Sequences of different lengths, so that some batches need padding.
WORDS = shlex.split(
    "compare --task listops --task-option min_length=5 --task-option max_length=24 "
    "--task-option num_train=64 --task-option num_validation=18 --task-option num_test=18 "
    "--mixers tssa,csp --max-steps 3 --batch-size 8 --dim 8 --layers 1 --heads 2 --threads 1 "
    "--device cpu"
)


def assert_same_log(ours: Path, theirs: Path) -> None:
    lines = [(path / "log.jsonl").read_text().splitlines() for path in (ours, theirs)]
    assert len(lines[0]) == len(lines[1]) > 3
    for line, twin in zip(*map(list, lines), strict=True):
        entry, other = json.loads(line), json.loads(twin)
        assert entry.pop("split", None) == other.pop("split", None)
        # Rounding can swap the ranks of two almost equal scores.
        ranks = [one.pop("average_precision", 0.0) for one in (entry, other)]
        assert ranks[0] == pytest.approx(ranks[1], abs=1e-4)
        assert entry == pytest.approx(other, rel=1e-5, abs=1e-7)


@pytest.mark.slow
def test_a_comparison_on_two_by_two_processes(
    four: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = four.run(
        cases.command, [*WORDS, "--context-parallel", "2", "--out", str(tmp_path / "four")]
    )
    assert [code for code, _ in answers] == [0] * 4
    assert [str(tmp_path / "four") in text for _, text in answers] == [True, False, False, False]
    monkeypatch.setattr(sys, "argv", ["rifflemix", *WORDS, "--out", str(tmp_path / "one")])
    assert rifflemix.cli.main() == 0
    one, found = (
        json.loads((tmp_path / name / "results.json").read_text()) for name in ("one", "four")
    )
    assert found["config"]["context_parallel"] == 2
    for ours, theirs in zip(found["runs"], one["runs"], strict=True):
        assert ours["processes"] == 4
        assert ours["test"] == pytest.approx(theirs["test"], rel=1e-5)
    for mixer in ("tssa", "csp"):
        assert_same_log(tmp_path / "four" / mixer / "seed0", tmp_path / "one" / mixer / "seed0")
    for ours, theirs in zip(found["mixers"], one["mixers"], strict=True):
        assert 0 < ours["peak_memory_bytes"] < theirs["peak_memory_bytes"]


@pytest.mark.parametrize(
    ("version", "plan", "sentence"),
    [
        (1, {}, r"context_parallel: .*\b1\b.*FSDP1\b.*got 2\b.*--fsdp_version \b2\b"),
        (2, {"tp_size": 2}, r"tp_size.*ParallelismConfig.*\b1\b.*got 2\b.*--cont"),
        (2, {"sp_size": 4}, r"sp_size.*ParallelismConfig.*\b1\b.*got 4\b.*--cont"),
        (2, {"cp_size": 4}, r"Config: .*\b1\b.*\b2\b.*context_parallel.*got 4\b.*--context-par"),
    ],
)
def test_unsupported_accelerate_settings_are_refused(
    monkeypatch: pytest.MonkeyPatch, version: int, plan: dict[str, int], sentence: str
) -> None:
    accelerator = SimpleNamespace(
        device=torch.device("cpu"),
        num_processes=4,
        process_index=0,
        distributed_type="FSDP",
        state=SimpleNamespace(fsdp_plugin=SimpleNamespace(fsdp_version=version)),
        parallelism_config=SimpleNamespace(**plan),
    )
    monkeypatch.setattr(engine, "_start_accelerator", lambda *_: accelerator)
    with pytest.raises(rm.InputError, match=sentence):
        Engine(QUICK, "cpu", 2)
    accelerator.state.fsdp_plugin.fsdp_version = 2
    accelerator.parallelism_config = SimpleNamespace(cp_size=2, dp_shard_size=2)
    Engine(QUICK, "cpu", 2)


@pytest.mark.slow
def test_one_of_four_processes_prints_the_result(four: Processes, tmp_path: Path) -> None:
    words = [word.replace("tssa,csp", "tssa").replace("mixers", "mixer") for word in WORDS[1:]]
    words = ["train", *words, "--out", str(tmp_path / "four"), "--json"]
    answers = four.run(cases.command, words)
    assert [code for code, _ in answers] == [0] * 4
    assert [bool(text) for _, text in answers] == [True, False, False, False]
    found = json.loads(answers[0][1])
    assert found == json.loads((tmp_path / "four" / "results.json").read_text())


def test_launch_refused_by_accelerate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_PARALLELISM_CONFIG", "true")
    monkeypatch.setenv("PARALLELISM_CONFIG_CP_SIZE", "0")
    with pytest.raises(rm.InputError, match="cp_size"):
        Engine(QUICK, "cpu")


def reproduced(out: Path, context_parallel: int) -> dict[str, Any]:
    options = ReproduceOptions(device="cpu", threads=1, context_parallel=context_parallel)
    return encode(run_reproduction(plan_reproduction(small(train=QUICK), out, options)))


def _reproduced_by_four(out: Path) -> None:
    with cases.torchrun():
        reproduced(out, 4)


@pytest.mark.slow
def test_a_reproduction_on_four_processes(four: Processes, tmp_path: Path) -> None:
    four.run(_reproduced_by_four, tmp_path / "four")
    one = reproduced(tmp_path / "one", 1)
    assert_same_log(tmp_path / "four" / "run", tmp_path / "one" / "run")
    found = json.loads((tmp_path / "four" / "results.json").read_text())
    assert found["ours"] == pytest.approx(one["ours"])
    assert found["result"]["tokens"] == one["result"]["tokens"]
    assert found["result"]["processes"] == 4
    weights = [
        read_tensors(tmp_path / name / "run" / "best.safetensors")[0] for name in ("four", "one")
    ]
    torch.testing.assert_close(*weights, rtol=1e-4, atol=1e-6)
    with pytest.raises(rm.InputError, match=r"out: .*/four "):
        reproduced(tmp_path / "four", 1)


def _diverged(out: Path) -> str:
    recipe = small(train=replace(QUICK, lr=1e60, checkpoint_every=1))
    options = ReproduceOptions(device="cpu", threads=1)
    with cases.torchrun():
        try:
            run_reproduction(plan_reproduction(recipe, out, options))
        except rm.InputError as error:
            return f"{type(error).__name__}: {error}"
    return "finished"


@pytest.mark.slow
def test_all_processes_detect_divergence(four: Processes, tmp_path: Path) -> None:
    """Check that the comparison continues with the next run on all processes."""
    (found,) = set(four.run(_diverged, tmp_path / "four"))
    assert re.match(r"TrainingDiverged: .*\bparameter ", found)


def _reproduced_under_fsdp(out: Path, plan: dict[str, int], settings: dict[str, Any]) -> None:
    """Train as accelerate would.

    Two processes share a sequence, and all four share the weights.
    """
    from accelerate.parallelism_config import ParallelismConfig

    with cases.torchrun() as patch, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Slicing a flattened dim")  # from accelerate
        shard_training(patch, plan=ParallelismConfig(**plan) if plan else None, **settings)
        reproduced(out, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plan", "settings"),
    [
        ({}, {"auto_wrap_policy": "transformer_based_wrap",
              "transformer_cls_names_to_wrap": ["Block"]}),
        ({}, {"cpu_ram_efficient_loading": True}),
        ({"dp_shard_size": 2, "cp_size": 2}, {}),
        ({"dp_replicate_size": 2, "dp_shard_size": 2}, {}),
    ],
    ids=["blocks", "loaded by one", "cp", "replicas"],
)  # fmt: skip
def test_a_reproduction_under_fsdp(
    four: Processes, tmp_path: Path, plan: dict[str, int], settings: dict[str, Any]
) -> None:
    four.run(_reproduced_under_fsdp, tmp_path / "four", plan, settings)
    reproduced(tmp_path / "one", 1)
    assert_same_log(tmp_path / "four" / "run", tmp_path / "one" / "run")
    weights = [
        read_tensors(tmp_path / name / "run" / "best.safetensors")[0] for name in ("four", "one")
    ]
    torch.testing.assert_close(*weights, rtol=1e-4, atol=1e-6)


def _whole_batches_are_the_same(kind: str) -> None:
    """Check outputs and loss gradients for 13 tokens on four processes."""
    draws = torch.Generator().manual_seed(4)
    settings: dict[str, Any] = {"mixer": "tssa", "dim": 6, "num_heads": 2, "max_length": 16}
    ids = torch.randint(1, 9, (3, 13), generator=draws)
    if kind == "gpt":
        model = rm.create_model("gpt", vocab_size=9, num_layers=2, **settings)
    elif kind == "pairs":
        settings |= {"num_sequences": 2, "pair_mix": "concat_product_difference"}
        model = rm.create_model("encoder", vocab_size=9, num_classes=2, **settings)
        ids = torch.randint(1, 9, (3, 2, 13), generator=draws)
    else:
        model = rm.create_model("encoder", in_channels=5, num_classes=2, pool=kind, **settings)
        ids = torch.randn(3, 13, 5, dtype=torch.float64, generator=draws)
    cases.drawn(model)
    alone = copy.deepcopy(model)
    mesh = cases.meshes()[4]
    processes: Any = SimpleNamespace(
        context_parallel=4, device=torch.device("cpu"), sequence_mesh=lambda: mesh
    )
    split = split_model(model, processes)
    if kind == "position_mean":
        with pytest.raises(rm.InputError, match=r"\b4 processes"):
            split(ids)
        return
    expected, found = alone(ids), split(ids)
    cases.close(found, expected, "outputs")
    labels = torch.randint(2, expected.shape[:-1], generator=draws)
    for outputs in (expected, found):
        F.cross_entropy(outputs.movedim(-1, 1), labels).backward()
    cases.same_gradients(split, alone)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt", "pairs", "cls", "mean", "position_mean"])
def test_whole_batches_give_the_same_results(four: Processes, kind: str) -> None:
    four.run(_whole_batches_are_the_same, kind)


@pytest.mark.parametrize(
    ("processes", "words", "sentence"),
    [
        (1, [], "torchrun --nproc-per-node 2 -m rifflemix"),
        (3, [], "context_parallel: .*3 processes, got 2"),
        (2, ["--context-parallel", "0"], r"\b1, got 0"),
        (2, ["--mixers", "fnet"], "mixer fnet: model: "),
    ],
)  # fmt: skip
def test_sequences_that_cannot_be_split_are_refused(
    cli: Cli,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    processes: int,
    words: list[str],
    sentence: str,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", str(processes))
    out = tmp_path / "out"
    done = cli(*WORDS, "--context-parallel", "2", *words, "--out", str(out))
    assert done.code == 2
    assert re.search(sentence, " ".join(done.err.split()))
    assert not out.exists()


def test_recipes_that_cannot_be_split(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("reproduce", "sinkhorn/table1-sort-b32", "--context-parallel", "2", "--out")
    done = cli(*words, str(tmp_path / "out"))
    assert done.code == 2
    assert "torchrun --nproc-per-node 2" in " ".join(done.err.split())
    monkeypatch.setenv("WORLD_SIZE", "2")
    options = ReproduceOptions(context_parallel=2)
    with pytest.raises(rm.InputError, match="model: "):
        plan_reproduction(small(model_settings={"mixer": "fnet"}), tmp_path / "out", options)


def test_lengths_and_models_that_cannot_be_split() -> None:
    task: Any = SimpleNamespace(name="odd", max_length=23)
    with pytest.raises(rm.InputError, match=r"max_length.*\b23\b.*got 2\b"):
        check_split(rm.create_model("encoder", mixer="tssa", vocab_size=5), task, 2)
    vit = rm.create_model("vit_mnist", mixer="tssa", image_size=6, patch_size=2, dim=8)
    with pytest.raises(rm.InputError, match=r"context_parallel: .*\b9\b.*got 2\b"):
        check_split(vit, task, 2)
    check_split(vit, task, 3)
    with pytest.raises(rm.InputError, match=r"model: .*got MixerClassifier"):
        check_split(rm.create_model("s4_lra_image", dim=8), task, 2)


def test_processes_of_the_loop_that_do_not_divide() -> None:
    with pytest.raises(rm.InputError, match=r"context_parallel: .*\b1\b"):
        Engine(QUICK, "cpu", 2)
