"""List the parts and classes of any classification folder, and the files left out."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from rifflemix.errors import InputError
from rifflemix.lab.tasks.images.image_files import SUFFIXES
from rifflemix.lab.tasks.images.image_listing import (
    Listing,
    class_folders,
    holds_images,
    image_files,
    in_a_note,
    labelled,
    visible,
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
    """Raise if a folder with images is neither part nor class.

    Also raise if a folder with the name of a part would become a class.
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
                "rename it to val or test, or take it away"
                if class_folders(parts["train"])
                else f"where {parts['train'].name} is a class, put all classes into a folder train"
            )
            raise InputError(
                f"{root / name}: expected no images but in {' and '.join(sorted(used))}, found "
                f"some here; {hint}"
            )


def _like_parts(names: Sequence[str]) -> list[str]:
    """Return the names that look like parts of a data set.

    If the names mention two or more different parts, every mention counts. Otherwise a name counts
    only if it consists of one part word and filler.
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
