"""Schedules of shift steps and sort directions. They do not depend on the tokens."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rifflemix.checks import check_bool, check_divides, check_integer, check_layer
from rifflemix.compat import as_operand, sizes_are_tensors
from rifflemix.errors import bad_argument, check_choice
from rifflemix.ops.define import define

_MOST = 2**31 - 1  # limit for tokens and channels, so that products of two fit int64
_POWER_KINDS = ("power", "code_exp")
SHIFT_KINDS = ("none", "linear", "power", "head", "code_linear", "code_exp")


def shift_steps(
    kind: str,
    num_tokens: int,
    num_channels: int,
    *,
    layer_index: int = 0,
    num_layers: int = 1,
    group_size: int = 2,
    heads: int = 1,
    device: torch.device | str | None = None,
) -> Tensor:
    """Compute the circular shift of every channel of one layer.

    Notation: channels c = 0..C-1, tokens N, layers L, joint channel index g = layer_index*C + c.

    - "none": 0.
    - "linear": c * ceil(N/C) mod N, suitable if N is of the order of C.
    - "power": round(N^(g/(LC-1))) - 1, suitable if N is much larger than C. The first channel of
      every layer is the reference of the group sort and does not shift.
    - "head": H * floor(c/D) mod N for H heads of D = C/H channels. All channels of a head have the
      same step, as in the first experiment of the paper.
    - "code_linear": G * max(c-1, 0) mod N for groups of G tokens, as in the released code. G = 1
      gives N different steps if C > N.
    - "code_exp": ceil(N^(g/(LC))) mod N, as in the released code. The power is a rounded double,
      so a few steps are one more than the exact ceiling. Channel 0 also shifts.

    "power" rounds in exact integer arithmetic and never uses a rounded logarithm.

    Args:
        kind: one of the names above.
        num_tokens: tokens N.
        num_channels: channels C of this layer.
        layer_index: 0-based position of the layer in its stack (only for "power" and "code_exp").
        num_layers: layers L of the stack (only for "power" and "code_exp").
        group_size: tokens G of a sorted group (only for "code_linear").
        heads: heads H, a divisor of C (only for "head").
        device: device of the result.

    Returns:
        (C,) int64 in 0..N-1.

    Raises:
        InputError: unknown kind, a number out of range, or `heads` that does not divide C.

    Source: CSP (Yuan and Xu), section 3.2.2, and equation (3) for "head". Unlike in the paper, the
    base of the power law is not floored. A floored base is 1 as soon as LC - 1 exceeds log2 N, and
    then no channel shifts.

    Example:
        >>> import rifflemix as rm
        >>> rm.ops.shift_steps("linear", num_tokens=16, num_channels=4).tolist()
        [0, 4, 8, 12]
        >>> rm.ops.shift_steps("power", num_tokens=1024, num_channels=4).tolist()
        [0, 9, 101, 1023]
    """
    check_choice("kind", kind, SHIFT_KINDS)
    num_tokens = check_integer("num_tokens", num_tokens, 1, _MOST)
    num_channels = check_integer("num_channels", num_channels, 1, _MOST)
    layer_index, num_layers = check_layer(layer_index, num_layers)
    check_integer("num_layers", num_layers, 1, _MOST)
    group_size = check_integer("group_size", group_size, 1, _MOST)
    heads = check_divides("heads", heads, num_channels, "num_channels")
    target = torch.empty(0).device if device is None else torch.device(device)
    schedule = ShiftSchedule(kind, num_channels, layer_index, num_layers, heads)
    return schedule.steps(num_tokens, group_size, target)


@dataclass(frozen=True)
class ShiftSchedule:
    """The shift of every channel of one layer, for sequences of any length.

    Attributes:
        kind: a kind of `shift_steps`, which also describes the other attributes.
        num_channels: channels C.
        layer_index: 0-based position of the layer in its stack.
        num_layers: layers L of the stack.
        heads: heads H, a divisor of C.
        fixed_references: do not shift the first channel of each head, the reference of the sort.
    """

    kind: str
    num_channels: int
    layer_index: int = 0
    num_layers: int = 1
    heads: int = 1
    fixed_references: bool = False

    def steps(self, num_tokens: int, group_size: int | Tensor, device: torch.device) -> Tensor:
        """Compute the steps (C,) for `num_tokens` tokens in groups of `group_size`.

        The number of tokens may be symbolic. The group size is then a 0-d tensor, because ONNX
        arithmetic needs tensors.
        """
        steps = self._all_steps(num_tokens, group_size, device)
        if not self.fixed_references:
            return steps
        channels = torch.arange(self.num_channels, device=device)
        return steps.masked_fill(channels % (self.num_channels // self.heads) == 0, 0)

    def _all_steps(self, num_tokens: int, group_size: int | Tensor, device: torch.device) -> Tensor:
        """Compute `steps` without fixed references."""
        kind, num_channels, heads = self.kind, self.num_channels, self.heads
        if kind in _POWER_KINDS:
            place = num_channels, self.layer_index, self.num_layers
            if sizes_are_tensors():  # such a graph accepts no device and fixes the length
                return torch.tensor(_power_steps(kind, int(num_tokens), *place), device=device)
            return _power_shift_steps(kind, num_tokens, *place, device)
        channels = torch.arange(num_channels, device=device)
        tokens = as_operand(num_tokens, device)
        if kind == "linear":
            # Not -(-N // C), because ONNX rounds negative quotients towards zero.
            return channels * ((num_tokens + num_channels - 1) // num_channels) % tokens
        if kind == "code_linear":
            return group_size * (channels - 1).clamp(min=0) % tokens
        if kind == "head":
            return heads * (channels // (num_channels // heads)) % tokens
        return torch.zeros_like(channels)


def interleave_columns(
    num_channels: int,
    layer_index: int,
    *,
    heads: int = 1,
    reverse: bool = False,
    num_layers: int | None = None,
) -> Tensor:
    """Select the channels that Order-Interleave sorts in descending order.

    Each head has width n = C / heads and runs of w = max(1, n // 2^layer_index) columns. Column j
    of a head is descending iff floor(j / w) is odd. So the direction changes after every half of a
    head in layer 1 and after every quarter in layer 2. Layer 0 has no descending column.

    Args:
        num_channels: channels C.
        layer_index: 0-based position of the layer in its stack.
        heads: number of contiguous heads; 1 in the paper.
        reverse: count layers from the last one, so that the first layer is the finest, as in the
            vision code of the authors. Requires `num_layers`.
        num_layers: number of layers of the stack.

    Returns:
        (C,) bool, True = descending; the `descending` argument of `group_sort`.

    Raises:
        InputError: a number out of range, `heads` that does not divide C, or `reverse`
            without `num_layers`.

    Source: Sliceformer (Yuan and Xu), equations (5)-(6), as defined in the code of the authors. If
    2w does not divide n, that code starts its last run one column late. rifflemix follows the rule
    above instead.

    Example:
        >>> import rifflemix as rm
        >>> for layer in range(3):
        ...     print(rm.ops.interleave_columns(8, layer).int().tolist())
        [0, 0, 0, 0, 0, 0, 0, 0]
        [0, 0, 0, 0, 1, 1, 1, 1]
        [0, 0, 1, 1, 0, 0, 1, 1]
    """
    num_channels = check_integer("num_channels", num_channels, 1)
    heads = check_divides("heads", heads, num_channels, "num_channels")
    if num_layers is None:
        level = check_integer("layer_index", layer_index, 0)
    else:
        level, num_layers = check_layer(layer_index, num_layers)
    if check_bool("reverse", reverse):
        if num_layers is None:
            raise bad_argument("num_layers", "the number of layers when reverse=True", None)
        level = num_layers - 1 - level
    head_width = num_channels // heads
    run = max(1, head_width >> level)
    columns = torch.arange(num_channels) % head_width
    return columns // run % 2 == 1


@define(
    "power_shift_steps",
    like=lambda kind, tokens, channels, layer, layers, device: torch.empty(
        channels, dtype=torch.int64, device=device
    ),
)
def _power_shift_steps(
    kind: str,
    num_tokens: int,
    num_channels: int,
    layer_index: int,
    num_layers: int,
    device: torch.device,
) -> Tensor:
    """Compute the steps in a custom operator.

    The operator keeps the integers exact under torch.compile and export, for any N.
    """
    check_choice("kind", kind, _POWER_KINDS)
    check_integer("num_tokens", num_tokens, 1, _MOST)
    check_integer("num_channels", num_channels, 1, _MOST)
    check_integer("num_layers", num_layers, 1, _MOST)
    check_layer(layer_index, num_layers)
    steps = _power_steps(kind, num_tokens, num_channels, layer_index, num_layers)
    return torch.tensor(steps, device=device)


@functools.lru_cache(maxsize=256)
def _power_steps(
    kind: str, num_tokens: int, num_channels: int, layer_index: int, num_layers: int
) -> tuple[int, ...]:
    first = layer_index * num_channels
    total = num_layers * num_channels
    joint = range(first, first + num_channels)
    if kind == "code_exp":
        # Includes the rounding errors of the released code: 64^(10/12) is 32, but gives 33.
        return tuple(math.ceil(num_tokens ** (g / total)) % num_tokens for g in joint)
    return (0, *(_nearest_power(num_tokens, g, total - 1) - 1 for g in joint[1:]))


def _nearest_power(base: int, numerator: int, denominator: int) -> int:
    """Round base^(numerator/denominator) to an integer; ties are impossible."""
    value: float = base ** (numerator / denominator)
    near = round(value + 0.5)
    if abs(value + 0.5 - near) > 1e-9 * value:
        return math.floor(value + 0.5)
    return near if (2 * near - 1) ** denominator <= base**numerator << denominator else near - 1
