"""Files are whole or absent."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from rifflemix import files
from rifflemix.errors import InputError
from rifflemix.files import (
    claimed_folder,
    first_difference,
    make_folder,
    read_json,
    read_json_lines,
    read_tensors,
    user_path,
    write_json,
    write_tensors,
)
from rifflemix.lab.runs.folder import check_folder, check_new_path

TENSORS = {
    "a": torch.arange(6.0).reshape(2, 3),
    "scalar": torch.tensor(3.0),
    "half": torch.ones(3, dtype=torch.bfloat16),
    "bytes": torch.tensor([1, 2, 3], dtype=torch.uint8),
    "mask": torch.tensor([True, False]),
    "none": torch.zeros(0, 4),
}


def test_tensors_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, TENSORS, {"step": 3, "value": 0.1})
    tensors, meta = read_tensors(path)
    assert meta == {"step": 3, "value": 0.1}
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name], tensor)
    assert [path.name for path in tmp_path.iterdir()] == ["x.safetensors"]


def test_tensor_files_are_equal_byte_for_byte(tmp_path: Path) -> None:
    contents = set()
    for turn in range(5):
        path = tmp_path / f"{turn}.safetensors"
        write_tensors(path, TENSORS, {"step": 3})
        contents.add(path.read_bytes())
    assert len(contents) == 1


def test_tensor_files_are_as_readable_as_others(tmp_path: Path) -> None:
    write_tensors(tmp_path / "x.safetensors", TENSORS, {})
    write_json(tmp_path / "x.json", {})
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert len(modes) == 1


@pytest.mark.parametrize("keep", [0, 4, 40, 400, -1], ids=lambda keep: f"keep={keep}")
def test_truncated_tensors(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, TENSORS, {})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(InputError, match=r"x\.safetensors\b.*damaged") as caught:
        read_tensors(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("bit", [0, 3, 7])
def test_any_flipped_bit(tmp_path: Path, bit: int) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, {"a": torch.ones(2), "b": torch.ones(1, dtype=torch.uint8)}, {"step": 3})
    content = path.read_bytes()
    for place in range(len(content)):
        spoiled = bytearray(content)
        spoiled[place] ^= 1 << bit
        path.write_bytes(bytes(spoiled))
        with pytest.raises(InputError, match=r"x\.safetensors"):
            read_tensors(path)


def test_tensor_files_of_other_programs(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"a": torch.ones(2)}, tmp_path / "x.safetensors")
    with pytest.raises(InputError, match=r"x\.safetensors\b.*rifflemix"):
        read_tensors(tmp_path / "x.safetensors")


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"x\.safetensors"):
        read_tensors(tmp_path / "x.safetensors")
    with pytest.raises(InputError, match=r"x\.json: No such file"):
        read_json(tmp_path / "x.json")


def test_json_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json(path, {"a": [1, None]})
    assert read_json(path) == json.loads(path.read_text()) == {"a": [1, None]}
    path.write_text('{"a": [1,')
    with pytest.raises(InputError, match=r"x\.json\b.*damaged"):
        read_json(path)
    with pytest.raises(ValueError, match="JSON"):
        write_json(path, float("nan"))


@pytest.mark.parametrize("broken", ["replace", "fsync"])
def test_failed_write_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, TENSORS, {"step": 1})
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, broken, fail)
    with pytest.raises(InputError, match=r"x\.safetensors: No space left"):
        write_tensors(path, TENSORS, {"step": 2})
    assert path.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["x.safetensors"]


def test_file_is_flushed_before_it_is_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(files.os, "fsync", lambda fd: (calls.append("fsync"), fsync(fd)))
    monkeypatch.setattr(files.os, "replace", lambda *a: (calls.append("replace"), replace(*a)))
    write_json(tmp_path / "x.json", {})
    assert calls == ["fsync", "replace", "fsync"]


@pytest.mark.parametrize("under", ["file", "file/deeper"])
def test_folder_inside_a_file_is_refused(tmp_path: Path, under: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="/file"):
        make_folder(tmp_path / under)


@pytest.mark.parametrize(
    "error",
    [MemoryError("no room"), RuntimeError("unable to mmap 9 bytes: Cannot allocate memory (12)")],
    ids=lambda error: type(error).__name__,
)
def test_out_of_memory_is_not_reported_as_damage(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    write_tensors(tmp_path / "x", TENSORS, {})
    monkeypatch.setattr(files, "safe_open", fail)
    with pytest.raises(InputError, match=r"/x: .*(room|memory)"):
        read_tensors(tmp_path / "x")


SETTINGS = {"format": "test/1", "seed": 0}


def failing_at(monkeypatch: pytest.MonkeyPatch, name: str, end: str) -> None:
    """Make a method of Path fail for paths with this ending."""
    method = getattr(Path, name)

    def fail(self: Path, *given: Any, **more: Any) -> Any:
        if str(self).endswith(end):
            raise OSError(errno.EIO, "Input/output error", str(self))
        return method(self, *given, **more)

    monkeypatch.setattr(Path, name, fail)


@pytest.mark.parametrize(
    ("method", "end"),
    [("exists", "out"), ("is_dir", "out"), ("iterdir", "out"), ("exists", "config.json"),
     ("mkdir", "out")],
)  # fmt: skip
def test_disk_error_while_a_folder_is_claimed(
    method: str, end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    if method != "mkdir":
        out.mkdir()
    with monkeypatch.context() as broken:
        failing_at(broken, method, end)
        with (
            pytest.raises(InputError, match="out: Input/output error"),
            claimed_folder(out, SETTINGS),
        ):
            pass
    with claimed_folder(out, SETTINGS):
        assert read_json(out / "config.json") == SETTINGS


@pytest.mark.parametrize("is_there", [False, True])
def test_unclaimed_folder_keeps_other_files(
    is_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check files of a process that claimed the folder and has finished."""
    out = tmp_path / "out"

    def fail(path: Path, value: Any) -> None:
        if is_there:
            (out / "results.json").write_text("theirs")
        raise InputError("no space")

    with monkeypatch.context() as broken:
        broken.setattr(files, "write_json", fail)
        with pytest.raises(InputError, match="no space"), claimed_folder(out, SETTINGS):
            pass
    assert out.exists() == is_there
    assert not is_there or (out / "results.json").read_text() == "theirs"


def test_files_with_the_longest_names(tmp_path: Path) -> None:
    write_json(tmp_path / ("x" * 250 + ".json"), {})
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("path", ["x" * 256, "new/" + "x" * 256, "a/" * 2100], ids=len)
def test_invalid_file_names_are_refused(path: str, tmp_path: Path) -> None:
    check_new_path(tmp_path / "new" / ("x" * 250))
    with pytest.raises(OSError, match="name too long"):
        check_new_path(tmp_path / path)


@pytest.mark.parametrize(
    "path",
    ["~nosuchuser", "~nosuchuser/x", 5, None, "", "a\0b", "x" * 300, os.fsdecode(b"d\xe4ta")],
    ids=ascii,
)
def test_invalid_paths_are_refused(path: Any) -> None:
    with pytest.raises(InputError, match=r"^place: "):
        user_path("place", path)


def test_a_folder_that_cannot_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check a writable folder that is not readable."""

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    check_folder(tmp_path)
    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(InputError, match=r"^out: .*\(Permission denied\)"):
        check_folder(tmp_path)


def test_pipe_is_refused_as_a_file(tmp_path: Path) -> None:
    """Check pipes: opening a pipe blocks until a process writes to it."""
    path = tmp_path / "x"
    os.mkfifo(path)
    for read in (read_json, read_json_lines, read_tensors):
        with pytest.raises(InputError, match=r"/x: .*regular file"):
            read(path)


def test_text_file_over_the_size_limit_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "x").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(InputError, match="268,435,456"):
        read_json(tmp_path / "x")


FORGED = {
    "number": 5,
    "text": "deep",
    "no meta": {"sha256": ""},
    "deep": None,
}


@pytest.mark.parametrize("entry", FORGED.values(), ids=FORGED.keys())
def test_forged_headers(entry: Any, tmp_path: Path) -> None:
    text = "[" * 100_000 if entry is None else json.dumps(entry)
    save_file({"a": torch.ones(2)}, tmp_path / "x", {"rifflemix": text})
    with pytest.raises(InputError, match=r"/x .*damaged"):
        read_tensors(tmp_path / "x")


def test_headers_of_types_that_torch_does_not_have(tmp_path: Path) -> None:
    header = {
        "__metadata__": {"rifflemix": "{}"},
        "w": {"dtype": "F6_E2M3", "shape": [8], "data_offsets": [0, 6]},
    }
    text = json.dumps(header).encode()
    (tmp_path / "x").write_bytes(len(text).to_bytes(8, "little") + text + bytes(6))
    with pytest.raises(InputError, match=r"/x .*damaged"):
        read_tensors(tmp_path / "x")


@pytest.mark.parametrize(
    ("earlier", "now", "expected"),
    [
        ({"a": 1}, {"a": 1}, None),
        ({"a": 1}, {"a": 2}, ("a", 1, 2)),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}, ("a.c", 2, 3)),
        ({"a": 1, "b": 2}, {"a": 1}, ("b", 2, None)),
        ({"a": 1}, {"a": 1, "b": 2}, ("b", None, 2)),
        ({"a": {}}, {"a": {"b": 1}}, ("a.b", None, 1)),
        ({"task_options": {"data": "x.csv"}}, {"task_options": {"data": "y.csv"}}, None),
        ({"task": {"options": {"data": "x.csv"}}}, {"task": {"options": {"data": "y.csv"}}}, None),
        ({"data": "x"}, {"data": "y"}, ("data", "x", "y")),
    ],
)
def test_first_difference_of_two_settings(earlier: Any, now: Any, expected: Any) -> None:
    assert first_difference(earlier, now) == expected
