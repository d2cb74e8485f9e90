"""The work of training steps that was counted before: counting takes a second a row.

`python docs/write_costs.py` writes the file. What it does not have is counted when it is asked for.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path

from rifflemix.files import read_json, write_bytes
from rifflemix.lab.recipes import Recipe
from rifflemix.lab.reproduction.outlines import outline
from rifflemix.lab.runs.fit import task_settings
from rifflemix.models import model_settings
from rifflemix.ops import native

FILE = Path(__file__).parent / "files" / "step_costs.json"


@dataclass(frozen=True)
class StepCost:
    """The work of one training step: forward, backward and the optimiser.

    Attributes:
        tokens: of all samples, padding included; pixels of whole images.
        flops: of matrix products, convolutions and attention; two for a multiply-add. Attention
            that leaves out padding has those of the valid tokens.
        moved_bytes: read and written by all operators.
        operators: that compute something; on a GPU about the kernels launched.
        peak_bytes: the most memory that tensors take at a time, weights included.
    """

    tokens: int
    flops: int
    moved_bytes: int
    operators: int
    peak_bytes: int


def work(recipe: Recipe) -> str:
    """A name of the work of a training step: the same for recipes whose steps do the same.

    It is of everything that the step is counted from, the preset's own settings and the outline of
    the task included, so that a change of any of them is another name.
    """
    plan, train = outline(recipe), recipe.train
    parts = {
        "task": [recipe.task, dict(recipe.task_options), task_settings(plan.task)],
        "tokens": [plan.tokens, plan.valid],
        "model": [recipe.model, {**model_settings(recipe.model), **recipe.model_settings}],
        "train": [train.batch_size, train.accumulation, train.optimizer],
        **({} if train.token_batches is None else {"token_batches": train.token_batches}),
    }
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@functools.cache
def kept_costs() -> Mapping[str, StepCost]:
    """By name of the `work`; empty without the compiled kernels, whose work they are of."""
    return {} if native.library() is None else read_costs(FILE)


def read_costs(path: Path) -> dict[str, StepCost]:
    """The costs in a file of `write_costs`."""
    return {name: StepCost(*numbers) for name, numbers in read_json(path).items()}


def write_costs(path: Path, costs: Mapping[str, StepCost]) -> None:
    """Write costs by name, a line each."""
    lines = [f'"{name}": {json.dumps(astuple(cost))}' for name, cost in sorted(costs.items())]
    write_bytes(path, ("{\n" + ",\n".join(lines) + "\n}\n").encode())
