"""Commands in the documentation are valid for the command line and the scripts."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from document_scripts import PAGES, REPOSITORY
from rifflemix.cli.app import app
from rifflemix.lab.recipes import list_recipes
from rifflemix.lab.tasks import list_tasks
from rifflemix.mixers import list_mixers

BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
SHELLS = {"", "sh", "bash", "shell", "console"}
COMMAND = re.compile(r"(?:^|\s|-m )rifflemix ([\w-].*)")
SCRIPT = re.compile(r"python ((?:benchmarks|docs|examples)/[\w/]+\.py)([^\n`#]*)")
ENDS = {"|", ">", "2>", "&&", "&", ";"}
OWN = {"mine", "permuted", "previous"}
"""Mixers of plugins on pages."""


def commands(text: str) -> Iterator[list[str]]:
    """Yield the arguments of every `rifflemix ...` in shell code blocks."""
    blocks = [block for language, block in BLOCK.findall(text) if language in SHELLS]
    for block in blocks:
        for line in block.replace("\\\n", " ").splitlines():
            found = COMMAND.search(line.partition("#")[0])
            if found is None or line.lstrip().startswith(("pip ", "import ", "from ")):
                continue
            arguments = shlex.split(found[1])
            ends = [at for at, word in enumerate(arguments) if word in ENDS]
            yield arguments[: ends[0]] if ends else arguments


the_command = functools.cache(typer.main.get_command)


def parse(arguments: list[str]) -> dict[str, object]:
    """Parse a command without running it; return the values it would get.

    Raises:
        Exception: On wrong usage, as from the command line.
    """
    command = the_command(app)
    context = command.make_context("rifflemix", list(arguments))
    while hasattr(command, "resolve_command"):
        # Newer versions of typer keep the command's name apart from its arguments.
        rest = [*getattr(context, "_protected_args", []), *context.args]
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)
    return dict(context.params)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_parse(page: Path) -> None:
    for arguments in commands(page.read_text(encoding="utf-8")):
        try:
            values = parse(arguments)
        except typer.Exit:  # --help, --version
            continue
        except Exception as error:
            pytest.fail(f"rifflemix {shlex.join(arguments)}: {error}")
        is_own = bool(values.get("plugin"))
        for name, known in (("task", list_tasks()), ("recipe", list_recipes())):
            value = values.get(name)
            assert value is None or is_own or value in known, shlex.join(arguments)
        labeled = str(values.get("mixers") or "").split(",")
        stacks = (mixer.rpartition("=")[2].split("+") for mixer in labeled)
        named = {mixer for stack in stacks for mixer in stack}
        assert named <= {"", "all", *list_mixers(), *(OWN if is_own else ())}, shlex.join(arguments)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_scripts_take_the_options(page: Path) -> None:
    for path, rest in SCRIPT.findall(page.read_text(encoding="utf-8")):
        source = (REPOSITORY / path).read_text(encoding="utf-8")
        known = set(re.findall(r'"(--[a-z-]+)"', source))
        if "from harness import" in source:  # options are the parameters of `measure`
            parameters = re.search(r"def measure\((.*?)\) ->", source, re.DOTALL)[1]  # type: ignore[index]
            names = re.findall(r"(\w+): [^=]+ = ", parameters)
            known |= {"--out", *(f"--{name.replace('_', '-')}" for name in names)}
        unknown = [flag for flag in re.findall(r"--[a-z][\w-]*", rest) if flag not in known]
        assert not unknown, f"{path}{rest}"


def test_a_wrong_command_is_found() -> None:
    text = "```\nrifflemix bench ops --no-such | head  # a note\n```\n"
    ((*arguments,),) = commands(text)
    assert arguments == ["bench", "ops", "--no-such"]
    with pytest.raises(Exception, match="--no-such"):
        parse(arguments)
