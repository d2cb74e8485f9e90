"""Tasks that need no files: built-in or generated data."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rifflemix.errors import bad_argument
from rifflemix.lab.tasks.core.base import Request, TaskCard, TaskStatus


class GeneratedTask:
    """Task that is always available.

    Attributes:
        card: Card of the task.
        at_hand: Origin of the data, for the status.
        takes_seed: True if the data depends on the seed of a request. The seed is then an option.
    """

    card: TaskCard
    at_hand = "generated on demand"
    takes_seed = True

    def status(self, data_dir: Path | None) -> TaskStatus:
        return TaskStatus(self.card.name, True, self.at_hand)

    def prepared(self, request: Request) -> Path | None:
        return None

    def status_of_kept(self, folder: Path) -> TaskStatus:
        """Report the task as available and list its generated data."""
        kept = sorted(path.name for path in folder.glob("generated-*"))
        detail = f"kept: {', '.join(kept)}" if kept else "none kept yet"
        return TaskStatus(self.card.name, True, f"{self.at_hand}, {detail}")


def refuse_generator_options(request: Request, names: Iterable[str]) -> None:
    """Raise if a request combines files with a seed or generator options."""
    for name in ("seed", *names):
        if name in request.given:
            raise bad_argument(
                name,
                f"to be left out with the files in {request.data_dir}",
                request.options.get(name, request.seed),
                "it is an option of the generator",
            )
