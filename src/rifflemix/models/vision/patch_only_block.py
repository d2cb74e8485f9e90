"""Patch-only mixing: MLPs on the patches of an image, with coprime patch sizes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from itertools import combinations

from torch import Tensor, nn

from rifflemix.checks import check_floating, check_integer, check_integers, check_positive
from rifflemix.errors import bad_argument


class PatchMix(nn.Module):
    """x + fold(MLP(LN(unfold(x)))): one MLP shared by all non-overlapping p x p patches.

    Args:
        channels: channels C.
        patch_size: patch size p; a patch has C p^2 features in the order (channel, row, column).
        expansion: ratio of hidden features to patch features; there are int(expansion * C p^2).
        activation: module class of the activation function of the MLP.

    Source: Dimension Mixer, section 3.2.
    """

    def __init__(
        self,
        channels: int,
        patch_size: int,
        *,
        expansion: float = 2,
        activation: Callable[[], nn.Module] = nn.GELU,
    ) -> None:
        super().__init__()
        channels = check_integer("channels", channels, 1)
        patch_size = check_integer("patch_size", patch_size, 1)
        features = channels * patch_size**2
        hidden = int(check_positive("expansion", expansion) * features)
        if hidden < 1:
            raise bad_argument("expansion", f"at least 1/{features}", expansion)
        self.channels = channels
        self.patch_size = patch_size
        self.norm = nn.LayerNorm(features)
        self.fc1 = nn.Linear(features, hidden)
        self.act = activation()
        self.fc2 = nn.Linear(hidden, features)

    def forward(self, x: Tensor) -> Tensor:
        """Mix each patch of (B, C, H, W); p divides H and W."""
        check_floating("x", x, "(B, C, H, W)")
        p = self.patch_size
        if x.dim() != 4 or x.shape[1] != self.channels or x.shape[2] % p or x.shape[3] % p:
            expected = f"shape (B, {self.channels}, H, W) with H and W multiples of {p}"
            raise bad_argument("x", expected, tuple(x.shape))
        rows, columns = x.shape[2] // p, x.shape[3] // p
        patches = x.unflatten(3, (columns, p)).unflatten(2, (rows, p)).permute(0, 2, 4, 1, 3, 5)
        y = self.fc2(self.act(self.fc1(self.norm(patches.flatten(3)))))
        y = y.unflatten(3, (self.channels, p, p)).permute(0, 3, 1, 4, 2, 5)
        out: Tensor = x + y.flatten(4, 5).flatten(2, 3)
        return out

    def extra_repr(self) -> str:
        return f"channels={self.channels}, patch_size={self.patch_size}"


class PatchOnlyBlock(nn.Sequential):
    """Patch mixing with each patch size in turn.

    Patches of coprime sizes cut the image at different positions. A stack of blocks therefore mixes
    the whole image. Pixels in different runs of lcm(patch_sizes) never mix. A warning reports sizes
    that separate parts of the image or share a factor.

    Args:
        channels: channels C.
        image_size: height and width P; each patch size divides it.
        patch_sizes: sizes p, preferably pairwise coprime with product P, such as (5, 7) for 35.
        expansion: hidden features per feature of a patch.
        activation: module class of the activation function of the MLPs.

    Raises:
        InputError: `patch_sizes` is empty, or a size does not divide `image_size`.

    Source: Dimension Mixer, section 3.2.
    """

    def __init__(
        self,
        channels: int,
        image_size: int,
        patch_sizes: Sequence[int],
        *,
        expansion: float = 2,
        activation: Callable[[], nn.Module] = nn.GELU,
    ) -> None:
        sizes = _check_patches(image_size, patch_sizes)
        super().__init__(
            *(
                PatchMix(channels, size, expansion=expansion, activation=activation)
                for size in sizes
            )
        )


def _check_patches(image_size: int, patch_sizes: Sequence[int]) -> tuple[int, ...]:
    image_size = check_integer("image_size", image_size, 1)
    sizes = check_integers("patch_sizes", patch_sizes, 1)
    if not sizes:
        raise bad_argument("patch_sizes", "at least one size", sizes)
    if any(image_size % size for size in sizes):
        raise bad_argument("patch_sizes", f"divisors of image_size = {image_size}", sizes)
    mixed = math.lcm(*sizes)
    shared = any(math.gcd(p, q) > 1 for p, q in combinations(sizes, 2))
    if shared or mixed < image_size:
        warnings.warn(
            f"patch_sizes {sizes} on a {image_size}-pixel image: pixels mix only "
            f"within runs of {mixed}, the least common multiple; choose pairwise coprime sizes "
            "whose product is image_size",
            stacklevel=3,
        )
    return sizes
