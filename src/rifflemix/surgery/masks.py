"""Attention masks of host models.

rifflemix reads and checks the values of a mask in eager mode only. Reading synchronizes with the
device once per mask, not once per layer. Compiled, exported and traced graphs cannot read the
values. They assume the convention of the host model, so pass the same mask once in eager mode to
check it.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rifflemix.checks import shown
from rifflemix.compat import values_can_be_read
from rifflemix.errors import InputError, bad_argument, check_choice


def is_square(buffer: Tensor) -> bool:
    """Return whether a buffer has one number per pair of tokens.

    The shape is (N, N) or (1, 1, N, N) with N > 1.
    """
    sides = buffer.shape[-2:]
    return len(sides) == 2 and 1 < sides[0] == sides[1] and buffer.numel() == sides[0] ** 2


def is_causal_mask(buffer: Tensor) -> bool:
    """Return whether a buffer is a causal mask.

    Examples are `tril` and `triu(1)` of any dtype. On the meta device only the shape is checked.
    """
    if not is_square(buffer):
        return False
    if buffer.is_meta:
        return True
    square = buffer.reshape(buffer.shape[-2:])
    earlier = torch.ones_like(square, dtype=torch.bool).tril()
    seen, hidden = square[-1, 0], square[0, -1]
    return bool(seen != hidden) and bool((square == torch.where(earlier, seen, hidden)).all())


def causal_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Return the module's own buffers that are causal masks, by name."""
    return {name: t for name, t in module.named_buffers(recurse=False) if is_causal_mask(t)}


TRUE_MEANS = ("attend", "padding")
_HIDDEN = -1e3
"""Upper limit of additive scores that hide a key. Host models add -1e4, finfo.min or -inf."""
_MIXED_UP = "were keep and padding mixed up?"
_IN_CHUNKS = f"{_MIXED_UP} Or leave prefill_chunk_size out: a first chunk may not be padding alone"


class _Answer(NamedTuple):
    """Padding of a mask, with the copy or version of the mask that it belongs to."""

    mask: weakref.ref[Tensor]
    settings: tuple[Any, ...]
    then: Tensor | int
    padding: Tensor | None


_known: dict[int, _Answer] = {}


def key_padding_mask(
    mask: Tensor | None,
    *,
    batch: int,
    length: int,
    causal: bool = False,
    true_means: str = "attend",
    per_query: bool | None = None,
    seen: int = 0,
    hidden_anyway: bool = False,
) -> Tensor | None:
    """Convert an attention mask of a host model to padding.

    Args:
        mask: None, a mask per key or a mask per query.

            - Per key: (B, K) bool, or numbers with 1 = keep and 0 = padding. Floats are additive if
              `true_means` is "padding" (as in torch.nn) or if a value is negative.
            - Per query: (N, K), (B or B*H, N, K) or (B or 1, H or 1, N or 1, K). Values are bool,
              or floats to add to the scores. Floats: 0 = attend; -inf, the lowest value of the
              dtype or -1e4 = hidden.
        batch: number of sequences B.
        length: number of query tokens N.
        causal: whether the mixer is causal. A mask per query must be causal if the mixer is causal,
            and only then.
        true_means: meaning of True: "attend" (transformers, scaled_dot_product_attention) or
            "padding" (torch.nn.MultiheadAttention).
        per_query: whether a 2D mask has the shape (N, K). Default: (B, K).
        seen: number of earlier tokens, for example in a cache: K = seen + N keys.
        hidden_anyway: whether the host model also hides later tokens without the mask. The mask may
            then show them.

    Returns:
        (B, K) bool, True = padding. None without padding (in traced graphs only without a mask).

    Raises:
        InputError: the shape or dtype is wrong, or a sequence has no valid token. The mask
            expresses more than padding and causality: packed sequences, a window, a bias or
            differences between heads. A mask that requires gradients counts as a bias, even if it
            is zero.

    Example:
        >>> import torch, rifflemix as rm
        >>> mask = torch.tensor([[1, 1, 0]])
        >>> rm.surgery.key_padding_mask(mask, batch=1, length=3)
        tensor([[False, False,  True]])
    """
    check_choice("true_means", true_means, TRUE_MEANS)
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.is_complex():
        raise bad_argument("attention mask", "a tensor of bools or real numbers", shown(mask))
    if mask.requires_grad:
        raise _too_much("is a learned bias of the scores")
    by_query = mask.dim() != 2 if per_query is None else per_query
    settings = (batch, length, seen + length, causal, true_means, by_query, hidden_anyway)
    if mask.is_meta or not values_can_be_read():
        return ~_keep(mask, *settings, check=False)
    known = _known.get(id(mask))
    if known is not None and known.settings == settings and _is_as_then(mask, known):
        return known.padding
    padding = ~_keep(mask, *settings, check=True)
    _check_some_are_valid(padding, _IN_CHUNKS if causal and not seen else _MIXED_UP)
    result = padding if bool(padding.any()) else None
    _remember(mask, by_query, settings, result)
    return result


def merge_padding(*masks: Tensor | None) -> Tensor | None:
    """Combine padding masks (B, N) with a logical OR (True = padding).

    Args:
        masks: masks (B, N), or None.

    Returns:
        The mask, or None if all masks are None.

    Example:
        >>> import torch, rifflemix as rm
        >>> first = torch.tensor([[False, False, True]])
        >>> second = torch.tensor([[True, False, False]])
        >>> rm.surgery.merge_padding(first, None, second)
        tensor([[ True, False,  True]])
    """
    merged: Tensor | None = None
    for mask in masks:
        if mask is not None:
            merged = mask if merged is None else merged | mask
    return merged


def check_causality(is_causal: bool | None, mixer: Any) -> None:
    """Raise if a host model needs causal attention from a bidirectional mixer.

    Args:
        is_causal: whether the host model calls for causal attention, or None.
        mixer: the mixer of the layer.

    Raises:
        InputError: `is_causal` is true and the mixer is bidirectional.

    Example:
        >>> import rifflemix as rm
        >>> rm.surgery.check_causality(True, rm.create_mixer("linear", 64, causal=True))
        >>> try:
        ...     rm.surgery.check_causality(True, rm.create_mixer("linear", 64))
        ... except rm.InputError:
        ...     print("linear attention is bidirectional")
        linear attention is bidirectional
    """
    if is_causal and not mixer.causal:
        raise _not_causal(mixer.card.title)


def _remember(
    mask: Tensor, by_query: bool, settings: tuple[Any, ...], result: Tensor | None
) -> None:
    """Cache the result for the other layers if computing it is slow.

    Computing is slow for N x N masks, and for masks on an accelerator (they need synchronization).
    NumPy or `.data` can change a CPU mask without a new version. CPU masks are therefore compared
    with a copy, in a twentieth of the time. On other devices the comparison would synchronize
    again.
    """
    if mask.device.type == "cpu":
        if not by_query:
            return
        then: Tensor | int = mask.clone()
    elif mask.is_inference():
        return
    else:
        then = mask._version
    key = id(mask)
    _known[key] = _Answer(
        weakref.ref(mask, lambda _: _known.pop(key, None)), settings, then, result
    )


def _is_as_then(mask: Tensor, known: _Answer) -> bool:
    """Return whether `mask` is the cached mask and unchanged."""
    if known.mask() is not mask:
        return False
    if isinstance(known.then, Tensor):
        return torch.equal(mask, known.then)
    return mask._version == known.then


def _keep(
    mask: Tensor,
    batch: int,
    length: int,
    keys: int,
    causal: bool,
    true_means: str,
    by_query: bool,
    hidden_anyway: bool,
    *,
    check: bool,
) -> Tensor:
    """Return (B, K) bool, True = valid token."""
    if not by_query:
        if tuple(mask.shape) not in {(batch, keys), (1, keys)}:
            raise bad_argument(
                "attention mask", f"shape (B, N) = {(batch, keys)}", tuple(mask.shape)
            )
        return _keep_of_keys(mask, true_means, check=check).expand(batch, keys)
    scores = _four_dimensional(mask, batch, length, keys)
    attend = _attend(scores, true_means, check=check)
    if check and attend.shape[1] > 1 and bool((attend != attend[:, :1]).any()):
        raise _too_much("differs between heads")
    attend = attend[:, 0]
    if attend.shape[1] == 1:
        return attend[:, 0].expand(batch, keys)
    keep = attend[:, -1]
    if not causal or check:
        # The mask may hide all keys from a padded query.
        # onnxruntime does not support torch.where for bools.
        keep = keep | (attend.any(1) & ~keep.any(-1, keepdim=True))
    if check:
        _check_nothing_is_lost(attend, keep, causal, hidden_anyway)
    return keep.expand(batch, keys)


def _keep_of_keys(mask: Tensor, true_means: str, *, check: bool) -> Tensor:
    if mask.dtype == torch.bool:
        return mask if true_means == "attend" else ~mask
    additive = mask.is_floating_point() and true_means == "padding"
    if check and mask.is_floating_point() and bool((mask < 0).any()):
        additive = True
    if additive:
        return _attend(mask, true_means, check=check)
    if check and bool(((mask != 0) & (mask != 1)).any()):
        raise bad_argument(
            "attention mask",
            "1 = keep and 0 = padding in shape (B, N)",
            f"values from {mask.min().item()} to {mask.max().item()}",
            "packed sequences need separate attention",
        )
    return mask != 0 if true_means == "attend" else mask == 0


def _attend(scores: Tensor, true_means: str, *, check: bool) -> Tensor:
    """Convert bools or additive floats to bools, True = attend."""
    if not scores.is_floating_point():
        return (scores != 0) if true_means == "attend" else (scores == 0)
    attend = scores > _HIDDEN
    if check and bool((attend & (scores != 0)).any()):
        raise _too_much("adds a bias to the scores (relative positions, ALiBi)")
    return attend


def _four_dimensional(mask: Tensor, batch: int, length: int, keys: int) -> Tensor:
    """Reshape a mask per query to four dimensions.

    The result has the shape (B or 1, H, N or 1, K).
    """
    shape = tuple(mask.shape)
    if mask.dim() == 2:
        mask = mask[None, None]
    elif mask.dim() == 3:
        by_head = batch > 0 and shape[0] % batch == 0
        mask = mask.unflatten(0, (batch, -1)) if by_head else mask.unsqueeze(1)
    fits = mask.dim() == 4 and mask.shape[0] in (1, batch)
    if not fits or mask.shape[2] not in (1, length) or mask.shape[3] != keys:
        raise bad_argument(
            "attention mask",
            f"{length} queries and {keys} keys of {batch} sequences, (B, 1, N, K)",
            shape,
            "other keys than the tokens so far (a cache, cross-attention) cannot be mixed",
        )
    return mask


def _check_nothing_is_lost(attend: Tensor, keep: Tensor, causal: bool, hidden_anyway: bool) -> None:
    """Raise if the mask expresses more than padding and causality.

    Args:
        attend: (B, N, K) bool, True = the query attends to the key.
        keep: (B, K) bool, True = valid token.
        causal: whether the mixer is causal.
        hidden_anyway: see `key_padding_mask`.
    """
    length, total = attend.shape[1:]
    earlier = attend.new_ones(length, total).tril(total - length)
    queries, keys = keep[:, total - length :].unsqueeze(2), keep.unsqueeze(1)

    def is_lost(said: Tensor) -> bool:
        return bool(((attend != said) & queries).any())

    # Keys of padded queries do not matter, but a token that attends to others is not padding.
    # Rows of True replace empty rows for kernels that do not support empty rows.
    if bool((attend & ~keys & ~attend.all(-1, keepdim=True)).any()):
        raise _too_much(_name_of_pattern(attend))

    expected = keys & earlier if causal else keys
    if not is_lost(expected):
        return
    if causal and not is_lost(keys.expand_as(attend)):
        if hidden_anyway:
            return
        raise bad_argument(
            "attention mask",
            "a causal one, as the mixer is",
            "one that shows later tokens",
            "build the mixer with causal=False",
        )
    if not causal and _is_causal_with_padding(attend, earlier):
        raise _not_causal("the mixer")
    raise _too_much(_name_of_pattern(attend))


def _is_causal_with_padding(attend: Tensor, earlier: Tensor) -> bool:
    keys = attend[:, -1].unsqueeze(1)
    queries = attend.diagonal(dim1=1, dim2=2).unsqueeze(2)
    return not bool(((attend != (keys & earlier)) & queries).any())


def _name_of_pattern(attend: Tensor) -> str:
    """Name the probable pattern of a mask (B, N, K) for errors."""
    if attend.shape[1] != attend.shape[2]:
        return "differs from query to query"
    either = attend | attend.transpose(1, 2)
    linked = either.float()
    if bool(((linked @ linked > 0) == either).all()):
        return "separates packed sequences"
    if bool((attend[:, 1:, 1:] == attend[:, :-1, :-1]).all()):
        return "is a sliding window"
    valid = attend.diagonal(dim1=1, dim2=2)
    both = valid.unsqueeze(1) & valid.unsqueeze(2)
    length = attend.shape[-1]
    positions = torch.arange(length, device=attend.device)
    offsets = positions - positions.unsqueeze(1) + length - 1
    seen = torch.zeros(2 * length - 1, dtype=torch.bool, device=attend.device)
    seen[offsets[(attend & both).any(0)]] = True
    windowed = both & seen[offsets]
    if not bool(((attend != windowed) & valid.unsqueeze(2)).any()):
        return "is a sliding window"
    return "differs from query to query"


def _check_some_are_valid(padding: Tensor, hint: str) -> None:
    empty = padding.all(dim=1)
    if bool(empty.any()):
        first = int(empty.to(torch.uint8).argmax())
        raise bad_argument(
            "attention mask",
            "at least one valid token in every sequence",
            f"padding alone in sequence {first} of {len(padding)}",
            hint,
        )


def _too_much(what: str) -> InputError:
    return InputError(
        f"attention mask: expected padding (and causality) alone, got one that {what}; "
        "a token mixer has no scores to mask, so keep the host's attention in these layers"
    )


def _not_causal(title: str) -> InputError:
    return bad_argument(
        "attention mask",
        f"padding alone: {title} sees later tokens",
        "a causal mask",
        "replace the attention with causal=True, by a mixer that can be causal",
    )
