"""Environment of a run: versions, hardware, commit, command, device and threads."""

from __future__ import annotations

import datetime
import functools
import gc
import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from rifflemix.errors import InputError, bad_argument
from rifflemix.files import CONFIG_FILE, read_json
from rifflemix.lab.runs.options import is_one_of_many
from rifflemix.plugins import plugin_files

_gpus_elsewhere = False


@contextmanager
def gpus_elsewhere(are_there: bool) -> Iterator[None]:
    """Inside, accept GPUs that this machine lacks, for runs on other machines."""
    global _gpus_elsewhere
    before, _gpus_elsewhere = _gpus_elsewhere, are_there
    try:
        yield
    finally:
        _gpus_elsewhere = before


def resolve_device(device: str) -> str:
    """Replace `auto` by cuda if a GPU is available, else by cpu."""
    if device != "auto":
        return device
    return "cuda" if _gpus_elsewhere or torch.cuda.is_available() else "cpu"


def check_device(device: str) -> None:
    """Raise InputError unless `device` is available."""
    try:
        found = torch.device(device)
    except RuntimeError:
        raise bad_argument("device", "cpu, cuda or cuda:<number>", repr(device)) from None
    kind = found.type
    if kind == "cuda" and _gpus_elsewhere:
        return
    if kind == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device: expected one that is there, got {device!r}; no GPU was found")
    if kind == "cuda" and (found.index or 0) >= (count := torch.cuda.device_count()):
        raise bad_argument("device", f"an index under {count}", repr(device))
    if kind not in ("cpu", "cuda") or (kind == "cpu" and found.index):
        raise bad_argument("device", "cpu, cuda or cuda:<number>", repr(device))


_WORK_OF_A_THREAD = 100_000_000


def default_threads(parameters: int, tokens: int, device: str, out: Path) -> int:
    """Choose the number of CPU threads by the size of the model.

    A run that continues keeps its number, because the bits of its results depend on it. A new run
    on the CPU has one thread for every 100 million products of a parameter and a token in an
    update, and at most torch's number. With less work, threads wait for each other longer than
    they compute: with two threads, a model of 72,322 parameters needs twice as long for 512 tokens.

    Args:
        parameters: approximate number of parameters.
        tokens: tokens of an update.
        device: device of the run.
        out: folder of the run.
    """
    if (stored := stored_threads(out)) is not None:
        return stored
    most = torch.get_num_threads()
    return most if device != "cpu" else min(most, 1 + parameters * tokens // _WORK_OF_A_THREAD)


def stored_threads(out: Path) -> int | None:
    """Return the number of CPU threads in the config.json of a folder, if it has one."""
    path = out / CONFIG_FILE
    stored = read_json(path) if path.is_file() else {}
    threads = stored.get("threads") if isinstance(stored, dict) else None
    return threads if isinstance(threads, int) else None


@contextmanager
def using_threads(count: int | None) -> Iterator[None]:
    """Set the number of torch's CPU threads inside the context; None keeps the number."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if count is None else count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


_LIBRARIES = ("rifflemix", "torch", "numpy", "safetensors", "accelerate", "triton")


@dataclass(frozen=True)
class Hardware:
    """Hardware of a result."""

    cpu: str
    cores: int | None
    threads: int
    memory_bytes: int | None = None
    gpu: str | None = None

    def describe_cpu(self) -> str:
        """Describe the processor, its cores and the number of threads."""
        threads = f"{self.threads} thread{'' if self.threads == 1 else 's'}"
        return f"{self.cpu}, {self.cores} cores, {threads}"


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Environment of a result.

    Attributes:
        command: command line of the process.
        time: UTC, in ISO 8601.
        git_commit, git_dirty: None outside a checkout.
        python, platform: version of Python; system and machine.
        libraries: name -> version.
        plugins: file name -> sha256.
        hardware: processor, memory and GPU.
    """

    command: str
    time: str
    git_commit: str | None
    git_dirty: bool | None
    python: str
    platform: str
    libraries: dict[str, str]
    plugins: dict[str, str] = field(default_factory=dict)
    hardware: Hardware


def this_environment() -> Environment:
    """Describe the environment of this process."""
    commit, dirty = _git()
    return Environment(
        command=_command(),
        time=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        git_commit=commit,
        git_dirty=dirty,
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        libraries={name: v for name in _LIBRARIES if (v := _version(name)) is not None},
        plugins=plugin_files(),
        hardware=Hardware(
            cpu=_cpu_name(),
            cores=os.cpu_count(),
            threads=torch.get_num_threads(),
            memory_bytes=_memory_bytes(),
            gpu=torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        ),
    )


def environment() -> dict[str, Any]:
    """Describe the environment of this process as JSON values.

    Returns:
        Versions, commit, platform and hardware.

    Example:
        >>> import rifflemix as rm
        >>> sorted(rm.bench.environment()["hardware"])[:3]
        ['cores', 'cpu', 'gpu']
    """
    return asdict(this_environment())


def _command() -> str:
    """Return the command line with the environment variables of the allocator."""
    program = Path(sys.argv[0]).name
    words = ["rifflemix" if program == "__main__.py" else program, *sys.argv[1:]]
    here = os.environ.get("LOCAL_WORLD_SIZE")  # set by torchrun; other launchers may not set it
    if is_one_of_many() and here is not None and program == "__main__.py":
        words = ["torchrun", "--nproc-per-node", here, "-m", *words]
    allocator = (f"{k}={v}" for k, v in sorted(os.environ.items()) if k.startswith("MALLOC_"))
    return shlex.join([*allocator, *words])


def describe_hardware(environment: dict[str, Any]) -> str:
    """Describe the hardware of an environment in one line for table captions.

    Args:
        environment: result of `environment()`.

    Returns:
        Processor, cores, threads and GPU.

    Example:
        >>> import rifflemix as rm
        >>> "thread" in rm.bench.describe_hardware(rm.bench.environment())
        True
    """
    hardware = Hardware(**environment["hardware"])
    return hardware.gpu or hardware.describe_cpu()


@functools.cache
def _version(name: str) -> str | None:
    if name == "torch":
        return str(torch.__version__)
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git() -> tuple[str | None, bool | None]:
    """Return the commit of this checkout, and whether its sources were modified."""
    return _checkout(Path(__file__).resolve().parents[4])


@functools.cache  # a process runs the sources that it imported, not later ones
def _checkout(root: Path) -> tuple[str | None, bool | None]:
    if not (root / ".git").exists():
        return None, None
    try:
        commit = _run(root, "git", "rev-parse", "HEAD")
        dirty = bool(_run(root, "git", "status", "--porcelain", "--", "src"))
    except (OSError, subprocess.SubprocessError):
        return None, None
    return commit, dirty


def _run(folder: Path, *command: str) -> str:
    # GIT_DIR and similar variables would select another repository, index or configuration.
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(
        command, cwd=folder, env=own, capture_output=True, text=True, check=True, timeout=10
    )
    return done.stdout.strip()


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


@contextmanager
def fast_garbage_collection() -> Iterator[None]:
    """Exclude the objects that exist now from garbage collection inside the context.

    accelerate collects garbage after each training. This takes 0.13 seconds with the objects of
    torch. A short training takes 2 seconds. The first runs import more, so enter a context before
    each run and exit all of them after the last.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
