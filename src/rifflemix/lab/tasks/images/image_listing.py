"""List the image files of a folder: parts, classes, and the files left out."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rifflemix.errors import InputError
from rifflemix.lab.tasks.core.base import SPLITS
from rifflemix.lab.tasks.images.image_files import SUFFIXES, begins_as_image

_LITTER = ("__macosx", "thumbs.db", "desktop.ini")

_MOST_SHOWN = 60
_DEEP = (".png", ".ppm", ".pgm", ".tif", ".tiff")


class Entry(NamedTuple):
    """One image: path below the root, label, file size in bytes, time of change in ns."""

    path: str
    label: int
    bytes: int
    changed: int


@dataclass(frozen=True)
class Listing:
    """The images of a data set.

    Attributes:
        root: folder that contains all paths.
        classes: names of the classes. Label k is classes[k].
        parts: images of "train", and of "validation" and "test" if the data set has these parts.
        left_out: note on files among the images that are not read, or an empty string.
    """

    root: Path
    classes: tuple[str, ...]
    parts: Mapping[str, tuple[Entry, ...]]
    left_out: str = ""

    def key(self) -> str:
        """Return a hash of the classes and images.

        The hash changes if an image is added, removed, renamed, relabeled or rewritten. A suffix
        in the hash discards old caches of formats with 16 bits per channel. These caches can
        contain images that were cut to 8 bits.
        """
        names = "|".join(self.classes).encode(errors="surrogateescape")
        total = hashlib.blake2b(names, digest_size=12)
        for part, entries in sorted(self.parts.items()):
            total.update(f"{part}\n".encode())
            for entry in sorted(entries):
                total.update(f"{entry}\n".encode(errors="surrogateescape"))
        if any(e.path.lower().endswith(_DEEP) for part in self.parts.values() for e in part):
            total.update(b"no more than 8 bits")
        return total.hexdigest()

    def splits(self) -> tuple[dict[str, list[Entry]], str]:
        """Return the images of each split, and a note on their origin.

        The order is shuffled and fixed. It depends only on the names of the images.

        | parts next to "train" | validation | test |
        | --- | --- | --- |
        | two | the validation part | the test part |
        | one | part of the training images | the other part |
        | zero | a tenth of each class | a tenth of each class |

        With one other part, validation copies the number of images per class of that part, up to a
        tenth of the training images of the class.
        """
        parts = {part: sorted(entries, key=_position) for part, entries in self.parts.items()}
        held_out = [part for part in ("validation", "test") if part in parts]
        if len(held_out) == 2:
            return parts, "validation and test are parts of the data set"
        tenth = {label: count // 10 for label, count in _counts(parts["train"]).items()}
        if not held_out:
            test, rest = _carved(parts["train"], tenth)
            note = "80 / 10 / 10 % train / validation / test of each class, by a hash of the names"
        else:
            test, rest = parts[held_out[0]], parts["train"]
            counts = _counts(test)
            tenth = {label: min(count, counts.get(label, 0)) for label, count in tenth.items()}
            note = (
                f"test is the {held_out[0]} part of the data set; validation is carved from its "
                "training images, of each class as many as test has but at most a tenth, by a "
                "hash of the names"
            )
        validation, train = _carved(rest, tenth)
        return dict(zip(SPLITS, (train, validation, test), strict=True)), note


def _position(entry: Entry) -> tuple[bytes, str]:
    content = entry.path.encode(errors="surrogateescape")
    return hashlib.blake2b(content, digest_size=16).digest(), entry.path


def _counts(entries: Iterable[Entry]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for entry in entries:
        counts[entry.label] = counts.get(entry.label, 0) + 1
    return counts


def _carved(entries: list[Entry], counts: Mapping[int, int]) -> tuple[list[Entry], list[Entry]]:
    """Split off the first `counts[label]` images of each class."""
    left = dict(counts)
    taken, others = [], []
    for entry in entries:
        if left[entry.label] > 0:
            left[entry.label] -= 1
            taken.append(entry)
        else:
            others.append(entry)
    return taken, others


def visible(folder: Path) -> list[os.DirEntry[str]]:
    """List a folder by name, without hidden files and system files.

    Raises:
        InputError: the folder cannot be read, or contains a broken link.
    """
    try:
        with os.scandir(folder) as found:
            entries = sorted((e for e in found if not _is_hidden(e.name)), key=lambda e: e.name)
    except OSError as error:
        raise InputError(f"{folder}: cannot be read ({error.strerror or error})") from error
    for entry in entries:
        if entry.is_symlink() and not os.path.exists(entry.path):
            raise InputError(
                f"{entry.path}: expected a file or a folder, got a broken link. Repair or "
                "remove it."
            )
    return entries


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name.lower() in _LITTER


def class_folders(folder: Path) -> list[str]:
    """List the subfolders by name. The list is empty if `folder` is not a folder."""
    return [e.name for e in visible(folder) if e.is_dir()] if folder.is_dir() else []


def image_files(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield the image files in a folder and its direct subfolders."""
    return (entry for entry in _within(folder) if is_image(entry))


def _within(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield the files of a folder, and the entries of its subfolders."""
    for entry in visible(folder):
        if entry.is_dir():
            yield from visible(Path(entry.path))
        else:
            yield entry


def is_image(entry: os.DirEntry[str]) -> bool:
    """Check for an image file by its suffix or signature."""
    if not entry.is_file():
        return False
    return entry.name.lower().endswith(SUFFIXES) or begins_as_image(Path(entry.path))


def holds_images(folder: Path) -> bool:
    """Check for files with an image suffix in a folder, at any depth."""
    for _, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not _is_hidden(name)]
        if any(name.lower().endswith(SUFFIXES) and not _is_hidden(name) for name in names):
            return True
    return False


def entry_of(root: Path, path: str, label: int, stat: os.stat_result) -> Entry:
    """Create the entry of the image at `path`, below `root`."""
    name = os.path.relpath(path, root).replace(os.sep, "/")
    return Entry(name, label, stat.st_size, stat.st_mtime_ns)


def in_a_note(name: str) -> str:
    """Convert a file name to a short, printable string for results."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)
    return shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}..."


class Labelled(NamedTuple):
    """The images of a part, and the paths of other files among them."""

    entries: tuple[Entry, ...]
    others: tuple[str, ...]


def labelled(root: Path, folder: Path, classes: tuple[str, ...]) -> Labelled:
    """List the images of a part, labeled by the names of their folders.

    Raises:
        InputError: a folder has an unknown class, has no images, or has images more than one
            level deep.
    """
    entries: list[Entry] = []
    others: list[str] = []
    labels = {name: label for label, name in enumerate(classes)}
    for name in class_folders(folder):
        if name not in labels:
            raise InputError(f"{folder / name}: the training part has no class of that name")
        found = []
        for entry in _within(folder / name):
            if is_image(entry):
                found.append(entry_of(root, entry.path, labels[name], entry.stat()))
            else:
                _check_not_deeper(entry)
                others.append(entry.path)
        if not found:
            raise InputError(
                f"{folder / name}: expected images of class {name} ({', '.join(SUFFIXES)}), found "
                "none"
            )
        entries += found
    return Labelled(tuple(entries), tuple(others))


def _check_not_deeper(entry: os.DirEntry[str]) -> None:
    if entry.is_dir() and holds_images(Path(entry.path)):
        raise InputError(
            f"{entry.path}: expected images in the folder of their class or one folder deeper, "
            "found some here; move them up, or away"
        )


_PART_OF = {
    "train": "train", "training": "train",
    "val": "validation", "valid": "validation", "validation": "validation", "dev": "validation",
    "test": "test", "testing": "test",
}  # fmt: skip
_EITHER = "eval"
_WORDS = (*_PART_OF, _EITHER, "evaluation")
# test1, train_images and ValSet count like the word alone.
_LIKE_A_PART = re.compile(
    rf"[\W\d_]*({'|'.join(_WORDS)})[\W\d_]*(sets?|data|images?|imgs?|splits?)?[\W\d_]*"
)


def has_folder(root: Path) -> bool:
    """Check for class folders in a folder or its train folder."""
    return _looks_classified(find_parts(root).get("train", root))


def folder_listing(root: Path) -> Listing | None:
    """List a classification folder.

    The layout is train/CLASS/*, val/CLASS/* and test/CLASS/*, or CLASS/* alone. A test part
    without class folders has no labels, so it is left out.

    Returns:
        The listing, or None if there are no class folders.

    Raises:
        InputError: the folders are inconsistent:

            - A part has two folders, a folder without images or a folder of an unknown class.
            - The folder val has no class folders.
            - A folder with images is neither part nor class.
    """
    parts = find_parts(root)
    _check_beside(root, parts)
    if "train" not in parts:
        if not any(any(image_files(root / name)) for name in class_folders(root)):
            return None
        parts = {"train": root}
    elif not class_folders(parts["train"]):
        return None
    unlabelled = None
    if "test" in parts and not class_folders(parts["test"]):
        unlabelled = parts.pop("test")
    for folder in parts.values():
        if not class_folders(folder):
            raise InputError(f"{folder}: expected a folder for each class, found none")
    classes = tuple(class_folders(parts["train"]))
    if len(classes) < 2:
        raise InputError(f"{parts['train']}: expected folders of two classes or more, found one")
    found = {part: labelled(root, folder, classes) for part, folder in parts.items()}
    others = [path for labels in found.values() for path in labels.others]
    return Listing(
        root,
        classes,
        {part: labels.entries for part, labels in found.items()},
        _left_out(root, others, _loose_images({root, *parts.values()}), unlabelled),
    )


def find_parts(root: Path) -> dict[str, Path]:
    """Find the folders train, val and test below a root.

    The usual variants of these names count too, in any case. `eval` is the test part, or the
    validation part if there is another test folder.

    Raises:
        InputError: two folders are the same part.
    """
    parts: dict[str, Path] = {}
    for name in sorted(class_folders(root), key=lambda name: name.lower() == _EITHER):
        part = _PART_OF.get(name.lower())
        if name.lower() == _EITHER:
            part = "validation" if "test" in parts else "test"
        if part in parts:
            raise InputError(
                f"{root}: expected one folder for {part}, got {parts[part].name} and {name}; put "
                "them together, or take one away"
            )
        if part is not None:
            parts[part] = root / name
    return parts


def _looks_classified(folder: Path) -> bool:
    """Check that a folder has two or more subfolders, all with images."""
    names = class_folders(folder)
    return len(names) > 1 and all(any(image_files(folder / name)) for name in names)


def _check_beside(root: Path, parts: Mapping[str, Path]) -> None:
    """Check the other folders next to the folders train, val and test.

    Raise if such a folder contains images. Without train, val and test all folders are classes:
    then raise if the name of a folder looks like a part.
    """
    names = class_folders(root)
    if "train" not in parts:
        for name in _like_parts(names):
            if holds_images(root / name):
                raise InputError(
                    f"{root / name}: expected a folder train next to this part of a data set, got "
                    "none. Rename the training part to train. If the folder is a class, move all "
                    "classes into a folder train."
                )
        return
    used = {folder.name for folder in parts.values()}
    for name in names:
        if name not in used and holds_images(root / name):
            hint = (
                "rename it to val or test, or move it away"
                if class_folders(parts["train"])
                else f"if {parts['train'].name} is a class, move all classes into a folder train"
            )
            raise InputError(
                f"{root / name}: expected images only in {' and '.join(sorted(used))}, got images "
                f"here too; {hint}"
            )


def _like_parts(names: Sequence[str]) -> list[str]:
    """Return the folder names that look like parts of a data set, such as "test1".

    If the names contain words for two or more different parts, every name with such a word counts.
    Otherwise a name counts only if it consists of one such word and a word without meaning.
    """
    told = {}
    for name in names:
        words = set(re.findall("[a-z]+", name.lower())) & set(_WORDS)
        if words:
            told[name] = {_PART_OF.get(word, _EITHER) for word in words}
    if len(set().union(*told.values())) > 1:
        return list(told)
    return [name for name in names if _LIKE_A_PART.fullmatch(name.lower())]


def _loose_images(folders: Collection[Path]) -> list[str]:
    """List images directly in a root or a part, outside any class folder."""
    return [
        entry.path
        for folder in sorted(folders)
        for entry in visible(folder)
        if entry.name.lower().endswith(SUFFIXES) and entry.is_file()
    ]


def _left_out(
    root: Path, others: Sequence[str], loose: Sequence[str], unlabelled: Path | None
) -> str:
    told = []
    for what, paths in (("files that are no images", others), ("images in no class folder", loose)):
        if paths:
            first = in_a_note(Path(paths[0]).relative_to(root).as_posix())
            told.append(f"{what} ({len(paths):,}, such as {first})")
    if unlabelled is not None and holds_images(unlabelled):
        told.append(f"the images of {unlabelled.name}, because it has no folders of classes")
    return f"not read: {'; '.join(told)}" if told else ""
