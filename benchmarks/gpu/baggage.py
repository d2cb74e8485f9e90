"""What outlives the machine: results to read, and the state from which another one goes on."""

from __future__ import annotations

import io
import shutil
import tarfile
from pathlib import Path

from rifflemix.errors import InputError

# Eight files of 16 MB may come back: the summary, the results, and at most four of the state.
_FILE_BYTES, _STATE_FILES = 15_500_000, 4
RESULTS, STATE = "results.tar.gz", "state.tar"
# Made again where it is missing.
_LEFT_BEHIND = ("data", "cache", "triton", "inductor")
_TO_READ = (".json", ".jsonl", ".log", ".png", ".md", ".html")


def pack_results(state: Path, out: Path) -> None:
    """Results, logs and pages of all steps, without weights; the largest are left out."""
    files = [path for path in _kept(state) if path.suffix in _TO_READ]
    with tarfile.open(out / RESULTS, "w:gz") as archive:
        for path in sorted(files, key=lambda file: file.stat().st_size):
            if (out / RESULTS).stat().st_size + path.stat().st_size > _FILE_BYTES:
                break
            archive.add(path, path.relative_to(state))


def pack_state(state: Path, out: Path) -> list[Path]:
    """Everything but data, caches and the weights of what is done, cut into files; the largest runs
    are left out, if need be.

    Returns:
        What was left out.
    """
    for old in out.glob(f"{STATE}.*"):
        old.unlink()
    left_out: list[Path] = []
    packed, room = io.BytesIO(), _STATE_FILES * _FILE_BYTES
    with tarfile.open(fileobj=packed, mode="w") as archive:
        open_files = [path for path in _kept(state) if not _is_spent(path, state)]
        for path in sorted(open_files, key=lambda file: file.stat().st_size):
            if packed.tell() + path.stat().st_size + 4096 > room - 20_000:
                left_out.append(path)
                continue
            archive.add(path, path.relative_to(state))
    content = packed.getvalue()
    for number, start in enumerate(range(0, len(content), _FILE_BYTES)):
        (out / f"{STATE}.{number}").write_bytes(content[start : start + _FILE_BYTES])
    for path in left_out:
        print(f"too large to come along: {path.relative_to(state)}; its run goes on here only")
    return left_out


def restore_state(packed: Path, state: Path) -> None:
    """Go on from what `pack_state` wrote, unless something is here already.

    Raises:
        InputError: it is not there, or not whole.
    """
    if (state / "done").exists():
        return
    parts = sorted(packed.glob(f"{STATE}.*"))
    content = io.BytesIO(b"".join(part.read_bytes() for part in parts))
    try:
        with tarfile.open(fileobj=content) as archive:
            archive.getmembers()  # of a file that was cut nothing is unpacked
            archive.extractall(state, filter="data")
    except tarfile.TarError as error:
        wanted = f"expected all of {STATE}.0 to .{_STATE_FILES - 1} that a call wrote"
        found = ", ".join(part.name for part in parts) or "none"
        raise InputError(f"{packed}: {wanted}, got {found} ({error})") from error
    for row in (state / "rows").glob("*"):
        # A run whose checkpoint stayed behind starts anew.
        is_done = (state / "done" / f"{row.name}.json").exists()
        if not is_done and not list(row.rglob("checkpoint.safetensors")):
            shutil.rmtree(row)


def _is_spent(path: Path, state: Path) -> bool:
    """Whether these are weights of a row that needs them no more."""
    place = path.relative_to(state).parts
    is_weights = place[0] == "rows" and path.suffix == ".safetensors"
    return is_weights and (state / "done" / f"{place[1]}.json").exists()


def _kept(state: Path) -> list[Path]:
    return [
        path
        for path in state.rglob("*")
        if path.is_file() and path.relative_to(state).parts[0] not in _LEFT_BEHIND
    ]
