"""The command line in bad conditions: output, paths, counts, failed runs."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import rifflemix.cli
from command_line import Cli
from rifflemix.cli.options import parse_seeds
from rifflemix.errors import InputError

SOURCE = Path(__file__).resolve().parents[1] / "src"
TINY = (
    "--task", "digits", "--task-option", "patch_size=4", "--dim", "16", "--layers", "1",
    "--heads", "2", "--batch-size", "64", "--steps", "2",
)  # fmt: skip


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", "-c", 'exec "$0" -m rifflemix ' + " ".join(arguments), sys.executable],
        env={**os.environ, "PYTHONPATH": str(SOURCE), **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["rifflemix", *arguments])
    for name in ("OMP_WAIT_POLICY", "KINETO_LOG_LEVEL"):
        monkeypatch.setenv(name, os.environ.get(name, "99"))
    return rifflemix.cli.main()


@pytest.mark.parametrize("command", ["merge a b --out c", "list mixers --plugin x.py"])
def test_deleted_current_directory_is_reported(command: str, cli: Cli, tmp_path: Path) -> None:
    gone, before = tmp_path / "gone", Path.cwd()
    gone.mkdir()
    os.chdir(gone)
    try:
        gone.rmdir()
        outcome = cli(*command.split())
    finally:
        os.chdir(before)
    assert outcome.code == 2
    assert re.fullmatch("error: .*directory.*\n", outcome.err)


# Each command is a separate process and takes seconds to start.
FORMS = ["", pytest.param("--json", marks=pytest.mark.slow)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.slow
def test_output_that_cannot_be_encoded(form: str) -> None:
    done = run("list recipes", form, PYTHONIOENCODING="ascii", LC_ALL="C")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.slow
def test_output_that_cannot_be_written(form: str) -> None:
    done = run("data list", form, ">/dev/full")
    assert done.returncode == 2
    assert re.fullmatch("error: .*output.*: No space left on device\n", done.stderr)
    done = run("data list", form, ">&-")
    assert done.returncode == 2
    assert re.fullmatch("error: .*output.*stdout.*\n", done.stderr)


@pytest.mark.slow
def test_closed_output_pipe_is_not_an_error() -> None:
    done = run("list recipes --json | head -c 1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "[", "")


def without_reader() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def test_table_output_may_be_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    with open(without_reader(), "w") as gone:
        monkeypatch.setattr(sys, "stdout", gone)
        assert main(monkeypatch, "list", "mixers") == 0


def test_progress_output_may_be_closed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with open(without_reader(), "w", buffering=1) as gone:
        monkeypatch.setattr(sys, "stderr", gone)
        words = ("--mixer", "average", "--max-steps", "2", "--out", str(tmp_path / "out"))
        assert main(monkeypatch, "train", *TINY[:-2], *words) == 0
        monkeypatch.undo()
        with contextlib.suppress(BrokenPipeError):
            gone.close()
    assert "test accuracy" in capfd.readouterr().out
    assert (tmp_path / "out" / "results.json").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_error_message_that_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    full = open("/dev/full", "w", buffering=1)  # noqa: SIM115 (closing it fails, too)
    for stderr in (full, None):
        monkeypatch.setattr(sys, "stderr", stderr)
        assert main(monkeypatch, "train", *TINY, "--mixer", "nothing", "--out", "x") == 2
    monkeypatch.undo()
    with contextlib.suppress(OSError):
        full.close()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MemoryError(), ""),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to\nallocate"), "CUDA out of memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you"), "DefaultCPUAllocator"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_too_little_memory_is_one_sentence(
    error: Exception, reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("rifflemix.lab.comparison.single.train_mixer", fail)
    words = ("--mixer", "average", "--out", str(tmp_path / "out"))
    assert main(monkeypatch, "train", *TINY, *words) == 1
    err = capfd.readouterr().err
    assert re.match(rf"error: .*memory.*\({reason}", err)
    assert err.count("\n") == 1


COMMANDS = {
    "compare": (*TINY, "--mixers", "average"),
    "train": (*TINY, "--mixer", "average"),
    "reproduce": ("sinkhorn/table1-sort-b32",),
    "bench ops": (),
    "bench models": (),
    "bench scaling": (),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("count", ["0", "-1", "1025", "9" * 30])
def test_threads_out_of_range(
    command: str, count: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:  # fmt: skip
    out = str(tmp_path / "out")
    words = [*command.split(), *COMMANDS[command], "--threads", count, "--out", out]
    assert main(monkeypatch, *words) == 2
    assert re.search(r"threads: .*\b1\b.*\b1,?024\b", capfd.readouterr().err)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["--data-dir", "--data"])
def test_paths_that_are_not_utf8_are_refused(
    option: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    old = os.fsdecode(os.fsencode(tmp_path) + b"/d\xe4ta")
    words = (*TINY, "--mixers", "average", option, old, "--out", str(tmp_path / "out"))
    assert main(monkeypatch, "compare", *words) == 2
    assert re.search(r"error: command line: .*UTF-8, got '.*ta'", capfd.readouterr().err)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["train", "reproduce"])
@pytest.mark.parametrize("seed", ["-1", "9223372036854775808", "9" * 30])
def test_seeds_out_of_range(
    command: str, seed: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:  # fmt: skip
    out = str(tmp_path / "out")
    assert main(monkeypatch, command, *COMMANDS[command], "--seed", seed, "--out", out) == 2
    assert re.search(f"error: seed: .*got {seed}", capfd.readouterr().err)
    assert not list(tmp_path.iterdir())


def test_numbers_and_lists_of_seeds() -> None:
    assert parse_seeds("3") == (0, 1, 2)
    assert parse_seeds("20261122,7") == (20261122, 7)
    assert len(parse_seeds("1000")) == 1000


@pytest.mark.timeout(20)
@pytest.mark.parametrize("text", ["1001", "20261122", "9" * 4000, "0", "-3"])
def test_too_many_seeds_are_refused_at_once(text: str) -> None:
    with pytest.raises(InputError, match=r"--seeds: .*\b1\b.*\b1,000\b") as e:
        parse_seeds(text)
    assert ("--seeds 7,11" in str(e.value)) == (text not in ("0", "-3"))


@pytest.mark.parametrize("text", ["", "x", ",", "1,x", "1.5", "9" * 5000])
def test_invalid_seeds_are_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"--seeds: .*got '"):
        parse_seeds(text)


@pytest.mark.parametrize(
    "command",
    [
        ("compare", *TINY, "--out="), ("train", *TINY, "--mixer", "average", "--out="),
        ("reproduce", "csp/table4-image", "--out="), ("bench", "ops", "--out="),
        ("report", "runs", "--out="), ("data", "list", "--data-dir="),
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_empty_paths(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(monkeypatch, *command) == 2
    assert re.search(f"error: .*'{command[-1].rstrip('=')}'.*path", capfd.readouterr().err)


@pytest.mark.parametrize("name", ["x" * 256, "x" * 252 + ".json", "new/" * 1100])
@pytest.mark.parametrize("command", ["compare", "bench ops"])
def test_paths_that_are_too_long_are_refused_before_measuring(
    command: str, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    out = str(tmp_path / name)
    assert main(monkeypatch, *command.split(), *COMMANDS[command], "--out", out) == 2
    assert "File name too long" in capfd.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["x" * 256, "new/" * 1100, "loop"], ids=["name", "path", "loop"])
@pytest.mark.parametrize("command", ["analyze macs", "merge runs", "report"])
def test_runs_whose_paths_cannot_be_read(
    command: str, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    arguments = (str(tmp_path / name), "--out", str(tmp_path / "out"))
    assert main(monkeypatch, *command.split(), *arguments) == 2
    error = capfd.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "command",
    [("compare", *TINY, "--mixers", "identity"), ("train", *TINY, "--mixer", "identity")],
    ids=lambda words: words[0],
)
def test_tilde_in_paths_is_expanded(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert main(monkeypatch, *command, "--out=~/run") == 0
    assert (tmp_path / "home" / "run" / "results.json").is_file()
    assert not Path("~").exists()
    assert main(monkeypatch, "report", "runs", "--out=~nobody-of-this-name/run") == 2
    assert re.search("'--out': .*~.*got.*~nobody-of-this-name", capfd.readouterr().err)


@pytest.mark.parametrize("what", ["data list", "list tasks"])
def test_missing_folders_in_a_list_are_refused(
    what: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(monkeypatch, *what.split(), "--data-dir", "/nowhere") == 2
    assert re.fullmatch("error: data_dir: .*got '/nowhere'\n", capfd.readouterr().err)


def test_a_comparison_in_which_every_run_diverged(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = ["compare", *TINY, "--mixers", "average", "--lr", "1e30", "--out", str(out)]
    for _ in range(2):  # also if no training is left
        assert main(monkeypatch, *words) == 1
        assert re.search("error: .*training diverged", capfd.readouterr().err)
    assert (out / "report.html").exists()


def test_a_run_that_diverged(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["train", *TINY, "--mixer", "average", "--lr", "1e30", "--out", str(tmp_path / "out")]
    assert main(monkeypatch, *words) == 1
    assert "error: training diverged" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(5, "Input/output error", "runs/\x1b[31mx"), "runs/\\x1b[31mx: Input/output error"),
        (OSError(5, "Input/output error"), "Input/output error"),
    ],
    ids=["with a name", "without"],
)
def test_disk_errors_are_one_sentence(
    error: OSError, said: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("rifflemix.lab.reproduction.load_results", fail)
    ended = cli("report", tmp_path, "--out", tmp_path / "out")
    assert ended.code == 2
    assert ended.err.startswith("error: ")
    assert ended.err.endswith(f"{said}\n")
    assert ended.err.count("\n") == 1
