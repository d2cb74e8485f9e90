"""Shared settings of the classifiers: defined once, checked once, known to the registry."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import numpy as np
import pytest

from rifflemix.errors import InputError
from rifflemix.models import Encoder, model_settings
from rifflemix.models.sequence.config import ClassifierConfig
from rifflemix.models.sequence.encoder import EncoderConfig


def test_encoder_settings_equal_its_config() -> None:
    fields = {field.name: field.default for field in dataclasses.fields(EncoderConfig)}
    assert model_settings("encoder") == fields
    assert [p.name for p in inspect.signature(Encoder).parameters.values()] == list(fields)
    with pytest.raises(TypeError, match="num_layer"):
        Encoder(vocab_size=3, num_layer=2)


def test_config_has_plain_numbers_and_is_immutable() -> None:
    numbers: dict[str, Any] = {"dim": np.int64(8), "norm_eps": np.float32(0.5)}
    config = ClassifierConfig(**numbers, dropout=0.25, pool="cls")
    assert type(config.dim) is int
    assert type(config.norm_eps) is float
    assert config.embedding_dropout == 0.25
    assert config.most_positions == config.max_length + 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.dim = 4  # type: ignore[misc]


def test_specific_dropouts_override_the_shared_dropout() -> None:
    config = EncoderConfig(dropout=0.5, hidden_dropout=0.0, embedding_dropout=0.25)
    found = (config.attention_dropout, config.hidden_dropout, config.residual_dropout)
    assert found == (0.5, 0.0, 0.5)
    assert config.embedding_dropout == 0.25


REFUSED: dict[str, dict[str, Any]] = {
    "dim": {"dim": 0},
    "num_layers": {"num_layers": 1.5},
    "num_classes": {"num_classes": 0},
    "max_length": {"max_length": None},
    "num_sequences": {"num_sequences": 3},
    "positions": {"positions": "rotary"},
    "first_position": {"first_position": 2},
    "norm_eps": {"norm_eps": 0.0},
    "embedding_dropout": {"embedding_dropout": 1.5},
    "head_dropout": {"head_dropout": -0.1},
    "tie_layers": {"tie_layers": 1},
    "padding": {"padding": "left"},
    "pair_mix": {"pair_mix": "sum"},
    "head_activation": {"head_activation": "cube"},
    "cls_mask": {"cls_mask": "last"},
}


@pytest.mark.parametrize(("name", "settings"), REFUSED.items(), ids=REFUSED)
def test_bad_settings_are_refused_by_name(name: str, settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=name):
        ClassifierConfig(**settings)
    with pytest.raises(InputError, match=name):
        Encoder(vocab_size=3, **settings)
