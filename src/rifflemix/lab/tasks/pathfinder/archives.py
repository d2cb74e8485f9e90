"""Unpack selected plain files of an archive, with limits on their size and location."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from rifflemix.lab.tasks.core.base import Progress
from rifflemix.lab.tasks.data_io.bounded import tar_members
from rifflemix.lab.tasks.data_io.files import cannot_keep, damaged, reading
from rifflemix.locks import scratch_folder

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
                raise damaged(archive, f"it holds no file named {wanted.pattern}")
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
