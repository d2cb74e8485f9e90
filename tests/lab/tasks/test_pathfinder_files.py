"""Tests of the published Pathfinder folders: layout, damage, unpacking, unchanged images."""

from __future__ import annotations

import io
import re
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from damaged_files import assert_names_cut_file
from PIL import Image

from rifflemix.errors import InputError
from rifflemix.lab.tasks import load_task, prepare_task, task_status
from rifflemix.lab.tasks.data_io import safe_readers
from rifflemix.lab.tasks.synthetic import pathfinder_files as reader

PRESET = "curv_contour_length_14"
COUNT = 30


def picture(number: int, size: int = 32) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, (size, size), dtype=np.uint8)


def png(number: int, size: int = 32) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(picture(number, size)).save(stream, "PNG")
    return stream.getvalue()


def files(preset: str = PRESET) -> dict[str, bytes]:
    """Build 30 images in two folders, keyed by path."""
    root = f"pathfinder32/{preset}"
    result: dict[str, bytes] = {}
    for folder in (0, 1):
        lines = []
        for number in range(COUNT // 2):
            whole = folder * COUNT // 2 + number
            lines.append(f"imgs/{folder} sample_{number}.png {number} {whole % 2} 1.8 14 4\n")
            result[f"{root}/imgs/{folder}/sample_{number}.png"] = png(whole)
        result[f"{root}/metadata/{folder}.npy"] = "".join(lines).encode()
    return result


def write(folder: Path, content: dict[str, bytes]) -> None:
    for name, data in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def pack(path: Path, content: dict[str, bytes], *extra: tarfile.TarInfo) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, data in content.items():
            member = tarfile.TarInfo(f"lra_release/lra_release/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        for member in extra:
            archive.addfile(member, io.BytesIO(b"x" * member.size))


def labelled(folder: Path, **options: object) -> dict[bytes, int]:
    task = load_task("pathfinder32", data_dir=folder, **options)
    return {
        np.asarray(pixels, dtype=np.uint8).tobytes(): label
        for split in task.splits.values()
        for pixels, label in (split[index] for index in range(len(split)))
    }


EXPECTED = {picture(number).tobytes(): number % 2 for number in range(COUNT)}


@pytest.mark.parametrize("folder", [".", "lra_release", "lra_release/lra_release"])
def test_all_images_with_their_labels(data: Path, folder: str) -> None:
    write(data / folder, files())
    assert labelled(data) == EXPECTED
    task = load_task("pathfinder32", data_dir=data)
    assert {name: len(split) for name, split in task.splits.items()} == {
        "train": 24,
        "validation": 3,
        "test": 3,
    }
    assert re.match(r"pathfinder32/curv_contour_length_14\b.*, 30\b", task.data_source)
    assert "gap" not in task.options
    assert str(data) in task_status("pathfinder32", data).detail


@pytest.mark.parametrize("name", ["lra_release.gz", "lra_release.tar.gz"])
def test_archive_gives_the_same_images(data: Path, tmp_path: Path, name: str) -> None:
    other = {
        "lra_release/tsv_data/new.tsv": b"x",
        "pathfinder64/curv_baseline/metadata/0.npy": b"x",
    }
    pack(data / name, {**files(), **other})
    assert labelled(data) == EXPECTED
    (tmp_path / "folder").mkdir()
    write(tmp_path / "folder", files())
    prints = {
        load_task("pathfinder32", data_dir=d).fingerprint() for d in (data, tmp_path / "folder")
    }
    assert len(prints) == 1


def test_archive_without_the_set(data: Path) -> None:
    pack(data / "lra_release.gz", files("curv_baseline"))
    with pytest.raises(InputError, match=r"lra_release\.gz:"):
        load_task("pathfinder32", data_dir=data)


def link(name: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    member = tarfile.TarInfo(f"lra_release/pathfinder32/{PRESET}/{name}")
    member.type, member.linkname = kind, "/etc/passwd"
    return member


@pytest.mark.parametrize(
    "member", [link("imgs/0/sample_99.png"), link("imgs/0/sample_99.png", tarfile.LNKTYPE)]
)
def test_links_are_refused(data: Path, cache: Path, member: tarfile.TarInfo) -> None:
    pack(data / "lra_release.gz", files(), member)
    with pytest.raises(InputError, match=r"sample_99\.png"):
        load_task("pathfinder32", data_dir=data)
    assert not list(cache.rglob("*.png"))


@pytest.mark.parametrize(
    "name",
    [
        f"lra_release/pathfinder32/{PRESET}/imgs/0/../../../../../out.png",
        f"/pathfinder32/{PRESET}/imgs/0/sample_0.png",
        f"../pathfinder32/{PRESET}/imgs/0/sample_0.png",
        "out.png",
    ],
)
def test_paths_outside_the_folder_are_not_unpacked(data: Path, tmp_path: Path, name: str) -> None:
    member = tarfile.TarInfo(name)
    member.size = 5
    pack(data / "lra_release.gz", files(), member)
    assert labelled(data) == EXPECTED
    assert not list(tmp_path.rglob("out.png"))


def test_member_larger_than_the_limit_is_refused(
    data: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_LARGEST_FILE", 2000)
    member = tarfile.TarInfo(f"lra_release/pathfinder32/{PRESET}/imgs/0/sample_99.png")
    member.size = 2001
    pack(data / "lra_release.gz", files(), member)
    with pytest.raises(InputError, match=r"sample_99\.png"):
        load_task("pathfinder32", data_dir=data)
    monkeypatch.setattr(safe_readers, "_MOST_ARCHIVE", 3000)
    with pytest.raises(InputError, match=r"lra_release\.gz"):
        load_task("pathfinder32", data_dir=data)
    assert not list(cache.rglob("*.png"))


@pytest.mark.parametrize("keep", [0.3, 0.95])
def test_truncated_archive(data: Path, keep: float) -> None:
    path = data / "lra_release.gz"
    pack(path, files())
    assert_names_cut_file("pathfinder32", data, path, keep)


def test_known_empty_file_is_skipped_and_reported(data: Path) -> None:
    content = files("curv_baseline")
    empty = "pathfinder32/curv_baseline/imgs/0/sample_172.png"
    content["pathfinder32/curv_baseline/metadata/0.npy"] += b"imgs/0 sample_172.png 172 1 1.8\n"
    write(data, {**content, empty: b""})
    assert labelled(data, preset="curv_baseline") == EXPECTED
    task = load_task("pathfinder32", data_dir=data, preset="curv_baseline")
    assert task.data_source.endswith(": imgs/0/sample_172.png")


def damage(change: Callable[[dict[str, bytes]], object]) -> dict[str, bytes]:
    content = files()
    change(content)
    return content


IMAGE = f"pathfinder32/{PRESET}/imgs/1/sample_3.png"
LIST = f"pathfinder32/{PRESET}/metadata/1.npy"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param({IMAGE: b""}, r"sample_3\.png:", id="empty image"),
        pytest.param({IMAGE: png(18)[:-40]}, r"sample_3\.png:", id="cut"),
        pytest.param({IMAGE: png(18)[:40]}, r"sample_3\.png:", id="head"),
        pytest.param({IMAGE: b"GIF89a" + bytes(99)}, r"sample_3\.png:", id="gif"),
        pytest.param({IMAGE: png(18, 64)}, r"\(64, 64\).*\(32, 32\)", id="size"),
        pytest.param({LIST: b"imgs/1 sample_3.png\n"}, r"1\.npy.*\b1\b", id="fields"),
        pytest.param({LIST: b"imgs/1 sample_3.png 3 2\n"}, r"1\.npy.*\b1\b", id="label"),
        pytest.param({LIST: b"../.. sample_3.png 3 1\n"}, r"1\.npy.*\b1\b", id="traversal"),
        pytest.param({LIST: b"imgs/1 ../sample_3.png 3 1\n"}, r"1\.npy.*\b1\b", id="file name"),
        pytest.param({LIST: b"imgs/1 sample_3.png 3 1\n" * 2}, r"sample_3\.png", id="twice"),
        pytest.param({LIST: b"\xff\xfe\x00"}, r"1\.npy:", id="no text"),
        pytest.param(
            {LIST: b"imgs/1 sample_3.png 3 1\nimgs/7 sample_0.png 0 1\n"},
            r"\b1\b.*\b17\b.*imgs/7/sample_0\.png",
            id="missing",
        ),
    ],
)
def test_damage_is_named(data: Path, content: dict[str, bytes], message: str) -> None:
    write(data, {**files(), **content})
    with pytest.raises(InputError, match=message) as raised:
        load_task("pathfinder32", data_dir=data)
    assert "\n" not in str(raised.value)


def test_lists_that_are_arrays_of_strings(data: Path) -> None:
    content = files()
    for name in [name for name in content if name.endswith(".npy")]:
        stream = io.BytesIO()
        table = np.array([line.split() for line in content[name].decode().splitlines()])
        np.save(stream, table)
        content[name] = stream.getvalue()
    write(data, content)
    assert labelled(data) == EXPECTED


def test_lists_that_are_pickles_are_refused(data: Path) -> None:
    stream = io.BytesIO()
    np.save(stream, np.array([["imgs/1", "sample_3.png", 3, 1]], dtype=object), allow_pickle=True)
    write(data, {**files(), LIST: stream.getvalue()})
    with pytest.raises(InputError, match=r"1\.npy: .*pickled objects"):
        load_task("pathfinder32", data_dir=data)


def test_options_of_the_generator_are_refused(data: Path) -> None:
    write(data, files())
    with pytest.raises(InputError, match=r"gap: .*got 2"):
        load_task("pathfinder32", data_dir=data, gap=2)
    with pytest.raises(InputError, match=r"num_train: .*\b24\b"):
        load_task("pathfinder32", data_dir=data, num_train=25)


def test_limited_samples_read_only_their_files(data: Path) -> None:
    write(data, files())
    folder = prepare_task("pathfinder32", data_dir=data, max_samples=2)
    assert folder is not None
    assert sorted(path.name for path in folder.glob("*/*-*")) == ["00000-0002"] * 3
    every = load_task("pathfinder32", data_dir=data)
    few = load_task("pathfinder32", data_dir=data, max_samples=2)
    assert few.split("train")[1][0].tolist() == every.split("train")[1][0].tolist()


def test_sizes_and_sets_without_files_are_generated(data: Path) -> None:
    write(data, files())
    tiny = {"num_train": 1, "num_validation": 1, "num_test": 1}
    task = load_task("pathfinder32", data_dir=data, preset="curv_baseline", **tiny)
    assert task.data_source == "generated"


def test_without_pillow(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(data, files())
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(InputError, match=r"Pillow.*'rifflemix\[images\]'"):
        load_task("pathfinder32", data_dir=data)
