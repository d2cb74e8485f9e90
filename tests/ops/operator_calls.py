"""One valid call of each `torch.ops.rifflemix.*` operator."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import rifflemix as rm
from rifflemix.mixers._convolution import long_convolution

assert long_convolution
HAS_TRITON = importlib.util.find_spec("triton") is not None
if HAS_TRITON:
    from rifflemix.ops.permutation import triton as permutation_triton
    from rifflemix.ops.recurrence import triton as recurrence_triton
    from rifflemix.ops.sinkhorn import triton as sinkhorn_triton
    from rifflemix.ops.statistics import triton as statistics_triton

    assert permutation_triton
    assert recurrence_triton
    assert sinkhorn_triton
    assert statistics_triton

B, N, C, GROUPS, H, D = 3, 8, 4, 2, 2, 5
MASK = torch.zeros(B, N, dtype=torch.bool).index_fill(1, torch.tensor([N - 1]), True)
STEPS = torch.arange(C) - 1
DOWN = torch.arange(C) % 2 == 1
OPS = rm.ops and torch.ops.rifflemix

Arguments = dict[str, Any]


def rand(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape))) + 0.5


def x() -> Tensor:
    return rand(B, N, C)


def order() -> Tensor:
    return torch.arange(N).view(1, N, 1).expand(B, N, C).contiguous()


def tokens(length: int = 70) -> Arguments:
    """Create arguments of the token statistics, with tokens in two chunks."""
    w = rand(B, H, length, D)
    return {"w": w, "temperature": rand(H), "mask": torch.zeros(B, length) > 1}


def recurrence(length: int = 70) -> Arguments:
    """Create arguments of a linear recurrence, with tokens in two chunks of the CPU kernels."""
    shape = (B, H, length)
    return {
        "q": rand(*shape, C),
        "k": rand(*shape, C),
        "v": rand(*shape, D),
        "log_decay": -rand(*shape, 1),
        "a": rand(*shape, C) / C,
        "b": rand(*shape, C),
        "first": rand(B, H, C, D),
        "offsets": None,
    }


def recurrence_gradient(length: int, chunks: int) -> Arguments:
    known = recurrence(length)
    return {
        **{name: x for name, x in known.items() if name not in ("first", "offsets")},
        "saved": rand(B, chunks, H, C, D),
        "grad_y": rand(B, H, length, D),
        "grad_last": rand(B, H, C, D),
        "offsets": None,
    }


# Two linear layers: blocks, in, out, strides, has bias, activation.
BLOCK_SIZES = (4, 3, 2, 2, 4, 1, 1, 4, 2, 2, 1, 1, 0, 0)


def block_maps() -> Arguments:
    return {"x": rand(B, N, 12), "parameters": rand(48), "sizes": BLOCK_SIZES}


def attention() -> Arguments:
    return {
        "q": rand(B, H, 4, D),
        "k": rand(B, H, 6, D),
        "v": rand(B, H, 6, 3),
        "mask": rand(B, H, 4, 6) > 0.7,
        "is_causal": False,
        "is_padding": False,
        "seed": torch.tensor(7),
        "p": 0.5,
    }


def blocks() -> Arguments:
    return {
        "q": rand(B, H, 6, D),
        "k": rand(B, H, 6, D),
        "v": rand(B, H, 6, D),
        "sort": rand(B, H, 3, 3),
        "block_size": 2,
    }


def hidden_blocks() -> Arguments:
    return {
        **blocks(),
        "unseen": rand(B, H, 3, 2) > 1.3,
        "padding": rand(B, 6) > 1.3,
        "mixes_padding": False,
        "causal": True,
        "seed": torch.tensor(7),
        "p": 0.5,
    }


def balancing() -> Arguments:
    return {
        "log_scores": rand(B, H, 4, 4),
        "live": rand(B, H, 4, 4) > 0.7,
        "num_iterations": 2,
        "causal": True,
        "last_rows": True,
    }


CALLS: dict[str, Callable[[], Arguments]] = {
    "group_sort": lambda: {
        "x": x(),
        "num_groups": GROUPS,
        "leaders": 0,
        "descending": DOWN,
        "mask": MASK,
        "steps": STEPS,
        "index_dtype": torch.int64,
    },
    "scatter": lambda: {"grad": x(), "index": order(), "mask": MASK, "num_groups": GROUPS},
    "sort_pairs": lambda: {
        "x": x(),
        "leaders": 0,
        "descending": DOWN,
        "mask": MASK,
        "steps": STEPS,
        "keep": True,
    },
    "exchange_pairs": lambda: {
        "grad": x(),
        "swaps": rand(B, N // 2, C) > 1,
        "mask": MASK,
        "steps": STEPS,
    },
    "circular_shift": lambda: {"x": x(), "steps": STEPS, "mask": MASK},
    "first_largest": lambda: {"x": x(), "mask": MASK},
    "swap_positions": lambda: {
        "x": x(),
        "first": torch.zeros(B, 1, C, dtype=torch.int64),
        "second": torch.ones(B, 1, C, dtype=torch.int64),
        "mask": MASK,
    },
    "rank_filter": lambda: {"x": x(), "ranks": torch.arange(C) % 3, "window_size": 3, "keep": True},
    "rank_filter_back": lambda: {
        "grad": x(),
        "back": torch.arange(B * N * C, dtype=torch.uint8).view(B, N, C) % 3,
        "window_size": 3,
    },
    "token_statistics": lambda: {
        "w": rand(B, H, 70, D),
        "temperature": rand(H),
        "key_padding_mask": torch.zeros(B, 70) > 1,
        "normalize": True,
    },
    "token_statistics_backward": lambda: {
        "w": rand(B, H, 70, D),
        "temperature": rand(H),
        "key_padding_mask": torch.zeros(B, 70) > 1,
        "normalize": True,
        "membership": rand(B, H, 70),
        "energy": rand(B, H, 16),
        "moment": rand(B, H, 16),
        "count": rand(B, H),
        "grad_y": rand(B, H, 70, D),
        "grad_membership": rand(B, H, 70),
    },
    "causal_token_statistics": lambda: {
        "w": rand(B, H, 70, D),
        "temperature": rand(H),
        "bias": rand(B, H, 70),
        "energy": rand(B, H, D).double(),
        "mass": rand(B, H, D).double(),
        "count": rand(B, H).double(),
        "key_padding_mask": torch.zeros(B, 70) > 1,
    },
    "causal_token_statistics_backward": lambda: {
        "w": rand(B, H, 70, D),
        "temperature": rand(H),
        "bias": rand(B, H, 70),
        "key_padding_mask": torch.zeros(B, 70) > 1,
        "membership": rand(B, H, 70),
        "energy_before": rand(B, 2, H, 16),
        "mass_before": rand(B, 2, H, 16),
        "count_before": rand(B, 2, H),
        "grad_y": rand(B, H, 70, D),
        "grad_membership": rand(B, H, 70),
        "grad_energy": rand(B, H, D).double(),
        "grad_mass": rand(B, H, D).double(),
        "grad_count": rand(B, H).double(),
    },
    "linear_recurrence": recurrence,
    "linear_recurrence_backward": lambda: recurrence_gradient(70, 2),
    "dropout": lambda: {"x": x(), "seed": torch.tensor(7), "p": 0.5},
    "dropout_attention": attention,
    "dropout_attention_backward": lambda: {
        **attention(),
        "y": rand(B, H, 4, 3),
        "lse": rand(B, H, 4),
        "grad_y": rand(B, H, 4, 3) - 1,
    },
    "sinkhorn_attention": hidden_blocks,
    "sinkhorn_attention_backward": lambda: {
        **hidden_blocks(),
        "lse": rand(B, H, 6),
        "grad_y": rand(B, H, 6, D) - 1,
    },
    "balance": balancing,
    "balance_backward": lambda: {**balancing(), "grad_sort": rand(B, H, 4, 4) - 1},
    "block_maps": block_maps,
    "block_maps_backward": lambda: {
        **block_maps(),
        "grad_y": rand(B, N, 8) - 1,
        "sizes": BLOCK_SIZES,
        "needs_x": True,
        "needs_parameters": True,
    },
    "power_shift_steps": lambda: {
        "kind": "power",
        "num_tokens": N,
        "num_channels": C,
        "layer_index": 0,
        "num_layers": 1,
        "device": torch.device("cpu"),
    },
    "short_convolution": lambda: {
        "x": x(),
        "weight": rand(2, C),
        "bias": rand(C),
        "first": -1,
        "length": N,
    },
    "short_convolution_weights": lambda: {"x": x(), "grad": rand(B, 5, C), "first": 1, "taps": 3},
    "circular_convolve": lambda: {"x": x(), "kernel": rand(C, 2 * N)},
    "circular_correlate": lambda: {"x": x(), "y": rand(B, N, C), "period": 2 * N},
}
if HAS_TRITON:
    CALLS |= {
        "triton_group_sort": lambda: {
            "x": x(),
            "steps": STEPS,
            "descending": DOWN,
            "mask": MASK,
            "num_groups": GROUPS,
            "reference": False,
            "heads": 1,
            "with_code": True,
        },
        "triton_group_unsort": lambda: {
            "grad": x(),
            "code": (order() % (N // GROUPS)).to(torch.uint8),
            "steps": STEPS,
            "mask": MASK,
            "num_groups": GROUPS,
        },
        "triton_shift": lambda: {"x": x(), "steps": STEPS},
        "triton_token_statistics": lambda: {**tokens(), "normalize": True},
        "triton_token_statistics_backward": lambda: {
            **tokens(),
            "normalize": True,
            "pi": rand(B, 70, H),
            "member_sums": rand(B, H, D + 1),
            "energy": rand(B, H, D),
            "grad": rand(B, H, 70, D),
            "grad_pi": rand(B, 70, H),
        },
        # Chunks have 16 tokens.
        "triton_causal_token_statistics": lambda: {
            **tokens(20),
            "bias": rand(B, 20, H),
            "energy": rand(B, H, D).double(),
            "member_sums": rand(B, H, D + 1).double(),
        },
        "triton_causal_token_statistics_backward": lambda: {
            **tokens(20),
            "pi": rand(B, 20, H),
            "energy_before": rand(B, H, 3, D),  # before each chunk, and at the end
            "before": rand(B, H, 3, D + 1),
            "grad": rand(B, H, 20, D),
            "grad_pi": rand(B, 20, H),
            "grad_energy": rand(B, H, D).double(),
            "grad_member_sums": rand(B, H, D + 1).double(),
        },
        "triton_linear_recurrence": lambda: recurrence(5),
        "triton_linear_recurrence_backward": lambda: recurrence_gradient(5, 1),
        "triton_balance": lambda: {
            "log_scores": rand(B, H, 4, 4),
            "padding": rand(B, 4) > 1.2,
            "num_iterations": 2,
            "causal": True,
            "last_rows": True,
        },
        "triton_balance_backward": lambda: {
            **CALLS["triton_balance"](),
            "norms": rand(B, H, 3, 4),
            "running": rand(B, H, 2, 4, 4),
            "grad_sort": rand(B, H, 4, 4) - 1,
        },
        "triton_sinkhorn_attention": hidden_blocks,
        "triton_sinkhorn_attention_backward": lambda: {
            **hidden_blocks(),
            "y": rand(B, H, 6, D),
            "log_sums": rand(B, H, 6),
            "grad_y": rand(B, H, 6, D),
        },
    }
FIRST = ("x", "grad", "w")  # the tensor that determines the sizes comes first
