"""The GPU plan: runs as many of its steps as fit a call, in order, and goes on at the next call.

What is done is kept in the state folder. At the end of a call everything that must outlive the
machine is packed into the output folder ($OUT): at most 8 files of 16 MB. A fresh machine goes on
from these files, if --restore names the folder that holds them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from baggage import pack_results, pack_state, restore_state
from packs import unpack
from plan import expected, show_plan, write_expected
from sharing import shared_gpu
from stages import STAGES, Stage, Step

from rifflemix.errors import InputError
from rifflemix.files import make_folder, write_json
from rifflemix.locks import FolderInUse, locked

# Seconds that are left at the end of a call for packing, and for a step to end in good order.
_RESERVE, _GRACE = 30, 20
# Rows in full that were made before, here or elsewhere.
_KEPT = Path(__file__).resolve().parents[1] / "results" / "reproduce"
# A cycle of the learning rate takes three steps at least.
_REDUCED = ("--max-steps", "3", "--batch-size", "2", "--precision", "float32")


@dataclass(frozen=True)
class Folders:
    """Where a plan lives; all but `out` lie in one folder."""

    state: Path
    out: Path

    @property
    def data(self) -> Path:
        return self.state / "data"

    @property
    def cache(self) -> Path:
        return self.state / "cache"

    def work(self, step: Step) -> Path:
        """The results of a step: a folder of its own for a row, one for all others."""
        return self.state / "rows" / step.name if step.recipe else self.state / "results"

    def marker(self, step: Step) -> Path:
        return self.state / "done" / f"{step.name}.json"


def write_tiny_listops(data: Path) -> None:
    """ListOps as the Long Range Arena has it, of eight lines, for the row of the dry run."""
    lines = [f"( ( ( [MAX {n} ) {9 - n} ) ] )\t{max(n, 9 - n)}" for n in range(8)]
    for split in ("train", "val", "test"):
        text = "\n".join(["Source\tTarget", *lines, ""])
        (data / f"basic_{split}.tsv").write_text(text)


def run_plan(
    steps: list[Step], folders: Folders, minutes: float, dry: bool, jobs: int = 1
) -> list[str]:
    """Run steps until the time is up, `jobs` rows at once and everything that is timed alone.

    Returns:
        A line for each step that was looked at.
    """
    end = time.monotonic() + 60 * minutes
    packs = set(json.loads(_read(folders.data / "packs.json", "[]")))
    stop = threading.Event()

    def attempt(step: Step, shared: dict[str, str]) -> str:
        if obstacle := _obstacle(step, packs, dry):
            return f"{step.name}: {obstacle}"
        if step.recipe and _is_in_use(folders.work(step)):
            return f"{step.name}: is trained by another process, waits for the next call"
        left = end - time.monotonic() - _RESERVE
        if stop.is_set() or left < 60 * min(step.minutes, minutes - 1):
            return f"{step.name}: waits for the next call"
        line = f"{step.name}: {_run(step, folders, left, dry, stop, shared)}"
        print(line, flush=True)
        return line

    open_steps = [step for step in steps if not folders.marker(step).exists()]
    lines: list[str] = []
    for is_row, group in itertools.groupby(open_steps, key=lambda step: bool(step.recipe)):
        at_once = jobs if is_row else 1
        with shared_gpu(at_once) as shared, ThreadPoolExecutor(at_once) as pool:
            try:
                lines += pool.map(attempt, group, itertools.repeat(shared))
            except KeyboardInterrupt:
                stop.set()
                raise
    return lines


def _obstacle(step: Step, packs: set[str], dry: bool) -> str:
    """Why a step cannot run now; empty if it can."""
    missing = [] if dry else [pack for pack in step.packs if pack not in packs]
    if missing:
        return f"waits for the data in {', '.join(missing)}"
    if not dry and step.recipe and _is_kept(step):
        return "in full already, in benchmarks/results/reproduce"
    if not dry and step.tool and shutil.which(step.tool[0]) is None:
        return f"left out, there is no {step.tool[0]}"
    return ""


def _is_kept(step: Step) -> bool:
    kept = _KEPT / f"{step.name}.json"
    return kept.exists() and not json.loads(kept.read_text())["is_reduced"]


def _is_in_use(folder: Path) -> bool:
    """Whether a process works in a folder, such as a row that outlived a call that was killed."""
    if not folder.is_dir():
        return False
    try:
        with locked(folder):
            return False
    except FolderInUse:
        return True


def _run(
    step: Step,
    folders: Folders,
    seconds: float,
    dry: bool,
    stop: threading.Event,
    shared: dict[str, str],
) -> str:
    """Run a step for so long at most, or until told to stop; returns how it ended."""
    work, log = folders.work(step), folders.state / "logs" / f"{step.name}.log"
    for folder in (work, log.parent, folders.marker(step).parent):
        folder.mkdir(parents=True, exist_ok=True)
    command = _command(step, folders, seconds, dry)
    if not step.recipe:
        _discard_result(command)
    started = time.monotonic()
    with log.open("ab") as stream:
        process = subprocess.Popen(
            command,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=_environment(folders, dry) | shared,
            start_new_session=True,
        )
        ended = _wait(process, seconds, stop)
    code, status = process.returncode, "done"
    if step.recipe:
        results = json.loads(_read(work / "results.json", "{}"))
        if (code in (0, 130) or not ended) and results.get("status") != "complete":
            return "goes on at the next call"
    if not ended and stop.is_set():
        return "stopped, starts again at the next call"
    if not ended:
        status = "cut by the end of the call"
    elif code:
        status = f"failed with exit code {code}, see its log"
    took = time.monotonic() - started
    marker = {"step": step.name, "status": status, "exit_code": code, "seconds": round(took, 1)}
    write_json(folders.marker(step), marker)
    return f"{status} ({took:.0f} s)"


def _discard_result(command: list[str]) -> None:
    """Remove what an attempt that was stopped left in --out: benchmarks write new files alone."""
    out = Path(command[command.index("--out") + 1]) if "--out" in command else Path()
    if out.suffix:
        for path in (out, out.with_suffix(".png")):
            path.unlink(missing_ok=True)


def _wait(process: subprocess.Popen[bytes], seconds: float, stop: threading.Event) -> bool:
    """Whether it ended by itself; else it is asked to, and killed if it does not."""
    end = time.monotonic() + seconds
    while process.poll() is None:
        if time.monotonic() >= end or stop.wait(0.1):
            break
    else:
        return True
    os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return False


def _command(step: Step, folders: Folders, seconds: float, dry: bool) -> list[str]:
    command = step.tiny if dry and not step.recipe else step.command
    filled = [p.format(work=folders.work(step), data=folders.data) for p in command]
    if step.recipe:
        filled += ["--budget", f"{max(seconds - _GRACE, 1) / 60:.2f}"]
        if dry:
            filled = [part for part in filled if part != "--compile"]
            filled[filled.index("--device") + 1] = "cpu"
            filled += _REDUCED
    return [*(() if dry else step.tool), sys.executable, *filled]


def _environment(folders: Folders, dry: bool) -> dict[str, str]:
    caches = {
        "RIFFLEMIX_CACHE": folders.cache,
        "TRITON_CACHE_DIR": folders.state / "triton",
        "TORCHINDUCTOR_CACHE_DIR": folders.state / "inductor",
    }
    more = {"TRITON_INTERPRET": "1"} if dry else {}
    return {**os.environ, "PYTHONUNBUFFERED": "1", **{k: str(v) for k, v in caches.items()}, **more}


def _read(path: Path, default: str) -> str:
    return path.read_text() if path.exists() else default


def main() -> int:
    """Run the command line; returns 0, 1 (a step failed), 2 (bad input) or 130 (stopped)."""
    arguments = _arguments()
    if arguments.count:
        write_expected([step for stage in STAGES for step in stage.steps])
        return 0
    chosen = _chosen(arguments.names)
    show_plan(chosen, expected())
    if arguments.list:
        return 0
    # Steps have sessions of their own, and would go on alone. A shell starts what is to run in the
    # background with SIGINT ignored; steps, which it asks to end, would inherit that.
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        signal.signal(getattr(signal, name), signal.default_int_handler)
    try:
        return _call(arguments, [step for stage in chosen for step in stage.steps])
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command goes on", file=sys.stderr)
        return 130


def _call(arguments: argparse.Namespace, steps: list[Step]) -> int:
    """Hold the state folder, run steps, pack; returns the exit code."""
    dry = arguments.dry_run
    if dry:
        rows = [step for step in steps if step.recipe][:1]
        steps = [*(step for step in steps if step.tiny), *rows]
    folders = Folders(arguments.state.absolute(), arguments.out.absolute())
    make_folder(folders.data)
    make_folder(folders.out)
    with locked(folders.state):
        if arguments.restore is not None:
            restore_state(arguments.restore, folders.state)
        if dry:
            write_tiny_listops(folders.data)
        if arguments.data is not None:
            unpack(arguments.data, folders.data, folders.cache)
        lines: list[str] = []
        try:
            lines = run_plan(steps, folders, arguments.minutes, dry, arguments.jobs)
        finally:
            summary = _summary(lines, folders)
            write_json(folders.out / "summary.json", summary)
            pack_results(folders.state, folders.out)
            pack_state(folders.state, folders.out)
    print("\n".join(lines))
    return int(any(str(m["status"]).startswith("failed") for m in summary["done"]))


def _chosen(names: list[str]) -> list[Stage]:
    """The stages, with those of their steps that are named, or that are of a stage that is."""
    if not names:
        return list(STAGES)
    kept = [
        replace(stage, steps=tuple(s for s in stage.steps if {stage.name, s.name} & {*names}))
        for stage in STAGES
    ]
    return [stage for stage in kept if stage.steps]


def _summary(lines: list[str], folders: Folders) -> dict[str, Any]:
    done = [json.loads(p.read_text()) for p in sorted((folders.state / "done").glob("*.json"))]
    return {"this_call": lines, "done": done}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks/gpu.sh", description=__doc__)
    parser.add_argument(
        "names", nargs="*", help="stages a, b, c, d, e, or steps as --list names them; all if none"
    )
    parser.add_argument("--minutes", type=float, default=9.0, help="of this call")
    parser.add_argument("--jobs", type=int, default=1, help="rows that are trained at once")
    parser.add_argument("--state", type=Path, default=Path("runs/gpu"), help="kept between calls")
    parser.add_argument("--data", type=Path, help="packs that gpu_data.sh made")
    parser.add_argument("--restore", type=Path, help="output of an earlier call, elsewhere")
    parser.add_argument(
        "--out", type=Path, default=Path(os.environ.get("OUT", "runs/gpu-out")), help="$OUT if set"
    )
    parser.add_argument("--list", action="store_true", help="show the plan, and run nothing")
    parser.add_argument("--dry-run", action="store_true", help="tiny, on a CPU")
    parser.add_argument("--count", action="store_true", help="write expected.json anew")
    arguments = parser.parse_args()
    known = {name for stage in STAGES for name in (stage.name, *(s.name for s in stage.steps))}
    for name in arguments.names:
        if name not in known:
            stages = ", ".join(stage.name for stage in STAGES)
            parser.error(f"expected stages out of {stages}, or steps that --list names, got {name}")
    if arguments.jobs < 1:
        parser.error(f"--jobs: expected at least 1, got {arguments.jobs}")
    if not arguments.minutes > 1:
        parser.error(f"--minutes: expected over 1, got {arguments.minutes:g}")
    for option in ("data", "restore"):
        folder = getattr(arguments, option)
        if folder is not None and not folder.is_dir():
            parser.error(f"--{option}: expected a folder that exists, got {folder}")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
