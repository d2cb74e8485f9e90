"""Command line, timing and result files that the scripts of this folder share."""

from __future__ import annotations

import argparse
import inspect
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch

from rifflemix.files import make_folder, write_json
from rifflemix.lab.bench.rows import write_dated
from rifflemix.lab.runs.environment import environment
from rifflemix.lab.runs.measure import median

Call = Callable[[], object]
Rows = list[dict[str, Any]]


def run(
    name: str,
    description: str | None,
    measure: Callable[..., Iterator[dict[str, Any]]],
    *,
    needs_gpu: bool = False,
) -> None:
    """Parse the command line, measure on one thread, and write NAME-DATE-TIME.json.

    Args:
        name: name of the script and of its result.
        description: text of --help.
        measure: yields the content of the result; later content replaces earlier content. Its
            parameters become options with the type of their defaults; a tuple is a list of values.
        needs_gpu: True if the script fails without a GPU.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawTextHelpFormatter, allow_abbrev=False
    )
    for option, parameter in inspect.signature(measure).parameters.items():
        default = parameter.default
        is_list = isinstance(default, tuple)
        parser.add_argument(
            f"--{option.replace('_', '-')}",
            default=default,
            nargs="+" if is_list else None,
            type=type(default[0] if is_list else default),
            help=f"default: {default}",
        )
    parser.add_argument(
        "--out", type=Path, default=Path("runs") / name, help="folder, or a new FILE.json"
    )
    options = vars(parser.parse_args())
    out = options.pop("out")
    if needs_gpu and not torch.cuda.is_available():
        parser.error("device: expected a GPU, got none. Run this script on a machine with a GPU.")
    path = out if out.suffix == ".json" else None
    make_folder(out.parent if path else out)
    torch.set_num_threads(1)
    for content in measure(**options):
        form = {"format": f"rifflemix.{name}/1", "environment": environment()}
        if path is None:
            path = write_dated(out, name, form | content)
        else:
            write_json(path, form | content)
    print(path)


def graph_times(call: Call, captured: bool = True) -> dict[str, Any]:
    """Time a call on the GPU; return `seconds` and `median`, or `error` if it is refused.

    With `captured`, the call runs from a CUDA graph, and each time is the mean of several calls.
    """
    from triton.testing import do_bench, do_bench_cudagraph

    bench = do_bench_cudagraph if captured else do_bench
    try:
        seconds = [ms / 1000 for ms in bench(call, return_mode="all")]
    except Exception as error:  # of a kernel or of its capture
        return {"error": str(error).splitlines()[0][:200]}
    return {"seconds": seconds, "median": median(seconds)}
