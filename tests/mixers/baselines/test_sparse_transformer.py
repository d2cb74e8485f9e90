"""Both patterns of the Sparse Transformer against dense masks from their definition."""

from __future__ import annotations

import functools

import pattern_reference as reference
import pytest
import torch

import rifflemix as rm
from rifflemix.mixers.baselines.sparse_transformer import SparseTransformer


def sees(mixer: SparseTransformer, i: int, j: int) -> bool:
    if mixer.triangular and j > i:
        return False
    step = mixer.stride
    if mixer.pattern == "strided":
        return abs(i - j) < step or (i - j) % step == 0
    return i // step == j // step or j % step in {0, *range(step - mixer.num_summary, step)}


def mask_of(mixer: SparseTransformer, length: int) -> torch.Tensor:
    if not mixer.cls_token:
        return reference.pattern(length, lambda i, j: sees(mixer, i, j))
    return reference.pattern(length, lambda i, j: i == 0 or j == 0 or sees(mixer, i - 1, j - 1))


FORMS = {
    "both ways": {},
    "causal": {"causal": True},
    "triangular": {"triangular": True},
    "class token": {"cls_token": True},
    "Long Range Arena": {"triangular": True, "cls_token": True},
}


@pytest.mark.parametrize("options", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize(
    ("pattern", "stride", "num_summary"),
    [("fixed", 4, 1), ("fixed", 5, 0), ("fixed", 6, 5), ("strided", 4, None), ("strided", 1, None)],
)
def test_equals_a_dense_mask(pattern, stride, num_summary, options) -> None:
    mixer = rm.create_mixer(
        "sparse_transformer", 8, num_heads=2, pattern=pattern, stride=stride,
        num_summary=num_summary, **options,
    ).double()  # fmt: skip
    dense = functools.cache(lambda n: mask_of(mixer, n))
    for case, x, mask in reference.padded_inputs((1, 2, 16, 23), 8):
        expected = reference.masked_attention_layer(mixer, x, dense, mask)
        reference.require_close(mixer(x, key_padding_mask=mask), expected, case)


@pytest.mark.parametrize("options", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize(("pattern", "stride"), [("fixed", 4), ("strided", 5)])
def test_kept_positions_determine_the_pattern(pattern: str, stride: int, options: dict) -> None:
    mixer = rm.create_mixer(
        "sparse_transformer", 8, num_heads=2, pattern=pattern, stride=stride, keep_positions=True,
        **options,
    ).double()  # fmt: skip
    x, mask = torch.randn(3, 23, 8, dtype=torch.float64), reference.masks(3, 23)["scattered"]
    mask[0, 0], mask[1, 0] = False, True  # a class token, padding in one sample
    expected = reference.masked_in_position(mixer, x, mask_of(mixer, 23), mask)
    torch.testing.assert_close(mixer(x, key_padding_mask=mask), expected, atol=1e-12, rtol=1e-9)


def test_long_range_arena_pattern() -> None:
    """Check the pattern of the Long Range Arena.

    It is causal and (same block of 50 or key position mod 50 in {0, 40 ... 49}).
    """
    mixer = rm.create_mixer(
        "sparse_transformer", 4, stride=50, num_summary=10, triangular=True
    ).double()
    x = torch.randn(1, 300, 4, dtype=torch.float64)
    i, j = torch.arange(300).unsqueeze(1), torch.arange(300)
    mask = (j <= i) & ((i // 50 == j // 50) | (j % 50 == 0) | (j % 50 >= 40))
    expected = reference.masked_attention_layer(mixer, x, lambda n: mask)
    torch.testing.assert_close(mixer(x), expected, atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize("options", [{}, {"cls_token": True}], ids=["plain", "class token"])
def test_strided_causal_does_not_depend_on_later_tokens(options: dict) -> None:
    causal = {"triangular": True} if options else {"causal": True}
    mixer = rm.create_mixer(
        "sparse_transformer", 8, num_heads=2, pattern="strided", stride=4, **causal, **options
    ).double()
    x = torch.randn(1, 19, 8, dtype=torch.float64)
    y = mixer(x)
    for position in range(1, 19):
        changed = x.clone()
        changed[:, position:] += 1
        moved = (mixer(changed) - y)[0, :position].abs().amax(-1)
        # Only the class token may attend to later tokens.
        assert (moved[1 if options else 0 :] < 1e-12).all()
        assert not options or moved[0] > 1e-6


def test_gradients_of_the_strided_pattern() -> None:
    mixer = rm.create_mixer(
        "sparse_transformer", 4, num_heads=2, pattern="strided", stride=2, cls_token=True
    ).double()
    x = torch.randn(1, 6, 4, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[False, True, False, False, False, True]])
    assert torch.autograd.gradcheck(lambda t: mixer(t, key_padding_mask=mask), (x,))


@pytest.mark.parametrize(
    ("max_length", "stride", "num_summary"),
    [(None, 128, 4), (64, 8, 2), (1024, 32, 4), (16384, 128, 4), (1, 1, 0)],
)
def test_default_stride(max_length, stride: int, num_summary: int) -> None:
    mixer = rm.create_mixer("sparse_transformer", 8, max_length=max_length)
    assert (mixer.stride, mixer.num_summary) == (stride, num_summary)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"pattern": "stride"}, "pattern"),
        ({"stride": 0}, "stride"),
        ({"stride": 8, "num_summary": 8}, "num_summary"),
        ({"num_summary": -1}, "num_summary"),
        ({"pattern": "strided", "num_summary": 2}, "num_summary"),
        ({"causal": True, "cls_token": True}, "cls_token"),
    ],
    ids=str,
)
def test_bad_options_are_refused(options: dict, named: str) -> None:
    with pytest.raises(ValueError, match=f"{named}:"):
        rm.create_mixer("sparse_transformer", 8, **options)
