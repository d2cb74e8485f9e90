"""Models that fit a task, split over processes or not, and checks of third-party code.

The checks find errors that would make scores meaningless: outputs that depend on later tokens or
on other samples, or that are broadcast over tokens. `rifflemix.testing.check_mixer` tests more.
All processes that share a sequence get the same batch from the training loop.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rifflemix.errors import InputError, bad_argument
from rifflemix.lab.runs.options import count_processes
from rifflemix.lab.tasks import Shapes, Task, card_of
from rifflemix.lab.train.engine import Engine, check_context_parallel
from rifflemix.lab.train.evaluate import model_options, run_model
from rifflemix.lab.train.protocols import Batch
from rifflemix.lab.train.seeds import seed_everything
from rifflemix.mixers import TokenMixer, mixer_classes
from rifflemix.models import Model, create_model, model_settings
from rifflemix.models.presets import find_preset
from rifflemix.models.vision.vit import ViT
from rifflemix.parallel import check_sharded_form, shard_sequence
from rifflemix.parallel.layers import ShardedEncoder, ShardedGPT
from rifflemix.parallel.shards import SequenceGroup
from rifflemix.plugins import (
    code_hash,
    file_of,
    first_line,
    is_outside,
    outside_classes,
    place_in,
    plugin_files,
)

_OTHER = -3.0  # factor that changes a token; it also changes the squares
_ROUNDING = 1e-3  # relative to the largest output; in FFT mixers all tokens affect rounding


def outside_code(mixers: Iterable[str], models: Iterable[str]) -> dict[str, str]:
    """Return the hashes of all third-party code.

    A plugin file has its hash. A mixer or model has the name of its file, or else a hash.
    """
    found = plugin_files()
    used: dict[str, Any] = {
        f"mixer {cls.card.name}": cls for name in mixers for cls in mixer_classes(name)
    }
    used |= {f"model {name}": find_preset(name).build for name in models}
    for name, definition in used.items():
        if is_outside(definition):
            found[name] = file_of(definition) or code_hash(definition)
    return found


def code_by_name(found: Mapping[str, str]) -> dict[str, str]:
    """Replace file names in the result of `outside_code` by their hashes."""
    return {name: found.get(code, code) for name, code in found.items()}


@contextmanager
def checked_mixers(model: nn.Module) -> Iterator[None]:
    """Check the third-party mixers of `model` while it runs.

    The model must run on at least two samples.

    Raises:
        InputError: a mixer raises an exception. Or its outputs are not finite, differ from its
            inputs in shape or dtype, or depend on other samples or later tokens.
    """
    found = [m for m in model.modules() if isinstance(m, TokenMixer) and is_outside(type(m))]
    hooks = [mixer.register_forward_hook(_check, with_kwargs=True) for mixer in found]
    try:
        yield
    except (InputError, KeyboardInterrupt):
        raise
    except BaseException as error:  # a third-party mixer may even call sys.exit
        place = _place(error, found)
        if place is None:
            raise
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise InputError(f"{place}: {reason}") from error
    finally:
        for hook in hooks:
            hook.remove()


def _check(mixer: TokenMixer, args: tuple[Any, ...], _: dict[str, Any], y: Any) -> None:
    x = args[0]
    got = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
    if got != tuple(x.shape):
        raise _broken(mixer, f"outputs of its tokens' shape {tuple(x.shape)}, got {got}")
    if y.dtype != x.dtype:
        raise _broken(mixer, f"outputs of its tokens' type {x.dtype}, got {y.dtype}")
    if x.isfinite().all() and not y.isfinite().all():
        raise _broken(mixer, "finite outputs, got NaN or infinity")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        whole, other = _outputs(mixer, x), x.clone()
        other[1:] *= _OTHER
        if _differ(whole[:1], _outputs(mixer, other)[:1]):
            raise _broken(mixer, "a sample's outputs whatever the others of its batch are")
        if mixer.causal and x.shape[1] > 1:
            other = x.clone()
            other[:, -1] *= _OTHER
            if _differ(whole[:, :-1], _outputs(mixer, other)[:, :-1]):
                raise _broken(mixer, "causal outputs, got some that change with a later token")


def _outputs(mixer: TokenMixer, x: Tensor) -> Tensor:
    """Run the mixer without hooks and with fixed noise."""
    torch.manual_seed(0)
    return mixer.forward(x.clone())


def _differ(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).abs().max() > _ROUNDING * one.abs().max())


def _broken(mixer: TokenMixer, what: str) -> InputError:
    name = type(mixer).__name__
    return InputError(f"expected {what}; rifflemix.testing.check_mixer({name}) finds more")


def _place(error: BaseException, mixers: list[TokenMixer]) -> str | None:
    """Return file and line of the last error in the mixers' code."""
    files = {
        value.__code__.co_filename
        for mixer in mixers
        for cls in outside_classes(type(mixer))
        for value in vars(cls).values()
        if hasattr(value, "__code__")
    }
    return place_in(error, files)


_TOO_LARGE = re.compile("alloc|memory|overflow|too large|size", re.IGNORECASE)


def fit_model(name: str, task: Task | Shapes, settings: Mapping[str, Any], seed: int) -> Model:
    """Create a model that fits the samples and labels of a task.

    Args:
        name: registry name of the model.
        task: source of vocabulary or features, classes and lengths, if the model has such settings.
            The shapes of the samples are enough.
        settings: settings of the model; they override the settings from the task.
        seed: seed of the initial weights.

    Raises:
        InputError: a name or setting is unknown, or a value is out of range.
    """
    known = model_settings(name)
    fitted = {key: value for key, value in task_settings(task).items() if key in known}
    seed_everything(seed)
    return create_model(name, **{**fitted, **settings})


def task_settings(task: Task | Shapes) -> dict[str, Any]:
    """Return the model settings that depend on a task's data."""
    if task.image_shape is not None:
        channels, size, _ = task.image_shape
        inputs: dict[str, Any] = {"image_size": size, "in_channels": channels}
    elif task.input_kind == "tokens":
        inputs = {"max_length": task.max_length, "vocab_size": task.vocab_size}
    elif task.input_kind == "vectors":
        inputs = {"max_length": task.max_length, "in_channels": task.num_features}
    else:  # graphs of any size
        inputs = {"vocab_size": task.vocab_size}
    return {**inputs, "num_classes": task.num_classes}


def pair_settings(model: str, task: str, num_sequences: int) -> dict[str, Any]:
    """Return the backbone settings for samples of several sequences of a task.

    The head also gets the product and the difference of the two representations. A linear head
    on the representations alone cannot measure their similarity.
    """
    if "num_sequences" not in model_settings(model):
        raise InputError(
            f"model {model} takes one sequence at a time, but a sample of task {task} has "
            f"{num_sequences}; choose a model that takes num_sequences, such as encoder"
        )
    return {"num_sequences": num_sequences, "pair_mix": "concat_product_difference"}


def output_settings(model: str, output: str) -> dict[str, Any]:
    """Return the backbone settings for the output of a task."""
    return {"pool": "none"} if output == "tokens" and "pool" in model_settings(model) else {}


def check_batch_size(batch_size: int, task: Task) -> None:
    """Raise InputError if a batch is larger than the training split."""
    available = len(task.split("train"))
    if batch_size > available:
        expected = f"at most the {available} samples of the training split"
        raise bad_argument("batch_size", expected, batch_size)


def first_batch(task: Task) -> Batch:
    """Return the first two training samples; repeat a single sample."""
    train = task.split("train")
    return task.collate([train[index] for index in (0, min(1, len(train) - 1))])


def try_out(build: Callable[[], Model], task: Task) -> Model:
    """Build a model and run it on two training samples.

    Returns:
        The model, in evaluation mode.

    Raises:
        InputError: the model cannot be built or run on this machine; the outputs do not match the
            task or are not finite; a third-party mixer fails the checks of `checked_mixers`.
    """
    try:
        model = build().eval()
        batch = first_batch(task)
        _check_takes(model, task, batch)
        with torch.no_grad(), checked_mixers(model):
            outputs = run_model(model, batch)
            loss = task.loss(outputs, batch)  # raises InputError if the outputs do not match
    except InputError:
        raise
    except (RuntimeError, MemoryError, OverflowError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        is_large = not isinstance(error, RuntimeError) or _TOO_LARGE.search(reason)
        what = "no model of this size can be made here" if is_large else "the model cannot be run"
        raise InputError(f"{what}: {reason}") from error
    for name, values in (("outputs", outputs), ("loss", loss)):
        if not torch.isfinite(values).all():
            raise InputError(
                f"expected finite {name} for the first samples of task {task.name}, got NaN or "
                "infinity; check the data"
            )
    return model


def _check_takes(model: Model, task: Task, batch: Batch) -> None:
    """Raise InputError unless the model accepts all optional entries of a batch."""
    parameters = inspect.signature(model.forward).parameters
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return
    for name in model_options(batch):
        if name not in parameters:
            fitting = card_of(task).backbone
            raise InputError(
                f"the model takes no {name}, which batches of task {task.name} have; choose a "
                f"model that takes it, such as {fitting}"
            )


def check_processes(context_parallel: int) -> None:
    """Raise InputError unless torchrun started a multiple of `context_parallel` processes."""
    processes = count_processes()
    if context_parallel > 1 and processes == 1:
        raise InputError(
            f"context_parallel: expected {context_parallel} processes or a multiple of them, but "
            f"this is one alone; start it with torchrun --nproc-per-node {context_parallel} -m "
            "rifflemix in place of rifflemix"
        )
    check_context_parallel(context_parallel, processes)


def check_split(model: Model, task: Task, context_parallel: int) -> None:
    """Raise InputError unless the model and the task support `context_parallel` processes."""
    if context_parallel == 1:
        return
    check_sharded_form(model)
    if isinstance(model, ViT):
        what, length = "number of patches", model.num_patches
    else:
        what, length = f"max_length of task {task.name}", task.max_length
    if length % context_parallel:
        raise bad_argument(
            "context_parallel", f"a divisor of the {what}, {length}", context_parallel
        )


def split_model(model: Model, engine: Engine) -> Model:
    """Split a model's sequences over the processes that share them, in place.

    The model still accepts whole batches, equal on these processes, and returns whole outputs. A
    `GPT` gathers all logits on each process.

    Raises:
        InputError: `rifflemix.parallel.shard_sequence` does not support the model. Calls of the
            model also raise it if a batch needs padding and the pooling counts padding.
    """
    if engine.context_parallel > 1:
        shard_sequence(model.to(engine.device), engine.sequence_mesh())
        whole = _WHOLE.get(type(model))
        if whole is not None:
            model.__class__ = whole
    return model


class _WholeEncoder(ShardedEncoder):
    """Sharded encoder that accepts whole inputs and splits them."""

    def forward(
        self,
        inputs: Tensor,
        *,
        key_padding_mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> Tensor:
        """Run `SequenceClassifier.forward` on inputs that are equal on all processes."""
        _check_not_packed(cu_seqlens)
        dim = 1 if self.num_sequences == 1 else 2
        kind = getattr(self.pool, "kind", "")
        if kind == "position_mean" and inputs.shape[dim] % self.sequence.size:
            raise bad_argument(
                "inputs",
                f"a number of tokens that {self.sequence.size} processes divide, since "
                "pool='position_mean' counts padding",
                inputs.shape[dim],
            )
        inputs, mask = _own_part(inputs, key_padding_mask, self.sequence, dim)
        return super().forward(inputs, key_padding_mask=mask)


class _WholeGPT(ShardedGPT):
    """Sharded language model that accepts whole inputs, splits them and gathers the logits."""

    def forward(
        self,
        tokens: Tensor,
        *,
        key_padding_mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> Tensor:
        """Run `GPT.forward` on inputs that are equal on all processes."""
        _check_not_packed(cu_seqlens)
        length = tokens.shape[1]
        own, mask = _own_part(tokens, key_padding_mask, self.sequence, 1)
        logits = super().forward(own, key_padding_mask=mask)
        return self.sequence.shards(own.shape[1]).gather(logits)[:, :length]


_WHOLE: dict[type[Model], type[Model]] = {
    ShardedEncoder: _WholeEncoder,
    ShardedGPT: _WholeGPT,
}


def _check_not_packed(cu_seqlens: Tensor | None) -> None:
    if cu_seqlens is not None:
        raise bad_argument("cu_seqlens", "None where sequences are split over processes", "offsets")


def _own_part(
    inputs: Tensor, mask: Tensor | None, sequence: SequenceGroup, dim: int
) -> tuple[Tensor, Tensor | None]:
    """Return the tokens of this process and their padding mask.

    Inputs are padded to a multiple of the number of processes.
    """
    missing = -inputs.shape[dim] % sequence.size
    if missing:
        if mask is None:
            mask = torch.zeros(inputs.shape[: dim + 1], dtype=torch.bool, device=inputs.device)
        mask = F.pad(mask, (0, missing), value=True)
        inputs = F.pad(inputs, (0, 0) * (inputs.dim() - 1 - dim) + (0, missing))
    each = inputs.shape[dim] // sequence.size
    start = sequence.rank * each
    own = None if mask is None else mask.narrow(dim, start, each)
    return inputs.narrow(dim, start, each), own
