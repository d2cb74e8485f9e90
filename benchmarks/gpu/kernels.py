"""Every Triton kernel once, forward and backward, at odd sizes: small enough for a sanitizer."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator

# Without its pools every tensor is memory of its own, and a step beyond its end is seen.
os.environ.setdefault("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")

import torch
from torch import Tensor

from rifflemix import ops

_LENGTHS = {"pairs": (38, 19), "windows": (96, 6), "long windows": (300, 2), "whole": (37, 1)}


def cases(device: str) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """Names and calls that return something to go backward from."""
    for dtype in (torch.float32, torch.bfloat16):
        for name, (length, groups) in _LENGTHS.items():
            for order in ("reference", "ascending"):
                for masked in (False, True):
                    x = torch.randn(3, length, 20, device=device, dtype=dtype).requires_grad_()
                    mask = _mask(3, length, device) if masked else None
                    text = f"group_sort {name} {order} {dtype} mask={masked}"
                    yield (
                        text,
                        lambda x=x, m=mask, g=groups, o=order: ops.group_sort(
                            x, g, order=o, key_padding_mask=m, backend="triton"
                        ),
                    )
        for length, groups in ((96, 6), (37, 1)):
            values = torch.randn(3, length, 20, device=device, dtype=dtype).relu()
            values[0, 5] = -0.0  # which are sorted once more
            one = torch.ones((), device=device, requires_grad=True)
            yield (
                f"group_sort values of {length // groups} {dtype}",
                lambda x=values, g=groups, o=one: (
                    o * ops.group_sort(x, g, order="descending", backend="triton")
                ),
            )
        x = torch.randn(2, 41, 130, device=device, dtype=dtype).requires_grad_()
        steps = torch.arange(130, device=device)
        even = torch.randn(2, 42, 130, device=device, dtype=dtype).requires_grad_()
        yield (
            f"channel_permute pairs {dtype}",
            lambda x=even, s=steps: ops.channel_permute(x, s, 21, backend="triton"),
        )
        yield (
            f"circular_shift {dtype}",
            lambda x=x, s=steps: ops.circular_shift(x, s, backend="triton"),
        )
        for masked in (False, True):
            for function in (ops.token_statistics, ops.causal_token_statistics):
                w = torch.randn(2, 3, 150, 10, device=device, dtype=dtype).requires_grad_()
                t = torch.rand(3, device=device).requires_grad_()
                mask = _mask(2, 150, device) if masked else None
                yield (
                    f"{function.__name__} {dtype} mask={masked}",
                    lambda w=w, t=t, m=mask, f=function: f(
                        w, t, key_padding_mask=m, backend="triton"
                    ),
                )
        for blocks in (5, 40, 128):
            for masked in (False, True):
                scores = torch.randn(2, 3, blocks, blocks, device=device, dtype=dtype)
                scores.requires_grad_()
                mask = _mask(2, blocks, device) if masked else None
                for causal in (False, True) if blocks <= 64 else (False,):
                    yield (
                        f"sinkhorn {blocks} blocks {dtype} mask={masked} causal={causal}",
                        lambda s=scores, m=mask, c=causal: ops.sinkhorn(
                            s, 4, causal=c, block_padding_mask=m, backend="triton"
                        ),
                    )
        if device == "cpu" and dtype == torch.bfloat16:
            continue  # whose matrices Triton's interpreter cannot multiply
        for blocks, size, width in ((5, 7, 12), (20, 16, 64)):
            parts = [
                torch.randn(2, 3, blocks * size, width, device=device, dtype=dtype)
                for _ in range(3)
            ]
            sort = torch.rand(2, 3, blocks, blocks, device=device, dtype=dtype)
            leaves = [part.requires_grad_() for part in (*parts, sort)]
            for masked, p in ((False, 0.0), (True, 0.0), (True, 0.1)):
                mask = _mask(2, blocks * size, device) if masked else None
                yield (
                    f"sinkhorn_attention {blocks} of {size} x {width} {dtype} mask={masked} p={p}",
                    lambda t=leaves, b=size, m=mask, p=p: ops.sinkhorn_attention(
                        *t, b, key_padding_mask=m, dropout_p=p, backend="triton"
                    ),
                )


def _mask(batch: int, length: int, device: str) -> Tensor:
    mask = torch.rand(batch, length, device=device) < 0.3
    mask[-1] = True
    return mask


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", help="cpu with TRITON_INTERPRET=1")
    parser.add_argument("--only", default="", help="cases whose names contain this")
    arguments = parser.parse_args()
    for name, call in cases(arguments.device):
        if arguments.only in name:
            print(name, flush=True)
            call().float().square().sum().backward()
    if arguments.device != "cpu":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
