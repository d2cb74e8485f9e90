"""Fetching single files, bounded in size and checked against a known sha256."""

from __future__ import annotations

import hashlib
import http.client
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass

from rifflemix.errors import InputError
from rifflemix.lab.tasks.core.base import Progress

_SECONDS = 30.0
_BLOCK = 1 << 20
_MOST_BYTES = 1 << 28


@dataclass(frozen=True)
class Remote:
    """A file to be fetched, and what it must be: one of the two is known.

    Attributes:
        url: where it is.
        sha256: of its content.
        size: in bytes.
    """

    url: str
    sha256: str | None
    size: int | None = None


def download(remote: Remote, progress: Progress, explain: Callable[[str], InputError]) -> bytes:
    """The content of a file of at most 256 MiB.

    Args:
        remote: where it is and what it must be.
        progress: told what is fetched, and how many bytes are.
        explain: makes the error from the reason why it could not be had.

    Raises:
        InputError: it cannot be fetched, breaks off, is too large, or is another file.
    """
    url = remote.url
    what = f"fetching {url.rsplit('/', 1)[-1]}"
    content = bytearray()
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as answer:
            total = getattr(answer, "length", None)  # files have none
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
