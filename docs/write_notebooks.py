"""Make docs/notebooks/*.ipynb from the Python files beside them, with what their cells put out.

A notebook is written as a Python file of cells (jupytext's "percent" format): a change of it reads
like any other, and ruff checks it. What ships, and what the site shows, is the notebook. All are
made anew by

    make notebooks            # or python docs/write_notebooks.py [NAME ...]

which fails, and writes nothing, where a cell raises or warns.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# As the notebooks themselves say; but BEFORE imports torch earlier than they do.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

import jupytext
import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent / "notebooks"
SOURCES = tuple(sorted(FOLDER.glob("*.py")))
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
LIMIT = 600
"""Seconds that one cell may take, or the start of a kernel."""
# timm imports torchvision, which some indexes have for another build of torch than the one here.
SHIM = FOLDER.parents[1] / "tests" / "surgery"
BEFORE = f"""
import sys
sys.path.insert(0, {str(SHIM)!r})
from torchvision_shim import declare_operators
declare_operators()
sys.path.pop(0)
"""


class Spoke(Exception):
    """A cell wrote to stderr, which is where warnings go."""


def as_notebook(source: Path) -> Any:
    """The notebook of a source file, its cells not run yet."""
    written = jupytext.read(source, fmt="py:percent")
    notebook = nbformat.v4.new_notebook(cells=written.cells)
    notebook.metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"  # else drawn at random
        cell.metadata = {}
    return notebook


def executed(source: Path) -> Any:
    """The notebook with the outputs of all its cells, run from the top by a kernel of its own.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell raised.
        Spoke: a cell warned, or wrote to stderr otherwise.
    """
    notebook = as_notebook(source)
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
    notebook.metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    nbformat.validate(notebook)
    return notebook


def _refuse_stderr(cell: Any, **_: Any) -> None:
    for output in cell.get("outputs", ()):
        if output.output_type == "stream" and output.name == "stderr":
            raise Spoke(f"{output.text.strip()}\nin\n{cell.source}")


def main() -> int:
    """All notebooks, or those that are named."""
    parser = argparse.ArgumentParser(description="run the notebooks and keep what they put out")
    parser.add_argument("names", nargs="*", help="without .ipynb; all of them if none is given")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder to write to")
    arguments = parser.parse_args()
    known = {path.stem: path for path in SOURCES}
    if unknown := [name for name in arguments.names if name not in known]:
        parser.error(f"no notebook {', '.join(unknown)}; there are {', '.join(known)}")
    for name in arguments.names or known:
        notebook = executed(known[name])
        nbformat.write(notebook, arguments.out / f"{name}.ipynb")
        print(f"{name}.ipynb")
    return 0


if __name__ == "__main__":
    sys.exit(main())
