"""CSP with an order or shifts that are learned: what docs/learned-permutations.md measured.

A plugin, not a part of the library, which keeps what earns its place:

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
from rifflemix.ops import circular_shift, shift_steps, soft_rank


class LearnedReference(CSP):
    """Every head is ordered by a score x.w_h of its own, which is not among its outputs.

    Forward it is CSP in reference order, the score being a reference channel. Backward the ranks
    of the scores are `soft_rank`, and a channel moves along its sorted values as the rank does: by
    half the difference of the two neighbours in order.

    Args:
        dim: channels C.
        heads: contiguous heads.
        temperature: of the ranks, in units of the score. It is an attribute of the same name: a
            training loop lowers it by setting it between updates.
        options: of CSP.
    """

    def __init__(
        self, dim: int, *, heads: int = 1, temperature: float = 0.3, **options: Any
    ) -> None:
        super().__init__(dim, heads=heads, inner_dim=dim + heads, order="reference", **options)
        self.temperature = check_positive("temperature", temperature)
        self.proj = nn.Linear(dim, dim)

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """Map, permute, take the scores away, map."""
        y = self.permute(self.value(x), key_padding_mask)[0].unflatten(2, (self.heads, -1))
        score, values = y[..., 0], y[..., 1:]  # a reference channel stays where it is
        if torch.is_grad_enabled():
            rank, slope = self._ranks_and_slopes(score, values, key_padding_mask)
            values = values + slope * (rank - rank.detach()).unsqueeze(-1)
        mixed: Tensor = self.proj(values.flatten(2))
        return mixed

    def _ranks_and_slopes(
        self, score: Tensor, values: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Soft ranks (B, N, H), and what one rank more adds to each value (B, N, H, D)."""
        length = score.shape[1]
        size = min(self._group_size(self.layout_length or length), length)
        missing = -length % size
        padded = score.new_zeros(score.shape[:2], dtype=torch.bool) if mask is None else mask
        padded = F.pad(padded, (0, missing), value=True)
        score = F.pad(score, (0, 0, 0, missing))
        groups = score.shape[1] // size
        rank = soft_rank(score, groups, temperature=self.temperature, key_padding_mask=padded)
        slope = slopes(score, F.pad(values, (0, 0, 0, 0, 0, missing)), padded, groups)
        return rank[:, :length], slope[:, :length]


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
    """Every channel has a shift that is learned, a real number, from CSP's linear schedule on.

    In training it is the linear interpolation between the two integers, in evaluation the nearest.
    The reference channels are not shifted.

    Args:
        dim: channels C.
        max_length: most tokens; the schedule is laid out over it.
        reach: tokens that a parameter of one stands for: an optimiser's steps are small numbers.
        options: of CSP.
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
    """One of these, or CSP as it is; where a decoder needs a causal mixer, softmax attention.

    Args:
        dim: channels C.
        learn: "nothing", "reference" or "shift".
        options: of the form; see there.
    """

    card: ClassVar[rm.MixerCard] = rm.MixerCard(
        name="permuted",
        title="CSP, learned",
        paper="none",
        equations="CSP (3)-(5)",
        complexity="O(N C log G)",
        cost_exponent=1.0,
        causal=True,
        by_position="its groups are neighbouring positions",
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
        """What the form does."""
        y: Tensor = self.inner(x, key_padding_mask=key_padding_mask)
        return y
