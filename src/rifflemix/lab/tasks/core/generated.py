"""Tasks that need no files: their data ships with the package or is generated."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rifflemix.errors import bad_argument
from rifflemix.lab.tasks.core.base import Request, TaskCard, TaskStatus


class GeneratedTask:
    """A task that is always available.

    Attributes:
        card: what the task is.
        at_hand: where its data comes from, as its status says.
        takes_seed: whether the data depends on the seed of a request, an option of every such task.
    """

    card: TaskCard
    at_hand = "generated on demand"
    takes_seed = True

    def status(self, data_dir: Path | None) -> TaskStatus:
        """Always available."""
        return TaskStatus(self.card.name, True, self.at_hand)

    def prepared(self, request: Request) -> Path | None:
        """Nothing is kept, unless a subclass says where."""
        return None

    def status_of_kept(self, folder: Path) -> TaskStatus:
        """Available, and which generated data lies in a folder of the cache."""
        kept = sorted(path.name for path in folder.glob("generated-*"))
        detail = f"kept: {', '.join(kept)}" if kept else "none kept yet"
        return TaskStatus(self.card.name, True, f"{self.at_hand}, {detail}")


def refuse_generator_options(request: Request, names: Iterable[str]) -> None:
    """Raise where options of the generator, or its seed, are set although files are read."""
    for name in ("seed", *names):
        if name in request.given:
            raise bad_argument(
                name,
                f"to be left out with the files in {request.data_dir}",
                request.options.get(name, request.seed),
                "it is an option of the generator",
            )
