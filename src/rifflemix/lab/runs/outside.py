"""Other people's code: its hashes, and a first look at mixers before their scores are believed.

`rifflemix.testing.check_mixer` asks for all that a mixer promises. Here is what would make a score
worthless: outputs that look ahead, that meet other samples, or that are broadcast over tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rifflemix.errors import InputError
from rifflemix.mixers import TokenMixer, mixer_class
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

_OTHER = -3.0  # times a token: its square is another one too
_ROUNDING = 1e-3  # of the largest output; a mixer over frequencies rounds with every token


def outside_code(mixers: Iterable[str], models: Iterable[str]) -> dict[str, str]:
    """The hash of each plugin's file; of each mixer and model from outside its file, or hash."""
    found = plugin_files()
    used: dict[str, Any] = {f"mixer {name}": mixer_class(name) for name in mixers}
    used |= {f"model {name}": find_preset(name).build for name in models}
    for name, definition in used.items():
        if is_outside(definition):
            found[name] = file_of(definition) or code_hash(definition)
    return found


def code_by_name(found: Mapping[str, str]) -> dict[str, str]:
    """The hash behind each name of `outside_code`: a mixer or model has that of its file."""
    return {name: found.get(code, code) for name, code in found.items()}


@contextmanager
def checked_mixers(model: nn.Module) -> Iterator[None]:
    """Check the mixers from outside in `model` while it runs on at least two samples.

    Raises:
        InputError: one raises, returns something else than outputs of its tokens' shape, or its
            outputs change with what they must not see.
    """
    found = [m for m in model.modules() if isinstance(m, TokenMixer) and is_outside(type(m))]
    hooks = [mixer.register_forward_hook(_check, with_kwargs=True) for mixer in found]
    try:
        yield
    except (InputError, KeyboardInterrupt):
        raise
    except BaseException as error:  # a mixer may do anything, such as leave the process
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
    """Without the hooks; noise, if there is any, is the same in each."""
    torch.manual_seed(0)
    y: Tensor = mixer.forward(x.clone())
    return y


def _differ(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).abs().max() > _ROUNDING * one.abs().max())


def _broken(mixer: TokenMixer, what: str) -> InputError:
    name = type(mixer).__name__
    return InputError(f"expected {what}; rifflemix.testing.check_mixer({name}) finds more")


def _place(error: BaseException, mixers: list[TokenMixer]) -> str | None:
    """File and line where code of one of the mixers' modules went wrong last."""
    files = {
        value.__code__.co_filename
        for mixer in mixers
        for cls in outside_classes(type(mixer))
        for value in vars(cls).values()
        if hasattr(value, "__code__")
    }
    return place_in(error, files)
