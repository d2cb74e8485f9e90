"""The GPU plan without a GPU: its data, its files, and a tiny run on a CPU."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import ModuleType

import pytest

from rifflemix.errors import InputError
from rifflemix.lab.recipes import get_recipe
from rifflemix.locks import locked

REPOSITORY = Path(__file__).resolve().parents[1]
FOLDER = REPOSITORY / "benchmarks" / "gpu"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> object:
    """Import a file of the plan; the plan is not a package."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


@pytest.fixture
def packs(load: object, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Write the plan's data as small files."""
    found: ModuleType = load("packs")  # type: ignore[operator]
    monkeypatch.setattr(found, "_PART", 10)
    return found


def test_a_large_file_travels_in_parts(packs: ModuleType, tmp_path: Path) -> None:
    source, sent, data = (tmp_path / name for name in ("source", "sent", "data"))
    source.mkdir()
    content = bytes(range(17))
    (source / "cifar10_rgb.npz.xz").write_bytes(content)
    packs.make_packs(["cifar-1"], source, sent)
    assert packs.unpack(sent, data, tmp_path) == ["cifar-1"]
    assert not (data / "cifar10_rgb.npz.xz").exists()
    packs.make_packs(["cifar-2"], source, tmp_path / "next")
    assert packs.unpack(tmp_path / "next", data, tmp_path) == ["cifar-1", "cifar-2"]
    assert (data / "cifar10_rgb.npz.xz").read_bytes() == content
    assert not list(data.glob("*.part*"))


def test_a_damaged_pack_is_refused(packs: ModuleType, tmp_path: Path) -> None:
    source, sent = tmp_path / "source", tmp_path / "sent"
    source.mkdir()
    (source / "cifar10_gray.npz.xz").write_bytes(b"gray")
    packs.make_packs(["image"], source, sent)
    (sent / "image" / "cifar10_gray.npz.xz").write_bytes(b"grey")
    with pytest.raises(InputError, match="damaged"):
        packs.unpack(sent, tmp_path / "data", tmp_path)


def test_packs_are_no_larger_than_may_be(
    packs: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cifar10_gray.npz.xz").write_bytes(b"gray")
    monkeypatch.setattr(packs, "MOST_BYTES", 3)
    with pytest.raises(InputError, match=r"\b3 bytes"):
        packs.make_packs(["image"], tmp_path, tmp_path / "sent")
    with pytest.raises(InputError, match="imdb_train"):
        packs.make_packs(["text"], tmp_path, tmp_path / "sent")
    monkeypatch.setattr(packs, "MOST_BYTES", 9)
    with pytest.raises(InputError, match=re.escape(str(tmp_path))):
        packs.make_packs(["image"], tmp_path, tmp_path / "cifar10_gray.npz.xz")


@pytest.mark.parametrize("works", [True, False], ids=["works", "fails"])
def test_trainings_share_a_gpu_by_the_service_where_it_works(
    works: bool, load: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sharing = load("sharing")  # type: ignore[operator]
    said = tmp_path / "said"
    service = tmp_path / "nvidia-cuda-mps-control"
    service.write_text(f'#!/bin/sh\necho "$CUDA_MPS_PIPE_DIRECTORY $1 $(cat)" >> {said}\n')
    service.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(sharing, "_TRIAL", f"raise SystemExit({int(not works)})")
    with sharing.shared_gpu(1) as shared:
        assert shared == {}
    assert not said.exists()
    with sharing.shared_gpu(2) as shared:
        assert set(shared) == (
            {"CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"} if works else set()
        )
        assert len(said.read_text().splitlines()) == 1
    started, ended = (line.split() for line in said.read_text().splitlines())
    assert started[1:] == ["-d"]
    assert ended == [started[0], "quit"]
    service.write_text("#!/bin/sh\nexit 1\n")
    with sharing.shared_gpu(2) as shared:
        assert shared == {}
    service.unlink()
    with sharing.shared_gpu(2) as shared:
        assert shared == {}


def test_state_comes_along_in_small_files(
    load: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    baggage = load("baggage")  # type: ignore[operator]
    monkeypatch.setattr(baggage, "_FILE_BYTES", 40_000)
    state, out, again = (tmp_path / name for name in ("state", "out", "again"))
    out.mkdir()
    weights = os.urandom(50_000)
    for file, content in {
        "done/a.json": b"{}",
        "done/over.json": b"{}",
        "rows/over/checkpoint.safetensors": bytes(90_000),
        "rows/over/results.json": b"{}",
        "rows/small/checkpoint.safetensors": weights,
        "rows/large/checkpoint.safetensors": bytes(200_000),
        "rows/large/best.safetensors": bytes(100),
        "rows/large/results.json": b"{}",
        "data/raw": b"data",
    }.items():
        (state / file).parent.mkdir(parents=True, exist_ok=True)
        (state / file).write_bytes(content)
    baggage.pack_results(state, out)
    left_out = baggage.pack_state(state, out)
    assert [path.parent.name for path in left_out] == ["large"]
    assert all(path.stat().st_size <= 40_000 for path in out.iterdir())
    baggage.restore_state(out, again)
    assert (again / "rows/small/checkpoint.safetensors").read_bytes() == weights
    assert not (again / "data").exists()
    assert [path.name for path in (again / "rows/over").iterdir()] == ["results.json"]
    assert not (again / "rows/large").exists()  # starts from scratch
    (again / "done/a.json").write_text("changed")
    baggage.restore_state(out, again)
    assert (again / "done/a.json").read_text() == "changed"


def test_every_row_of_the_plan_is_a_recipe_with_an_expectation(load: object) -> None:
    stages, plan, packs = (load(name) for name in ("stages", "plan", "packs"))  # type: ignore[operator]
    steps = [step for stage in stages.STAGES for step in stage.steps]
    assert len({step.name for step in steps}) == len(steps)
    assert all(step.minutes <= 8 for step in steps)
    expected = plan.expected()
    for step in steps:
        if step.recipe:
            row = expected[step.recipe]
            assert row["steps"] == get_recipe(step.recipe).train.max_steps
            assert row["peak_bytes"] < 60 * 2**30
        assert set(step.packs) <= set(packs.PACKS)


def test_stages_and_single_steps_are_chosen_by_their_names(
    load: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = load("run")  # type: ignore[operator]
    whole = next(stage for stage in run.STAGES if stage.name == "e")
    chosen = run._chosen(["e", "layer-times"])
    assert [(stage.name, len(stage.steps)) for stage in chosen] == [
        ("b", 1),
        ("e", len(whole.steps)),
    ]
    assert run._chosen([]) == list(run.STAGES)
    monkeypatch.setattr(sys, "argv", ["gpu.sh", "layer-time"])
    with pytest.raises(SystemExit) as ended:
        run.main()
    assert ended.value.code == 2
    assert re.search("--list.*got layer-time", capsys.readouterr().err)


@pytest.mark.slow
def test_a_step_that_does_not_end_is_stopped(
    load: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, stages = load("run"), load("stages")  # type: ignore[operator]
    monkeypatch.setattr(run, "_GRACE", 1)
    folders = run.Folders(tmp_path / "state", tmp_path / "out")
    endless = stages.Step("endless", ("-c", "import time; time.sleep(60)"), minutes=0)
    start, stop = time.monotonic(), threading.Event()
    assert run._run(endless, folders, 1.0, False, stop, {}).startswith("cut ")
    assert time.monotonic() - start < 30
    failing = stages.Step("failing", ("-c", "raise SystemExit(3)"))
    assert re.match(r"failed\b.*\b3\b", run._run(failing, folders, 30.0, False, stop, {}))
    assert json.loads(folders.marker(failing).read_text())["exit_code"] == 3
    lines = run.run_plan([endless, failing], folders, 9.0, False)
    assert lines == []


@pytest.mark.slow
def test_a_row_that_is_cut_goes_on_at_the_next_call(
    load: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a stopped run resumes, even if it ignores the signal.

    A process ignores the signal while it compiles. The run resumes from its checkpoint.
    """
    run, stages = load("run"), load("stages")  # type: ignore[operator]
    monkeypatch.setattr(run, "_GRACE", 0.5)
    deaf = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(60)"
    row = stages.Step("row", ("-c", deaf), recipe="csp/table4-text")
    folders, stop = run.Folders(tmp_path / "state", tmp_path / "out"), threading.Event()
    assert "next call" in run._run(row, folders, 2.0, False, stop, {})
    assert not folders.marker(row).exists()


def test_steps_wait_for_data_tools_and_time(
    load: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, stages = load("run"), load("stages")  # type: ignore[operator]
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(run, "_RESERVE", 100)
    kept, part = tmp_path / "kept.json", tmp_path / "part.json"
    kept.write_text('{"is_reduced": false}')
    part.write_text('{"is_reduced": true}')
    monkeypatch.setattr(run, "_KEPT", tmp_path)
    steps = [
        stages.Step("row", recipe="csp/table4-text", packs=("text",)),
        stages.Step("kept", recipe="csp/table4-text"),
        stages.Step("part", minutes=8, recipe="csp/table4-text"),
        stages.Step("tool", tool=("compute-sanitizer",)),
        stages.Step("long", minutes=8),
    ]
    lines = run.run_plan(steps, run.Folders(tmp_path / "state", tmp_path), 3.0, False)
    expected = [
        "row: .*data.* text",
        "kept: .*benchmarks/results/reproduce",
        "part: .*next call",
        "tool: .*compute-sanitizer",
        "long: .*next call",
    ]
    for line, pattern in zip(lines, expected, strict=True):
        assert re.fullmatch(pattern, line)


def test_a_row_that_another_process_trains_waits(load: object, tmp_path: Path) -> None:
    """Check that a run that outlived its parent is not marked failed."""
    run, stages = load("run"), load("stages")  # type: ignore[operator]
    row = stages.Step("row", ("-c", "raise SystemExit(2)"), recipe="csp/table4-text")
    folders = run.Folders(tmp_path / "state", tmp_path / "out")
    folders.work(row).mkdir(parents=True)
    with locked(folders.work(row)):
        lines = run.run_plan([row], folders, 3.0, False)
    (line,) = lines
    assert re.fullmatch("row: .*another process.*next call", line)
    assert not folders.marker(row).exists()


@pytest.mark.slow
def test_a_step_that_was_stopped_starts_again(load: object, tmp_path: Path) -> None:
    run, stages = load("run"), load("stages")  # type: ignore[operator]
    folders, stop = run.Folders(tmp_path / "state", tmp_path / "out"), threading.Event()
    work = folders.work(stages.Step("bench"))
    # Benchmarks do not overwrite files.
    write = "import sys, time; open(sys.argv[2], 'x'); time.sleep(float(sys.argv[3]))"
    command = ("-c", write, "--out", "{work}/bench.json")
    endless, short = (stages.Step("bench", (*command, seconds)) for seconds in ("600", "0"))
    threading.Timer(1.5, stop.set).start()
    ended = run._run(endless, folders, 60.0, False, stop, {})
    assert re.match("stopped, .*next call", ended)
    assert (work / "bench.json").exists()
    assert run._run(short, folders, 60.0, False, threading.Event(), {}).startswith("done")


@pytest.mark.parametrize(
    ("option", "file", "content", "message"),
    [
        ("--data", None, "", "--data: "),
        ("--data", "text/manifest.json", "{", r"manifest\.json\b.*damaged"),
        ("--data", "text/manifest.json", '{"a": "0"}', "No such file"),
        ("--restore", None, "", "--restore: "),
        ("--restore", "summary.json", "{}", r"state\.tar\.0 to \.3"),
        ("--restore", "state.tar.1", "tail", r"state\.tar\.0 to \.3"),
    ],
)
def test_what_a_call_cannot_read_is_told_in_a_sentence(
    option: str,
    file: str | None,
    content: str,
    message: str,
    load: object,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given, state = tmp_path / "given", tmp_path / "state"
    if file is not None:
        (given / file).parent.mkdir(parents=True)
        (given / file).write_text(content)
    command = ["gpu.sh", "--dry-run", option, str(given), "--state", str(state)]
    monkeypatch.setattr(sys, "argv", [*command, "--out", str(tmp_path / "out")])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    try:
        code = load("run").main()  # type: ignore[operator]
    except SystemExit as refused:
        code = refused.code
    assert code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "error: " in last
    assert re.search(message, last)


_ENDLESS = """
import sys
import run, stages
endless = ("-c", "import os, time; print(os.getpid(), flush=True); time.sleep(600)")
run.STAGES = (stages.Stage("a", "one step", (stages.Step("endless", endless, tiny=endless),)),)
sys.exit(run.main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_call_that_is_stopped_takes_its_steps_along(name: str, tmp_path: Path) -> None:
    state, out = tmp_path / "state", tmp_path / "out"
    command = [sys.executable, "-c", _ENDLESS, "--dry-run", "--state", str(state)]
    path = os.pathsep.join((str(FOLDER), str(REPOSITORY / "src")))
    call = subprocess.Popen(
        # As started by a shell in the background.
        ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command, "--out", str(out)],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    log = state / "logs" / "endless.log"
    while not (log.exists() and log.read_text().endswith("\n")):
        assert call.poll() is None
        time.sleep(0.1)
    twin = subprocess.run(
        [*command, "--out", str(out)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert twin.returncode == 2
    assert str(state) in twin.stderr
    call.send_signal(getattr(signal, name))
    assert call.communicate()[1].count("\n") == 1
    assert call.returncode == 130
    with pytest.raises(ProcessLookupError):
        os.kill(int(log.read_text().split()[0]), 0)
    assert not (state / "done" / "endless.json").exists()
    assert (out / "summary.json").exists()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="needs triton: pip install -e '.[gpu]'"
)
def test_a_dry_run_on_a_cpu(tmp_path: Path) -> None:
    state, out = tmp_path / "state", tmp_path / "out"
    command = ["bash", str(FOLDER.parent / "gpu.sh"), "--dry-run", "--minutes", "14"]
    done = subprocess.run(
        [*command, "--state", str(state), "--out", str(out)],
        env={**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    names = {
        "tests-permutation", "sanitizer-memcheck", "bench-ops-1024-bfloat16", "layer-forms",
        "tiles",
    }  # fmt: skip
    statuses = {
        entry["step"]: entry["status"]
        for entry in json.loads((out / "summary.json").read_text())["done"]
    }
    assert statuses == dict.fromkeys([*names, "dimension_mixer-table5-listops-softmax"], "done")
    assert (out / "results.tar.gz").exists()
