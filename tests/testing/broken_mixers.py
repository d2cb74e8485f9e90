"""Mixers that each break the contract in one way.

broken_masks.py has padding and packed sequences, and broken_streams.py has streams.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import torch
from sound_mixers import Bidirectional, GatedAverage, Mean, NotStreaming, WithoutMasks
from torch import Tensor, nn
from torch.autograd import forward_ad

from rifflemix.errors import InputError
from rifflemix.mixers import TokenMixer

BROKEN: dict[type[TokenMixer], set[str]] = {}
"""Each broken mixer with the properties it breaks: a single property if possible."""


def breaks(*properties: str) -> Any:
    def register(cls: type[TokenMixer]) -> type[TokenMixer]:
        BROKEN[cls] = set(properties)
        return cls

    return register


@breaks("card_is_complete")
class WithoutPaper(Mean):
    card = replace(Mean.card, paper="")


@breaks("shape_and_dtype_are_kept")
class OtherDtype(Mean):
    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        y = super().mix(x, key_padding_mask)
        return y.float() if x.dtype == torch.bfloat16 else y


@breaks("shape_and_dtype_are_kept", "exports")
class InfiniteWhenLong(Mean):
    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        return super().mix(x, key_padding_mask) / (0 if x.shape[1] == 33 else 1)


@breaks("no_samples_are_mixed_to_none")
class NeedsSamples(Mean):
    def forward(self, x: Tensor, *, key_padding_mask: Any = None, **packed: Any) -> Tensor:
        if x.dim() == 3 and x.shape[0] == 0:
            raise InputError("x: expected samples, got none")
        return super().forward(x, key_padding_mask=key_padding_mask, **packed)


@breaks("shapes_are_known_without_memory")
class ReadsValuesInTheConstructor(Mean):
    def __init__(self, dim: int, **shared: Any) -> None:
        super().__init__(dim, **shared)
        self.size = torch.arange(4).sum().item()


@breaks("builds_with_few_arguments")
class NeedsALength(Mean):
    def __init__(self, dim: int, *, max_length: int | None = None, **shared: Any) -> None:
        if max_length is None:
            raise InputError("max_length: expected a number, got None")
        super().__init__(dim, max_length=max_length, **shared)


@breaks("bad_settings_are_named")
class AcceptsFloatDim(Mean):
    def __init__(self, dim: int, **shared: Any) -> None:
        super().__init__(int(dim) if isinstance(dim, float) else dim, **shared)


@breaks("bad_inputs_are_named")
class ChecksNothing(Mean):
    def _check_input(self, x: Tensor, key_padding_mask: Tensor | None) -> None:
        return


@breaks("inputs_are_left_alone")
class WritesItsInput(Mean):
    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        y = super().mix(x, key_padding_mask)
        if not torch.is_grad_enabled():
            x[:, 0] = 0.0
        return y


@breaks("evaluation_repeats", "exports")
class UnstableOrder(Bidirectional):
    """Sorts by the first channel, with equal values in random order."""

    card = replace(
        Bidirectional.card, padding=False, permutation_equivariant=False, permutation_invariant=True
    )

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        keys = x[..., 0].double()
        order = (keys + 1e-9 * torch.rand_like(keys)).argsort(1)
        v = self.values(x, key_padding_mask)
        return self.proj(v.take_along_dim(order[..., None], 1))


@breaks("same_seed_gives_the_same")
class UsesAnotherRandomGenerator(Mean):
    card = replace(Mean.card, training_noise="a scale")

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        y = super().mix(x, key_padding_mask)
        return y * (1 + 0.01 * random.random()) if self.training else y


@breaks("training_without_dropout_is_evaluation")
class DoublesInTraining(Mean):
    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        y = super().mix(x, key_padding_mask)
        return 2 * y if self.training else y


@breaks("training_without_dropout_is_evaluation")
class DropsWithoutDropout(Mean):
    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        y = super().mix(x, key_padding_mask)
        return nn.functional.dropout(y, 0.3, self.training)


@breaks("layout_in_memory_changes_nothing")
class IgnoresStrides(WithoutMasks):
    """Reads tensors that are not contiguous in the order of their storage."""

    def values(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        return super().values(x.as_strided(x.shape, (x[0].numel(), x.shape[2], 1)), None)


@breaks("state_dict_holds_everything")
class HiddenState(Mean):
    def __init__(self, dim: int, **shared: Any) -> None:
        super().__init__(dim, **shared)
        self.scale = 1 + torch.rand((), device="cpu").item()

    def values(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        return super().values(self.scale * x, key_padding_mask)

    def advance_stream(
        self, x_t: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return super().advance_stream(self.scale * x_t, state)


@breaks("state_dict_holds_everything")
class CannotBeCopied(Mean):
    def __init__(self, dim: int, **shared: Any) -> None:
        super().__init__(dim, **shared)
        self.half = self.proj.weight / 2


@breaks("state_dict_holds_everything", "exports")
class CreatesWeightsInForward(Mean):
    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        if not hasattr(self, "gain"):
            self.gain = nn.Parameter(torch.ones_like(x[0, 0]))
        return self.gain * super().mix(x, key_padding_mask)


@breaks("samples_of_a_batch_do_not_meet", "longer_neighbours_change_nothing")
class MixesSamples(Bidirectional):
    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        y = super().mix(x, key_padding_mask)
        return y + 1e-6 * y.mean(0, keepdim=True)


@breaks("outputs_ignore_later_tokens")
class UsesLaterTokens(NotStreaming):
    def mean(self, v: Tensor, counts: Tensor) -> Tensor:
        whole = v.sum(1, keepdim=True) / counts.sum(1, keepdim=True).clamp_min(1)
        return super().mean(v, counts) + 1e-6 * whole


@breaks("outputs_ignore_later_tokens")
class UsesTheLength(NotStreaming):
    """Reads the length, in its causal variant only."""

    card = replace(NotStreaming.card, padding=False)

    def mean(self, v: Tensor, counts: Tensor) -> Tensor:
        return super().mean(v, counts) * (1 + v.shape[1] * self.causal)


@breaks("causal_is_refused")
class IgnoresCausal(Bidirectional):
    def __init__(self, dim: int, *, causal: bool = False, **shared: Any) -> None:
        super().__init__(dim, causal=False if causal is True else causal, **shared)


@breaks("card_tells_permutation_equivariance", "place_of_padding_changes_nothing")
class AddsPositions(Bidirectional):
    def values(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        positions = torch.arange(x.shape[1], device=x.device, dtype=x.dtype)
        return super().values(x + 1e-3 * positions[:, None], key_padding_mask)


@breaks("card_tells_permutation_equivariance")
class DeclaresNoEquivariance(Mean):
    card = replace(Mean.card, permutation_equivariant=False)


@breaks("card_tells_permutation_invariance")
class DeclaresInvariance(Mean):
    card = replace(Mean.card, permutation_invariant=True)


@breaks("every_parameter_is_used")
class UnusedParameter(Mean):
    def __init__(self, dim: int, **shared: Any) -> None:
        super().__init__(dim, **shared)
        self.unused = nn.Parameter(torch.zeros(dim))


@breaks("gradients_equal_numerical_ones")
class WrongGradient(Mean):
    """Halves the gradient of one bias."""

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        y, bias = super().mix(x, key_padding_mask), self.proj.bias
        return y + 0.5 * (bias - bias.detach())


class _DoubledWithAGraph(torch.autograd.Function):
    """Identity with a gradient that doubles under create_graph."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(_: Any, grad: Tensor) -> Tensor:
        return 2 * grad if torch.is_grad_enabled() else grad


@breaks("a_graph_changes_no_gradient")
class DoublesGradientWithAGraph(Mean):
    def values(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        return super().values(_DoubledWithAGraph.apply(x), key_padding_mask)


@breaks("a_graph_changes_no_gradient")
class DoublesStreamGradientWithAGraph(Mean):
    def advance_stream(
        self, x_t: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return super().advance_stream(_DoubledWithAGraph.apply(x_t), state)


@breaks("transforms_agree_or_are_refused")
class HalvesForwardGradients(Mean):
    def values(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        is_plain = forward_ad._current_level < 0
        return super().values(x if is_plain else (x + x.detach()) / 2, key_padding_mask)


@breaks("low_precision_follows_float64")
class Scaled(Mean):
    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        y = super().mix(x, key_padding_mask)
        return 0.6 * y if x.dtype == torch.bfloat16 else y


@breaks("low_precision_follows_float64")
class ScaledSlightly(Mean):
    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        y = super().mix(x, key_padding_mask)
        return 0.95 * y if x.dtype == torch.bfloat16 else y


@breaks("low_precision_follows_float64")
class RoundsToBfloat16(Mean):
    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        y = super().mix(x, key_padding_mask)
        return y if x.dtype == torch.float64 else y.to(torch.bfloat16).to(y.dtype)


@breaks("low_precision_follows_float64")
class RoundsTokensToHalf(Mean):
    """Rounds float32 tokens to float16, enough for bfloat16 precision only."""

    def values(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        rounded = x.half().float() if x.dtype == torch.float32 else x
        return super().values(rounded, key_padding_mask)


@breaks("low_precision_follows_float64")
class AveragesInHalf(GatedAverage):
    """Rounds the carry of a float32 recurrence to float16."""

    def blended(self, gate: Tensor, average: Tensor, value: Tensor) -> Tensor:
        mixed = super().blended(gate, average, value)
        return mixed.half().float() if mixed.dtype == torch.float32 else mixed


@breaks("exports", "runs_as_onnx")
class ExportsAnotherFunction(Bidirectional):
    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        y = super().mix(x, key_padding_mask)
        return 1.001 * y if torch.compiler.is_exporting() else y


@breaks("exports")
class ExportsForOneLength(Bidirectional):
    """Exports a program that is correct for 24 tokens only."""

    card = replace(Bidirectional.card, no_onnx="the test is of torch.export")

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        if torch.compiler.is_exporting():
            return super().mix(x, key_padding_mask) * (24 / x.shape[1])
        return super().mix(x, key_padding_mask)


@breaks("exports")
class DeclaresOneLength(Bidirectional):
    card = replace(Bidirectional.card, one_length="it does not")


@breaks("runs_as_onnx")
class UsesAnOperatorWithoutOnnx(Bidirectional):
    def values(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        nothing = torch.erfinv(torch.zeros_like(x[..., :1]))
        return super().values(x + nothing, key_padding_mask)


@breaks("runs_as_onnx")
class DeclaresNoOnnx(Bidirectional):
    card = replace(Bidirectional.card, no_onnx="it is")


@breaks("compiles_to_one_graph")
class BreaksTheGraph(Mean):
    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        y = super().mix(x, key_padding_mask)
        torch._dynamo.graph_break()
        return y


@breaks("compiles_to_one_graph")
class CompilesAnotherFunction(Mean):
    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        y = super().mix(x, key_padding_mask)
        return 1.001 * y if torch.compiler.is_dynamo_compiling() else y
