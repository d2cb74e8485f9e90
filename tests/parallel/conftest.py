"""Four processes for all tests of this folder: starting them takes longer than what they do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from processes import Processes


@pytest.fixture(scope="session")
def four() -> Iterator[Processes]:
    with Processes(4) as processes:
        yield processes
