"""The contract of mixers: all properties, and a function that checks them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rifflemix.errors import bad_argument
from rifflemix.mixers.base import TokenMixer
from rifflemix.mixers.cards import MixerCard
from rifflemix.testing import graphs, independence, inputs, numerics, states
from rifflemix.testing.forms import Form, forms_of, seeded


@dataclass(frozen=True)
class Property:
    """A behavior that every mixer needs, or an error that it must raise.

    Attributes:
        holds: check function; it raises AssertionError if a variant of a mixer fails.
        applies: returns whether the card of a variant requires the property.

    Example:
        >>> import torch, rifflemix as rm
        >>> def is_finite(form):
        ...     mixer = form.build()
        ...     assert mixer(torch.randn(2, 9, mixer.dim).double()).isfinite().all()
        >>> finite = rm.testing.Property(is_finite)
        >>> for form in rm.testing.forms_of(rm.mixers.mixer_class("linear")):
        ...     finite.check(form)
    """

    holds: Callable[[Form], None]
    applies: Callable[[Form], bool] = lambda _: True

    @property
    def name(self) -> str:
        """Name of the check function: a sentence with underscores."""
        return self.holds.__name__

    def check(self, form: Form) -> None:
        """Check the property of a variant.

        Args:
            form: variant of a mixer.

        Raises:
            AssertionError: "mixer: property: reason". Unexpected errors of the mixer are also
                failures.
        """
        try:
            with seeded():
                self.holds(form)
        except Exception as error:
            kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
            raise AssertionError(f"{form}: {self.name}: {kind}{error}") from error


def _masks(form: Form) -> bool:
    return form.card.padding


def _masks_of_any_length(form: Form) -> bool:
    return form.card.padding and not form.card.layout_over_length


def _causal(form: Form) -> bool:
    return form.causal


def _in_both_directions(form: Form) -> bool:
    return not form.causal


def _streams(form: Form) -> bool:
    return form.card.streaming and form.causal


PROPERTIES = (
    Property(inputs.card_is_complete),
    Property(inputs.shape_and_dtype_are_kept),
    Property(inputs.no_samples_are_mixed_to_none),
    Property(inputs.shapes_are_known_without_memory),
    Property(inputs.builds_with_few_arguments, _in_both_directions),
    Property(inputs.bad_settings_are_named, _in_both_directions),
    Property(inputs.bad_inputs_are_named),
    Property(states.inputs_are_left_alone),
    Property(states.evaluation_repeats),
    Property(states.training_without_dropout_is_evaluation),
    Property(states.same_seed_gives_the_same),
    Property(states.state_dict_holds_everything),
    Property(independence.samples_of_a_batch_do_not_meet),
    Property(independence.layout_in_memory_changes_nothing),
    Property(independence.a_mask_without_padding_changes_nothing, _masks),
    Property(independence.padded_outputs_are_zero, _masks),
    Property(independence.padded_places_reach_nothing, _masks),
    Property(independence.amount_of_padding_changes_nothing, _masks_of_any_length),
    Property(independence.longer_neighbours_change_nothing, _masks_of_any_length),
    Property(independence.place_of_padding_changes_nothing, _masks_of_any_length),
    Property(independence.padding_is_refused, lambda form: not form.card.padding),
    Property(independence.packed_sequences_do_not_meet, lambda form: form.card.packed),
    Property(independence.packing_is_refused, lambda form: not form.card.packed),
    Property(independence.outputs_ignore_later_tokens, _causal),
    Property(independence.causal_is_refused, lambda form: not form.card.causal),
    Property(independence.card_tells_permutation_equivariance, _in_both_directions),
    Property(independence.card_tells_permutation_invariance, _in_both_directions),
    Property(states.steps_equal_the_parallel_form, _streams),
    Property(states.prefill_equals_steps, _streams),
    Property(states.states_have_a_row_for_each_sequence, _streams),
    Property(states.streams_keep_their_dtype, _streams),
    Property(states.steps_check_their_input, _streams),
    Property(states.foreign_states_are_refused, _streams),
    Property(states.streams_end_at_max_length, _streams),
    Property(states.streaming_is_refused, lambda form: not _streams(form)),
    Property(numerics.every_parameter_is_used),
    Property(numerics.gradients_equal_numerical_ones),
    Property(numerics.a_graph_changes_no_gradient),
    Property(numerics.transforms_agree_or_are_refused),
    Property(numerics.low_precision_follows_float64),
    Property(graphs.exports),
    Property(graphs.runs_as_onnx),
    Property(graphs.compiles_to_one_graph),
)
"""Properties in checking order. Properties that explain other failures come first."""


def check_mixer(cls: type[TokenMixer], *, onnx: bool = False) -> None:
    """Check all supported variants of a mixer class against the contract.

    Args:
        cls: a subclass of `TokenMixer` with a `card`. Registration is not necessary.
        onnx: also check the results in onnxruntime. This takes some seconds and needs onnx,
            onnxscript and onnxruntime.

    Raises:
        AssertionError: "mixer: property: reason", for the first property that fails.
        InputError: `cls` is not a mixer class with a card.

    Example:
        >>> import rifflemix as rm
        >>> rm.testing.check_mixer(rm.mixers.mixer_class("identity"))
    """
    given: Any = cls
    is_mixer = isinstance(given, type) and issubclass(given, TokenMixer)
    if not is_mixer or not isinstance(getattr(given, "card", None), MixerCard):
        raise bad_argument("cls", "a subclass of TokenMixer with a MixerCard as `card`", repr(cls))
    for form in forms_of(cls):
        for prop in PROPERTIES:
            if prop.applies(form) and (onnx or prop.holds is not graphs.runs_as_onnx):
                prop.check(form)
