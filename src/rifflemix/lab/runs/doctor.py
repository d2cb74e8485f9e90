"""Checks of an installation for `rifflemix doctor`, with imports in new processes."""

from __future__ import annotations

import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import IO

import torch

from rifflemix.errors import InputError
from rifflemix.lab.tasks import list_tasks, task_status
from rifflemix.lab.tasks.data_io.files import cache_root
from rifflemix.ops.native import build_log, find_library, instruction_level
from rifflemix.ops.permutation.cpu import SORTS_LONG_KEYS
from rifflemix.ops.permutation.cpu_common import supports as permutes
from rifflemix.ops.statistics import cpu as statistics
from rifflemix.ops.triton_support import why_not_triton
from rifflemix.plugins import GROUPS
from rifflemix.version import VERSION

_CODE = """
import importlib, os, sys
module, _, attribute = sys.argv[1].partition(":")
report = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="backslashreplace")
os.dup2(2, 1)
try:
    found = importlib.import_module(module)
    for name in filter(None, attribute.split(".")):
        found = getattr(found, name)
    text = "imported"
except BaseException as error:
    text = f"{type(error).__name__}: {error}"
report.write(text)
report.flush()
os._exit(0)
"""
_MOST_CHARACTERS = 300


def failed_imports(targets: Iterable[str], *, seconds: float = 60.0) -> dict[str, str]:
    """Import each target in a new process.

    Args:
        targets: modules, or objects as MODULE:NAME.
        seconds: time limit; slower processes are killed.

    Returns:
        Target -> one-line reason, for each target that cannot be imported.
    """
    waiting, running = list(dict.fromkeys(targets)), list[_Import]()
    failures: dict[str, str] = {}
    with ExitStack() as stack:
        while waiting or running:
            while waiting and len(running) < (os.cpu_count() or 1):
                # A pipe would stay open as long as processes that the package started.
                report = stack.enter_context(tempfile.TemporaryFile())
                one = _Import(waiting.pop(0), report, time.monotonic() + seconds)
                stack.callback(one.kill)
                running.append(one)
            for one in [one for one in running if one.has_ended()]:
                running.remove(one)
                reason = one.reason(seconds)
                if reason:
                    failures[one.target] = reason
            time.sleep(0.01)
    return failures


class _Import:
    """Process that imports a target."""

    def __init__(self, target: str, report: IO[bytes], end: float) -> None:
        self.target = target
        self._report = report
        self._end = end
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _CODE, target],
            stdin=subprocess.DEVNULL,
            stdout=report,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def has_ended(self) -> bool:
        """Return whether the process has ended or its time is up."""
        return self._process.poll() is not None or time.monotonic() >= self._end

    def reason(self, seconds: float) -> str:
        """End the process and return the reason of failure, or ""."""
        code = self._process.poll()
        self.kill()
        if code is None:
            return f"the import takes more than {seconds:g} s"
        self._report.seek(0)
        text = " ".join(self._report.read().decode("utf-8", "replace").split())
        if not text:
            end = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
            return f"the import ended Python with {end}"
        return "" if text == "imported" else text[:_MOST_CHARACTERS]

    def kill(self) -> None:
        """End the process and the processes that it started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


OK, ABSENT, BROKEN = "ok", "absent", "broken"
LOWEST_TORCH = (2, 8)
# Extra -> distributions; a test compares this with pyproject.toml.
EXTRAS = {
    "cli": ("typer", "rich"),
    "compare": ("accelerate", "matplotlib", "jinja2", "msgspec", "scipy", "scikit-learn"),
    "data": ("datasets", "tokenizers", "soundfile"),
    "images": ("pillow", "scipy"),
    "graph": ("rdkit", "scipy"),
    "vision": ("timm",),
    "hf": ("transformers",),
    "onnx": ("onnx", "onnxscript"),
    "slurm": ("submitit",),
    "gpu": ("triton",),
}
# Distribution -> module to import, if the names differ.
_MODULES = {
    "matplotlib": "matplotlib.figure",
    "pillow": "PIL.Image",
    "rdkit": "rdkit.Chem",
    "scikit-learn": "sklearn.metrics",
    "scipy": "scipy.sparse.csgraph",
    "transformers": "transformers.modeling_utils",
}
_LEVELS = {4: "AVX-512", 3: "AVX2", 2: "NEON", 1: "no vector instructions"}


@dataclass(frozen=True)
class Finding:
    """Result of one check.

    Attributes:
        name: name of the checked part.
        state: "ok", "absent" (an optional part that is not installed) or "broken" (an installed
            part that does not work).
        detail: location or version, or the reason for the failure and what to do.
        output: output lines of another program, such as a compiler.
    """

    name: str
    state: str
    detail: str
    output: str = ""


def examine(data_dir: Path | None = None) -> list[Finding]:
    """Check the installation: fast paths, extras, plugins, devices, cache folder and data.

    Optional packages are imported in new processes.

    Args:
        data_dir: folder of data files, as in the option --data-dir.

    Raises:
        InputError: `data_dir` is not a folder.
    """
    versions = {name: _version(name) for names in EXTRAS.values() for name in names}
    modules = [_module(name) for name, version in versions.items() if version is not None]
    points = [point for group in GROUPS.values() for point in entry_points(group=group)]
    failures = failed_imports([*modules, *(point.value for point in points)])
    return [
        _versions(),
        _kernels(),
        *_fast_paths(),
        _threads(),
        _gpu(),
        *_extras(versions, failures),
        *_plugins(points, failures),
        _cache(),
        _data(data_dir, {point.name for point in points if point.group == GROUPS["task"]}),
    ]


def _versions() -> Finding:
    version = str(torch.__version__)
    numbers = tuple(map(int, re.findall(r"\d+", version)[:2]))
    lowest = ".".join(map(str, LOWEST_TORCH))
    detail = (
        f"rifflemix {VERSION} in {Path(__file__).parents[2]}, torch {version}, "
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
    can_permute = permutes(torch.empty(1, 4, 1))
    served = {
        "sorts on the CPU": can_permute and SORTS_LONG_KEYS,
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


def _extras(versions: Mapping[str, str | None], failures: Mapping[str, str]) -> Iterator[Finding]:
    for extra, distributions in EXTRAS.items():
        missing = [name for name in distributions if versions[name] is None]
        broken = [name for name in distributions if _module(name) in failures]
        state, parts = OK, [f"{name} {versions[name]}" for name in distributions]
        if missing or broken:
            state = BROKEN if broken else ABSENT
            parts = [
                f"cannot import {name} {versions[name]}: {failures[_module(name)]}"
                for name in broken
            ]
        if missing:
            parts.append(f'no {", ".join(missing)}: pip install "rifflemix[{extra}]"')
        yield Finding(f"extra {extra}", state, (", " if state == OK else "; ").join(parts))


def _module(distribution: str) -> str:
    return _MODULES.get(distribution, distribution)


def _plugins(points: Sequence[EntryPoint], failures: Mapping[str, str]) -> Iterator[Finding]:
    kinds = {group: kind for kind, group in GROUPS.items()}
    for point in points:
        kind = kinds[point.group]
        package = "an unknown package" if point.dist is None else f"package {point.dist.name}"
        detail = f"{point.value} of {package}"
        if point.value in failures:
            reason = failures[point.value]
            yield Finding(f"{kind} {point.name}", BROKEN, f"cannot import {detail}: {reason}")
        else:
            yield Finding(f"{kind} {point.name}", OK, detail)


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
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


def _data(data_dir: Path | None, of_plugins: Set[str]) -> Finding:
    """Count the tasks with data.

    Plugin tasks are skipped, because counting would import them.
    """
    names = [name for name in list_tasks() if name not in of_plugins]
    count = sum(task_status(name, data_dir).available for name in names)
    where = "without --data-dir" if data_dir is None else f"with --data-dir {data_dir}"
    detail = f"{count} of {len(names)} tasks have theirs at hand {where}; see `rifflemix data list`"
    return Finding("data", OK, detail)
