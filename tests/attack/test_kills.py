"""Long commands that are killed at any moment and restarted give bit-identical results."""

from __future__ import annotations

import random
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest
from forked_commands import HUNG, Command, Server
from run_commands import TRAININGS, Straight, command, difference, finish, outcome

INTERRUPTED = 130


STORMS: dict[str, tuple[int, ...]] = {
    "SIGKILL": (signal.SIGKILL,),
    "SIGTERM": (signal.SIGTERM,),
    "SIGINT": (signal.SIGINT,),
    "SIGINT twice": (signal.SIGINT, signal.SIGINT),
}


def storm(draw: random.Random, kind: str, seconds: float) -> list[tuple[float, int]]:
    first = draw.uniform(0.0, seconds)
    return [
        (first + gap, number)
        for gap, number in zip((0.0, draw.uniform(0, 0.3)), STORMS[kind], strict=False)
    ]


@pytest.mark.parametrize("name", TRAININGS)
def test_a_storm_of_signals(name: str, server: Server, straight: Straight, attack: Any) -> None:
    expected, seconds = straight(name).files, straight(name).seconds

    def case(draw: random.Random) -> None:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "out"
            for _ in range(draw.randint(1, 3)):
                kind = draw.choice(list(STORMS))
                (ended,) = server.run(command(name, out, signals=storm(draw, kind, seconds)))
                attack.count("signals")
                assert not ended.has_traceback, (kind, ended.err)
                assert ended.code in (0, INTERRUPTED, *(-s for s in STORMS[kind])), (kind, ended)
            last = finish(server, name, out)
            assert last.code == 0, last.err
            assert not difference(outcome(out), expected)
            leftovers = [path for path in out.rglob("*") if path.name.endswith(".tmp")]
            assert not leftovers

    attack.each(1, case)


@pytest.mark.parametrize("name", TRAININGS)
def test_two_at_once(name: str, server: Server, straight: Straight, attack: Any) -> None:
    """One process works. The other process waits or reports that the folder is in use."""
    expected, seconds = straight(name).files, straight(name).seconds

    def case(draw: random.Random) -> None:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "out"
            kill = [(draw.uniform(0.0, 2 * seconds), signal.SIGKILL)] * draw.randint(0, 1)
            ends = server.run(command(name, out, signals=kill), command(name, out))
            for ended in ends:
                assert not ended.has_traceback, ended.err
                assert ended.code in (0, -signal.SIGKILL) or ended.is_one_sentence, ended
                assert ended.code != 2 or "in use" in ended.err, ended.err
            last = finish(server, name, out)
            assert last.code == 0, last.err
            assert not difference(outcome(out), expected)

    attack.each(0.6, case)


def test_the_server_sees_what_it_should(server: Server) -> None:
    """The server detects error lines and signals, so the attack would notice them."""
    (bad,) = server.run(Command(["list", "mixer"]))
    assert bad.is_one_sentence
    (killed,) = server.run(Command(["list", "models"], signals=[(0.0, signal.SIGKILL)]))
    assert killed.code == -signal.SIGKILL
    assert killed.code != HUNG
