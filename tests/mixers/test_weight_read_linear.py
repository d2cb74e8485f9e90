"""Linear layers with a weight that the mixer reads: pruned, hooked or adapted layers."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

import rifflemix as rm

DIM, LONGEST = 8, 12
MIXERS = ("mlp_mixer", "long_conv", "crate")
every_mixer = pytest.mark.parametrize("name", MIXERS)
lengths = pytest.mark.parametrize("length", [LONGEST, 7])


class Adapted(nn.Module):
    """A linear layer with a low-rank layer in parallel, as in LoRA."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base_layer = base
        self.down = nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)

    @property
    def weight(self) -> Tensor:
        """Return the weight of the base layer, as PEFT does."""
        return self.base_layer.weight

    @property
    def bias(self) -> Tensor | None:
        return self.base_layer.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + self.up(self.down(x))


def build(name: str) -> nn.Module:
    return rm.create_mixer(name, DIM, num_heads=2, max_length=LONGEST).eval()


def linears(mixer: nn.Module) -> dict[str, nn.Linear]:
    return {n: part for n, part in mixer.named_modules() if isinstance(part, nn.Linear)}


@every_mixer
@lengths
def test_adapters_equal_merged_adapters(name: str, length: int) -> None:
    mixer, x = build(name), torch.randn(2, length, DIM)
    merged = copy.deepcopy(mixer)
    for position, linear in linears(mixer).items():
        adapted = Adapted(linear)
        mixer.set_submodule(position, adapted)
        with torch.no_grad():
            merged.get_submodule(position).weight += adapted.up.weight @ adapted.down.weight
    y = mixer(x)
    torch.testing.assert_close(y, merged(x), atol=1e-5, rtol=1e-4)
    y.square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in mixer.parameters())


@every_mixer
@lengths
def test_pruned_weights_are_up_to_date(name: str, length: int) -> None:
    mixer, x = build(name), torch.randn(2, length, DIM)
    plain = copy.deepcopy(mixer)
    for position, linear in linears(mixer).items():
        prune.l1_unstructured(linear, "weight", 0.5)
        with torch.no_grad():
            linear.weight_orig.mul_(2.0)
            plain.get_submodule(position).weight.mul_(2.0 * linear.weight_mask)
    for _ in range(2):  # the graph of the first pass would already be freed
        mixer(x).square().sum().backward()
    torch.testing.assert_close(mixer(x), plain(x))


@pytest.mark.parametrize("name", ["mlp_mixer", "long_conv"])
@lengths
def test_hooks_are_run(name: str, length: int) -> None:
    mixer, x, seen = build(name), torch.randn(2, length, DIM), set()
    expected = mixer(x)
    for position, linear in linears(mixer).items():
        linear.register_forward_hook(lambda *_, position=position: seen.add(position))
    torch.testing.assert_close(mixer(x), expected)
    assert seen == set(linears(mixer))
