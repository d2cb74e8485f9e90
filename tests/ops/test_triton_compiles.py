"""Every kernel compiles for an H100 or H200 and fits its registers and shared memory.

The interpreter accepts code that the compiler rejects. These tests need Triton, but no GPU.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
import tomllib
from itertools import cycle
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))
from sm90 import compile_elsewhere

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None, reason="needs triton: pip install -e '.[gpu]'"
    ),
    pytest.mark.slow,
    pytest.mark.timeout(1800),
]

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
# Folder that `make lowest-triton` installs into.
LOWEST = Path(sys.prefix) / "lowest-triton"
MAX_SHARED = 227 * 1024
# Limits of spilled registers, in bytes per thread. In the longest windows a lane contains 128
# values, some of which are spilled. Some blocks and float32 sort matrices spill too.
MAX_STACK = {
    "sort_windows": 1152,
    "sort_windows again": 640,
    "attend_gradient": 288,
    "sort_gradient": 256,
    # Products with the precision of float32 need three copies of their operands.
    "chunk_gradients": 4096,
    **dict.fromkeys(("sum_chunks", "read_chunks", "sum_gradients"), 1024),
}

ALL_KERNELS = [
    "permutation:64:32:bfloat16:reference shift",
    "permutation:16:1:bfloat16:descending",
    "permutation:128:1:bfloat16:reference mask",
    "permutation:64:1:float16:descending values",
    "permutation:600:1:float16:ascending values",
    "shift:bfloat16",
    "statistics:12:64:bfloat16",
    "statistics:12:64:bfloat16:causal mask",
    "statistics:2:4:float32:plain",
    "balance:32:bfloat16",
    "balance:128:float32:mask",
    "balance:5:float16:mask",
    "balance:32:bfloat16:causal mask",
    "balance:64:float32:causal",
    "attention:64:64:64:bfloat16",
    "attention:64:64:64:bfloat16:causal mask dropout",
    "recurrence:64:64:bfloat16:scalar delta packed",
    "recurrence:16:16:float32:vector erase state",
]
# The types alternate: a case takes half a minute.
WINDOWS = [
    f"permutation:{length}:{groups}:{kind}"
    for (length, groups), kind in zip(
        ((4096, 256), (4096, 64), (100, 1), (600, 1), (1000, 1), (4096, 1)),
        cycle(("bfloat16:reference shift", "float32:descending mask")),
        strict=False,
    )
] + [
    "permutation:16384:1:bfloat16:ascending shift",
    "permutation:8192:1:float32:ascending",
    "permutation:4096:1:bfloat16:descending values",
]
PAIRS = [
    f"permutation:64:32:{dtype}:{order}"
    for dtype in ("float16", "float32")
    for order in ("reference", "reference mask", "ascending shift", "descending mask")
] + [
    "permutation:64:32:bfloat16:reference:3",
    "permutation:16384:8192:bfloat16:reference shift",
    "permutation:4096:2048:float32:descending shift",
]
SIZES = ((1, 1), (3, 20), (8, 64), (16, 128), (64, 64), (5, 800))
# Each size in both variants, with alternating types: a case takes 15 seconds.
STATISTICS = [
    f"statistics:{heads}:{features}:{('bfloat16', 'float32')[(i + causal) % 2]}:{options}"
    for i, (heads, features) in enumerate(SIZES)
    for causal, options in enumerate(("plain mask", "causal"))
]
# Tokens per block, blocks, features.
ATTENTION = [
    f"attention:{case}"
    for case in (
        "128:128:128:bfloat16",
        "64:64:64:float32",
        "128:16:32:float32",
        "32:32:64:bfloat16",
        "64:64:64:bfloat16:causal mask",
        "128:128:128:bfloat16:causal mask dropout",
        "64:64:64:float32:causal mask dropout",
        "128:16:32:float32:causal mask dropout",
        "32:32:64:bfloat16:mask dropout",
    )
]


# The largest cases for a GPU with less shared memory than an H100.
SMALLER_GPU = [
    "attention:64:64:128:bfloat16:causal mask dropout",
    "attention:64:32:32:float32:causal mask dropout",
    "permutation:4096:1:bfloat16:reference",
]


WINDOWS_APART = "permutation:4096:64:bfloat16:ascending"
CAUSAL_APART = "statistics:8:64:bfloat16:causal"
SUMS_APART = {features: f"statistics:8:{features}:float32" for features in (10, 64)}
PAIRS_APART = "permutation:512:1:bfloat16:ascending values"


@functools.cache
def apart() -> dict[str, dict[str, dict[str, int]]]:
    """Compile the cases with counted instructions, in one process; each takes seconds."""
    cases = (WINDOWS_APART, CAUSAL_APART, *SUMS_APART.values(), PAIRS_APART)
    return compile_elsewhere(*cases, disassemble=True)


def check(*cases: str, folder: Path | None = None) -> None:
    for case, kernels in compile_elsewhere(*cases, folder=folder).items():
        assert kernels, case
        for kernel, takes in kernels.items():
            assert takes["shared"] <= MAX_SHARED, (case, kernel, takes)
            assert takes["stack"] <= MAX_STACK.get(kernel, 64), (case, kernel, takes)


@pytest.mark.parametrize(
    "cases",
    [ALL_KERNELS, WINDOWS, PAIRS, STATISTICS, ATTENTION],
    ids=["all kernels", "windows", "pairs", "statistics", "attention"],
)
def test_every_configuration_compiles(cases: list[str]) -> None:
    check(*cases)


def test_smaller_gpus_have_enough_shared_memory() -> None:
    for case, kernels in compile_elsewhere(*SMALLER_GPU, capability=89).items():
        for kernel, takes in kernels.items():
            assert takes["shared"] <= 99 * 1024, (case, kernel, takes)


@pytest.mark.skipif(not LOWEST.is_dir(), reason="no lowest Triton: make lowest-triton")
def test_every_kernel_compiles_with_the_lowest_triton() -> None:
    """Older Triton supports less syntax, for example no string as a default parameter."""
    (installed,) = LOWEST.glob("triton-*.dist-info")
    lowest = installed.name.removeprefix("triton-").removesuffix(".0.dist-info")
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    (promised,) = project["optional-dependencies"]["gpu"]
    assert promised.startswith(f"triton>={lowest};")
    check(*ALL_KERNELS, folder=LOWEST)


@pytest.mark.parametrize("case", [WINDOWS_APART, CAUSAL_APART])
def test_lanes_contain_values_of_two_channels(case: str) -> None:
    """A lane contains 16 slots or tokens of two channels or features.

    Windows of 64 are exchanged between lanes three times, with 32 values each. A sum over the
    features needs 5 shuffles for each of 16 tokens. Lanes along the tokens would need six times
    as many shuffles and read memory one channel at a time.
    """
    kernels = apart()[case]
    assert all(takes["shuffles"] <= 100 for takes in kernels.values()), kernels


@pytest.mark.parametrize("features", SUMS_APART)
def test_lanes_that_share_a_sum_round_equally(features: int) -> None:
    """Shuffled values are not fused into unrounded products: lanes would get different sums."""
    kernels = apart()[SUMS_APART[features]]
    assert sum(takes["shuffles"] for takes in kernels.values()) > 50
    assert not any(takes["fused"] for takes in kernels.values()), kernels


def test_windows_without_index_need_few_more_instructions() -> None:
    """Without indices, a lane contains twice as many channels as with indices."""
    kernels = apart()[PAIRS_APART]
    pairs, each = (kernels[name]["instructions"] for name in ("sort_values", "sort_windows"))
    assert pairs < 1.25 * each, kernels
