"""Run every Triton kernel once, forward and backward, at sizes for a sanitizer."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

# Without memory pools the sanitizer finds accesses beyond the end of a tensor.
os.environ.setdefault("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")

import torch
from torch import Tensor

from rifflemix import ops

_LENGTHS = {"pairs": (38, 19), "windows": (96, 6), "long windows": (300, 2), "whole": (37, 1)}
# A call of an operator; it accepts the backend and returns a tensor to differentiate.
Call = Callable[..., Tensor]


def cases(device: str, dtype: torch.dtype) -> Iterator[tuple[str, Call]]:
    """Yield the names and calls of all kernels."""
    new = partial(torch.randn, device=device, dtype=dtype, requires_grad=True)

    def mask_of(masked: bool, batch: int, length: int) -> Tensor | None:
        mask = torch.rand(batch, length, device=device) < 0.3
        mask[-1] = True
        return mask if masked else None

    for (name, (length, groups)), order, masked in product(
        _LENGTHS.items(), ("reference", "ascending"), (False, True)
    ):
        options = {"order": order, "key_padding_mask": mask_of(masked, 3, length)}
        call = partial(ops.group_sort, new(3, length, 20), groups, **options)
        yield f"group_sort {name} {order} mask={masked}", call
    for length, groups in ((96, 6), (37, 1)):
        values = torch.randn(3, length, 20, device=device, dtype=dtype).relu()
        values[0, 5] = -0.0  # negative zeros are sorted again
        yield f"group_sort values of {length // groups}", partial(_sort_values, values, groups)
    steps = torch.arange(130, device=device)
    yield "channel_permute pairs", partial(ops.channel_permute, new(2, 42, 130), steps, 21)
    yield "circular_shift", partial(ops.circular_shift, new(2, 41, 130), steps)
    for masked, function in product(
        (False, True), (ops.token_statistics, ops.causal_token_statistics)
    ):
        temperature = torch.rand(3, device=device, requires_grad=True)
        mask = mask_of(masked, 2, 150)
        call = partial(function, new(2, 3, 150, 10), temperature, key_padding_mask=mask)
        yield f"{function.__name__} mask={masked}", call
    for decay, removal in product(("no", "scalar", "vector"), ("no", "delta", "erase")):
        call = partial(_recur, new, decay, removal)
        yield f"linear_recurrence {decay} decay, {removal} removal", call
    for blocks, masked, causal in product((5, 40, 128), (False, True), (False, True)):
        if blocks <= 64 or not causal:
            options = {"causal": causal, "block_padding_mask": mask_of(masked, 2, blocks)}
            call = partial(ops.sinkhorn, new(2, 3, blocks, blocks), 4, **options)
            yield f"sinkhorn {blocks} blocks mask={masked} causal={causal}", call
    if device == "cpu" and dtype == torch.bfloat16:
        return  # Triton's interpreter cannot multiply bfloat16 matrices
    for blocks, size, width in ((5, 7, 12), (20, 16, 64)):
        q, k, v = (new(2, 3, blocks * size, width) for _ in range(3))
        sort = new(2, 3, blocks, blocks).detach().sigmoid().requires_grad_()
        for masked, p in ((False, 0.0), (True, 0.0), (True, 0.1)):
            options = {"key_padding_mask": mask_of(masked, 2, blocks * size), "dropout_p": p}
            call = partial(ops.sinkhorn_attention, q, k, v, sort, size, **options)
            yield f"sinkhorn_attention {blocks} of {size} x {width} mask={masked} p={p}", call


def _sort_values(values: Tensor, groups: int, backend: str) -> Tensor:
    """Sort values that need no gradient."""
    one = torch.ones((), device=values.device, requires_grad=True)
    return one * ops.group_sort(values, groups, order="descending", backend=backend)


def _recur(new: Callable[..., Tensor], decay: str, removal: str, backend: str) -> Tensor:
    """Run the recurrence over packed sequences, from given states."""
    shape, width = (1, 3, 70), 20
    options: dict[str, Any] = {"backend": backend}
    if decay != "no":
        options["log_decay"] = -new(*shape, *(width,) * (decay == "vector")).square()
    if removal == "delta":
        options["beta"] = new(*shape).sigmoid()
    if removal == "erase":
        options["erase"] = (new(*shape, width) / width, new(*shape, width))
    q, k, v = new(*shape, width), new(*shape, width) / width, new(*shape, 40)
    offsets = torch.tensor([0, 5, 5, 70], device=q.device)
    first = torch.randn(3, 3, width, 40, device=q.device)
    return ops.linear_recurrence(q, k, v, cu_seqlens=offsets, initial_state=first, **options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", help="cpu with TRITON_INTERPRET=1")
    parser.add_argument("--only", default="", help="part of the names of the cases to run")
    arguments = parser.parse_args()
    for dtype in (torch.float32, torch.bfloat16):
        for name, call in cases(arguments.device, dtype):
            if arguments.only in name:
                print(name, dtype, flush=True)
                call(backend="triton").float().square().sum().backward()
    if arguments.device != "cpu":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
