"""S4's host model: a norm, a mixer and a residual in every block."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import rifflemix as rm

SMALL: dict[str, Any] = {"vocab_size": 11, "dim": 8, "num_layers": 2, "max_length": 12}


def model_of(**changes: Any) -> rm.models.Model:
    return rm.create_model("s4_lra_text", **{**SMALL, **changes}).double().eval()


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_blocks_equal_an_explicit_implementation(norm: str) -> None:
    model = model_of(norm=norm, norm_kind="layer")
    ids = torch.randint(11, (3, 7))
    x: Tensor = model.embed(ids)
    for block in model.blocks:
        if norm == "pre":
            x = x + block.mixer(block.norm.norm(x))
        else:
            x = block.norm.norm(x + block.mixer(x))
    x = model.norm.norm(x) if norm == "pre" else x
    torch.testing.assert_close(model(ids), model.head(x.mean(1)))


@pytest.mark.parametrize("kind", ["layer", "scale", "batch"])
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_padding_does_not_change_outputs(kind: str, norm: str, mode: str) -> None:
    model = model_of(norm=norm, norm_kind=kind).train(mode == "train")
    ids = torch.randint(11, (2, 9))
    mask = torch.zeros(2, 9, dtype=torch.bool)
    mask[1, 5:] = True
    other = torch.where(mask, (ids + 1) % 11, ids)
    torch.testing.assert_close(
        model(other, key_padding_mask=mask), model(ids, key_padding_mask=mask)
    )


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"norm": "behind"}, "norm"),
        ({"norm_kind": "group"}, "norm_kind"),
        ({"num_layers": 0}, "num_layers"),
        ({"dropout": 2.0}, "dropout"),
        ({"mixer": "s44"}, r"s4\b"),
    ],
)
def test_bad_settings_are_refused(change: dict[str, Any], named: str) -> None:
    with pytest.raises(rm.InputError, match=named):
        model_of(**change)
