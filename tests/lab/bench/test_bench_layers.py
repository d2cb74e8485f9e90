"""Test the correctness check of layers with a mixer that has a wrong fast path."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rifflemix.lab.bench.layers import gate_mixer
from rifflemix.lab.bench.rows import Shape
from rifflemix.lab.bench.runner import Settings
from rifflemix.mixers import MixerCard, TokenMixer
from rifflemix.ops.dispatch import choose


class Halved(TokenMixer):
    """Mixer that halves its input, with an error of `error` in its fast path.

    If `always` is set, the eager path has the same error for float32.
    """

    card = MixerCard(
        name="halved", title="", paper="", equations="", complexity="", cost_exponent=1.0
    )

    def __init__(self, dim: int, *, error: float, always: bool, **shared: Any) -> None:
        super().__init__(dim, **shared)
        self.error = error
        self.always = always

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        is_fast = choose("auto", ("eager", "cpu")) == "cpu"
        is_wrong = is_fast or (self.always and x.dtype == torch.float32)
        return x * (0.5 + self.error * is_wrong)


@pytest.mark.parametrize(
    ("error", "always", "passed"),
    [
        (0.0, False, [True, True]),
        (0.1, False, [False, False]),  # only the fast path is wrong
        (0.1, True, [True, False]),  # both paths are wrong; float64 shows it
    ],
)
def test_a_wrong_layer_fails(error: float, always: bool, passed: list[bool]) -> None:
    def build(shape: Shape) -> TokenMixer:
        return Halved(shape.channels, error=error, always=always)

    checks = gate_mixer(build, Settings(), Shape(3, 1000, 8, 2))
    assert [check.passed for check in checks] == passed
    assert {check.shape for check in checks} == {"(1, 256, 8)"}
