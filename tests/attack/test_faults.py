"""Every command survives a kill or a failing disk at any of its file operations."""

from __future__ import annotations

import errno
import random
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from forked_commands import ALL_OPERATIONS, CHANGES, Fault, Injection, Server
from run_commands import COMMANDS, Straight, command, difference, finish, outcome

# Number of random file operations to strike.
CASES = {
    "save_pretrained": 20, "save_swapped": 20, "report": 20, "merge": 20, "analyze": 12,
    "data prepare": 8, "compare": 8, "train": 8, "reproduce": 8, "sweep": 6, "merge suites": 6,
    "suite": 4, "analyze all": 4, "bench": 2,
}  # fmt: skip
# Files of a user with names similar to temporary files.
MINE = (".notes.tmp", ".0123456789abcdef.tmp", ".rifflemix-notes.tmp")


@dataclass(frozen=True)
class Strike:
    """A fault, the operations that it counts, and its errno."""

    fault: Fault
    kinds: int
    error: int = 0


STRIKES = {
    "kill": Strike(Fault.KILL, CHANGES),
    "error": Strike(Fault.FAIL_ONCE, ALL_OPERATIONS, errno.EIO),
    "full disk": Strike(Fault.DISK_FULL, CHANGES, errno.ENOSPC),
}


@pytest.fixture(autouse=True)
def _injected(server: Server) -> None:
    if not server.injects:
        pytest.skip("needs a C compiler on Linux")


@pytest.mark.parametrize("kind", STRIKES)
@pytest.mark.parametrize("name", CASES)
def test_a_fault_at_any_file_operation(
    name: str, kind: str, server: Server, straight: Straight, attack: Any
) -> None:
    strike, number = STRIKES[kind], CASES[name]
    # Keep the distance to the inputs of the undisturbed run, because results name their folders.
    folder = server.folder / "struck" / "case"
    total = straight(name).operations[strike.kinds]

    def case(draw: random.Random) -> None:
        struck_once(name, strike, draw.randint(1, total), server, straight, folder)
        attack.count(f"faults ({kind})")

    attack.each(number, case)


def struck_once(
    name: str, strike: Strike, at: int, server: Server, straight: Straight, folder: Path
) -> None:
    """Disturb one operation of a command, run it again, and compare with an undisturbed run."""
    shutil.rmtree(folder, ignore_errors=True)
    out, mine = folder / "out", user_files(folder, in_out=at % 2 == 0)
    injection = Injection((str(folder),), strike.fault, at, strike.error, strike.kinds)
    (ended,) = server.run(command(name, out, injection=injection))
    what = f"{name}, {strike.fault.name} at {at}: {ended.struck}: {ended}"
    assert not ended.has_traceback, what
    if strike.fault is Fault.KILL:
        assert ended.code == (-signal.SIGKILL if ended.struck else 0), what
    else:
        assert ended.code == 0 or ended.is_one_sentence, what
    last = finish(server, name, out)
    assert last.code == 0, (what, last)
    for path in mine:
        assert path.read_text() == "mine", what
        path.unlink()
    # A killed benchmark keeps its partial result next to the new result.
    assert not difference(outcome(out), straight(name).files) or name == "bench", what
    assert not [p for p in folder.rglob(".*") if p.name not in (".lock", ".launch.json")], what


def user_files(folder: Path, *, in_out: bool) -> list[Path]:
    """Create hidden files of a user next to the output folder, and inside it."""
    folders = [folder, folder / "out"] if in_out else [folder]
    for one in folders:
        one.mkdir(parents=True)
    paths = [one / name for one in folders for name in MINE]
    for path in paths:
        path.write_text("mine")
    return paths


def test_every_command_is_struck() -> None:
    assert CASES.keys() == COMMANDS.keys()
