"""Fetching single files, checked against a known sha256."""

from __future__ import annotations

import hashlib
import urllib.error
import urllib.request
from collections.abc import Callable

from rifflemix.errors import InputError
from rifflemix.tasks.base import Progress

_SECONDS = 30.0


def download(
    url: str, sha256: str, progress: Progress, explain: Callable[[str], InputError]
) -> bytes:
    """The content of a small file.

    Args:
        url: where it is.
        sha256: of the content.
        progress: told what is fetched.
        explain: makes the error from the reason why it could not be had.

    Raises:
        InputError: it cannot be fetched, or is another file.
    """
    progress(f"fetching {url.rsplit('/', 1)[-1]}", 0, None)
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as answer:
            content: bytes = answer.read()
    except (OSError, urllib.error.URLError) as error:
        raise explain(f"fetching {url} failed: {error}") from error
    got = hashlib.sha256(content).hexdigest()
    if got != sha256:
        raise explain(f"{url} has sha256 {got}, expected {sha256}")
    return content
