"""docs/cli.md: commands and options, from the command-line application."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from common import DOCS

from rifflemix.cli.app import app
from rifflemix.text import Markdown, code, markdown_text, table_lines

_INTRODUCTION = """# Command line

Commands of `rifflemix` and their options. `rifflemix COMMAND --help` prints the same texts.
Bad input ends with one sentence and exit code 2.
"""


def files() -> dict[Path, str]:
    """Return the page."""
    group: Any = typer.main.get_command(app)
    parts = [_INTRODUCTION]
    for name, command in _commands("rifflemix", group):
        parts += [f"\n## {name}\n", _text(command.help)]
        rows = [
            [Markdown(", ".join(map(code, param.opts or [param.name]))), _text(param.help)]
            for param in command.params
            if not param.hidden and param.name != "help"
        ]
        if rows:
            parts += ["", *table_lines(["option", "meaning"], rows)]
    return {DOCS / "cli.md": "\n".join(parts).rstrip() + "\n"}


def _commands(name: str, group: Any) -> Iterator[tuple[str, Any]]:
    """Yield the full name of each command, and the command."""
    for key in sorted(group.commands):
        command = group.commands[key]
        if hasattr(command, "commands"):
            yield from _commands(f"{name} {key}", command)
        elif not command.hidden:
            yield f"{name} {key}", command


def _text(text: str | None) -> Markdown:
    """Return the first paragraph of a help text, without markup except for code."""
    first = (text or "").strip().partition("\n\n")[0]
    return Markdown(markdown_text(re.sub(r"\[/?[a-z ]+\]", "", first)).replace("\\`", "`"))
