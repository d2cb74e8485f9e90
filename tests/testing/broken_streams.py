"""Mixers that each break the contract for streams in one way."""

from __future__ import annotations

from typing import Any

import torch
from broken_mixers import breaks
from sound_mixers import Mean, WithoutMasks
from torch import Tensor


@breaks("steps_equal_the_parallel_form", "prefill_equals_steps")
class ForgetsInTheStream(Mean):
    def advance_stream(
        self, x_t: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        y, state = super().advance_stream(x_t, state)
        return y, {**state, "sum": 0.999 * state["sum"]}


@breaks("steps_equal_the_parallel_form")
class WritesOldStates(WithoutMasks):
    def advance_stream(
        self, x_t: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        y, following = super().advance_stream(x_t, state)
        state["sum"] = following["sum"]
        return y, following


@breaks("prefill_equals_steps")
class ForgetsThePrompt(Mean):
    def fill_stream(
        self, x: Tensor, key_padding_mask: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        y, state = super().fill_stream(x, key_padding_mask)
        return y, {**state, "sum": 0.999 * state["sum"]}


@breaks("prefill_equals_steps")
class CountsPaddingInThePrompt(Mean):
    def fill_stream(
        self, x: Tensor, key_padding_mask: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        y, state = super().fill_stream(x, key_padding_mask)
        return y, {**state, "count": torch.full_like(state["count"], x.shape[1])}


@breaks("states_have_a_row_for_each_sequence")
class ReversesStates(WithoutMasks):
    def advance_stream(
        self, x_t: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        y, after = super().advance_stream(x_t, {name: part.flip(0) for name, part in state.items()})
        return y, {name: part.flip(0) for name, part in after.items()}


@breaks("steps_check_their_input")
class StepsWithoutChecks(Mean):
    def step(self, x_t: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        self._check_state(state, x_t)
        y, after = self.advance_stream(x_t, state)
        return y, {**after, "position": state["position"] + 1}


@breaks("streams_keep_their_dtype")
class StepsInFloat32(Mean):
    def step(self, x_t: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        y, after = super().step(x_t, state)
        return y.float() if x_t.dtype == torch.bfloat16 else y, after


@breaks("streams_keep_their_dtype")
class StartsInFloat32(Mean):
    def start_stream(self, batch_size: int, device: Any, dtype: Any) -> dict[str, Tensor]:
        return super().start_stream(batch_size, device, torch.float32)

    def advance_stream(
        self, x_t: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        y, after = super().advance_stream(x_t, state)
        return y.to(x_t.dtype), after


@breaks("foreign_states_are_refused")
class AcceptsAnyState(Mean):
    def _check_state(self, state: dict[str, Tensor], x_t: Tensor) -> None:
        own = {name: state.get(name) for name in ("sum", "count", "position")}
        super()._check_state(own, x_t)


@breaks("streams_end_at_max_length")
class StreamsPastMaxLength(Mean):
    def _check_state(self, state: dict[str, Tensor], x_t: Tensor) -> None:
        longest, self.max_length = self.max_length, None
        super()._check_state(state, x_t)
        self.max_length = longest


@breaks("streaming_is_refused")
class StreamsWithoutCausal(Mean):
    def _check_streams(self) -> None:
        return
