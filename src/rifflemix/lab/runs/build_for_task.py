"""Creation of a model that fits a task, and checks of third-party code.

The checks find errors that would make scores meaningless: outputs that depend on later tokens or
on other samples, or that are broadcast over tokens. `rifflemix.testing.check_mixer` tests more.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rifflemix.errors import InputError, bad_argument
from rifflemix.lab.tasks import Shapes, Task, card_of
from rifflemix.lab.train.evaluate import model_options, run_model
from rifflemix.lab.train.protocols import Batch
from rifflemix.lab.train.seeds import seed_everything
from rifflemix.mixers import TokenMixer, mixer_classes
from rifflemix.models import Model, create_model, model_settings
from rifflemix.models.presets import find_preset
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
    y: Tensor = mixer.forward(x.clone())
    return y


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
