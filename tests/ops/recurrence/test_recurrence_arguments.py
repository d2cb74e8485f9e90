"""`linear_recurrence` rejects arguments that do not fit, and names them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rifflemix.errors import InputError
from rifflemix.ops import linear_recurrence

Q = torch.randn(2, 3, 6, 4)
V = torch.randn(2, 3, 6, 5)
GATE = torch.rand(2, 3, 6)
STATE = torch.zeros(2, 3, 4, 5)
BAD: dict[str, tuple[str, dict[str, Any]]] = {
    "rank of q": ("q", {"q": Q[0]}),
    "integers": ("q", {"q": Q.long()}),
    "no heads": ("q", {"q": Q[:, :0]}),
    "no features of values": ("v", {"v": V[..., :0]}),
    "features of k": ("k", {"k": V}),
    "dtype of k": ("k", {"k": Q.double()}),
    "length of v": ("v", {"v": V[:, :, :5]}),
    "k is a list": ("k", {"k": [1.0]}),
    "decay per value": ("log_decay", {"log_decay": V}),
    "decay per batch": ("log_decay", {"log_decay": GATE[0]}),
    "integer decay": ("log_decay", {"log_decay": GATE.long()}),
    "decay number": ("log_decay", {"log_decay": -0.5}),
    "beta per feature": ("beta", {"beta": Q}),
    "beta and erase": ("erase", {"beta": GATE, "erase": (Q, Q)}),
    "erase is one tensor": ("erase", {"erase": Q}),
    "erase of three": ("erase", {"erase": (Q, Q, Q)}),
    "shape in erase": (r"erase\[1\]", {"erase": (Q, V)}),
    "shape of the state": ("initial_state", {"initial_state": STATE[:1]}),
    "dtype of the state": ("initial_state", {"initial_state": STATE.double()}),
    "device of the state": ("initial_state", {"initial_state": STATE.to("meta")}),
    "mask dtype": ("key_padding_mask", {"key_padding_mask": torch.zeros(2, 6)}),
    "mask shape": ("key_padding_mask", {"key_padding_mask": torch.zeros(2, 3).bool()}),
    "batch of packed sequences": ("q", {"cu_seqlens": torch.tensor([0, 6])}),
    "flag": ("return_state", {"return_state": 1}),
    "backend": ("backend", {"backend": "cuda"}),
}


@pytest.mark.parametrize(("name", "change"), BAD.values(), ids=BAD)
def test_bad_arguments_are_named(name: str, change: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"q": Q, "k": Q, "v": V, **change}
    with pytest.raises(InputError, match=f"^{name}: expected"):
        linear_recurrence(**arguments)


OFFSETS = {
    "start": [1, 6],
    "end": [0, 5],
    "order": [0, 4, 3, 6],
    "one number": [0],
}


@pytest.mark.parametrize("offsets", OFFSETS.values(), ids=OFFSETS)
def test_bad_offsets_are_named(offsets: list[int]) -> None:
    with pytest.raises(InputError, match=r"^cu_seqlens: expected"):
        linear_recurrence(Q[:1], Q[:1], V[:1], cu_seqlens=torch.tensor(offsets))


def test_packed_sequences_have_no_mask() -> None:
    mask = torch.zeros(1, 6, dtype=torch.bool)
    with pytest.raises(InputError, match=r"^key_padding_mask: expected"):
        linear_recurrence(
            Q[:1], Q[:1], V[:1], key_padding_mask=mask, cu_seqlens=torch.tensor([0, 6])
        )


def test_states_of_packed_sequences() -> None:
    offsets = torch.tensor([0, 2, 6])
    _, state = linear_recurrence(Q[:1], Q[:1], V[:1], cu_seqlens=offsets, return_state=True)
    assert state.shape == (2, 3, 4, 5)
    with pytest.raises(InputError, match=r"^initial_state: expected"):
        linear_recurrence(Q[:1], Q[:1], V[:1], cu_seqlens=offsets, initial_state=STATE[:1])
