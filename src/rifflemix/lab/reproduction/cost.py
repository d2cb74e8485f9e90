"""Estimate the cost of a recipe before it runs.

`python docs/build/build.py costs` writes the file. Other recipes are counted on demand.

One training step runs on tensors with shapes but without values. This needs no data and computes
nothing, so the size of the model does not matter. Counting the operators takes about a second;
`cost_cache` has the counts of the papers' recipes. A calibration of one second measures the speed
of this machine.
"""

from __future__ import annotations

import functools
import hashlib
import json
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rifflemix.compat import OperatorWatch, UnknownShape, shapes_only, storage_key
from rifflemix.errors import bad_argument
from rifflemix.files import read_json, write_bytes
from rifflemix.lab.recipes import Recipe
from rifflemix.lab.runs.build_for_task import fit_model, task_settings
from rifflemix.lab.runs.measure import median_seconds, processor_seconds
from rifflemix.lab.tasks import Shapes, task_card
from rifflemix.lab.train.evaluate import run_model
from rifflemix.lab.train.optim import build_optimizer
from rifflemix.models import model_settings
from rifflemix.models.macs import flop_formulas
from rifflemix.ops import native

FILE = Path(__file__).parent / "files" / "step_costs.json"


@dataclass(frozen=True)
class StepCost:
    """Work of one training step: forward, backward and optimizer.

    Attributes:
        tokens: tokens of all samples with padding; pixels of whole images.
        flops: FLOPs of matrix products, convolutions and attention; two for a multiply-add.
            Attention that skips padding counts the valid tokens.
        moved_bytes: bytes that all operators read and write.
        operators: number of operators that compute; about the number of kernels on a GPU.
        peak_bytes: peak memory of tensors, with weights.
    """

    tokens: int
    flops: int
    moved_bytes: int
    operators: int
    peak_bytes: int


def shapes_of(recipe: Recipe) -> Shapes:
    """Return the shapes of the samples of a recipe, without its data.

    Raises:
        InputError: only the data determines the shapes.
    """
    card = task_card(recipe.task)
    if card.shapes is None:
        raise bad_argument(f"task of {recipe.name}", "a task whose card has shapes", recipe.task)
    return card.shapes({**card.options, **recipe.task_options})


def work(recipe: Recipe) -> str:
    """Return a name for the work of a training step. Equal steps have equal names.

    The name depends on everything that determines the count, such as the settings of the preset
    and the shapes of the samples.
    """
    shapes, train = shapes_of(recipe), recipe.train
    parts = {
        "task": [recipe.task, dict(recipe.task_options), task_settings(shapes)],
        "tokens": [shapes.tokens, shapes.valid],
        "model": [recipe.model, {**model_settings(recipe.model), **recipe.model_settings}],
        "train": [train.batch_size, train.accumulation, train.optimizer],
        **({} if train.token_batches is None else {"token_batches": train.token_batches}),
    }
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@functools.cache
def cost_cache() -> Mapping[str, StepCost]:
    """Return name of the `work` -> cost. Empty without the compiled kernels."""
    return {} if native.library() is None else read_costs(FILE)


def read_costs(path: Path) -> dict[str, StepCost]:
    """Read a file of `write_costs`."""
    return {name: StepCost(*numbers) for name, numbers in read_json(path).items()}


def write_costs(path: Path, costs: Mapping[str, StepCost]) -> None:
    """Write costs by name, one line each."""
    lines = [f'"{name}": {json.dumps(astuple(cost))}' for name, cost in sorted(costs.items())]
    write_bytes(path, ("{\n" + ",\n".join(lines) + "\n}\n").encode())


# These operators move no data.
_IDLE = (
    "aten::empty",
    "aten::empty_like",
    "aten::empty_strided",
    "aten::_unsafe_view",
    "aten::scalar_tensor",
)


@dataclass(frozen=True)
class Speed:
    """Speed of a machine per second, and its overhead per operator."""

    flops: float
    moved_bytes: float
    operator_seconds: float

    def seconds(self, step: StepCost) -> float:
        """Estimate the time of a training step."""
        computing = step.flops / self.flops + step.moved_bytes / self.moved_bytes
        return computing + step.operators * self.operator_seconds


def recipe_costs(
    recipes: Sequence[Recipe], speed: Speed, progress: Callable[[int, int], object] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the cost of each recipe as JSON values.

    Args:
        recipes: which ones.
        speed: speed of the machine that would train the recipes.
        progress: called with how many are done, and of how many.

    Returns:
        For each: name, the fields of its `StepCost`, "steps", "tokens_in_all", "flops_in_all",
        "seconds_per_step" and "seconds": training alone, without data and evaluations.
    """
    known = dict(cost_cache())
    for done, recipe in enumerate(recipes):
        if progress is not None:
            progress(done, len(recipes))
        name = work(recipe)
        if name not in known:
            known[name] = count_step(recipe)
        step, steps = known[name], recipe.train.max_steps
        seconds = speed.seconds(step)
        yield {
            "name": recipe.name,
            **asdict(step),
            "steps": steps,
            "tokens_in_all": steps * step.tokens,
            "flops_in_all": steps * step.flops,
            "seconds_per_step": seconds,
            "seconds": steps * seconds,
        }


def count_step(recipe: Recipe) -> StepCost:
    """Count the work of one training step of a recipe.

    Raises:
        InputError: the model cannot be built, or only the data determines the shapes of the task.
    """
    try:
        return _count_step(recipe, with_padding=True)
    except UnknownShape:  # batch norm over valid tokens, whose number depends on values
        return _count_step(recipe, with_padding=False)


def step_samples(recipe: Recipe) -> int:
    """Return the number of samples in the counted training step."""
    pair = recipe.train.token_batches
    if pair is None:
        return recipe.train.batch_size
    return max(1, pair[0] // min(shapes_of(recipe).tokens, pair[1]))


def _count_step(recipe: Recipe, *, with_padding: bool) -> StepCost:
    shapes, train = shapes_of(recipe), recipe.train
    output = task_card(recipe.task).output
    samples = step_samples(recipe)
    with shapes_only():
        with _watch():  # some schedules read numbers in the constructor
            model = fit_model(recipe.model, shapes, recipe.model_settings, train.seed).train()
        optimizer = build_optimizer(model, train, fused=train.optimizer != "adafactor")
        count = _Count(model.parameters(), shapes.valid)
        # The first batch creates the gradients. The second adds to them, like all others.
        for times in _times(train.accumulation):
            batch = shapes.zeros(samples // train.accumulation, output)
            if not with_padding:
                batch.pop("key_padding_mask", None)
            with count.of(times):
                _loss(run_model(model, batch), batch["labels"]).backward()
        with _watch():  # Adafactor reads a number
            optimizer.step()  # creates its state
        with count.of(1):
            optimizer.step()
    sequences = samples * shapes.num_sequences
    return StepCost(
        sequences * shapes.tokens, count.flops, count.moved_bytes, count.operators, count.peak_bytes
    )


def flops_of(call: Callable[[], object], valid: float) -> int:
    """Count the FLOPs of the operators in a call.

    Args:
        call: function that runs the operators.
        valid: valid tokens per sample, for attention that skips padding.
    """
    with _Count(iter(()), valid) as count:
        call()
    return count.flops


def _times(accumulation: int) -> list[int]:
    return [1] if accumulation == 1 else [1, accumulation - 1]


def _watch() -> OperatorWatch:
    return OperatorWatch()  # type: ignore[no-untyped-call] # torch's own is not annotated


def _loss(outputs: Tensor, labels: Tensor) -> Tensor:
    if outputs.shape[-1] == 1:
        return functional.l1_loss(outputs.float().flatten(), labels.float())
    return functional.cross_entropy(outputs.float().flatten(0, -2), labels.flatten())


class _Count(OperatorWatch):
    """Counter of the work of the operators in a block.

    Args:
        alive: tensors that exist before the block.
        valid: valid tokens per sample, for attention that skips padding.
    """

    def __init__(self, alive: Iterator[Tensor], valid: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch's own is not annotated
        from torch.utils.flop_counter import flop_registry  # it imports triton, if there is one

        self._formulas = {**flop_registry, **_with_out_val(flop_formulas())}
        self._valid = valid
        self.flops = self.moved_bytes = self.operators = 0
        self._times = 1
        self._storages: set[int] = set()
        self._live_bytes = self.peak_bytes = 0
        for tensor in alive:
            self._hold(tensor)

    def of(self, times: int) -> _Count:
        """Multiply the following work by `times`, and return the counter."""
        self._times = times
        return self

    def saw(self, operator: Any, args: tuple[Any, ...], options: dict[str, Any], out: Any) -> None:
        """Count one operator."""
        tensors = [*_tensors((args, options)), *_tensors(out)]
        for tensor in tensors:
            self._hold(tensor)
        if not tensors or _is_idle(operator):
            return
        self.operators += self._times
        self.moved_bytes += self._times * sum(t.numel() * t.element_size() for t in tensors)
        formula = self._formulas.get(operator.overloadpacket)
        if formula is not None:
            flops = int(formula(*args, **options, out_val=out))
            self.flops += self._times * (self._of_valid(flops, args) if _skips(operator) else flops)

    def _of_valid(self, flops: int, args: tuple[Any, ...]) -> int:
        """Reduce the work of attention to the valid tokens if it gets a mask."""
        q, *_, is_padding = args[:6]
        share = min(1.0, self._valid / q.shape[2]) if is_padding else 1.0
        return int(flops * share**2)

    def _hold(self, tensor: Tensor) -> None:
        """Add the memory of a tensor until it is freed."""
        key, storage = storage_key(tensor), tensor.untyped_storage()
        if key in self._storages:
            return
        self._storages.add(key)
        self._live_bytes += storage.nbytes()
        self.peak_bytes = max(self.peak_bytes, self._live_bytes)
        weakref.finalize(storage, self._let_go, key, storage.nbytes())

    def _let_go(self, key: int, size: int) -> None:
        self._storages.discard(key)
        self._live_bytes -= size


def _skips(operator: Any) -> bool:
    ours = torch.ops.rifflemix
    both = (ours.dropout_attention, ours.dropout_attention_backward)
    return operator.overloadpacket in both


def _is_idle(operator: Any) -> bool:
    name = operator.name()
    return operator.is_view or name.startswith("prim::") or name.split(".")[0] in _IDLE


def _with_out_val(formulas: dict[Any, Any]) -> dict[Any, Any]:
    """Return a formula on shapes as a formula on operands, for the registry of torch."""
    from torch.utils.flop_counter import shape_wrapper

    return {operator: shape_wrapper(formula) for operator, formula in formulas.items()}


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(tuple(value.values()))
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _tensors(part)


def calibrate(device: str = "cpu") -> Speed:
    """Measure the speed of this machine in about a second.

    Matrix products have the size of small models. Memory speed is measured by copies. On a CPU half
    of the numbers are copied in order and half transposed. A transposed copy takes several times as
    long, as does new memory. The best of several timings counts. On a CPU it is the processor time
    of the calling thread, so that other programs do not matter.
    """
    on = torch.device(device)
    tokens, weight = torch.randn(16_384, 256, device=on), torch.randn(256, 256, device=on)
    large, small = torch.randn(4096, 4096, device=on), torch.randn(8, device=on)
    copied = torch.empty_like(large)
    calls: dict[str, Callable[[], object]] = {
        "product": lambda: tokens @ weight,
        "in order": lambda: copied.copy_(large),
        "operator": lambda: small + small,
    }
    if on.type == "cpu":
        calls["turned"] = lambda: copied.copy_(large.t())
        took = {name: processor_seconds(call) for name, call in calls.items()}
    else:
        took = {name: min(times) for name, times in median_seconds(calls, on).items()}
    copies = [took[name] for name in ("in order", "turned") if name in took]
    return Speed(
        flops=2 * tokens.numel() * weight.shape[1] / took["product"],
        moved_bytes=2 * large.numel() * large.element_size() * len(copies) / sum(copies),
        operator_seconds=took["operator"],
    )
