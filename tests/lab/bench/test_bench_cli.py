from __future__ import annotations

import json
import re
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from command_line import Cli

SCALING = (
    "bench", "scaling", "--tokens", "8,16", "--dim", "8", "--heads", "2", "--mixers", "tssa",
    "--repeats", "1",
)  # fmt: skip


@pytest.mark.parametrize("command", ["ops", "layers", "models", "scaling", "published"])
def test_help_has_an_example(command: str, cli: Cli) -> None:
    outcome = cli("bench", command, "--help")
    assert outcome.code == 0
    examples = [line for line in outcome.out.splitlines() if "Usage" not in line]
    assert any(f"rifflemix bench {command}" in line for line in examples)
    for option in ("--json", "--out", "--max-seconds", "--threads", "--dtype", "--repeats"):
        assert option in outcome.out


def test_scaling_writes_what_it_prints_and_a_plot(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "scaling.json"
    outcome = cli(*SCALING, "--threads", "1", "--out", str(file), "--json")
    assert outcome.code == 0, outcome.err
    result = json.loads(outcome.out)
    assert result == json.loads(file.read_text())
    assert result["environment"]["hardware"]["threads"] == 1
    assert result["settings"]["tokens"] == [8, 16]
    assert file.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["scaling.json", "scaling.png"]


def test_tables_and_notes_are_printed(cli: Cli) -> None:
    outcome = cli(*SCALING)
    assert outcome.code == 0, outcome.err
    assert "with N" in outcome.out
    assert "N=16" in outcome.out
    assert "float32, torch " in outcome.out
    assert "timing at (1, 16, 8)" in outcome.err


def test_a_causal_sweep_over_channels(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "widths.json"
    outcome = cli(
        "bench", "scaling", "--tokens", "8", "--dims", "4,8", "--heads", "2", "--mixers", "tssa",
        "--causal", "--repeats", "1", "--out", str(file),
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    assert "with C" in outcome.out
    assert "C=8" in outcome.out
    settings = json.loads(file.read_text())["settings"]
    assert (settings["dims"], settings["causal"]) == ([4, 8], True)
    assert file.with_suffix(".png").exists()


def test_models_and_ops_print_one_table_per_pass(cli: Cli) -> None:
    models = cli(
        "bench", "models", "--shape", "1,8,8,2", "--layers", "1", "--mixers", "tssa",
        "--repeats", "1",
    )  # fmt: skip
    assert models.code == 0, models.err
    assert "(1, 8, 8), 2 heads: " in models.out
    assert "Tokens/s" in models.out


def test_layers_are_small_and_their_calls_are_counted(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "layers.json"
    outcome = cli("bench", "layers", "--mixers", "tssa", "--repeats", "1", "--out", str(file))
    assert outcome.code == 0, outcome.err
    assert "(1, 64, 64), 4 heads: forward" in outcome.out
    rows = {row["name"]: row for row in json.loads(file.read_text())["rows"]}
    assert list(rows) == ["two linear maps", "softmax", "tssa"]
    assert rows["two linear maps"]["extra"] == {"package_calls": 0}
    assert rows["softmax"]["extra"]["package_calls"] > 0
    assert set(rows["tssa"]["passes"]["forward"]["ratios"]) == {"two linear maps", "softmax"}


def test_ops_have_their_own_shapes(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from rifflemix.lab.bench import ops

    few = [op for op in ops.OPERATORS if op.name in (ops.COPY, "max_exchange")]
    monkeypatch.setattr(ops, "OPERATORS", few)
    outcome = cli(
        "bench", "ops", "--shape", "1,8,4,2", "--shape", "2,9,4,2", "--repeats", "1", "--json"
    )
    assert outcome.code == 0, outcome.err
    shapes = {tuple(row["shape"].values()) for row in json.loads(outcome.out)["rows"]}
    assert shapes == {(1, 8, 4, 2), (2, 9, 4, 2)}


@pytest.mark.slow
def test_a_folder_gets_a_new_file_every_time(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    for _ in range(2):
        assert cli(*SCALING, "--out", str(folder)).code == 0
    files = sorted(folder.glob("*.json"))
    assert len(files) == 2
    assert all(path.name.startswith("scaling-") for path in files)
    assert all(path.with_suffix(".png").exists() for path in files)


def test_a_result_is_never_overwritten(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text("precious")
    outcome = cli(*SCALING, "--out", str(file))
    assert outcome.code == 2
    assert outcome.err.startswith("error: --out: ")
    assert file.read_text() == "precious"


def test_plot_does_not_overwrite_a_file(cli: Cli, tmp_path: Path) -> None:
    plot = tmp_path / "x.png"
    assert re.match("error: --out: .*JSON", cli(*SCALING, "--out", str(plot)).err)
    plot.write_text("precious")
    outcome = cli(*SCALING, "--out", str(plot.with_suffix(".json")))
    assert re.match("error: --out: .*JSON", outcome.err)
    assert plot.read_text() == "precious"


def test_file_written_by_another_process_is_kept(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rifflemix.lab.bench import ops

    file = tmp_path / "x.json"

    def run(**options: Any) -> Any:
        file.write_text("theirs")
        return measure(**options)

    measure = ops.run
    monkeypatch.setattr(ops, "run", run)
    monkeypatch.setattr(ops, "OPERATORS", [op for op in ops.OPERATORS if op.name == ops.COPY])
    outcome = cli("bench", "ops", "--shape", "1,8,4,2", "--repeats", "1", "--out", str(file))
    assert (outcome.code, file.read_text()) == (2, "theirs")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("scaling --tokens 8,x", r"--tokens: .*N,N,\.\.\., got '8,x'"),
        ("scaling --tokens 8,8", r"tokens: .*got \[8, 8\]"),
        (f"decode --contexts {10**20}", f"tokens: .*got {10**20}"),
        ("scaling --tokens 8 --dims 8,y", r"--dims: .*C,C,\.\.\., got '8,y'"),
        ("scaling --dims 8,16", "tokens: .*dims"),
        ("scaling --causal --mixers fnet", "mixers: .*got fnet"),
        ("scaling --tokens 8 --dim 9 --heads 2", "heads: .*9, got 2"),
        ("layers --mixers csp,tssa,csp", "--mixers: .*got 'csp'"),
        ("scaling --mixers nothing", "mixer 'nothing'"),
        ("scaling --max-seconds 0", "max_seconds: .*got 0"),
        ("models --layers 0", "layers: .*got 0"),
        ("models --model vits", "model: .*encoder, vit, got 'vits'"),
        ("models --model vit --shape 1,60,8,2", "tokens: .*got 60"),
        ("models --shape 1,2,3", "--shape: .*BATCH,TOKENS,CHANNELS,HEADS"),
        ("ops --repeats 0", "repeats: .*got 0"),
        ("ops --threads 0", "--threads: .*1,024, got 0"),
        ("ops --out /nothing/here/x.json", "--out"),
    ],
)
def test_bad_options_are_one_line(arguments: str, says: str, cli: Cli) -> None:
    outcome = cli("bench", *arguments.split())
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1
    assert re.search(says, outcome.err)


def test_interrupt_keeps_what_was_measured(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rifflemix.lab.bench import scaling

    def interrupted(*arguments: Any, **options: Any) -> Any:
        """Raise Ctrl-C as soon as 16 tokens are timed."""
        hooks = options["hooks"]

        def progress(done: int, total: int, text: str) -> None:
            hooks.progress(done, total, text)
            if text == "timing at (1, 16, 8)":
                signal.raise_signal(signal.SIGINT)

        return run(*arguments, **(options | {"hooks": replace(hooks, progress=progress)}))

    run = scaling.run_benchmark
    monkeypatch.setattr(scaling, "run_benchmark", interrupted)
    before = signal.getsignal(signal.SIGINT)
    file = tmp_path / "scaling.json"
    outcome = cli(*SCALING, "--out", str(file))
    assert outcome.code == 130
    assert signal.getsignal(signal.SIGINT) is before
    assert "Ctrl-C" in outcome.err
    result = json.loads(file.read_text())
    assert result["status"] == "partial"
    by_tokens = {8: "measured", 16: "stopped"}
    for row in result["rows"]:
        assert row["status"] == by_tokens[row["shape"]["tokens"]]
        assert bool(row["passes"]) is (row["status"] == "measured")
    assert file.with_suffix(".png").exists()
