"""CSP with a learned order or learned shifts, for docs/learned-permutations.md.

The mixer is a plugin and no part of the library, since it was not better than CSP:

    rifflemix compare --plugin benchmarks/learned_permutations.py --mixers permuted ...
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import rifflemix as rm
from rifflemix.checks import check_positive
from rifflemix.errors import check_choice
from rifflemix.mixers.csp import CSP
from rifflemix.ops import circular_shift, shift_steps


class LearnedReference(CSP):
    """Order every head by a learned score x.w_h.

    The forward pass is CSP in reference order with the score as reference channel. The backward
    pass uses `soft_ranks` of the scores. A channel follows its rank along its sorted values, by
    half the difference of the two neighbors.

    Args:
        dim: channels C.
        heads: contiguous heads.
        temperature: temperature of the ranks, in units of the score. A training loop may set the
            attribute of this name between updates.
        options: options of CSP.
    """

    def __init__(
        self, dim: int, *, heads: int = 1, temperature: float = 0.3, **options: Any
    ) -> None:
        super().__init__(dim, heads=heads, inner_dim=dim + heads, order="reference", **options)
        self.temperature = check_positive("temperature", temperature)
        self.proj = nn.Linear(dim, dim)

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """Project, permute, remove the scores, and project."""
        y = self.permute(self.value(x), key_padding_mask)[0].unflatten(2, (self.heads, -1))
        return self.proj(y[..., 1:].flatten(2))

    def permute_groups(self, v: Tensor, mask: Tensor | None, layout: Any, with_index: bool) -> Any:
        """Permute full groups; add zero, with the gradient of the ranks, to the values."""
        y, index = super().permute_groups(v, mask, layout, with_index)
        if torch.is_grad_enabled():
            heads = y.unflatten(2, (self.heads, -1))
            score, values = heads[..., 0], heads[..., 1:]  # reference channels do not move
            padded = score.new_zeros(score.shape[:2], dtype=torch.bool) if mask is None else mask
            rank = soft_ranks(score, padded, layout.groups, self.temperature)
            slope = slopes(score, values, padded, layout.groups)
            y = y + F.pad(slope * (rank - rank.detach()).unsqueeze(-1), (1, 0)).flatten(2)
        return y, index


def soft_ranks(score: Tensor, padded: Tensor, groups: int, temperature: float) -> Tensor:
    """Rank the scores (B, N, H) of each group with differentiable ranks.

    The ranks are the projection of score / temperature onto the permutahedron of 0, 1, .. (Blondel
    et al. 2020, with quadratic regularization). Scores closer than the temperature are pooled.
    """
    keys = score.masked_fill(padded.unsqueeze(-1), torch.inf).unflatten(1, (groups, -1))
    order = keys.argsort(dim=2, stable=True)
    z = (score.double() / temperature).masked_fill(padded.unsqueeze(-1), 0.0)
    z = z.unflatten(1, (groups, -1)).gather(2, order).transpose(2, 3)
    ranks = torch.arange(z.shape[3], dtype=z.dtype)
    count = (~padded).unflatten(1, (groups, -1)).sum(2)[..., None, None]
    fit = nondecreasing_fit((z.detach() - ranks).masked_fill(ranks >= count, 1e30))
    pooled = (fit.unsqueeze(4) == fit.unsqueeze(3)).to(z.dtype)
    mean = pooled / pooled.sum(4, keepdim=True)
    soft = mean @ ranks + z - (mean @ z.unsqueeze(4)).squeeze(4)
    return soft.transpose(2, 3).gather(2, order.argsort(dim=2)).flatten(1, 2).to(score.dtype)


def nondecreasing_fit(z: Tensor) -> Tensor:
    """Return the nondecreasing sequence (..., G) that is nearest to z.

    fit[i] = max over j <= i of min over k >= i of the mean of z[j], .., z[k].
    """
    at = torch.arange(z.shape[-1])
    sums = F.pad(z.cumsum(-1), (1, 0))
    means = (sums[..., None, 1:] - sums[..., :-1, None]) / (at - at[:, None] + 1).clamp(min=1)
    means = means.masked_fill(at < at[:, None], torch.inf)
    lowest = means.flip(-1).cummin(-1).values.flip(-1)
    return lowest.masked_fill(at < at[:, None], -torch.inf).amax(-2)


@torch.no_grad()
def slopes(score: Tensor, values: Tensor, padded: Tensor, groups: int) -> Tensor:
    """Half of what the values (B, N, H, D) differ from the rank before a token's to the one after.

    Ranks are of the scores (B, N, H) among the valid tokens of each group; at the first and the
    last it is the whole difference to the one neighbour.
    """
    keys = score.masked_fill(padded.unsqueeze(-1), torch.inf).unflatten(1, (groups, -1))
    order = keys.argsort(dim=2, stable=True)
    rank = order.argsort(dim=2)
    last = (~padded).unflatten(1, (groups, -1)).sum(2).sub(1).clamp(min=0).view(-1, groups, 1, 1)
    after, before = (rank + 1).minimum(last), (rank - 1).clamp(min=0).minimum(last)
    grouped = values.unflatten(1, (groups, -1))
    high, low = (
        grouped.gather(2, order.gather(2, place).unsqueeze(-1).expand_as(grouped))
        for place in (after, before)
    )
    slope = (high - low) / (after - before).clamp(min=1).unsqueeze(-1)
    return slope.flatten(1, 2).masked_fill(padded[..., None, None], 0.0)


class LearnedShift(CSP):
    """Shift every channel by a learned real number, initialized with CSP's linear schedule.

    Training interpolates between the two nearest integers. Evaluation uses the nearest integer.
    Reference channels are not shifted.

    Args:
        dim: channels C.
        max_length: maximum number of tokens; the schedule depends on it.
        reach: tokens per unit of the parameter, since steps of an optimizer are small.
        options: options of CSP.
    """

    start: Tensor

    def __init__(self, dim: int, *, max_length: int, reach: float = 32.0, **options: Any) -> None:
        super().__init__(dim, max_length=max_length, shift="none", **options)
        self.reach = check_positive("reach", reach)
        leads = torch.arange(self.inner_dim) % (self.inner_dim // self.heads) == 0
        start = shift_steps("linear", max_length, self.inner_dim).masked_fill(leads, 0)
        self.register_buffer("start", start, persistent=False)
        self.register_buffer("moves", ~leads, persistent=False)
        self.offset = nn.Parameter(torch.zeros(self.inner_dim))

    def shifts(self) -> Tensor:
        """(C,): the shifts as they are now."""
        return self.start + self.reach * self.offset * self.moves

    def permute(self, v: Tensor, mask: Tensor | None, *, with_index: bool = False) -> Any:
        """Shift, and sort as CSP does."""
        shifts = self.shifts()
        if not self.training:
            steps = shifts.detach().round().long()
            return super().permute(circular_shift(v, steps, key_padding_mask=mask), mask)
        whole = shifts.detach().floor()
        near = circular_shift(v, whole.long(), key_padding_mask=mask)
        far = circular_shift(v, whole.long() + 1, key_padding_mask=mask)
        return super().permute(near + (shifts - whole).to(v.dtype) * (far - near), mask)


FORMS = {"nothing": CSP, "reference": LearnedReference, "shift": LearnedShift}


@rm.register_mixer
class Permuted(rm.TokenMixer):
    """Use one of these mixers or CSP; softmax attention if a decoder needs a causal mixer.

    Args:
        dim: channels C.
        learn: "nothing", "reference" or "shift".
        options: options of the mixer.
    """

    card: ClassVar[rm.MixerCard] = rm.MixerCard(
        name="permuted",
        title="CSP, learned",
        paper="none",
        equations="CSP (3)-(5)",
        complexity="O(N C log G)",
        cost_exponent=1.0,
        causal=True,
        by_position="its groups are neighboring positions",
    )

    def __init__(
        self,
        dim: int,
        *,
        learn: str = "nothing",
        group_size: int = 2,
        heads: int = 1,
        temperature: float | None = None,
        reach: float | None = None,
        **shared: Any,
    ) -> None:
        super().__init__(dim, **shared)
        check_choice("learn", learn, tuple(FORMS))
        if self.causal:
            self.inner: rm.TokenMixer = rm.create_mixer("softmax", dim, **shared)
            return
        given = {"temperature": temperature, "reach": reach}
        options = {name: value for name, value in given.items() if value is not None}
        self.inner = FORMS[learn](
            dim, group_size=group_size, heads=heads, pad=True, **options, **shared
        )

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """Apply the mixer."""
        return self.inner(x, key_padding_mask=key_padding_mask)
