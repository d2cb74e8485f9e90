"""Independence of other samples, padding, token order, memory layout and later tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor

from rifflemix.mixers.base import TokenMixer
from rifflemix.testing.forms import DIM, Form, require, require_close, require_refusal, tokens

LENGTHS_AND_PADDING = ((1, 1), (1, 11), (6, 3), (17, 1), (17, 11))


def samples_of_a_batch_do_not_meet(form: Form) -> None:
    """Check that f(cat(a, b)) = cat(f(a), f(b)) along the batch."""
    mixer = form.build()
    for length in (1, 2, 7, 24):
        a, b = tokens(2, length), tokens(3, length)
        together, apart = mixer(torch.cat((a, b))), torch.cat((mixer(a), mixer(b)))
        require_close(together, apart, f"{length} tokens", atol=1e-10, rtol=1e-10)


def masked_tokens() -> Iterator[tuple[Tensor, Tensor]]:
    """Yield tokens, some with ties, and masks.

    Padding is left, right, everywhere except one token, alternating, random, full or absent.
    """
    index = torch.arange(20)
    rows = (index < 7, index >= 12, index != 9, index % 2 == 0, torch.rand(20) < 0.4)
    yield tokens(5, 20), torch.stack(rows)
    yield tokens(4, 20).round(), torch.rand(4, 20) < 0.5
    yield tokens(3, 6), torch.tensor([[True] * 6, [False] * 6, [True, False] * 3])
    yield tokens(2, 1), torch.tensor([[True], [False]])


def require_padding_reaches_nothing(mixer: TokenMixer, x: Tensor, mask: Tensor) -> None:
    """Check that values at padded positions change no output and no gradient."""
    results = []
    for fill in (0.0, 1e3, float("nan")):
        inputs = x.masked_fill(mask.unsqueeze(-1), fill).requires_grad_()
        y = mixer(inputs, key_padding_mask=mask)
        valid = y.masked_select(~mask.unsqueeze(-1)).view(-1, mixer.dim)
        gradients = torch.autograd.grad(
            (valid * torch.linspace(-1, 1, mixer.dim).to(y)).sum(),
            [inputs, *mixer.parameters()],
            allow_unused=True,
        )
        reached = gradients[0] is not None and bool(gradients[0][mask].any())
        require(not reached, "padded positions have a gradient")
        require(
            all(bool(g.isfinite().all()) for g in gradients if g is not None),
            f"gradients are infinite where padded positions hold {fill}",
        )
        results.append((valid.detach(), *gradients))
    for other in results[1:]:
        require_close(other, results[0], "other padding", atol=1e-10, rtol=1e-8)


def padded_places_reach_nothing(form: Form) -> None:
    """Check outputs and gradients with many masks and padding values, including NaN."""
    mixer = form.build()
    for x, mask in masked_tokens():
        require_padding_reaches_nothing(mixer, x, mask)


def padded_outputs_are_zero(form: Form) -> None:
    """Check that outputs at padded positions are exactly zero."""
    mixer = form.build()
    for x, mask in masked_tokens():
        require(not bool(mixer(x, key_padding_mask=mask)[mask].any()), "a padded output is not 0")


def a_mask_without_padding_changes_nothing(form: Form) -> None:
    """Check that an all-False mask gives the same outputs as no mask."""
    mixer = form.build()
    for length in (1, 5, 16):
        x, mask = tokens(2, length), torch.zeros(2, length, dtype=torch.bool)
        y = mixer(x, key_padding_mask=mask)
        require_close(y, mixer(x), f"{length} tokens", atol=1e-10, rtol=1e-8)


def amount_of_padding_changes_nothing(form: Form) -> None:
    """Check that right padding does not change valid outputs."""
    mixer = form.build()
    for length, extra in LENGTHS_AND_PADDING:
        x = tokens(2, length)
        mask = (torch.arange(length + extra) >= length).expand(2, -1)
        y = mixer(F.pad(x, (0, 0, 0, extra)), key_padding_mask=mask)[:, :length]
        what = f"{length} tokens and {extra} of padding"
        require_close(y, mixer(x), what, atol=1e-10, rtol=1e-8)


def longer_neighbours_change_nothing(form: Form) -> None:
    """Check that samples of other lengths do not change a sample's outputs."""
    mixer = form.build()
    lengths = torch.tensor([19, 37, 5, 64, 1])
    x = tokens(len(lengths), int(lengths.max()))
    mask = torch.arange(x.shape[1]) >= lengths.unsqueeze(1)
    together = mixer(x, key_padding_mask=mask)
    for row, length in enumerate(lengths.tolist()):
        alone = mixer(x[row : row + 1, :length])[0]
        what = f"{length} tokens among {x.shape[1]}"
        require_close(together[row, :length], alone, what, atol=1e-10, rtol=1e-8)


def place_of_padding_changes_nothing(form: Form) -> None:
    """Check that left or inner padding matters exactly if `by_position` is set.

    For causal variants, it must not matter.
    """
    mixer, x, index = form.build(), tokens(1, 21), torch.arange(32)

    def outputs(padding: Tensor) -> Tensor:
        spread = x.new_zeros(1, 32, DIM)
        spread[:, ~padding] = x
        y: Tensor = mixer(spread, key_padding_mask=padding.unsqueeze(0))
        return y[:, ~padding]

    behind, before, between = index >= 21, index < 11, (index >= 7) & (index < 18)
    expected = outputs(behind)
    same = all(
        torch.allclose(outputs(place), expected, atol=1e-10, rtol=1e-8)
        for place in (before, between)
    )
    why = "" if form.causal else form.card.by_position
    require(bool(why) != same, _place_matters(why, same))


def _place_matters(why: str, same: bool) -> str:
    if same:
        return f"the place of padding changes nothing, but card.by_position is {why!r}"
    return (
        "padding before or between tokens changes their outputs: describe in card.by_position "
        "what depends on positions"
    )


def padding_is_refused(form: Form) -> None:
    """Check that a mixer with padding=False in its card rejects a mask."""
    mixer, mask = form.build(), torch.zeros(2, 5, dtype=torch.bool)
    require_refusal(lambda: mixer(tokens(2, 5), key_padding_mask=mask), "key_padding_mask")


def outputs_ignore_later_tokens(form: Form) -> None:
    """Check that changing or removing later tokens does not change outputs.

    Removal is not checked if `card.layout_over_length` is set: outputs may then depend on length.
    """
    mixer = form.build()
    length = 37
    x = tokens(1, length)
    y = mixer(x)
    # Sample p differs from x at and after position p.
    later = torch.arange(length) >= torch.arange(length).unsqueeze(1)
    changed = torch.where(later.unsqueeze(-1), tokens(length, length), x)
    moved = (mixer(changed) - y).abs().amax(-1).masked_fill(later, 0.0).amax(1)
    worst = int(moved.argmax())
    require(
        bool(moved.max() < 1e-12),
        f"outputs before position {worst} move by {moved.max():.3g} when later tokens change",
    )
    for count in (1, 2, 7, 20, 36) if not form.card.layout_over_length else ():
        where = f"of the first {count} tokens alone"
        require_close(mixer(x[:, :count]), y[:, :count], where, atol=1e-10, rtol=1e-8)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "sequences side by side": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "every second token of a longer row": lambda x: x.repeat_interleave(2, 1)[:, ::2],
    "channels apart": lambda x: x.transpose(1, -1).contiguous().transpose(1, -1),
}
"""Memory layouts of equal tensors, for (B, N, C) and (B, N)."""


def layout_in_memory_changes_nothing(form: Form) -> None:
    """Check that the memory layout of inputs does not change outputs."""
    mixer, x, mask = form.build(), tokens(3, 14), torch.rand(3, 14) < 0.3
    for key_padding_mask in form.masks(mask):
        expected = mixer(x, key_padding_mask=key_padding_mask)
        for what, moved in LAYOUTS.items():
            padding = None if key_padding_mask is None else moved(key_padding_mask)
            y = mixer(moved(x), key_padding_mask=padding)
            require_close(y, expected, what, atol=1e-10, rtol=1e-8)


def causal_is_refused(form: Form) -> None:
    """Check that a mixer with causal=False in its card rejects `causal=True`."""
    require_refusal(lambda: Form(form.mixer, causal=True).new(), "causal: expected False")


def card_tells_permutation_equivariance(form: Form) -> None:
    """Check permutation equivariance against the card."""
    mixer = form.build()
    x, order = tokens(2, 16, DIM), torch.randperm(16)
    equivariant = torch.allclose(mixer(x[:, order]), mixer(x)[:, order], atol=1e-9)
    told = form.card.permutation_equivariant
    require(equivariant == told, f"the card has {told}, permuted tokens give {equivariant}")


def card_tells_permutation_invariance(form: Form) -> None:
    """Check permutation invariance against the card."""
    mixer = form.build()
    x, order = tokens(2, 16, DIM), torch.randperm(16)
    invariant = torch.allclose(mixer(x[:, order]), mixer(x), atol=1e-9)
    told = form.card.permutation_invariant
    require(
        invariant == told,
        f"permutation_invariant: expected {invariant}, as permuted tokens show, got {told}",
    )


ROWS = ((5, 1, 0, 17, 5, 64, 2, 1, 33, 0, 17), (7, 7, 7), (24,), (0, 0, 3))


def packed_sequences_do_not_meet(form: Form) -> None:
    """Check that packed sequences have the same outputs and gradients as alone."""
    mixer = form.build()
    for lengths, dtype in zip(ROWS, (torch.int32, torch.int64) * 2, strict=True):
        row = tokens(1, sum(lengths))
        row[:, ::3] = row[:, ::3].round()  # ties
        x, y = row.clone().requires_grad_(), row.clone().requires_grad_()
        bounds = torch.tensor((0, *accumulate(lengths)), dtype=dtype)
        together = _with_gradients(mixer, x, mixer(x, cu_seqlens=bounds))
        each = [mixer(part) for part in y.split(lengths, 1) if part.shape[1]]
        alone = _with_gradients(mixer, y, torch.cat(each, 1))
        what = f"sequences of {', '.join(map(str, lengths))} tokens"
        require_close(together, alone, what, atol=1e-10, rtol=1e-8)


def packing_is_refused(form: Form) -> None:
    """Check that a mixer with packed=False in its card rejects cu_seqlens."""
    mixer, bounds = form.build(), torch.tensor((0, 2, 5))
    require_refusal(lambda: mixer(tokens(1, 5), cu_seqlens=bounds), "cu_seqlens: expected None")


def _with_gradients(mixer: TokenMixer, x: Tensor, y: Tensor) -> tuple[Tensor | None, ...]:
    """Return the outputs and the gradients of `x` and all parameters."""
    weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    leaves = [x, *mixer.parameters()]
    return y.detach(), *torch.autograd.grad((y * weights).sum(), leaves, allow_unused=True)
