"""What this installation can do, and why it cannot do the rest: `rifflemix doctor`."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

import rifflemix
from rifflemix.errors import InputError
from rifflemix.ops.native import build_log, find_library, instruction_level
from rifflemix.ops.permutation import cpu as permutation
from rifflemix.ops.statistics import cpu as statistics
from rifflemix.ops.triton_support import why_not_triton
from rifflemix.tasks import list_tasks, task_status
from rifflemix.tasks.data_io.files import cache_root

OK, ABSENT, BROKEN = "ok", "absent", "broken"
LOWEST_TORCH = (2, 8)
# Distributions of each extra that a user may install; a test holds it against pyproject.toml.
EXTRAS = {
    "cli": ("typer", "rich"),
    "compare": ("accelerate", "matplotlib", "jinja2", "scipy"),
    "data": ("datasets", "tokenizers"),
    "images": ("pillow", "scipy"),
    "graph": ("rdkit", "scipy"),
    "vision": ("timm",),
    "hf": ("transformers",),
    "gpu": ("triton",),
}
_LEVELS = {4: "AVX-512", 3: "AVX2", 2: "NEON", 1: "no vector instructions"}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: what it is.
        state: "ok"; "absent", if it is optional and not there; "broken", if it should work and
            does not.
        detail: where or which it is, or why it is not there and what to do.
        output: what another program said about it, in its own lines.
    """

    name: str
    state: str
    detail: str
    output: str = ""


def examine(data_dir: Path | None = None) -> list[Finding]:
    """Look at the installation, its fast paths, extras, devices, cache folder and data.

    Args:
        data_dir: folder of data files, as the commands take it.

    Raises:
        InputError: `data_dir` is no folder.
    """
    return [
        _versions(),
        _kernels(),
        *_fast_paths(),
        _threads(),
        _gpu(),
        *_extras(),
        _cache(),
        _data(data_dir),
    ]


def _versions() -> Finding:
    version = str(torch.__version__)
    numbers = tuple(map(int, re.findall(r"\d+", version)[:2]))
    lowest = ".".join(map(str, LOWEST_TORCH))
    detail = (
        f"rifflemix {rifflemix.__version__} in {Path(rifflemix.__file__).parent}, torch {version}, "
        f"Python {platform.python_version()}"
    )
    if numbers < LOWEST_TORCH:
        return Finding("versions", BROKEN, f"{detail}; torch {lowest} or newer is needed")
    return Finding("versions", OK, detail)


def _kernels() -> Finding:
    kernels, where = find_library()
    if kernels is not None:
        return Finding("compiled kernels", OK, where)
    return Finding("compiled kernels", BROKEN, where, build_log())


def _fast_paths() -> Iterator[Finding]:
    level = instruction_level()
    can_permute = permutation.supports(torch.empty(1, 4, 1))
    served = {
        "sorts on the CPU": can_permute and permutation.SORTS_LONG_KEYS,
        "shifts and pairs on the CPU": can_permute,
        "token statistics on the CPU": statistics.supports(torch.empty(1, 1, 1, 1)),
    }
    for name, is_served in served.items():
        if is_served:
            yield Finding(name, OK, f"compiled kernels, {_LEVELS[level]}")
        elif level == 0:
            yield Finding(name, ABSENT, "plain torch: there are no compiled kernels")
        else:
            yield Finding(name, ABSENT, f"plain torch, which is as fast here: {_LEVELS[level]}")
    why = why_not_triton()
    yield Finding("Triton on the GPU", ABSENT if why else OK, why or "Triton's kernels")


def _threads() -> Finding:
    threads, cores = torch.get_num_threads(), os.cpu_count() or 1
    policy = os.environ.get("OMP_WAIT_POLICY", "not set")
    detail = f"torch uses {threads} of {cores} cores; OMP_WAIT_POLICY is {policy}"
    if threads > cores:
        return Finding("CPU threads", BROKEN, f"{detail}; more threads than cores wait: --threads")
    return Finding("CPU threads", OK, detail)


def _gpu() -> Finding:
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        return Finding("GPU", OK, ", ".join(names))
    if torch.version.cuda is None:
        return Finding("GPU", ABSENT, "this torch is built for the CPU alone")
    return Finding("GPU", ABSENT, "torch finds none")


def _extras() -> Iterator[Finding]:
    for extra, distributions in EXTRAS.items():
        found = {name: _version(name) for name in distributions}
        missing = [name for name, version in found.items() if version is None]
        detail = ", ".join(f"{name} {version}" for name, version in found.items() if version)
        if missing:
            detail = f'no {", ".join(missing)}: pip install "rifflemix[{extra}]"'
        yield Finding(f"extra {extra}", ABSENT if missing else OK, detail)


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cache() -> Finding:
    try:
        folder = cache_root()
    except InputError as error:
        return Finding("cache folder", BROKEN, str(error))
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        detail = f"{folder} cannot be written; set RIFFLEMIX_CACHE to a folder that can"
        return Finding("cache folder", BROKEN, detail)
    return Finding(
        "cache folder", OK, f"{folder}" if there == folder else f"{folder}, not yet made"
    )


def _data(data_dir: Path | None) -> Finding:
    names = list_tasks()
    count = sum(task_status(name, data_dir).available for name in names)
    where = "without --data-dir" if data_dir is None else f"with --data-dir {data_dir}"
    detail = f"{count} of {len(names)} tasks have theirs at hand {where}; see `rifflemix data list`"
    return Finding("data", OK, detail)
