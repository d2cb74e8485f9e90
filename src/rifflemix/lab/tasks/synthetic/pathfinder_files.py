"""Pathfinder folders of the Long Range Arena: metadata lists, PNG images and archives."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rifflemix.errors import InputError, bad_argument
from rifflemix.lab.tasks.core.base import SPLITS, Progress
from rifflemix.lab.tasks.core.builder import Request
from rifflemix.lab.tasks.core.card import TaskCard
from rifflemix.lab.tasks.data_io.files import cache_root, cannot_keep, damaged, reading, stat_key
from rifflemix.lab.tasks.data_io.safe_readers import read_bytes, read_npy, tar_members
from rifflemix.lab.tasks.data_io.shards import ShardedImages, prepare_shards, waiting_for
from rifflemix.lab.tasks.images.image_files import opened_image
from rifflemix.locks import delete_leftovers, scratch_folder

_LARGEST_FILE = 1 << 24


def unpack(archive: Path, target: Path, wanted: re.Pattern[str], progress: Progress) -> None:
    """Unpack the matching files of a .tar.gz archive.

    `target` appears complete or not at all.

    Args:
        archive: path of the archive.
        target: folder to create.
        wanted: pattern for the whole name of a member. Its first group is the path below
            `target`, and must not lead outside.
        progress: callback for the number of unpacked files.

    Raises:
        InputError: the archive is damaged, a matching member is a link or too large, the target
            cannot be written, or no member matches.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with scratch_folder(target.parent) as scratch:
            part = scratch / "part"
            part.mkdir()
            if _unpack_members(archive, part, wanted, progress) == 0:
                raise damaged(archive, f"no file in it is named {wanted.pattern}")
            part.rename(target)
    except OSError as error:
        raise cannot_keep(target, error) from error


def _unpack_members(
    archive: Path, folder: Path, wanted: re.Pattern[str], progress: Progress
) -> int:
    count = 0
    for member, open_member in tar_members(archive):
        match = wanted.fullmatch(member.name)
        if match is None or member.isdir():
            continue
        if not member.isfile():
            raise damaged(archive, f"{member.name} is a link or device, not a plain file")
        if member.size > _LARGEST_FILE:
            raise damaged(archive, f"with {member.name} it is far larger than it should be")
        content = open_member()
        path = (folder / match[1]).resolve()
        if content is None or not path.is_relative_to(folder.resolve()):
            raise damaged(archive, f"{member.name} would be unpacked outside of its folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        with reading(archive), path.open("xb") as stream:
            shutil.copyfileobj(content, stream)
        count += 1
        if count % 1000 == 0:
            progress(f"unpacking {archive.name}", count, None)
    return count


DAMAGED = frozenset({"pathfinder32/curv_baseline/imgs/0/sample_172.png"})
"""Empty files of the published archive. They are left out."""

_FOLDERS = (".", "lra_release", "lra_release/lra_release")
_ARCHIVES = ("lra_release.gz", "lra_release.tar.gz")
_IMAGES = re.compile(r"imgs/\d+")
_FILE = re.compile(r"sample_\d+\.png")

Entry = tuple[str, int]
"""Path of an image below the folder of its set, and its label."""


@dataclass(frozen=True)
class Release:
    """One published set of images.

    Attributes:
        size: height and width of the images.
        preset: name of the folder of the set.
        root: folder that contains "metadata" and "imgs". It may not be unpacked yet.
        archive: archive to unpack, or None if the set is already a folder.
        folder: cache folder of the decoded images.
    """

    size: int
    preset: str
    root: Path
    archive: Path | None
    folder: Path

    @property
    def name(self) -> str:
        """Name of the set in messages."""
        return f"pathfinder{self.size}/{self.preset}"


def find_release(data_dir: Path | None, size: int, preset: str) -> Release | None:
    """Find a set in `data_dir`, as a folder or in the published archive."""
    if data_dir is None:
        return None
    for part in _FOLDERS:
        root = data_dir / part / f"pathfinder{size}" / preset
        lists = sorted((root / "metadata").glob("*.npy"))
        if lists:
            return Release(size, preset, root, None, _kept(size, preset, lists))
    for name in _ARCHIVES:
        path = data_dir / name
        if path.is_file():
            folder = _kept(size, preset, [path])
            return Release(size, preset, folder / "files", path, folder)
    return None


def load_release(
    card: TaskCard, release: Release, counts: Mapping[str, int], request: Request
) -> tuple[dict[str, ShardedImages], str]:
    """Load the splits of a set, and a note on their origin.

    A hash of the names selects 80 % of the images for training, 10 % for validation and 10 % for
    test.

    Raises:
        InputError: a list or an image is damaged or missing, or there are too few images.
    """
    _unpack(release, request)
    entries = read_lists(release.root)
    left_out = [path for path, _ in entries if f"{release.name}/{path}" in DAMAGED]
    entries = [entry for entry in entries if entry[0] not in left_out]
    _check_images_exist(release.root, entries)
    parts = _split(entries)
    splits = {}
    for name in reversed(SPLITS):
        chosen = _chosen(card, parts[name], name, counts[name], request)
        images, labels = prepare_shards(
            release.folder / name,
            PngMaker(release.root, release.size, tuple(chosen)),
            len(chosen),
            request.progress,
            f"reading {release.name}, {name}",
        )
        splits[name] = ShardedImages(images, labels, np.arange(len(chosen)))
    note = f", damaged and left out: {', '.join(left_out)}" if left_out else ""
    return splits, f"{release.name} of the Long Range Arena, {len(entries):,} images{note}"


@dataclass(frozen=True)
class PngMaker:
    """Decoder of listed images."""

    root: Path
    size: int
    entries: tuple[Entry, ...]

    def __call__(self, first: int, count: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Return images (count, size, size) and labels (count,) from number `first` on."""
        chosen = self.entries[first : first + count]
        images = [read_gray_png(self.root / path, self.size) for path, _ in chosen]
        return np.stack(images), np.array([label for _, label in chosen], dtype=np.uint8)


def read_gray_png(path: Path, size: int) -> NDArray[np.uint8]:
    """Read a square gray PNG image.

    Raises:
        InputError: the file is missing, damaged or of another size, or Pillow is not installed.
    """
    with opened_image(path, ("PNG",)) as image:
        if image.size != (size, size):
            raise damaged(path, f"{image.size} pixels, expected {(size, size)}")
        return np.asarray(image.convert("L"), dtype=np.uint8)


def read_lists(root: Path) -> list[Entry]:
    """Read path and label of every image in the metadata lists, in order.

    Raises:
        InputError: a list is damaged, or contains an image twice.
    """
    entries: dict[str, int] = {}
    for path in sorted((root / "metadata").glob("*.npy"), key=lambda path: (len(path.name), path)):
        for number, fields in enumerate(_lines(path), start=1):
            if (
                len(fields) < 4
                or not _IMAGES.fullmatch(fields[0])
                or not _FILE.fullmatch(fields[1])
                or fields[3] not in ("0", "1")
            ):
                raise damaged(path, f"line {number} is not a folder, a file, a number and a label")
            name = f"{fields[0]}/{fields[1]}"
            if name in entries:
                raise damaged(path, f"line {number}: {name} is listed twice")
            entries[name] = int(fields[3])
    return list(entries.items())


def _lines(path: Path) -> list[list[str]]:
    """Read the fields of each line, from published text or a string array."""
    with reading(path):
        content = read_bytes(path)
        if content.startswith(b"\x93NUMPY"):
            table = read_npy(path, content)
            return [[str(field) for field in row] for row in table.reshape(len(table), -1)]
        return [line.split() for line in content.decode("utf-8").splitlines()]


def _kept(size: int, preset: str, paths: list[Path]) -> Path:
    return cache_root() / f"pathfinder{size}" / f"release-{preset}-{stat_key(paths)}"


def _unpack(release: Release, request: Request) -> None:
    if release.archive is None:
        return
    delete_leftovers(release.root.parent)
    if release.root.is_dir():
        return
    wanted = re.compile(
        rf"(?:\./)?(?:lra_release/)*{re.escape(release.name)}/"
        r"(metadata/\d+\.npy|imgs/\d+/sample_\d+\.png)"
    )
    what = f"unpacking {release.archive.name}"
    with waiting_for(release.folder, request.progress, what):
        if not release.root.is_dir():
            unpack(release.archive, release.root, wanted, request.progress)


def _check_images_exist(root: Path, entries: list[Entry]) -> None:
    folders = sorted({path.rpartition("/")[0] for path, _ in entries})
    there = {
        f"{name}/{path.name}"
        for name in folders
        if (root / name).is_dir()
        for path in (root / name).iterdir()
    }
    missing = [path for path, _ in entries if path not in there]
    if missing:
        raise InputError(
            f"{root}: {len(missing):,} of {len(entries):,} listed images are missing, the first "
            f"is {missing[0]}; get a fresh copy"
        )


def _split(entries: list[Entry]) -> dict[str, list[Entry]]:
    ordered = sorted(
        entries, key=lambda entry: hashlib.blake2b(entry[0].encode(), digest_size=16).digest()
    )
    tenth = len(ordered) // 10
    return {
        "test": ordered[:tenth],
        "validation": ordered[tenth : 2 * tenth],
        "train": ordered[2 * tenth :],
    }


def _chosen(
    card: TaskCard, part: list[Entry], name: str, count: int, request: Request
) -> list[Entry]:
    option = f"num_{name}"
    if not part or (option in request.given and count > len(part)):
        raise bad_argument(
            option, f"at most the {len(part):,} images of task {card.name} there", count
        )
    return part[:count]
