from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from command_line import Cli, Outcome
from rifflemix.cli.options import parse_mixer_options, parse_mixers, parse_names, parse_value
from rifflemix.cli.output import StopRequest
from rifflemix.errors import InputError
from rifflemix.lab.comparison import CompareConfig, default_budget
from rifflemix.lab.tasks import list_tasks
from rifflemix.mixers import HEADLINE, list_mixers
from rifflemix.models import list_models

SOURCE = Path(__file__).resolve().parents[1] / "src"
TINY = (
    "--task", "digits", "--task-option", "patch_size=4", "--dim", "16", "--layers", "1",
    "--heads", "2", "--batch-size", "64",
)  # fmt: skip
FILES = {"config.json", "config.toml", "results.json", "table.md", "plot.png", "report.html"}


def start(*arguments: str) -> subprocess.Popen[str]:
    """Run the command line in a separate process, as without an installation."""
    return subprocess.Popen(
        [sys.executable, "-m", "rifflemix", *arguments],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def is_one_line_error(outcome: Outcome) -> bool:
    return (
        outcome.code == 2
        and outcome.out == ""
        and outcome.err.startswith("error: ")
        and outcome.err.count("\n") == 1
        and outcome.err.endswith("\n")
    )


# Help and lists.


def test_help_does_not_import_torch() -> None:
    code = (
        "import sys, rifflemix.cli; sys.argv = ['rifflemix', '--help']; "
        "code = rifflemix.cli.main(); "
        "assert not {'torch', 'matplotlib'} & set(sys.modules); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "compare" in done.stdout


@pytest.mark.parametrize(
    "command",
    [
        ("compare",), ("train",), ("list", "mixers"), ("list", "models"), ("list", "tasks"),
        ("data", "list"), ("data", "prepare"), ("bench", "ops"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_every_command_has_help_with_an_example_and_json(
    command: tuple[str, ...], cli: Cli
) -> None:
    outcome = cli(*command, "--help")
    assert outcome.code == 0
    examples = [line for line in outcome.out.splitlines() if "Usage" not in line]
    assert any(f"rifflemix {' '.join(command)}" in line for line in examples)
    assert "--json" in outcome.out


def test_no_arguments_show_the_help(cli: Cli) -> None:
    outcome = cli()
    assert outcome.code == 0
    assert "compare" in outcome.out


@pytest.mark.parametrize(
    ("what", "names"), [("mixers", list_mixers), ("models", list_models), ("tasks", list_tasks)]
)
def test_lists_as_json_and_as_tables(
    what: str, names: Callable[[], list[str]], cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    # tests/models/test_model_table.py covers the counts, since counting builds every model.
    monkeypatch.setattr("rifflemix.models.registry.count_parameters", lambda _: 7)
    outcome = cli("list", what, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    assert [entry["name"] for entry in json.loads(outcome.out)] == names()
    table = cli("list", what)
    assert table.code == 0
    assert all(name in table.out for name in names())


def test_list_of_mixers_contains_cards_and_parameters(cli: Cli) -> None:
    softmax = json.loads(cli("list", "mixers", "--json").out)[0]
    assert softmax["parameters"] == 4 * 256 * 256 + 4 * 256
    assert softmax["parameters_at"]["dim"] == 256
    assert {"paper", "complexity", "causal", "padding", "streaming"} <= softmax.keys()


def test_data_list_and_prepare(cli: Cli) -> None:
    listed = {entry["name"]: entry for entry in json.loads(cli("data", "list", "--json").out)}
    assert listed["digits"]["available"] is True
    assert "digits" in cli("data", "list").out
    prepared = cli("data", "prepare", "digits", "--json")
    assert json.loads(prepared.out) == {"task": "digits", "folder": None}
    assert cli("data", "prepare", "digits").out == "digits: ready\n"


# Bad input.


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("bogus", "'bogus'"),
        ("list mixer", "'mixer'"),
        ("compare --out OUT", "'--task'"),
        ("compare --task digits", "'--out'"),
        ("compare --tsk digits --out OUT", "--tsk"),
        ("compare --task digit --out OUT", "'digit'.*digits"),
        ("compare --task digits --mixers sofmax --out OUT", "'sofmax'.*softmax"),
        ("compare --task digits --model encodr --out OUT", "'encodr'.*encoder"),
        ("compare --task digits --mixers csp,, --out OUT", "--mixers: .*got 'csp,,'"),
        ("compare --task digits --mixers csp,csp --out OUT", "'csp'"),
        ("compare --task digits --heads 3 --out OUT", "num_heads: .*dim = 64, got 3"),
        ("compare --task digits --dim 0 --out OUT", "dim: .*65,536, got 0"),
        ("compare --task digits --layers 0 --out OUT", "num_layers: .*1,000, got 0"),
        ("compare --task digits --seeds 0 --out OUT", "--seeds: .*1,000, got 0"),
        ("compare --task digits --seeds many --out OUT", "--seeds: .*'many'"),
        ("compare --task digits --max-steps 0 --out OUT", "max_steps: .*got 0"),
        ("compare --task digits --batch-size -1 --out OUT", "batch_size: .*got -1"),
        ("compare --task digits --batch-size 99999 --out OUT", "batch_size: .*1087.*got 99999"),
        ("compare --task digits --lr nan --out OUT", "lr: .*got nan"),
        ("compare --task digits --threads 0 --out OUT", "threads: .*1,024, got 0"),
        ("compare --task digits --precision fp8 --out OUT", "--precision: .*float32.*'fp8'"),
        ("compare --task digits --device tpu --out OUT", "device: .*cpu.*got 'tpu'"),
        ("compare --task digits --data-dir /nowhere --out OUT", "data_dir: .*got '/nowhere'"),
        ("compare --task digits --task-option patch_size --out OUT", "KEY=VALUE"),
        ("compare --task digits --task-option patch_siz=2 --out OUT", "'patch_siz'.*patch_size"),
        ("compare --task digits --task-option patch_size=two --out OUT", "patch_size: .*'two'"),
        ("compare --task digits --task-option patch_size=3 --out OUT", "1, 2, 4, got 3"),
        ("compare --task digits --train-option betas=3 --out OUT", "betas: .*got 3"),
        ("compare --task digits --train-option weight_deca=1 --out OUT", "weight_decay"),
        ("compare --task digits --train-option lr=1 --out OUT", "train_options: .*got lr"),
        ("compare --task digits --train-option mixup=1 --out OUT", "mixup: .*0.*digits, got 1"),
        ("compare --task digits --train-option mixup=-1 --out OUT", "mixup: .*got -1"),
        ("compare --task digits --mixer-option csp=4 --out OUT", "MIXER.KEY=VALUE"),
        ("compare --task digits --mixer-option cps.a=4 --out OUT", "'cps'.*csp"),
        ("compare --task digits --mixer-option csp.num_group=4 --out OUT", "'num_group'.*groups"),
        ("compare --task digits --out /proc/nothing", "out: .*got /proc/nothing"),
        ("compare --task digits --out /dev/null", "out: .*/dev/null"),
        ("train --task digits --mixer sofmax --out OUT", "'sofmax'.*softmax"),
        ("train --task digits --mixer csp --heads 3 --out OUT", "csp: num_heads: .*got 3"),
        ("train --task digits --mixer csp --seed -1 --out OUT", "seed: .*got -1"),
        ("train --task digits --mixer csp --out /proc/nothing", "out: .*got /proc/nothing"),
        ("data prepare digts", "'digts'.*digits"),
        ("data prepare digits --task-option patch_size=3", "1, 2, 4, got 3"),
        ("bench ops --shape 1,2,3", "--shape: .*BATCH,TOKENS,CHANNELS,HEADS"),
        ("bench ops --shape 1,64,30,4", "heads: .*= 30, got 4"),
        ("bench ops --dtype int8", "dtype"),
        ("bench ops --out /proc/nothing/x.json", "--out"),
    ],
)
def test_bad_input_prints_one_line_and_writes_no_files(
    arguments: str, words: str, cli: Cli, tmp_path: Path
) -> None:
    outcome = cli(*arguments.replace("OUT", str(tmp_path / "deep" / "out")).split())
    assert is_one_line_error(outcome), outcome
    assert re.search(words, outcome.err)
    assert not list(tmp_path.iterdir())


def test_missing_data_names_the_flag(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    out = tmp_path / "out"
    outcome = cli(
        "compare", "--task", "image", "--data-dir", str(tmp_path / "data"), "--out", str(out)
    )
    assert is_one_line_error(outcome), outcome
    assert not out.exists()


@pytest.mark.parametrize(
    ("text", "default", "value"),
    [
        ("3", 1, 3), ("true", False, True), ("0.5", 1.0, 0.5), ("1e-3", 1.0, 1e-3),
        ("linear", "none", "linear"), ("[0, 1]", "none", [0, 1]), ("7", "none", "7"),
        ("7", None, 7), ("text", None, "text"), ("null", None, None), ("[1]", (2,), [1]),
    ],
)  # fmt: skip
def test_option_texts_are_converted_to_the_type_of_the_default(
    text: str, default: Any, value: Any
) -> None:
    parsed = parse_value(text, default, "x")
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("text", "default"), [("yes", True), ("1.5", 1), ("x", 1.0), ("1,2", (1,)), ("1", (1,))]
)
def test_option_texts_of_another_type_are_refused(text: str, default: Any) -> None:
    with pytest.raises(InputError, match="x:"):
        parse_value(text, default, "x")


def test_mixer_options_are_grouped_by_mixer() -> None:
    pairs = ["csp.num_groups=4", "csp.order=ascending", "mine.bias=false"]
    assert parse_mixer_options(pairs, {"mine": "softmax", "csp": "csp"}) == {
        "csp": {"num_groups": 4, "order": "ascending"},
        "mine": {"bias": False},
    }
    with pytest.raises(InputError, match=r"--mixer-option: .*num_groups"):
        parse_mixer_options(["csp.num_groups=4", "csp.num_groups=2"], {"csp": "csp"})
    assert parse_mixers("csp, csp-4=csp") == {"csp": "csp", "csp-4": "csp"}
    for wrong in ("=csp", "a=", "csp,csp", "a=csp,a=tssa"):
        with pytest.raises(InputError, match="mixers:"):
            parse_mixers(wrong)
    assert parse_names("a, b", "--mixers") == ("a", "b")


# The main command.


def test_compare_end_to_end(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = (
        "compare", *TINY, "--mixers", "softmax,csp", "--max-steps", "2", "--seeds", "2",
        "--mixer-option", "csp.num_groups=2", "--out", str(out),
    )  # fmt: skip
    first = cli(*arguments)
    assert first.code == 0, first.err
    assert "Softmax attention" in first.out
    assert re.search(r"csp seed 1\b.*\b2/2\b", first.err)
    assert {p.name for p in out.iterdir() if p.is_file() and p.name[0] != "."} == FILES
    assert {p.name for p in out.glob("*/*")} == {"seed0", "seed1"}
    results = json.loads((out / "results.json").read_text())
    assert results["command"] == " ".join(["rifflemix", *arguments])
    assert results["config"]["mixer_options"] == {"csp": {"num_groups": 2}}
    assert results["mixers"][0]["test"]["n"] == 2

    pictures = {name: (out / name).read_bytes() for name in FILES - {"config.json", "config.toml"}}
    (out / "plot.png").unlink()
    again = cli(*arguments, "--json")
    assert again.code == 0
    assert again.err == ""
    assert json.loads(again.out) == results
    assert {name: (out / name).read_bytes() for name in pictures} == pictures

    other = cli(*arguments, "--lr", "0.5")
    assert is_one_line_error(other), other
    assert f"train.lr = {default_budget('digits').lr}, got 0.5" in other.err
    assert {name: (out / name).read_bytes() for name in pictures} == pictures


@pytest.mark.parametrize(
    ("options", "mixers"), [((), list(HEADLINE)), (("--mixers", "all"), list_mixers())]
)
def test_compare_uses_the_headline_mixers_or_all(
    options: tuple[str, ...],
    mixers: list[str],
    cli: Cli,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stop(config: CompareConfig, *_: object, **__: object) -> None:
        planned.append(config)
        raise KeyboardInterrupt

    planned: list[CompareConfig] = []
    monkeypatch.setattr("rifflemix.lab.comparison.plan_comparison", stop)
    assert cli("compare", *TINY, *options, "--out", str(tmp_path)).code == 130
    assert list(planned[0].mixers) == mixers


def test_train_end_to_end(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ("train", *TINY, "--mixer", "tssa", "--max-steps", "3", "--out", str(out))
    outcome = cli(*arguments, "--json")
    assert outcome.code == 0, outcome.err
    results = json.loads(outcome.out)
    assert results == json.loads((out / "results.json").read_text())
    assert results["result"]["finished"] is True
    assert results["protocol"]["model_chosen_on"] == "validation"
    assert results["peak_memory_bytes"] > 0
    table = cli(*arguments)
    assert table.code == 0
    assert "test accuracy" in table.out
    assert json.loads((out / "results.json").read_text()) == results  # from the training process
    other = cli(*arguments, "--seed", "1")
    assert is_one_line_error(other), other


def test_train_selects_by_the_given_metric(cli: Cli, tmp_path: Path) -> None:
    arguments = ("train", *TINY, "--mixer", "tssa", "--max-steps", "3", "--metric", "loss")
    outcome = cli(*arguments, "--out", str(tmp_path / "out"), "--json")
    assert outcome.code == 0, outcome.err
    results = json.loads(outcome.out)
    assert results["protocol"]["metric"] == "loss"
    assert results["result"]["best_value"] == results["result"]["validation"][-1]["loss"]
    refused = cli(*arguments[:-1], "f1", "--out", str(tmp_path / "other"))
    assert is_one_line_error(refused), refused
    assert not (tmp_path / "other").exists()


KILLED = ("compare", *TINY, "--mixers", "softmax,tssa", "--max-steps", "40", "--threads", "1")


def kill_in_training(kill: signal.Signals, out: Path) -> Outcome:
    """Kill a comparison in a separate process during its first run."""
    process = start(*KILLED, "--out", str(out))
    deadline = time.monotonic() + 240
    while not any(log.stat().st_size > 1000 for log in out.glob(".attempts/*/*/log.jsonl")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(kill)
    printed, errors = process.communicate(timeout=240)
    return Outcome(process.returncode, printed, errors)


@pytest.mark.slow
def test_interrupted_compare_exits_cleanly(tmp_path: Path) -> None:
    outcome = kill_in_training(signal.SIGINT, tmp_path / "out")
    assert outcome.code == 130, outcome.err
    assert "Softmax attention" in outcome.out
    assert "0 of 2" in (tmp_path / "out" / "table.md").read_text()
    assert json.loads((tmp_path / "out" / "results.json").read_text())["status"] == "partial"


@pytest.mark.slow
@pytest.mark.parametrize("kill", [signal.SIGINT, signal.SIGKILL], ids=lambda s: s.name)
def test_killed_compare_resumes_to_the_same_numbers(
    kill: signal.Signals, cli: Cli, tmp_path: Path
) -> None:
    kill_in_training(kill, tmp_path / "killed")
    for name in ("killed", "straight"):
        assert cli(*KILLED, "--out", str(tmp_path / name)).code == 0
    killed, straight = (
        json.loads((tmp_path / name / "results.json").read_text())["runs"]
        for name in ("killed", "straight")
    )
    for key in ("mixer", "test", "validation_curve", "train_curve"):
        assert [run[key] for run in killed] == [run[key] for run in straight]


def test_interrupt_before_the_start_exits_cleanly(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rifflemix.lab.comparison.plan_comparison", interrupted)
    outcome = cli("compare", *TINY, "--out", str(tmp_path / "out"))
    assert (outcome.code, outcome.out, outcome.err) == (130, "", "")


def test_second_interrupt_stops_at_once() -> None:
    said: list[str] = []
    before = signal.getsignal(signal.SIGINT)
    with StopRequest(said.append) as stop:
        assert not stop()
        signal.raise_signal(signal.SIGINT)
        assert stop()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert len(said) == 1
    assert signal.getsignal(signal.SIGINT) is before


def test_interrupt_during_a_print() -> None:
    """Check that the handler waits for the current print."""
    said: list[str] = []
    printing = threading.Lock()

    def say(line: str) -> None:
        with printing:
            said.append(line)

    with StopRequest(say) as stop, printing:
        signal.raise_signal(signal.SIGINT)
        assert (stop(), said) == (True, [])
    assert len(said) == 1
