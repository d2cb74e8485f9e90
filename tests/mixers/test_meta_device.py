"""Every mixer can be built on the meta device, as needed for large models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import rifflemix as rm
from meta_device import ways_to_give_memory
from rifflemix.mixers.permutation_mixer import PermutationMixer
from rifflemix.mixers.registry import mixer_class
from rifflemix.mixers.sliceformer import Sliceformer
from rifflemix.testing.forms import DIM, Form, forms_of, tokens

FORMS = [form for name in rm.list_mixers() for form in forms_of(mixer_class(name))]
# Constants that the variants do not have.
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "csp of listed shifts": ("csp", {"shift": range(DIM)}),
    "csp of any length": ("csp", {"max_length": None}),
    "csp, ascending": ("csp", {"order": "ascending"}),
    "sliceformer, descending": ("sliceformer", {"variant": "descending"}),
    "sliceformer, interleave": ("sliceformer", {"variant": "interleave"}),
}

Give = Callable[[nn.Module, nn.Module], nn.Module]


@ways_to_give_memory
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_variants_are_built_on_the_meta_device(form: Form, give_memory: Give) -> None:
    mixer, x = form.build(), tokens(2, 8)
    with torch.device("meta"):
        outline = form.build()
    torch.testing.assert_close(give_memory(outline, mixer)(x), mixer(x), atol=0, rtol=0)


def test_permutation_mixer_without_constants() -> None:
    class Plain(PermutationMixer):
        card = Sliceformer.card

    assert Plain(DIM).double().dim == DIM


@ways_to_give_memory
@pytest.mark.parametrize(("name", "options"), SETTINGS.values(), ids=SETTINGS)
def test_options_work_on_the_meta_device(
    name: str, options: dict[str, Any], give_memory: Give
) -> None:
    def build() -> nn.Module:
        return rm.create_mixer(name, DIM, **{"max_length": 16, **options})

    mixer, x = build(), torch.randn(2, 8, DIM)
    with torch.device("meta"):
        outline = build()
    torch.testing.assert_close(give_memory(outline, mixer)(x), mixer(x), atol=0, rtol=0)
