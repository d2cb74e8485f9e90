"""Locks end with their process, and temporary folders with the next command."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rifflemix.errors import InputError
from rifflemix.files import write_json
from rifflemix.locks import locked, scratch_folder


def test_lock_within_a_process(tmp_path: Path) -> None:
    with locked(tmp_path):
        refusal = pytest.raises(InputError, match="in use")
        with refusal, locked(tmp_path):
            pass
    with locked(tmp_path):
        pass


HOLD_AND_FORK = """
import os, sys, time
from pathlib import Path
from rifflemix.locks import locked
with locked(Path(sys.argv[1])):
    child = os.fork()
    if child:
        print(child, flush=True)
    time.sleep(60)
"""


@pytest.mark.slow
def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(InputError, match=r"Function not impl"), locked(tmp_path):
        pass


def test_lock_is_not_kept_by_a_forked_child(tmp_path: Path) -> None:
    """Check forks: data loading processes outlive a killed parent by seconds."""
    command = [sys.executable, "-c", HOLD_AND_FORK, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        child = int(holder.stdout.readline())
        time.sleep(0.2)  # for the child to start
        with pytest.raises(InputError, match="in use"), locked(tmp_path):
            pass
        holder.kill()
        holder.wait()
        try:
            with locked(tmp_path):
                pass
        finally:
            os.kill(child, signal.SIGKILL)


def test_lock_ends_with_its_process(tmp_path: Path) -> None:
    code = (
        "import fcntl, os, sys, time\n"
        "fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\n"
        "fcntl.flock(fd, fcntl.LOCK_EX)\n"
        "print('held', flush=True)\n"
        "time.sleep(60)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / ".lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(InputError, match="in use"), locked(tmp_path):
            pass
        holder.kill()
        holder.wait()
    with locked(tmp_path):
        pass


KILLED_WRITER = """
import os, sys
from pathlib import Path
from rifflemix.locks import scratch_folder
with scratch_folder(Path(sys.argv[1])) as folder:
    (folder / "half").write_text("half")
    if sys.argv[2] == "killed":
        os.kill(os.getpid(), 9)
    print("busy", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def leftover(tmp_path: Path) -> Path:
    """Create the temporary folder of a killed process."""
    command = [sys.executable, "-c", KILLED_WRITER, str(tmp_path), "killed"]
    subprocess.run(command, check=False, capture_output=True)
    (folder,) = tmp_path.iterdir()
    return folder


def test_next_write_deletes_files_of_a_killed_process(leftover: Path) -> None:
    write_json(leftover.parent / "x.json", {})
    assert [path.name for path in leftover.parent.iterdir()] == ["x.json"]


def test_temporary_folders_in_use_are_kept(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED_WRITER, str(tmp_path), "busy"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as writer:  # type: ignore[call-overload]
        assert writer.stdout.readline() == "busy\n"
        write_json(tmp_path / "x.json", {})
        (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
        assert (folder / "half").read_text() == "half"
        writer.communicate("")
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_two_threads_of_a_process_share_a_folder(tmp_path: Path) -> None:
    with scratch_folder(tmp_path) as one, scratch_folder(tmp_path) as other:
        assert one != other
        assert one.is_dir()
        assert other.is_dir()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name",
    [
        ".notes.tmp", "notes.tmp", ".0123456789abcdef.tmp", ".rifflemix-notes.tmp", ".tmpAbCdEf",
        ".rifflemix-0123456789abcdef.tmp.txt", "x.rifflemix-0123456789abcdef.tmp", ".writing-x",
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_files_of_other_programs_are_kept(name: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if kind == "folder":
        path.mkdir()
        path /= "file"
    path.write_text("mine")
    write_json(tmp_path / "x.json", {})
    assert path.read_text() == "mine"


def test_file_or_link_named_like_a_temporary_folder_is_kept(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "file").write_text("mine")
    (tmp_path / f".rifflemix-{'0' * 16}.tmp").symlink_to(target)
    (tmp_path / f".rifflemix-{'1' * 16}.tmp").write_text("mine")
    write_json(tmp_path / "x.json", {})
    assert (target / "file").read_text() == "mine"
    assert (tmp_path / f".rifflemix-{'1' * 16}.tmp").read_text() == "mine"


def test_writes_on_a_file_system_without_locks(
    leftover: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the temporary folder, possibly in use, is not deleted."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", refuse)
    write_json(leftover.parent / "x.json", {})
    assert {path.name for path in leftover.parent.iterdir()} == {"x.json", leftover.name}
