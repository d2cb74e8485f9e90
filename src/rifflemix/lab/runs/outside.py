"""Third-party code: its hashes, and short checks of third-party mixers before training.

The checks find errors that would make scores meaningless: outputs that depend on later tokens or
on other samples, or that are broadcast over tokens. `rifflemix.testing.check_mixer` tests more.
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

_OTHER = -3.0  # factor that changes a token; it also changes the squares
_ROUNDING = 1e-3  # relative to the largest output; in FFT mixers all tokens affect rounding


def outside_code(mixers: Iterable[str], models: Iterable[str]) -> dict[str, str]:
    """Return the hashes of all third-party code.

    A plugin file has its hash. A mixer or model has the name of its file, or else a hash.
    """
    found = plugin_files()
    used: dict[str, Any] = {f"mixer {name}": mixer_class(name) for name in mixers}
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
