"""Performer: linear attention with positive random features (FAVOR+)."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from rifflemix.checks import check_integer, is_number, shown
from rifflemix.errors import bad_argument, check_choice
from rifflemix.mixers._attention.autograd_functions import LOG_ZERO, fuses_features, random_features
from rifflemix.mixers._attention.linear import LinearAttentionMixer
from rifflemix.mixers.cards import MixerCard
from rifflemix.ops.precision import as_default, wide_default, without_autocast

KERNELS = ("softmax", "relu")
PADDED_KEYS = ("left_out", "zero")
_SOFTMAX_OFFSET = 1e-4
_RELU_OFFSET = 1e-3
# Upper limit for exponents of causal keys: sums of many exp(...) must stay in float32's range.
_LARGEST_EXPONENT = 60.0


class Performer(LinearAttentionMixer):
    """Linear attention with features that approximate softmax attention, or with ReLU features.

    The softmax kernel has one feature for each row w of a random projection:
    exp(w x - |x|^2 / 2) plus a small offset, with x scaled by D^-1/4. Two maxima are subtracted
    from the exponents to keep them in range:

    - for a query: its largest product w x;
    - for a key: the largest product of all valid keys of the head.

    The offset is relative to these maxima. Otherwise they do not change the result. With
    `causal=True` the maximum over the keys is not known in advance: nothing is subtracted from
    keys, and exponents above 60 are clamped to 60. Dropout has no effect: there are no attention
    weights.

    Args:
        dim: channels C; see `TokenMixer` for the shared arguments.
        kernel: "softmax", or "relu" for features relu(w x) + 0.001.
        num_features: rows M of the random projection. None means D ln D for the softmax kernel.
            For the ReLU kernel, None means no projection: x replaces w x.
        scale_exponent: queries and keys are divided by D to this power. The paper's 1/4 gives the
            scale of softmax attention. PyTorch code of the Long Range Arena divides twice (1/2).
            The ReLU features of the benchmark itself are not scaled (0).
        padded_keys: "left_out" ignores padding. "zero" sets padded keys and values to zero, but
            counts them in the sum of the weights. The PyTorch code of the Long Range Arena does
            the same. Outputs then depend on the amount of padding.
        shared: other arguments of `MultiHeadMixer` and `TokenMixer`.

    Attributes:
        projection: (M, D) buffer shared by the heads, or None without a projection. It is drawn
            from torch's random numbers in the constructor and saved with the weights.
            `redraw_projection` replaces it.

    Raises:
        InputError: an unknown name, `num_features` below 1, `scale_exponent` below 0, or
            padded_keys="zero" with causal=True.

    Source: Choromanski et al. 2021, "Rethinking Attention with Performers", Lemma 1,
    sections 2.2 to 2.4 (the last on orthogonal features).

    Example:
        >>> import torch, rifflemix as rm
        >>> mixer = rm.create_mixer("performer", 64, num_heads=4, kernel="relu", num_features=32)
        >>> mixer(torch.randn(2, 1000, 64)).shape
        torch.Size([2, 1000, 64])
    """

    card: ClassVar[MixerCard] = MixerCard(
        name="performer",
        title="Performer (FAVOR+)",
        paper="Choromanski et al. 2021, Rethinking Attention with Performers",
        equations="Lemma 1, sections 2.2-2.4",
        complexity="O(N M C), M random features",
        cost_exponent=1.0,
        causal=True,
        streaming=True,
        permutation_equivariant=True,
    )
    # Only prevents 0 / 0 in a sequence without valid tokens: the features have an offset.
    epsilon = 1e-12

    projection: Tensor | None

    def __init__(
        self,
        dim: int,
        *,
        kernel: str = "softmax",
        num_features: int | None = None,
        scale_exponent: float = 0.25,
        padded_keys: str = "left_out",
        **shared: Any,
    ) -> None:
        super().__init__(dim, **shared)
        check_choice("kernel", kernel, KERNELS)
        check_choice("padded_keys", padded_keys, PADDED_KEYS)
        if self.causal and padded_keys == "zero":
            raise bad_argument("padded_keys", "'left_out' when causal=True", repr(padded_keys))
        self.kernel = kernel
        if not is_number(scale_exponent) or scale_exponent < 0:
            raise bad_argument("scale_exponent", "a number of at least 0", shown(scale_exponent))
        self.scale_exponent = scale_exponent
        self.padded_keys = padded_keys
        if num_features is not None:
            rows = check_integer("num_features", num_features, 1)
        else:
            rows = math.ceil(self.head_dim * math.log(self.head_dim)) or 1
        project = kernel == "softmax" or num_features is not None
        drawn = orthogonal_projection(rows, self.head_dim) if project else None
        self.register_buffer("projection", drawn)

    def redraw_projection(self, generator: torch.Generator | None = None) -> None:
        """Draw a new random projection.

        Args:
            generator: source of the random numbers. Default: torch's default generator.

        Raises:
            InputError: the mixer has no projection.
        """
        if self.projection is None:
            raise bad_argument(
                "num_features", "a number of random features, to draw them again", None
            )
        rows, width = self.projection.shape
        drawn = orthogonal_projection(rows, width, generator=generator)
        self.projection.copy_(drawn)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        if key_padding_mask is not None and self.padded_keys == "zero":
            padded = key_padding_mask[:, None, :, None]
            k, v = torch.where(padded, 0.0, k), torch.where(padded, 0.0, v)
            key_padding_mask = None
        return super().attend(q, k, v, key_padding_mask)

    def features(
        self, q: Tensor, k: Tensor, key_padding_mask: Tensor | None, start: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        padded = None if key_padding_mask is None else key_padding_mask[:, None, :, None]
        wide = torch.promote_types(q.dtype, torch.float32)
        scale = self.head_dim**-self.scale_exponent
        with without_autocast(q):  # exponents need more than 8 bits of precision
            q, k = q.to(wide) * scale, k.to(wide) * scale
            if self.kernel == "softmax":
                q, k = self._query_features(q), self._key_features(k, padded)
            else:
                q, k = self._relu_features(q), self._relu_features(k)
        return q, k if padded is None else torch.where(padded, 0.0, k)

    def num_features_per_head(self) -> int:
        """Return the rows of the projection, or D without a projection."""
        return self.head_dim if self.projection is None else self.projection.shape[0]

    def _projected(self, x: Tensor) -> Tensor:
        return x if self.projection is None else x @ self.projection.to(x.dtype).mT

    def _relu_features(self, x: Tensor) -> Tensor:
        return torch.relu(self._projected(x)) + _RELU_OFFSET

    def _query_features(self, q: Tensor) -> Tensor:
        if self.projection is not None and fuses_features():
            rows = self.projection.to(q.dtype)
            return random_features(q, rows, None, _SOFTMAX_OFFSET, over_tokens=False)
        products = self._projected(q)
        return _exponential_features(q, products, products.amax(-1, keepdim=True))

    def _key_features(self, k: Tensor, padded: Tensor | None) -> Tensor:
        if self.projection is not None and fuses_features() and not self.causal:
            rows = self.projection.to(k.dtype)
            return random_features(k, rows, padded, _SOFTMAX_OFFSET, over_tokens=True)
        products = self._projected(k)
        if padded is not None:
            products = products.masked_fill(padded, LOG_ZERO)
        if self.causal:
            return _exponential_features(k, products, None)
        return _exponential_features(k, products, products.amax((-1, -2), keepdim=True))

    def extra_repr(self) -> str:
        features = self.num_features_per_head()
        return f"{super().extra_repr()}, kernel={self.kernel}, num_features={features}"


def _exponential_features(x: Tensor, products: Tensor, largest: Tensor | None) -> Tensor:
    exponents = products - 0.5 * x.square().sum(-1, keepdim=True)
    limited = exponents.clamp(max=_LARGEST_EXPONENT) if largest is None else exponents - largest
    return (limited.exp() + _SOFTMAX_OFFSET) / math.sqrt(products.shape[-1])


def orthogonal_projection(
    num_features: int, head_dim: int, *, generator: torch.Generator | None = None
) -> Tensor:
    """Draw standard normal rows that are orthogonal within blocks of D.

    Args:
        num_features: rows M.
        head_dim: columns D.
        generator: random number generator. Default: torch's default generator.

    Returns:
        (M, D) in torch's default dtype.

    Source: Choromanski et al. 2021, section 2.4.
    """
    blocks = -(-num_features // head_dim)
    device = None if generator is None else generator.device
    kind: dict[str, Any] = {
        "generator": generator,
        "device": device,
        "dtype": wide_default(),
    }
    normal = torch.randn(blocks, head_dim, head_dim, **kind)
    q, r = torch.linalg.qr(normal)
    # qr chooses the signs of q; the signs of r's diagonal make q uniformly distributed again.
    rows = (q * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)).mT.flatten(0, 1)
    norms = torch.linalg.vector_norm(
        torch.randn(num_features, head_dim, **kind), dim=1, keepdim=True
    )
    projection: Tensor = rows[:num_features] * norms
    return as_default(projection)
