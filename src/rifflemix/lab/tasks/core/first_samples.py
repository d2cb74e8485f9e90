"""First samples of a split, for option `max_samples`."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from rifflemix.lab.tasks.core.base import Sample, Split


@dataclass(frozen=True, eq=False)
class FirstSamples:
    """First `most` samples of a split, or a complete shorter split."""

    split: Split
    most: int

    def __len__(self) -> int:
        return min(len(self.split), self.most)

    def __getitem__(self, index: int) -> Sample:
        return self.split[range(len(self))[index]]

    def digest(self) -> bytes:
        """Hash the whole split and the number of samples in use."""
        return hashlib.blake2b(self.split.digest() + b"%d" % len(self), digest_size=16).digest()
