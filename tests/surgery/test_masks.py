"""Mask formats of host models, converted to key_padding_mask, and named errors for others."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rifflemix as rm
from rifflemix.surgery import key_padding_mask, merge_padding

B, N = 3, 7
PATTERNS = {
    "right": [[0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1, 1], [0, 1, 1, 1, 1, 1, 1]],
    "left": [[0, 0, 0, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1, 0]],
    "holes": [[0, 1, 0, 1, 0, 1, 0], [1, 0, 0, 1, 0, 0, 0], [0, 0, 1, 0, 0, 1, 1]],
}
EARLIER = torch.ones(N, N, dtype=torch.bool).tril()


def additive(attend: Tensor, lowest: float, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(attend.shape, dtype=dtype).masked_fill(~attend, lowest)


def of_keys(keep: Tensor) -> dict[str, tuple[Tensor, dict[str, object]]]:
    """Return the same padding in every per-key format of host models."""
    torch_nn = {"true_means": "padding"}
    return {
        "int 1 = keep": (keep.long(), {}),
        "uint8 1 = keep": (keep.to(torch.uint8), {}),
        "float 1 = keep": (keep.float(), {}),
        "bfloat16 1 = keep": (keep.bfloat16(), {}),
        "bool True = keep": (keep, {}),
        "bool True = padding": (~keep, torch_nn),
        "int 1 = padding": ((~keep).long(), torch_nn),
        "added -inf": (additive(keep, float("-inf")), torch_nn),
        "added lowest": (additive(keep, torch.finfo(torch.float32).min), {}),
        "broadcast bool": (keep[:, None, None, :], {}),
        "broadcast -10000": (additive(keep[:, None, None, :], -10000.0), {}),
        "broadcast half": (additive(keep[:, None, None, :], -65504.0, torch.float16), {}),
    }


def of_queries(attend: Tensor, heads: int = 2) -> dict[str, tuple[Tensor, dict[str, object]]]:
    """Return one (B, N, N) pattern in every per-query format of hosts."""
    lowest = torch.finfo(torch.float32).min
    doubled = additive(attend[:, None], lowest) + additive(attend[:, None], lowest)
    return {
        "bool": (attend[:, None], {}),
        "bool of all heads": (attend[:, None].expand(-1, heads, -1, -1), {}),
        "bool (B H, N, N)": (attend.repeat_interleave(heads, 0), {}),
        "bool True = hidden": (~attend[:, None], {"true_means": "padding"}),
        "added -inf": (additive(attend[:, None], float("-inf")), {}),
        "added lowest": (additive(attend[:, None], lowest), {}),
        "added twice": (doubled, {}),
    }


KEYS = list(of_keys(torch.ones(1, 1, dtype=torch.bool)))
QUERIES = list(of_queries(torch.ones(1, 1, 1, dtype=torch.bool)))


@pytest.mark.parametrize("form", KEYS)
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("causal", [False, True], ids=["both ways", "causal"])
def test_padding_per_key(pattern: str, form: str, causal: bool) -> None:
    padding = torch.tensor(PATTERNS[pattern], dtype=torch.bool)
    mask, settings = of_keys(~padding)[form]
    found = key_padding_mask(mask, batch=B, length=N, causal=causal, **settings)  # type: ignore[arg-type]
    assert found is not None
    assert found.dtype == torch.bool
    assert torch.equal(found, padding)


@pytest.mark.parametrize("rows", ["keys alone", "padded queries hidden", "hidden ones see all"])
@pytest.mark.parametrize("form", QUERIES)
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("causal", [False, True], ids=["both ways", "causal"])
def test_padding_per_query(pattern: str, form: str, causal: bool, rows: str) -> None:
    padding = torch.tensor(PATTERNS[pattern], dtype=torch.bool)
    attend = (~padding)[:, None, :].expand(B, N, N)
    attend = attend & EARLIER if causal else attend
    if rows == "padded queries hidden":
        attend = attend & ~padding[:, :, None]
    elif rows == "hidden ones see all":  # for kernels that do not support an empty row
        attend = attend | ~attend.any(-1, keepdim=True)
    mask, settings = of_queries(attend)[form]
    found = key_padding_mask(mask, batch=B, length=N, causal=causal, **settings)  # type: ignore[arg-type]
    assert found is not None
    assert torch.equal(found, padding)


@pytest.mark.parametrize("shape", [(0, N, N), (0, 1, N, N), (0, N)], ids=str)
@pytest.mark.parametrize("causal", [False, True], ids=["both ways", "causal"])
def test_mask_of_an_empty_batch_is_converted_to_none(shape: tuple[int, ...], causal: bool) -> None:
    assert key_padding_mask(torch.ones(shape) == 1, batch=0, length=N, causal=causal) is None


@pytest.mark.parametrize("causal", [False, True], ids=["both ways", "causal"])
def test_mask_that_hides_nothing_is_converted_to_none(causal: bool) -> None:
    everything = torch.ones(N, N, dtype=torch.bool)
    square = EARLIER if causal else everything
    for mask, per_query in (
        (torch.ones(B, N), False),
        (square, True),
        (everything[:1, None, None], None),
    ):
        assert key_padding_mask(mask, batch=B, length=N, causal=causal, per_query=per_query) is None
    assert key_padding_mask(None, batch=B, length=N) is None


def windowed(width: int, causal: bool) -> Tensor:
    distance = torch.arange(N)[:, None] - torch.arange(N)
    seen = (distance < width) & ((distance >= 0) if causal else (distance > -width))
    return seen.expand(1, 1, N, N)


def packed(causal: bool) -> Tensor:
    document = torch.tensor([0, 0, 0, 1, 1, 2, 2])
    seen = document[:, None] == document
    return (seen & EARLIER if causal else seen).expand(B, 1, N, N)


REFUSED = {
    "packed": (packed(False), False, "packed sequences"),
    "packed causal": (packed(True), True, "packed sequences"),
    "window": (windowed(3, False), False, "mask: .*window"),
    "causal window": (windowed(3, True), True, "mask: .*window"),
    "random": (torch.tensor(np.random.default_rng(0).random((B, 1, N, N)) < 0.5), False, "query"),
    "causal for a mixer of both ways": (EARLIER[None, None], False, "causal=True"),
    "both ways for a causal mixer": (
        torch.ones(1, 1, N, N, dtype=torch.bool),
        True,
        "causal=False",
    ),
    "bias": (torch.randn(1, 2, N, N), False, "bias"),
    "learned bias": (nn.Parameter(torch.zeros(1, 1, N, N)), False, "learned bias"),
    "heads differ": (torch.stack([EARLIER, EARLIER.T])[None], False, "heads"),
    "packed ids": (torch.tensor([[1, 1, 1, 2, 2, 0, 0]] * B), False, "packed"),
    "all padding": (torch.zeros(B, N, dtype=torch.long), False, r"mask: .*\bsequence\b"),
    "one sequence all padding": (torch.tensor([[1] * N, [1] * N, [0] * N]), False, "mixed up"),
    "other keys": (torch.ones(B, 1, N, N + 2, dtype=torch.bool), False, "cache"),
    "other shape": (torch.ones(B, N + 1), False, r"\(B, N\)"),
    "complex": (torch.ones(B, N, dtype=torch.complex64), False, "real numbers"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_unsupported_masks_are_refused_by_name(case: str) -> None:
    mask, causal, says = REFUSED[case]
    with pytest.raises(rm.InputError, match=says):
        key_padding_mask(mask, batch=B, length=N, causal=causal)


def test_a_window_with_padding_is_still_a_window() -> None:
    keep = torch.tensor([[1, 1, 1, 1, 1, 0, 0]] * B, dtype=torch.bool)
    mask = windowed(2, True) & keep[:, None, None, :]
    with pytest.raises(rm.InputError, match=r"mask: .*window"):
        key_padding_mask(mask, batch=B, length=N, causal=True)


def test_window_as_wide_as_the_sequence_is_ignored() -> None:
    assert key_padding_mask(windowed(N, True), batch=B, length=N, causal=True) is None


def test_converted_mask_is_cached_until_the_mask_changes() -> None:
    mask = torch.ones(B, 1, N, N, dtype=torch.bool)
    mask[1, :, :, 5:] = False
    first = key_padding_mask(mask, batch=B, length=N)
    assert key_padding_mask(mask, batch=B, length=N) is first
    mask[2, :, :, 4:] = False
    second = key_padding_mask(mask, batch=B, length=N)
    assert second is not None
    assert second.sum() == 5
    with pytest.raises(rm.InputError, match="causal=False"):
        key_padding_mask(mask, batch=B, length=N, causal=True)


@pytest.mark.parametrize("shape", [(B, N), (B, 1, N, N)], ids=["per key", "per query"])
def test_a_mask_may_be_an_array_that_changes(shape: tuple[int, ...]) -> None:
    array = np.ones(shape, dtype=bool)
    mask = torch.from_numpy(array)
    assert key_padding_mask(mask, batch=B, length=N) is None
    array[1, ..., 3:] = False
    found = key_padding_mask(mask, batch=B, length=N)
    assert found is not None
    assert found.sum() == 4
    mask.data[2, ..., 6:] = False
    found = key_padding_mask(mask, batch=B, length=N)
    assert found is not None
    assert found.sum() == 5


def test_masks_in_inference_mode() -> None:
    with torch.inference_mode():
        mask = torch.ones(B, 1, N, N, dtype=torch.bool)
        assert key_padding_mask(mask, batch=B, length=N) is None


def test_padding_masks_are_merged() -> None:
    one, two = torch.tensor([[True, False]]), torch.tensor([[False, True]])
    assert merge_padding(None, None) is None
    assert merge_padding(one, None) is one
    assert merge_padding(None, two) is two
    assert torch.equal(merge_padding(one, two) == one | two, torch.tensor([[True, True]]))


@pytest.mark.parametrize("form", ["per key", "per query"])
def test_a_compiled_graph_reads_no_values(form: str) -> None:
    keep = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]], dtype=torch.bool)
    mask = keep if form == "per key" else keep[:, None, None, :].expand(2, 1, 4, 4)

    def padding(mask: Tensor) -> Tensor:
        found = key_padding_mask(mask, batch=2, length=4)
        assert found is not None
        return found

    compiled = torch.compile(padding, fullgraph=True, backend="eager")
    assert torch.equal(compiled(mask), ~keep)
