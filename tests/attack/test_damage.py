"""With damaged files, disk or clock, a run still gives the same result or one error line."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from forked_commands import Command, Ended, Server
from run_commands import COMMANDS, Straight, command, difference, finish, outcome

NOBODY = 65534
TRAININGS = ("compare", "train")


class Runs:
    """Folders of commands that finished, and of commands that were killed."""

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
        """Kill the command between two checkpoints, trying several moments."""
        for share in (0.8, 0.7, 0.6, 0.5, 0.9, 0.4, 0.95, 0.3):
            shutil.rmtree(out, ignore_errors=True)
            self.server.run(command(name, out, signals=[(share * seconds, signal.SIGKILL)]))
            saved = list(out.rglob("checkpoint.safetensors"))
            if saved and not (out / "results.json").exists():
                return out
        return out  # no moment was right: use the last folder


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


def retype(draw: random.Random, path: Path, _: list[Path]) -> None:
    """Replace a value in a JSON file by a value of another type."""
    value = json.loads(path.read_text()) if path.suffix == ".json" else {}
    places = list(places_of(value))
    if places:
        place, key = draw.choice(places)
        place[key] = draw.choice((None, True, -1, 1e308, "x", [], {}, [[]], {"x": {}}, "\x1b[31m"))
        value.pop("sha256", None)  # otherwise only the checksum would detect the change
    path.write_text(json.dumps(value))


def places_of(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every container in a JSON value, with each of its keys."""
    keys = value.keys() if isinstance(value, dict) else range(len(value))
    for key in keys:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places_of(value[key])


DAMAGES: tuple[Callable[[random.Random, Path, list[Path]], None], ...] = (
    cut, flip, flip, flip, lengthen, swap, copy, remove, replace,
)  # fmt: skip


@pytest.mark.parametrize("is_whole", [True, False], ids=["finished", "killed"])
@pytest.mark.parametrize("name", [*TRAININGS, "reproduce"])
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
        # Files that no later command reads may stay damaged.
        wanted = {"results.json": expected["results.json"]}
        assert not difference(outcome(out, "results.json"), wanted), what
    else:
        assert ended.is_one_sentence, (what, ended)


READERS = {
    "merge": ("one", "two"),
    "merge suites": ("first-suite", "second-suite"),
    "report": ("reproduced",),
    "analyze": ("trained",),
    "analyze all": ("trained",),
}


@pytest.mark.parametrize("damage", [*dict.fromkeys(DAMAGES), retype], ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", READERS)
def test_a_damaged_input(
    name: str, damage: Any, server: Server, straight: Straight, attack: Any
) -> None:
    """A command with damaged input results exits with one error line or gives the same output."""
    expected = straight(name).files

    def case(draw: random.Random) -> None:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            for read in READERS[name]:
                shutil.copytree(server.folder / read, folder / read)
            files = sorted(
                path
                for path in folder.rglob("*")
                if path.is_file() and (damage is not retype or path.suffix == ".json")
            )
            # Keep the distance to the inputs of the undisturbed run, because results name their
            # folders.
            out = folder / "straight" / name.replace(" ", "-") / "out"
            path = draw.choice(files)
            damage(draw, path, files)
            what = f"{damage.__name__} {path.relative_to(folder)}"
            words = COMMANDS[name](str(out))
            moved = [str(folder / word) if word in READERS[name] else word for word in words]
            (ended,) = server.run(Command(moved))
            attack.count("damaged inputs")
            assert not ended.has_traceback, (what, ended.err)
            if ended.code:
                assert ended.is_one_sentence, (what, ended)
            elif damage not in (swap, copy, retype) and "analyze" not in name:
                assert not difference(outcome(out), expected), what

    attack.each(2, case)


def test_folders_that_cannot_be_written(server: Server, runs: Runs, attack: Any) -> None:
    # If root runs the tests, the commands run as another user, who may not write root's files.
    user = NOBODY if os.geteuid() == 0 else None

    def case(draw: random.Random) -> None:
        name, is_whole = draw.choice(TRAININGS), draw.random() < 0.5
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
    """The clock may run backwards during and between runs. File times are in the future or 1970."""

    def case(draw: random.Random) -> None:
        name = draw.choice(TRAININGS)
        with tempfile.TemporaryDirectory() as folder:
            out = shutil.copytree(runs(name, False), Path(folder) / "out")
            for path in (out, *out.rglob("*")):
                moment = draw.choice((0.0, 1e9, 4e9))
                os.utime(path, (moment, moment))
            (ended,) = server.run(command(name, out, is_clock_mad=True))
            assert ended.code == 0, ended.err
            assert not difference(outcome(out), outcome(runs(name, True)))

    attack.each(1, case)
