"""Downloads with a size limit, and data sets of the Hugging Face hub at a fixed commit."""

from __future__ import annotations

import hashlib
import http.client
import tempfile
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rifflemix.errors import InputError
from rifflemix.lab.tasks.core.base import Progress
from rifflemix.lab.tasks.data_io.files import Arrays, Source

_SECONDS = 30.0
_BLOCK = 1 << 20
_MOST_BYTES = 1 << 28


@dataclass(frozen=True)
class Remote:
    """File to download and its expected sha256, size, or both.

    Attributes:
        url: URL of the file.
        sha256: Expected sha256 of the content, or None.
        size: Expected size in bytes, or None.
    """

    url: str
    sha256: str | None
    size: int | None = None


def download(remote: Remote, progress: Progress, explain: Callable[[str], InputError]) -> bytes:
    """Download a file of at most 256 MiB.

    Args:
        remote: URL, expected sha256 and expected size of the file.
        progress: Callback that receives a description and the number of bytes.
        explain: Function that creates the error for a given reason.

    Raises:
        InputError: The download fails or is incomplete, the file is too large, or its content
            differs from the expected sha256 or size.
    """
    url = remote.url
    what = f"fetching {url.rsplit('/', 1)[-1]}"
    content = bytearray()
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as answer:
            total = getattr(answer, "length", None)  # None for file: URLs
            progress(what, 0, total)
            while block := answer.read(_BLOCK):
                content += block
                progress(what, len(content), total)
                if len(content) > _MOST_BYTES:
                    raise explain(f"fetching {url} failed: more than {_MOST_BYTES:,} bytes came")
    except (OSError, ValueError, http.client.HTTPException) as error:
        if isinstance(error, InputError):
            raise
        reason = str(error) or type(error).__name__
        raise explain(f"fetching {url} failed: {reason}") from error
    if total is not None and len(content) < total:
        raise explain(f"fetching {url} failed: it broke off at {len(content):,} of {total:,} bytes")
    if remote.size is not None and len(content) != remote.size:
        raise explain(f"{url} has {len(content):,} bytes, expected {remote.size:,}")
    got = hashlib.sha256(content).hexdigest()
    if remote.sha256 is not None and got != remote.sha256:
        raise explain(f"{url} has sha256 {got}, expected {remote.sha256}")
    return bytes(content)


_HUB = "https://huggingface.co/datasets"


@dataclass(frozen=True)
class HubData:
    """Data set of the hub at one commit.

    Attributes:
        repository: Repository as owner/name.
        revision: Commit.
        folder: Folder of the Parquet files.
        sha256: Expected sha256 of the file of each split. Each split has one file.
        sizes: Expected size in bytes of files without a known sha256. `decode` then checks the
            content.
    """

    repository: str
    revision: str
    folder: str
    sha256: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)

    def remotes(self) -> dict[str, Remote]:
        """Return the file of each split."""
        location = f"{_HUB}/{self.repository}/resolve/{self.revision}/{self.folder}"
        return {
            split: Remote(
                f"{location}/{split}-00000-of-00001.parquet",
                self.sha256.get(split),
                self.sizes.get(split),
            )
            for split in {**self.sha256, **self.sizes}
        }


def hub_source(
    data: HubData,
    decode: Callable[[Any, Progress], Arrays],
    explain: Callable[[str], InputError],
    variant: str = "",
) -> Source:
    """Define a hub data set that is downloaded on first use.

    The download needs the `datasets` library.

    Args:
        data: Data set to download.
        decode: Function that converts the splits to arrays.
        explain: Function that creates the error for a failed download from its reason.
        variant: Name that separates decoded copies of one data set.
    """

    def read(progress: Progress) -> Arrays:
        try:
            import datasets
        except ImportError:
            raise explain(
                "to fetch it, install the datasets library: pip install 'rifflemix[data]'"
            ) from None
        with tempfile.TemporaryDirectory(prefix="rifflemix-", ignore_cleanup_errors=True) as name:
            folder = Path(name)
            files = _fetch(data, folder, progress, explain)
            try:
                splits = datasets.load_dataset(
                    "parquet", data_files=files, cache_dir=str(folder / "cache")
                )
            # The library passes on errors of other libraries (Arrow, files).
            except Exception as error:
                reason = (str(error) or type(error).__name__).splitlines()[0]
                raise explain(f"reading {data.repository} failed: {reason}") from error
            return decode(splits, progress)

    key = f"hub-{data.repository.replace('/', '-')}-{data.revision[:8]}"
    key += f"-{variant}" if variant else ""
    return Source(f"{data.repository} from the Hugging Face hub", key, read)


def _fetch(
    data: HubData, folder: Path, progress: Progress, explain: Callable[[str], InputError]
) -> dict[str, str]:
    """Download the file of each split and return the paths."""
    paths = {}
    for split, remote in data.remotes().items():
        path = folder / f"{split}.parquet"
        content = download(remote, progress, explain)
        try:
            path.write_bytes(content)
        except OSError as error:
            raise explain(f"cannot write {path}: {error.strerror}") from error
        paths[split] = str(path)
    return paths
