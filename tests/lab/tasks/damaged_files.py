"""Archives of tasks, and checks that a task names a damaged or missing file."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from rifflemix.errors import InputError
from rifflemix.lab.tasks import load_task, prepare_task, task_status


def pack(path: Path, content: Mapping[str, bytes]) -> None:
    """Write a .tar.gz of these files."""
    with tarfile.open(path, "w:gz") as archive:
        for name, values in content.items():
            member = tarfile.TarInfo(name)
            member.size = len(values)
            archive.addfile(member, io.BytesIO(values))


def assert_names_file(task: str, data: Path, name: str) -> None:
    with pytest.raises(InputError, match=re.escape(name)):
        load_task(task, data_dir=data)


def assert_names_cut_file(task: str, data: Path, path: Path, end: float) -> None:
    """Cut a file at a share of its bytes, or at a position that is an int."""
    content = path.read_bytes()
    path.write_bytes(content[: end if isinstance(end, int) else int(len(content) * end)])
    assert_names_file(task, data, f"{path.name}:")


def assert_refuses_pickle(task: str, data: Path, name: str, wanted: str) -> None:
    """Check that the error about a pickle names the archive to use instead."""
    (data / name).parent.mkdir(exist_ok=True)
    (data / name).write_bytes(b"\x80\x02}q\x01.")
    assert_names_file(task, data, wanted)


def assert_prepares(task: str, data: Path, cache: Path, archive: str) -> None:
    """Check that the status names the archive, and changes after the preparation."""
    before = task_status(task, data).detail
    assert archive in before
    folder = prepare_task(task, data_dir=data)
    assert folder is not None
    assert folder.is_relative_to(cache)
    assert folder.is_dir()
    assert task_status(task, data).detail != before
