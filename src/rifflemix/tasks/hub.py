"""Fetching data sets with the Hugging Face `datasets` library, where it is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rifflemix.errors import InputError
from rifflemix.tasks.base import Progress
from rifflemix.tasks.files import Arrays, Source


def hub_source(
    repository: str,
    decode: Callable[[Any, Progress], Arrays],
    explain: Callable[[str], InputError],
    variant: str = "",
    config: str | None = None,
) -> Source:
    """The data set `repository` of the Hugging Face hub, fetched when it is first read.

    Args:
        repository: owner/name.
        decode: turns the fetched splits into arrays.
        explain: makes the error from the reason why the data could not be fetched.
        variant: tells decoded copies of one data set apart.
        config: which of the repository's data sets, where it has several.
    """

    def read(progress: Progress) -> Arrays:
        try:
            import datasets
        except ImportError:
            raise explain(
                "to fetch it, install the datasets library: pip install 'rifflemix[data]'"
            ) from None
        progress(f"fetching {repository}", 0, None)
        names = (repository,) if config is None else (repository, config)
        try:
            splits = datasets.load_dataset(*names)
        # The library lets through the errors of several others (HTTP, files, Arrow).
        except Exception as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise explain(f"fetching {repository} failed: {reason}") from error
        return decode(splits, progress)

    key = f"hub-{repository.replace('/', '-')}" + (f"-{variant}" if variant else "")
    return Source(f"{repository} from the Hugging Face hub", key, read)
