"""Which sorts "auto" runs with Triton kernels, tested without a GPU."""

from __future__ import annotations

import pytest
import torch

from rifflemix.errors import InputError
from rifflemix.ops import triton_support
from rifflemix.ops.dispatch import PLAIN
from rifflemix.ops.permutation.triton_limits import (
    FASTEST_WINDOW,
    MAX_WINDOW,
    check_limits,
    with_triton,
)


def as_on_a_gpu(names: tuple[str, ...], _: object, *conditions: bool) -> tuple[str, ...]:
    return (*names, "triton") if all(conditions) else names


def test_long_windows_are_used_only_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_support, "with_triton", as_on_a_gpu)
    for dtype, bits in ((torch.bfloat16, 16), (torch.float32, 32)):
        x = torch.zeros(1, 32768, 1, dtype=dtype)
        assert with_triton(PLAIN, x, FASTEST_WINDOW[bits]) == (*PLAIN, "triton")
        fastest, longest = FASTEST_WINDOW[bits], MAX_WINDOW[bits]
        for longer in (fastest + 1, longest) if fastest < longest else ():
            assert with_triton(PLAIN, x, longer) == ("triton", *PLAIN)
        assert with_triton(PLAIN, x, MAX_WINDOW[bits] + 1) == PLAIN
    assert with_triton(PLAIN, torch.zeros(1, 4, 1, dtype=torch.float64), 2) == PLAIN


def test_windows_fit_the_shared_memory_of_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_support, "with_triton", as_on_a_gpu)
    for kib, longest, of_float32 in ((227, 16384, 8192), (163, 16384, 8192), (99, 8192, 4096)):
        room = 1024 * kib
        monkeypatch.setattr(triton_support, "shared_memory", lambda _, room=room: room)
        x = torch.zeros(1, 32768, 1, dtype=torch.bfloat16)
        assert with_triton(PLAIN, x, longest) == (*PLAIN, "triton")
        assert with_triton(PLAIN, x, longest + 1) == PLAIN
        assert with_triton(PLAIN, x.float(), of_float32) == ("triton", *PLAIN)
        assert with_triton(PLAIN, x.float(), of_float32 + 1) == PLAIN


def test_kernels_count_tokens_in_32_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_support, "with_triton", as_on_a_gpu)
    x = torch.zeros(1, 1, 1)
    assert with_triton(PLAIN, x.expand(2**16 - 1, 2**15, 4), 2) == (*PLAIN, "triton")
    assert with_triton(PLAIN, x.expand(2**16, 2**15, 4), 2) == PLAIN
    monkeypatch.setattr(triton_support, "check_device", lambda _: None)
    with pytest.raises(InputError, match="2,147,483,647 tokens"):
        check_limits(x.expand(2**16, 2**15, 4), 2)


def test_without_a_gpu_triton_is_not_offered() -> None:
    assert with_triton(PLAIN, torch.zeros(1, 4, 1), 2) == PLAIN
