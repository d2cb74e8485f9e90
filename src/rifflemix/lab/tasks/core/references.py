"""Tasks with the score of a simple prediction, as a reference for models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable


@runtime_checkable
class AnswersBlindly(Protocol):
    """Task with a known accuracy for a predictor that ignores the inputs."""

    @property
    def blind_answer(self) -> str:
        """The prediction, as a clause: "repeating the token before"."""
        ...

    def blind_accuracy(self, split: str) -> float:
        """Return the accuracy of this prediction on a split."""
        ...


@runtime_checkable
class HasReference(Protocol):
    """Task with the scores of a simple prediction, for the table."""

    @property
    def reference_answer(self) -> str:
        """The prediction, as a clause: "repeating the last season"."""
        ...

    def reference_scores(self, split: str) -> Mapping[str, float]:
        """Return the metrics of this prediction on "validation" or "test"."""
        ...
