"""Data sets of the Hugging Face hub: files of one revision, each checked against its sha256."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rifflemix.errors import InputError
from rifflemix.lab.tasks.core.base import Progress
from rifflemix.lab.tasks.data_io.download import Remote, download
from rifflemix.lab.tasks.data_io.files import Arrays, Source

_HUB = "https://huggingface.co/datasets"


@dataclass(frozen=True)
class HubData:
    """A data set of the hub, as it was at one commit.

    Attributes:
        repository: owner/name.
        revision: the commit.
        folder: where its Parquet files are.
        sha256: of the one file of each split.
        sizes: in bytes, where no sha256 is known and `decode` checks the content.
    """

    repository: str
    revision: str
    folder: str
    sha256: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)

    def remotes(self) -> dict[str, Remote]:
        """The file of each split."""
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
    """A data set of the hub, fetched when it is first read with the `datasets` library.

    Args:
        data: what to fetch.
        decode: turns the fetched splits into arrays.
        explain: makes the error from the reason why the data could not be fetched.
        variant: tells decoded copies of one data set apart.
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
            # The library lets through the errors of several others (Arrow, files).
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
    """Fetch the file of each split into a folder; their paths."""
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
