"""Seeding of all random generators, and saving and restoring of their exact states."""

from __future__ import annotations

import random
import struct

import numpy as np
import torch
from torch import Tensor

_NORMAL = struct.Struct("<?d")  # whether a spare normal deviate is cached, and its value
_NUMPY_TAIL = struct.Struct("<qqd")  # position, has_gauss, cached gaussian


def seed_everything(seed: int) -> None:
    """Seed Python, numpy and torch on every device.

    Call this function before you create a model.

    Args:
        seed: any integer from 0 to 2**63 - 1; numpy gets the low 32 bits.

    Example:
        >>> import torch, rifflemix as rm
        >>> rm.train.seed_everything(0)
        >>> first = torch.rand(3)
        >>> rm.train.seed_everything(0)
        >>> torch.equal(torch.rand(3), first)
        True
    """
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002 (the global state)  (other packages use the global state)
    torch.manual_seed(seed)


def seed_sequence(seed: int, *purpose: int) -> np.random.SeedSequence:
    """Derive a seed sequence for a rank, an epoch or another purpose."""
    return np.random.SeedSequence(seed, spawn_key=purpose)


def derive_seed(seed: int, *purpose: int) -> int:
    """Derive an independent seed for one purpose from `seed`."""
    words = seed_sequence(seed, *purpose).generate_state(2, np.uint32)
    return (int(words[0]) << 31) ^ int(words[1])


def rng_state(device: torch.device) -> dict[str, Tensor]:
    """Return the state of every generator that training on `device` may use.

    Args:
        device: the current device.

    Returns:
        Generator name -> uint8 CPU tensor. The sizes depend only on the device type, so the states
        of several processes can be stacked.
    """
    states = {"torch": torch.get_rng_state(), "python": _python_state(), "numpy": _numpy_state()}
    if device.type != "cpu":
        states[device.type] = torch.get_device_module(device).get_rng_state()
    return states


def set_rng_state(states: dict[str, Tensor], device: torch.device) -> None:
    """Restore the states that `rng_state` returned."""
    torch.set_rng_state(states["torch"])
    _set_python_state(states["python"])
    _set_numpy_state(states["numpy"])
    if device.type != "cpu":
        torch.get_device_module(device).set_rng_state(states[device.type])


def _as_bytes(blob: bytes) -> Tensor:
    return torch.frombuffer(bytearray(blob), dtype=torch.uint8)


def _python_state() -> Tensor:
    _, words, spare = random.getstate()
    words_blob = np.asarray(words, dtype="<u4").tobytes()
    return _as_bytes(_NORMAL.pack(spare is not None, spare or 0.0) + words_blob)


def _set_python_state(state: Tensor) -> None:
    blob = state.numpy().tobytes()
    cached, spare = _NORMAL.unpack_from(blob)
    words = np.frombuffer(blob, "<u4", offset=_NORMAL.size)
    random.setstate((3, tuple(int(word) for word in words), spare if cached else None))


def _numpy_state() -> Tensor:
    state = np.random.get_state(legacy=False)  # noqa: NPY002 (the global state)
    inner = state["state"]
    tail = _NUMPY_TAIL.pack(inner["pos"], state["has_gauss"], state["gauss"])
    return _as_bytes(tail + inner["key"].astype("<u4").tobytes())


def _set_numpy_state(state: Tensor) -> None:
    blob = state.numpy().tobytes()
    position, has_gauss, gauss = _NUMPY_TAIL.unpack_from(blob)
    key = np.frombuffer(blob, "<u4", offset=_NUMPY_TAIL.size).astype(np.uint32)
    np.random.set_state(("MT19937", key, position, has_gauss, gauss))  # noqa: NPY002 (the global state)
