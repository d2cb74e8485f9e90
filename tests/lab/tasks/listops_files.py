"""Helpers that write ListOps files in the format of the Long Range Arena."""

from __future__ import annotations

from pathlib import Path

from rifflemix.lab.tasks import Task
from rifflemix.lab.tasks.synthetic.grammar import END, OPERATOR, TOKENS
from rifflemix.lab.tasks.synthetic.listops import FILES


def write_tsv(task: Task, folder: Path) -> None:
    """Write the three files of a ListOps task."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, file in FILES.items():
        split = task.split(name)
        rows = (split[index] for index in range(len(split)))
        lines = [f"{to_source(bytes(tokens.tolist()))}\t{label}" for tokens, label in rows]
        (folder / file).write_text(
            "".join(f"{line}\r\n" for line in ("Source\tTarget", *lines)), newline=""
        )


def to_source(tokens: bytes) -> str:
    """Convert an expression to the Long Range Arena's format.

    The format adds a pair of round brackets per argument.
    """
    open_lists: list[list[str]] = [[]]
    for token in tokens:
        if OPERATOR <= token < END:
            open_lists.append([TOKENS[token]])
        elif token == END:
            operator, *arguments = open_lists.pop()
            brackets = "( " * (len(arguments) + 1)
            items = " ) ".join([*arguments, TOKENS[END]])
            open_lists[-1].append(f"{brackets}{operator} {items} )")
        else:
            open_lists[-1].append(TOKENS[token])
    return open_lists[0][0]
