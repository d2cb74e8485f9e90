"""Environment of a result: versions, hardware, commit and command."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

import torch

from rifflemix.lab.runs.processes import is_one_of_many
from rifflemix.plugins import plugin_files

_LIBRARIES = ("rifflemix", "torch", "numpy", "safetensors", "accelerate", "triton")


class Hardware(TypedDict):
    """Hardware of a result."""

    cpu: str
    cores: int | None
    threads: int
    memory_bytes: int | None
    gpu: str | None


class Environment(TypedDict):
    """Environment of a result, as returned by `environment`."""

    command: str
    time: str
    git_commit: str | None
    git_dirty: bool | None
    python: str
    platform: str
    libraries: dict[str, str]
    plugins: dict[str, str]
    hardware: Hardware


def environment() -> Environment:
    """Describe the environment of this process as JSON values.

    - command, python, platform
    - time (UTC, ISO 8601)
    - git_commit, git_dirty (None outside a checkout)
    - libraries (name -> version)
    - plugins (file name -> sha256)
    - hardware (cpu, cores, threads, memory_bytes, gpu)
    """
    commit, dirty = _git()
    return {
        "command": _command(),
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "git_commit": commit,
        "git_dirty": dirty,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "libraries": {name: v for name in _LIBRARIES if (v := _version(name)) is not None},
        "plugins": plugin_files(),
        "hardware": {
            "cpu": _cpu_name(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "memory_bytes": _memory_bytes(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
    }


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
    """Describe the hardware in one line for table captions."""
    hardware = environment["hardware"]
    return str(hardware["gpu"]) if hardware["gpu"] else describe_cpu(hardware)


def describe_cpu(hardware: Mapping[str, Any]) -> str:
    """Describe the processor, its cores and the number of threads."""
    threads = f"{hardware['threads']} thread{'' if hardware['threads'] == 1 else 's'}"
    return f"{hardware['cpu']}, {hardware['cores']} cores, {threads}"


def _version(name: str) -> str | None:
    if name == "torch":
        return str(torch.__version__)
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git() -> tuple[str | None, bool | None]:
    """Return the commit of this checkout, and whether its sources were modified."""
    root = Path(__file__).resolve().parents[4]
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
