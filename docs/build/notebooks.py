"""Run docs/notebooks/*.ipynb from the top and store their outputs.

    python docs/build/build.py notebooks [NAME ...]

The command writes nothing if a cell raises an error or a warning.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# The notebooks set it, too, but BEFORE imports torch earlier.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

import nbformat
from common import DOCS, ROOT
from nbclient import NotebookClient

FOLDER = DOCS / "notebooks"
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
LIMIT = 600
"""Seconds for a cell, or for the start of a kernel."""
# timm imports torchvision, which may be missing or built for another torch.
BEFORE = f"""
import sys
sys.path.insert(0, {str(ROOT / "tests" / "surgery")!r})
from torchvision_shim import declare_operators
declare_operators()
sys.path.pop(0)
"""


class WroteToStderr(Exception):
    """A cell wrote to stderr, such as a warning."""


def executed(source: Path) -> Any:
    """Run a notebook in a new kernel and return it with the outputs of all cells.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell raised an error.
        WroteToStderr: a cell warned, or wrote to stderr.
    """
    notebook = nbformat.read(source, as_version=4)
    NotebookClient(
        notebook,
        timeout=LIMIT,
        startup_timeout=LIMIT,
        kernel_name=KERNEL["name"],
        record_timing=False,
        coalesce_streams=True,
        on_cell_executed=_refuse_stderr,
        extra_arguments=[f"--IPKernelApp.exec_lines={BEFORE.strip().splitlines()!r}"],
        resources={"metadata": {"path": str(FOLDER)}},
    ).execute()
    for cell in notebook.cells:
        if "outputs" in cell:  # without tables of progress
            cell.outputs = [of for of in cell.outputs if "text/html" not in of.get("data", {})]
    notebook.metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    nbformat.validate(notebook)
    return notebook


def _refuse_stderr(cell: Any, **_: Any) -> None:
    for output in cell.get("outputs", ()):
        if output.output_type == "stream" and output.name == "stderr":
            raise WroteToStderr(f"{output.text.strip()}\nin\n{cell.source}")


def main(words: Sequence[str]) -> None:
    """Run all notebooks, or some of them."""
    parser = argparse.ArgumentParser(description="run notebooks and store their outputs")
    parser.add_argument("names", nargs="*", help="without .ipynb; all if none is given")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder to write to")
    arguments = parser.parse_args(words)
    known = {path.stem: path for path in sorted(FOLDER.glob("*.ipynb"))}
    if unknown := [name for name in arguments.names if name not in known]:
        parser.error(f"names: expected some of {', '.join(known)}, got {', '.join(unknown)}")
    for name in arguments.names or known:
        nbformat.write(executed(known[name]), arguments.out / f"{name}.ipynb")
        print(f"{name}.ipynb")
