"""Options are declared once; the command line and configurations read the declarations."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer.testing

from rifflemix.cli.app import app
from rifflemix.cli.commands import Commands
from rifflemix.cli.workers import check_workers, worker_devices
from rifflemix.errors import InputError
from rifflemix.lab.runs.environment import check_device
from rifflemix.lab.runs.options import (
    Option,
    ReproduceOptions,
    RunOptions,
    WorkerOptions,
    check_options,
    declared_options,
)

RUNNER = typer.testing.CliRunner()


@dataclass(frozen=True, kw_only=True)
class Paint:
    """Options of a test command."""

    coats: Annotated[int, Option("How often.", ("--coats", "--layers"), most=3)] = 1
    colours: Annotated[list[str] | None, Option("Repeatable.", metavar="NAME")] = None
    tin: Annotated[Path, Option("Where from.", metavar="PATH")] | None = None
    is_dry: Annotated[bool, Option("Wait.")] = False


@pytest.fixture
def called() -> tuple[Commands, list[Any]]:
    """Return a command line with one command, and the recorded calls."""
    calls: list[Any] = []
    commands = Commands()

    @commands.command()
    def paint(*, wall: Annotated[str, Option("Which.")], how: Paint, json: bool = False) -> None:
        """Paint a wall."""
        calls.append((wall, how, json))

    return commands, calls


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], Paint()),
        (["--layers", "2", "--is-dry"], Paint(coats=2, is_dry=True)),
        (["--colours", "red", "--colours", "blue"], Paint(colours=["red", "blue"])),
        (["--tin", "a/b"], Paint(tin=Path("a/b"))),
    ],
)
def test_a_command_gets_its_dataclass(
    called: tuple[Commands, list[Any]], arguments: list[str], expected: Paint
) -> None:
    commands, calls = called
    outcome = RUNNER.invoke(commands, ["--wall", "north", *arguments])
    assert outcome.exit_code == 0, outcome.output
    assert calls == [("north", expected, False)]


@pytest.mark.parametrize(
    "arguments", [[], ["--wall", "north", "--tin", ""], ["--wall", "north", "--coats", "x"]]
)
def test_command_refuses_missing_values_and_other_types(
    called: tuple[Commands, list[Any]], arguments: list[str]
) -> None:
    commands, calls = called
    assert RUNNER.invoke(commands, arguments).exit_code == 2
    assert not calls


def test_help_and_names_come_from_the_declaration(called: tuple[Commands, list[Any]]) -> None:
    shown = " ".join(RUNNER.invoke(called[0], ["--help"]).output.split())
    for words in ("--coats", "--layers", "How often.", "--colours", "NAME", "--tin", "--is-dry"):
        assert words in shown
    assert "--no-is-dry" not in shown


@pytest.mark.parametrize(("coats", "is_good"), [(0, False), (1, True), (3, True), (4, False)])
def test_limits_of_options_are_checked(coats: int, is_good: bool) -> None:
    if is_good:
        check_options(Paint(coats=coats))
        return
    with pytest.raises(InputError, match=rf"coats: .*\b1\b.*\b3\b.*got {coats}"):
        check_options(Paint(coats=coats))


@pytest.mark.parametrize("options", [RunOptions, ReproduceOptions])
def test_a_flag_that_is_not_given_is_off(options: Any) -> None:
    flags = [field.name for field in fields(options) if isinstance(field.default, bool)]
    assert "keep_weights" in flags
    assert not any(getattr(options, name) for name in flags)


def test_every_option_of_a_run_is_declared_and_offered_by_both_commands() -> None:
    declared = declared_options(RunOptions)
    assert list(declared) == [field.name for field in fields(RunOptions)]
    for command in ("compare", "train"):
        shown = " ".join(RUNNER.invoke(app, [command, "--help"]).output.split())
        for name, option in declared.items():
            assert (option.names or (f"--{name.replace('_', '-')}",))[0] in shown, name


@pytest.mark.parametrize(
    ("count", "visible", "devices", "found"),
    [
        (2, "", "0,1", ("0", "1")),
        (2, "", "2", None),
        (2, "", "a", None),
        (2, "5,GPU-ab", "1,0", ("GPU-ab", "5")),
        (1, "5,99", "1", None),
        (0, "", "0", None),
        (0, "0", "0", None),
    ],
)
def test_devices_of_workers_are_on_this_machine(
    count: int,
    visible: str,
    devices: str,
    found: tuple[str, ...] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    options = WorkerOptions(devices=devices)
    if found is None:
        with pytest.raises(InputError, match=r"--devices: expected"):
            check_workers(options)
    else:
        check_workers(options)
        assert worker_devices(options) == found


def test_available_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    for device in ("cpu", "cuda", "cuda:1"):
        check_device(device)
    with pytest.raises(InputError, match=r"device: .*\b2\b.*got 'cuda:2'"):
        check_device("cuda:2")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(InputError, match=r"device: .*GPU"):
        check_device("cuda")
