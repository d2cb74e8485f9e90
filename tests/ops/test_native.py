"""The compiled library loads, or a failure is only logged."""

from __future__ import annotations

import logging
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from logging.handlers import BufferingHandler
from pathlib import Path

import pytest

from rifflemix.ops import native

FILE = native._LIBRARY
CPUINFO = Path("/proc/cpuinfo")
WITHOUT_TORCH = Path(__file__).with_name("without_torch.py")
load = native.library.__wrapped__
INTERFACE = 'extern "C" int rifflemix_interface() {{ return INTERFACE + {}; }}\n'
LEVEL = 'extern "C" int rifflemix_instruction_level() {{ return {}; }}\n'


@pytest.fixture
def records() -> Iterator[list[logging.LogRecord]]:
    """Collect log records of rifflemix; pyproject.toml disables pytest's `caplog`."""
    logger, handler = logging.getLogger("rifflemix"), BufferingHandler(100)
    level = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    yield handler.buffer
    logger.removeHandler(handler)
    logger.setLevel(level)


def test_missing_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, records: list[logging.LogRecord]
) -> None:
    monkeypatch.setattr(native, "_FOLDER", tmp_path)
    assert load() is None
    (record,) = records
    assert record.levelno == logging.DEBUG
    assert str(tmp_path) in record.getMessage()


def test_broken_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / FILE).write_bytes(b"not a library")
    monkeypatch.setattr(native, "_FOLDER", tmp_path)
    assert load() is None


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a compiler")
@pytest.mark.parametrize(
    ("source", "loads"),
    [
        (INTERFACE.format(0) + LEVEL.format(1), True),
        (INTERFACE.format(1) + LEVEL.format(1), False),
        (INTERFACE.format(0) + LEVEL.format(0), False),
        ("int something_else;", False),
    ],
    ids=["same", "another interface", "an old processor", "no interface"],
)
def test_library_of_another_version(
    source: str,
    loads: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    records: list[logging.LogRecord],
) -> None:
    (tmp_path / "library.cpp").write_text(source)
    subprocess.run(
        ["g++", "-shared", "-fPIC", f"-DINTERFACE={native._INTERFACE}", "library.cpp", "-o", FILE],
        cwd=tmp_path,
        check=True,
        timeout=240,
    )
    monkeypatch.setattr(native, "_FOLDER", tmp_path)
    assert (load() is not None) == loads
    assert len(records) == (0 if loads else 1)


def test_instruction_level() -> None:
    assert native.instruction_level() in (range(1, 5) if native.library() is not None else (0,))


# CPU features that the kernels of each level need, with the names of Linux.
V3 = {"sse4_2", "popcnt", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"}
V4 = V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}


@pytest.mark.skipif(native.library() is None, reason="needs the compiled kernels")
@pytest.mark.skipif(
    not (CPUINFO.exists() and platform.machine() == "x86_64"), reason="needs Linux on x86-64"
)
def test_instruction_level_equals_the_flags_of_linux() -> None:
    flags = set(re.findall(r"^flags\s*: (.*)$", CPUINFO.read_text(), re.MULTILINE)[0].split())
    assert flags >= V3
    assert native.instruction_level() == (4 if flags >= V4 else 3)


@pytest.mark.skipif(native.library() is None, reason="needs the compiled kernels")
def test_kernels_have_their_own_threads() -> None:
    command = [sys.executable, str(WITHOUT_TORCH), str(native._FOLDER / FILE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
