"""Readers for data files that unpickle nothing and report damage in one sentence.

Archives from the web have size limits. A file of a few megabytes can decompress to many gigabytes
of zeros.
"""

from __future__ import annotations

import gzip
import io
import lzma
import math
import re
import tarfile
import zipfile
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Self, cast

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from rifflemix.errors import InputError
from rifflemix.files import check_regular
from rifflemix.lab.tasks.data_io.files import Arrays, damaged, reading

_BLOCK = 1 << 20
_MOST_MEMBER = 1 << 28
_MOST_ARCHIVE = 1 << 36
_MOST_HEADER = 1 << 20  # long names and extended headers of tar archives
# Code for the user. np.resize repeats a sequence, and readers ignore values past its length.
_SAVE_TEXTS = "np.savez(path, x=np.array(x.tolist()), y=y)"
_SAVE_SEQUENCES = (
    "lengths = [len(s) for s in x]; np.savez(path, x=np.array([np.resize(s, (max(lengths), "
    "*np.shape(s)[1:])) for s in x]), y=y, lengths=lengths)"
)


def open_data(path: Path) -> IO[bytes]:
    """Open a file.

    Decompress it during reading if its name ends in .gz or .xz.
    """
    check_regular(path)
    if path.suffix == ".gz":
        return cast(IO[bytes], gzip.open(path, "rb"))
    stream = path.open("rb")
    return io.BufferedReader(_WholeXz(stream), _BLOCK) if path.suffix == ".xz" else stream


class _WholeXz(io.RawIOBase):
    """Reader for all streams of an .xz file.

    The reader of lzma silently drops a damaged later stream.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._decoder = lzma.LZMADecompressor()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            block = b""
            if self._decoder.eof:
                if not (block := self._next_start()):
                    return 0
                self._decoder = lzma.LZMADecompressor()
            elif self._decoder.needs_input and not (block := self._file.read(_BLOCK)):
                raise EOFError("the compressed data has no end")
            if content := self._decoder.decompress(block, len(buffer)):
                buffer[: len(content)] = content
                return len(content)

    def close(self) -> None:
        self._file.close()
        super().close()

    def _next_start(self) -> bytes:
        """Return the start of the next stream, without zero padding between streams."""
        found = self._decoder.unused_data.lstrip(b"\0")
        while not found and (block := self._file.read(_BLOCK)):
            found = block.lstrip(b"\0")
        return found


def read_bytes(path: Path) -> bytes:
    """Read a whole file, decompressed as by `open_data`.

    Raises:
        InputError: The file is missing or damaged.
    """
    with reading(path), open_data(path) as stream:
        return stream.read()


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Read number (from 1) and content of each line, without line feed.

    Raises:
        InputError: The file is missing or damaged.
    """
    with reading(path), open_data(path) as stream:
        for number, line in enumerate(stream, start=1):
            yield number, line.removesuffix(b"\n")


def read_text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Read the number and UTF-8 text of each non-blank line."""
    for number, line in read_lines(path):
        with reading(path):
            text = line.decode("utf-8").rstrip("\r")
        if text.strip():
            yield number, text


def read_csv_lines(path: Path) -> Generator[str]:
    """Read UTF-8 lines with their line ends, for the csv module.

    A quoted field can contain line ends.

    Raises:
        InputError: The file is missing or damaged.
    """
    with reading(path), io.TextIOWrapper(open_data(path), "utf-8-sig", newline="") as text:
        yield from text


def read_npz(path: Path) -> Arrays:
    """Read all arrays of an .npz or .npz.xz file."""
    content = io.BytesIO(read_bytes(path))
    with reading(path):
        if content.getvalue().startswith(npy.MAGIC_PREFIX):
            raise InputError(
                f"{path}: expected an .npz archive of named arrays, got one .npy array; save them "
                "with np.savez(path, x=..., y=...)"
            )
        if not zipfile.is_zipfile(content):
            raise damaged(path, "no .npz archive inside")
        arrays: Arrays = {}
        with zipfile.ZipFile(content) as archive:
            for member in archive.infolist():
                with archive.open(member) as stream:
                    name = member.filename.removesuffix(".npy")
                    arrays[name] = read_npy(path, stream.read(member.file_size))
        return arrays


def read_npy(path: Path, content: bytes) -> NDArray[Any]:
    """Read the array of a .npy file.

    Raise if its header does not match its size.
    """
    with reading(path):
        stream = io.BytesIO(content)
        version = npy.read_magic(stream)
        read_header = {
            (1, 0): npy.read_array_header_1_0,
            (2, 0): npy.read_array_header_2_0,
        }.get(version)
        if read_header is None:
            raise damaged(path, f"its format {version} is not known")
        shape, _, dtype = read_header(stream)
        size, left = math.prod(shape) * dtype.itemsize, len(content) - stream.tell()
        if dtype.hasobject:
            raise InputError(
                f"{path}: expected arrays of numbers or texts, got pickled objects. They can run "
                f"code, so rifflemix does not read them. Save texts with `{_SAVE_TEXTS}`. Save "
                f"sequences of unequal length with `{_SAVE_SEQUENCES}`"
            )
        if size != left or any(length < 0 for length in shape):
            raise damaged(path, f"its header has shape {shape} of {dtype}, but {left} bytes follow")
        stream.seek(0)
        return npy.read_array(stream, allow_pickle=False)


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read an array of unsigned bytes in MNIST's idx format, optionally gzipped."""
    with reading(path), open_data(path) as stream:
        start = stream.read(4)
        if start[:3] != b"\x00\x00\x08" or len(start) < 4:
            raise damaged(path, "no idx header of unsigned bytes")
        sizes = stream.read(4 * start[3])
        if len(sizes) < 4 * start[3]:
            raise damaged(path, "no idx header of unsigned bytes")
        shape = tuple(np.frombuffer(sizes, dtype=">u4").tolist())
        size = math.prod(shape)
        content = stream.read()
        if len(content) != size:
            raise damaged(path, f"its header has shape {shape}, but {len(content)} bytes follow")
        return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def read_tar_members(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Stream name and content of the wanted regular files of a .tar.gz.

    Nothing is unpacked to disk.
    """
    for member, stream in tar_members(path):
        if member.isfile() and wanted(member.name):
            if member.size > _MOST_MEMBER:
                raise damaged(path, f"{member.name} is far larger than it should be")
            with reading(path):
                opened = stream()
                content = None if opened is None else opened.read()
            if content is not None:
                yield member.name, content


def tar_members(
    path: Path,
) -> Iterator[tuple[tarfile.TarInfo, Callable[[], IO[bytes] | None]]]:
    """Iterate over .tar.gz members and functions that open them, in one pass.

    Raises:
        InputError: The archive is damaged or exceeds the size limit.
    """
    total = 0
    with reading(path), tarfile.open(path, "r|gz", tarinfo=_Header) as archive:
        for member in archive:
            total += member.size
            if total > _MOST_ARCHIVE:
                raise damaged(path, f"with {member.name} it is far larger than it should be")
            yield member, lambda member=member: archive.extractfile(member)  # type: ignore[misc] # bound now


class _Header(tarfile.TarInfo):
    """Tar header with a size limit.

    tarfile alone reads long names and extended headers of any size.
    """

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Read a header.

        Raise if it announces a long name or extended header that is too large.
        """
        header = super().frombuf(buf, encoding, errors)
        if header.type in _LONG and header.size > _MOST_HEADER:
            raise tarfile.ReadError(f"a header of {header.size:,} bytes")
        return header


_LONG = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)


ENDINGS = (".fasta", ".fa", ".fna", ".faa")

_SEQUENCE = re.compile(r"[A-Za-z*-]+")
_FIELD = re.compile(r"(\w+)=(\S+)")


def fasta_rows(file: Path) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Yield the line and the columns of each record.

    The columns are "id", "description" and "sequence". A header such as ">p1 class=promoter" also
    gives the column "class". Sequences become upper-case.

    Raises:
        InputError: The file is not a FASTA file, or a record has no sequence.

    Source: Pearson and Lipman 1988, Improved tools for biological sequence comparison.
    """
    start, header, parts = 0, "", list[str]()
    for line, text in read_text_lines(file):
        content = text.strip()
        if content.startswith(">"):
            if start:
                yield start, _record(file, start, header, parts)
            start, header, parts = line, content[1:].strip(), []
        elif not content or content.startswith(";"):
            continue
        elif not start:
            raise InputError(
                f"{file}, line {line}: expected a header with '>', got {content[:40]!r}"
            )
        elif not _SEQUENCE.fullmatch(content):
            raise InputError(
                f"{file}, line {line}: expected letters, '*' and '-' of a sequence, got "
                f"{content[:40]!r}"
            )
        else:
            parts.append(content.upper())
    if start:
        yield start, _record(file, start, header, parts)


def _record(file: Path, line: int, header: str, parts: list[str]) -> Mapping[str, str]:
    if not parts:
        raise InputError(f"{file}, line {line}: expected a sequence after the header, got none")
    name, _, description = header.partition(" ")
    fields = dict(_FIELD.findall(description))
    return {**fields, "id": name, "description": description.strip(), "sequence": "".join(parts)}
