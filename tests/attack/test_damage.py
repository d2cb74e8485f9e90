"""A run with damaged files, disk or clock goes on to the same end, or says so in a sentence."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from forked_commands import Ended, Server
from run_commands import command, difference, finish, outcome

NOBODY = 65534
COMMANDS = ("compare", "train")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("server")) as server:
        yield server


class Runs:
    """Folders of commands that came to their end, and of those that were killed on their way."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.server, self.folder = server, folder
        self.made: dict[tuple[str, bool], Path] = {}

    def __call__(self, name: str, is_whole: bool) -> Path:
        if (name, is_whole) not in self.made:
            out = self.folder / f"{name}-{is_whole}" / "out"
            ended = finish(self.server, name, out)
            assert ended.code == 0, ended.err
            if not is_whole:
                out = self._killed(name, out.with_name("killed"), ended.seconds)
            self.made[name, is_whole] = out
        return self.made[name, is_whole]

    def _killed(self, name: str, out: Path, seconds: float) -> Path:
        """Between two checkpoints, which many moments are."""
        for share in (0.8, 0.7, 0.6, 0.5, 0.9, 0.4, 0.95, 0.3):
            shutil.rmtree(out, ignore_errors=True)
            self.server.run(command(name, out, signals=[(share * seconds, signal.SIGKILL)]))
            saved = list(out.rglob("checkpoint.safetensors"))
            if saved and not (out / "results.json").exists():
                return out
        return out  # whatever is there


@pytest.fixture(scope="module")
def runs(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(server, tmp_path_factory.mktemp("runs"))


def cut(draw: random.Random, path: Path, _: list[Path]) -> None:
    os.truncate(path, draw.choice((0, 1, draw.randrange(path.stat().st_size + 1))))


def flip(draw: random.Random, path: Path, _: list[Path]) -> None:
    content = bytearray(path.read_bytes())
    if content:
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


def lengthen(draw: random.Random, path: Path, _: list[Path]) -> None:
    with path.open("ab") as file:
        file.write(draw.randbytes(draw.randint(1, 99)))


def swap(draw: random.Random, path: Path, others: list[Path]) -> None:
    other, spare = draw.choice(others), path.with_name("spare")
    path.rename(spare)
    if other != path:
        other.rename(path)
    spare.rename(other)


def copy(draw: random.Random, path: Path, others: list[Path]) -> None:
    path.write_bytes(draw.choice(others).read_bytes())


def remove(draw: random.Random, path: Path, _: list[Path]) -> None:
    path.unlink()


def replace(draw: random.Random, path: Path, _: list[Path]) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: tuple[Callable[[random.Random, Path, list[Path]], None], ...] = (
    cut, flip, flip, flip, lengthen, swap, copy, remove, replace,
)  # fmt: skip


@pytest.mark.parametrize("is_whole", [True, False], ids=["finished", "killed"])
@pytest.mark.parametrize("name", [*COMMANDS, "reproduce"])
def test_a_damaged_file(name: str, is_whole: bool, server: Server, runs: Runs, attack: Any) -> None:
    expected = outcome(runs(name, True))
    source = runs(name, is_whole)

    def case(draw: random.Random) -> None:
        with tempfile.TemporaryDirectory() as folder:
            out = shutil.copytree(source, Path(folder) / "out")
            files = sorted(path for path in out.rglob("*") if path.is_file())
            path, damage = draw.choice(files), draw.choice(DAMAGES)
            damage(draw, path, files)
            what = f"{damage.__name__} {path.relative_to(out)}"
            ended = finish(server, name, out)
            assert_same_or_one_sentence(ended, out, expected, what)
            attack.count("damaged files")

    attack.each(3, case)


def assert_same_or_one_sentence(
    ended: Ended, out: Path, expected: dict[str, Any], what: str
) -> None:
    assert not ended.has_traceback, (what, ended.err)
    if ended.code == 0:
        # Files that no later command reads may stay as they are.
        wanted = {"results.json": expected["results.json"]}
        assert not difference(outcome(out, "results.json"), wanted), what
    else:
        assert ended.is_one_sentence, (what, ended)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_bound_on_what_may_be_written(name: str, server: Server, runs: Runs, attack: Any) -> None:
    """As on a full disk, at any size of file; without it the run goes on."""
    expected = outcome(runs(name, True))

    def case(draw: random.Random) -> None:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "out"
            most = draw.choice((2_000, 5_000, 30_000, draw.randint(2_000, 100_000)))  # errors fit
            (ended,) = server.run(command(name, out, most_bytes=most))
            assert_same_or_one_sentence(ended, out, expected, f"{most} bytes")
            last = finish(server, name, out)
            assert last.code == 0, last.err
            assert not difference(outcome(out), expected)

    attack.each(1, case)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_small_disk(name: str, server: Server, runs: Runs, attack: Any) -> None:
    expected = outcome(runs(name, True))

    def case(draw: random.Random) -> None:
        with tempfile.TemporaryDirectory() as folder:
            size = f"size={draw.randint(4, 250)}k"
            mount = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", folder]
            if (
                shutil.which("mount") is None
                or subprocess.run(mount, capture_output=True).returncode
            ):
                pytest.skip("a small disk needs the right to mount one")
            try:
                out = Path(folder) / "out"
                (ended,) = server.run(command(name, out))
                attack.count("full disks", ended.code == 2)
                # Partial outcomes lie there; nobody can finish them without room.
                assert not ended.has_traceback, ended.err
                assert ended.code == 0 or ended.is_one_sentence, ended
                if ended.code == 2:
                    larger = ["mount", "-o", "remount,size=9m", folder]
                    subprocess.run(larger, check=True, capture_output=True)
                last = finish(server, name, out)
                assert last.code == 0, last.err
                assert not difference(outcome(out), expected)
            finally:
                subprocess.run(["umount", folder], check=True, capture_output=True)

    attack.each(1, case)


def test_folders_that_cannot_be_written(server: Server, runs: Runs, attack: Any) -> None:
    # Who runs this as root is somebody else here, who may not write what root made.
    user = NOBODY if os.geteuid() == 0 else None

    def case(draw: random.Random) -> None:
        name, is_whole = draw.choice(COMMANDS), draw.random() < 0.5
        source = runs(name, is_whole)
        folder = Path(tempfile.mkdtemp(dir="/tmp"))
        try:
            out = shutil.copytree(source, folder / "out")
            for path in (folder, out, *out.rglob("*")):
                path.chmod(0o555 if path.is_dir() else 0o444)
            before = outcome(out)
            home = {"RIFFLEMIX_CACHE": str(folder / "cache")}
            again = command(name, out, user=user)
            (ended,) = server.run(type(again)(again.arguments, environment=home, user=user))
            assert not ended.has_traceback, ended.err
            assert ended.is_one_sentence, ended
            assert not difference(outcome(out), before)
        finally:
            for path in (folder, *folder.rglob("*")):
                path.chmod(0o755)
            shutil.rmtree(folder)

    attack.each(2, case)


def test_a_clock_that_runs_backwards(server: Server, runs: Runs, attack: Any) -> None:
    """Between a kill and the next start, and within it; files come from the future or from 1970."""

    def case(draw: random.Random) -> None:
        name = draw.choice(COMMANDS)
        with tempfile.TemporaryDirectory() as folder:
            out = shutil.copytree(runs(name, False), Path(folder) / "out")
            for path in (out, *out.rglob("*")):
                moment = draw.choice((0.0, 1e9, 4e9))
                os.utime(path, (moment, moment))
            (ended,) = server.run(command(name, out, is_clock_mad=True))
            assert ended.code == 0, ended.err
            assert not difference(outcome(out), outcome(runs(name, True)))

    attack.each(1, case)
