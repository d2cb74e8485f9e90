"""Data for the GPU plan: what `gpu.sh` reads, in folders that are small enough to be carried.

Files of a data folder are taken as they are; what is generated is made here once, and packed. A
file that is too large is cut into parts, each in a pack of its own, and joined again over there.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import sys
import tarfile
from pathlib import Path

from rifflemix.errors import InputError
from rifflemix.files import make_folder, read_json, write_bytes, write_json
from rifflemix.lab.tasks import prepare_task

MOST_BYTES = 60_000_000
MANIFEST = "manifest.json"
_AGAIN = "make the pack again"
_PART = 55_000_000

# Pack -> files of the data folder.
FILES = {
    "text": ("imdb_train.jsonl.xz", "imdb_test.jsonl.xz"),
    "sst": ("sst2_glue_train.tsv.xz", "sst2_glue_dev.tsv.xz"),
    "retrieval": (
        "aan_docs.jsonl.xz",
        "aan_pairs.train.tsv",
        "aan_pairs.valid.tsv",
        "aan_pairs.test.tsv",
    ),
    "image": ("cifar10_gray.npz.xz",),
}
# Pack -> task that is generated; packed as the cache keeps it.
GENERATED = {"pathfinder": "pathfinder32"}
# File -> packs of its parts.
CUT = {"cifar10_rgb.npz.xz": ("cifar-1", "cifar-2")}
PACKS = (*FILES, *GENERATED, *(pack for packs in CUT.values() for pack in packs))


def make_packs(names: list[str], data: Path, out: Path) -> None:
    """Write each pack into a folder of its name.

    Raises:
        InputError: a file is missing, or a pack too large.
    """
    for name in names:
        if name in FILES:
            _write(out / name, {file: _read(data / file) for file in FILES[name]})
        elif name in GENERATED:
            _write(out / name, {f"{name}.cache.tar.xz": _generated(GENERATED[name], out)})
        else:
            file, packs = next((f, packs) for f, packs in CUT.items() if name in packs)
            whole, part = _read(data / file), packs.index(name)
            if len(whole) > len(packs) * _PART:
                raise InputError(f"{file}: expected at most {len(packs) * _PART:,} bytes")
            piece = whole[part * _PART : (part + 1) * _PART]
            _write(out / name, {f"{file}.part{part}of{len(packs)}": piece})


def unpack(packs: Path, data: Path, cache: Path) -> list[str]:
    """Put what the packs below a folder hold to its place; returns the names of the packs there.

    Parts wait in the data folder until all are there.

    Raises:
        InputError: a file is not what its manifest says.
    """
    there = data / "packs.json"
    names = set(read_json(there, "remove it to unpack all packs anew")) if there.exists() else set()
    for manifest in sorted(packs.glob(f"*/{MANIFEST}")):
        if manifest.parent.name in names:
            continue
        for file, sha256 in read_json(manifest, _AGAIN).items():
            content = _read(manifest.parent / file)
            if hashlib.sha256(content).hexdigest() != sha256:
                raise InputError(f"{manifest.parent / file} is damaged; {_AGAIN}")
            make_folder(data)
            write_bytes(data / file, content)
            _settle(data, file, cache)
        names.add(manifest.parent.name)
    if names:
        write_json(there, sorted(names))
    return sorted(names)


def _settle(data: Path, file: str, cache: Path) -> None:
    """Unpack a cache; join parts once all are there."""
    if file.endswith(".cache.tar.xz"):
        with tarfile.open(data / file) as archive:
            archive.extractall(cache, filter="data")
        (data / file).unlink()
    whole, cut, position = file.rpartition(".part")
    if cut:
        count = int(position.split("of")[1])
        parts = [data / f"{whole}.part{part}of{count}" for part in range(count)]
        if all(part.exists() for part in parts):
            write_bytes(data / whole, b"".join(part.read_bytes() for part in parts))
            for part in parts:
                part.unlink()


def _generated(task: str, out: Path) -> bytes:
    cache, archive = out / "cache", out / "cache.tar.xz"
    os.environ["RIFFLEMIX_CACHE"] = str(cache)
    folder = prepare_task(task)
    assert folder is not None
    with tarfile.open(archive, "w:xz", preset=6) as packed:
        packed.add(folder, folder.relative_to(cache))
    content = archive.read_bytes()
    archive.unlink()
    shutil.rmtree(cache)
    return content


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error


def _write(pack: Path, files: dict[str, bytes]) -> None:
    total = sum(map(len, files.values()))
    if total > MOST_BYTES:
        raise InputError(f"pack {pack.name}: expected at most {MOST_BYTES:,} bytes, got {total:,}")
    make_folder(pack)
    for file, content in files.items():
        write_bytes(pack / file, content)
    sums = {file: hashlib.sha256(content).hexdigest() for file, content in files.items()}
    write_json(pack / MANIFEST, sums)
    print(f"{pack}: {total:,} bytes")


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks/gpu_data.sh", description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True, help="folder of data files")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu-data"), help="folder of packs")
    parser.add_argument("packs", nargs="*", metavar="PACK", help=f"all, or {', '.join(PACKS)}")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.packs) - set(PACKS))
    if unknown:
        parser.error(f"expected packs out of {', '.join(PACKS)}, got {unknown[0]}")
    try:
        make_packs(arguments.packs or list(PACKS), arguments.data_dir, arguments.out)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
