"""Any classification folder: which folders are its parts, which its classes, what is left out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from rifflemix.errors import InputError
from rifflemix.tasks.images.image_files import SUFFIXES
from rifflemix.tasks.images.image_listing import (
    Listing,
    class_folders,
    holds_images,
    image_files,
    in_a_note,
    labelled,
    visible,
)

_PARTS = {
    "train": ("train", "training"),
    "validation": ("val", "valid", "validation"),
    "test": ("test", "testing"),
}


def folder_is_there(root: Path) -> bool:
    """Whether a folder, or the train folder in it, looks classified."""
    return _looks_classified(find_parts(root).get("train", root))


def folder_listing(root: Path) -> Listing | None:
    """A classification folder: train/CLASS/*, val/CLASS/*, test/CLASS/*, or CLASS/* alone.

    A test part without folders of classes has no labels, and is left out.

    Raises:
        InputError: a part has a folder without images, or of no class; val has no folders.
    """
    parts = find_parts(root)
    if "train" not in parts:
        if not _looks_classified(root):
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
    """The folders train, val and test of a root, under any of their usual names."""
    return {
        part: next(root / name for name in names if (root / name).is_dir())
        for part, names in _PARTS.items()
        if any((root / name).is_dir() for name in names)
    }


def _looks_classified(folder: Path) -> bool:
    """Whether a folder holds two folders or more, and all of them hold images."""
    names = class_folders(folder)
    return len(names) > 1 and all(any(image_files(folder / name)) for name in names)


def _loose_images(folders: Collection[Path]) -> list[str]:
    """Images that lie in a root or a part, in no folder of a class."""
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
        told.append(f"the images of {unlabelled.name}, which has no folders of classes")
    return f"not read: {'; '.join(told)}" if told else ""
