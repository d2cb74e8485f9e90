"""Each mixer that is broken in one way fails exactly the matching property of the contract."""

from __future__ import annotations

import broken_masks  # noqa: F401  # registers its mixers in BROKEN
import broken_streams  # noqa: F401
import pytest
from broken_mixers import BROKEN
from sound_mixers import SOUND, Mean

from rifflemix.errors import InputError
from rifflemix.mixers import TokenMixer
from rifflemix.testing import PROPERTIES, check_mixer, forms_of

MUTANTS = [pytest.param(cls, id=cls.__name__) for cls in (*SOUND, *BROKEN)]


def failing(cls: type[TokenMixer], names: set[str]) -> set[str]:
    """Return the properties that some variant of a class fails."""
    found = set()
    for form in forms_of(cls):
        for prop in PROPERTIES:
            if prop.name in names and prop.applies(form):
                try:
                    prop.check(form)
                except AssertionError:
                    found.add(prop.name)
    return found


ALL = {prop.name for prop in PROPERTIES}
ONNX = "runs_as_onnx"  # takes seconds per mixer
# Tracing takes seconds: done only for sound mixers and for mixers that break a traced property.
TRACED = {ONNX, "exports", "compiles_to_one_graph"}
CLASSES = [
    pytest.param(cls, marks=[pytest.mark.slow] if ONNX in names else [], id=cls.__name__)
    for cls, names in BROKEN.items()
]


def test_every_property_has_a_mixer_that_violates_it() -> None:
    assert set().union(*BROKEN.values()) == ALL


@pytest.mark.parametrize("cls", CLASSES)
def test_broken_mixer_fails_its_property(cls: type[TokenMixer]) -> None:
    assert failing(cls, BROKEN[cls]) == BROKEN[cls]


@pytest.mark.slow
@pytest.mark.parametrize("cls", MUTANTS)
def test_broken_mixer_fails_no_other_property(cls: type[TokenMixer]) -> None:
    broken = BROKEN.get(cls, TRACED)
    names = ALL if broken & TRACED else ALL - TRACED
    assert failing(cls, names - ({ONNX} - broken)) == BROKEN.get(cls, set())


@pytest.mark.parametrize("cls", [c for c in BROKEN if BROKEN[c] == {"causal_is_refused"}])
def test_check_mixer_names_the_first_property_that_fails(cls: type[TokenMixer]) -> None:
    with pytest.raises(AssertionError, match=r"^mean: causal_is_refused: .*ValueError"):
        check_mixer(cls)


@pytest.mark.slow
def test_check_mixer_accepts_a_correct_mixer() -> None:
    check_mixer(Mean)


@pytest.mark.parametrize("given", [Mean(8), object, TokenMixer, "csp"], ids=repr)
def test_check_mixer_accepts_mixer_classes(given: object) -> None:
    with pytest.raises(InputError, match=r"^cls: .*TokenMixer"):
        check_mixer(given)
