"""Download of single files with a size limit and an optional sha256 check."""

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
