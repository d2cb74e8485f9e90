"""What a recipe costs before it is run: its work is counted, and how long that takes here.

A training step runs once on tensors that have shapes but no values: nothing is computed and no
data is needed, however large the model. Its operators are counted one by one, which takes a second;
the papers' rows have been counted before (`kept_costs`). A second of calibration says how fast this
machine does such work.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rifflemix.compat import OperatorWatch, UnknownShape, shapes_only, storage_key
from rifflemix.lab.recipes import Recipe
from rifflemix.lab.reproduction.kept_costs import StepCost, kept_costs, work
from rifflemix.lab.reproduction.outlines import outline
from rifflemix.lab.runs.fit import fit_model
from rifflemix.lab.runs.measure import median_seconds, processor_seconds
from rifflemix.lab.train.evaluate import run_model
from rifflemix.lab.train.optim import build_optimizer
from rifflemix.models.macs import flop_formulas

# They move no data: some hand out memory, one looks at it in another way, one makes a number.
_IDLE = (
    "aten::empty",
    "aten::empty_like",
    "aten::empty_strided",
    "aten::_unsafe_view",
    "aten::scalar_tensor",
)


@dataclass(frozen=True)
class Speed:
    """What a machine does in a second, and its pause before an operator."""

    flops: float
    moved_bytes: float
    operator_seconds: float

    def seconds(self, step: StepCost) -> float:
        """An estimate of how long a training step takes."""
        computing = step.flops / self.flops + step.moved_bytes / self.moved_bytes
        return computing + step.operators * self.operator_seconds


def recipe_costs(
    recipes: Sequence[Recipe], speed: Speed, progress: Callable[[int, int], object] | None = None
) -> Iterator[dict[str, Any]]:
    """The cost of each recipe, as JSON values.

    Args:
        recipes: which ones.
        speed: of the machine that would run them.
        progress: called with how many are done, and of how many.

    Returns:
        For each: name, the fields of its `StepCost`, "steps", "tokens_in_all", "flops_in_all",
        "seconds_per_step" and "seconds": training alone, without data and evaluations.
    """
    known = dict(kept_costs())
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
        InputError: a model that cannot be built, or a task without an outline.
    """
    try:
        return _count_step(recipe, with_padding=True)
    except UnknownShape:  # a batch norm of the valid tokens alone: how many, only values say
        return _count_step(recipe, with_padding=False)


def step_samples(recipe: Recipe) -> int:
    """Samples of a training step whose work is counted."""
    pair = recipe.train.token_batches
    if pair is None:
        return recipe.train.batch_size
    return max(1, pair[0] // min(outline(recipe).tokens, pair[1]))


def _count_step(recipe: Recipe, *, with_padding: bool) -> StepCost:
    plan, train = outline(recipe), recipe.train
    samples = step_samples(recipe)
    with shapes_only():
        with _watch():  # some look at numbers when they are made
            model = fit_model(recipe.model, plan.task, recipe.model_settings, train.seed).train()
        optimizer = build_optimizer(model, train, fused=train.optimizer != "adafactor")
        count = _Count(model.parameters(), plan.valid)
        # The first batch makes the gradients, the second adds to them, and so do all others.
        for times in _times(train.accumulation):
            batch = plan.batch(samples // train.accumulation)
            if not with_padding:
                batch.pop("key_padding_mask", None)
            with count.of(times):
                _loss(run_model(model, batch), batch["labels"]).backward()
        with _watch():  # Adafactor looks at a number
            optimizer.step()  # makes its state
        with count.of(1):
            optimizer.step()
    sequences = samples * plan.task.num_sequences
    return StepCost(
        sequences * plan.tokens, count.flops, count.moved_bytes, count.operators, count.peak_bytes
    )


def flops_of(call: Callable[[], object], valid: float) -> int:
    """FLOPs of the operators that run in a call.

    Args:
        call: runs them.
        valid: tokens of a sample that attention meets where it leaves out padding.
    """
    with _Count(iter(()), valid) as count:
        call()
    flops: int = count.flops
    return flops


def _times(accumulation: int) -> list[int]:
    return [1] if accumulation == 1 else [1, accumulation - 1]


def _watch() -> OperatorWatch:
    return OperatorWatch()  # type: ignore[no-untyped-call] # torch's own is not annotated


def _loss(outputs: Tensor, labels: Tensor) -> Tensor:
    if outputs.shape[-1] == 1:
        return functional.l1_loss(outputs.float().flatten(), labels.float())
    return functional.cross_entropy(outputs.float().flatten(0, -2), labels.flatten())


class _Count(OperatorWatch):
    """Counts the work of the operators that run inside, beside tensors that live already.

    Args:
        alive: those tensors.
        valid: tokens of a sample that attention meets where it leaves out padding.
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
        """The same count, for work that is done so many times."""
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
        """Work of attention, less that of padding where it is told what that is."""
        q, *_, is_padding = args[:6]
        share = min(1.0, self._valid / q.shape[2]) if is_padding else 1.0
        return int(flops * share**2)

    def _hold(self, tensor: Tensor) -> None:
        """Add the memory of a tensor until it is let go."""
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
    """Formulas of shapes, as torch's own registry holds them: of operands."""
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
    """Measure how fast this machine does such work; about a second.

    The products are as large as those of small models. What moves numbers is a copy. On a CPU half
    of them are copied in order and half turned, which takes some times as long, as numbers in
    fresh memory do. The best of some timings counts, on a CPU of the processor time of the calling
    thread: what else runs on the machine does not make its rows longer.
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
