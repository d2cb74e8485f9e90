"""Time series models of transformers: their configs limit the number of tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_transformers import transformers
from torch import Tensor

import rifflemix as rm

PAST, FUTURE, LAG, BATCH = 6, 3, 2, 2
SETTINGS = {
    "prediction_length": FUTURE,
    "context_length": PAST,
    "lags_sequence": [1, LAG],
    "num_time_features": 1,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "num_parallel_samples": 2,
}


def series(length: int, channels: int = 0) -> Tensor:
    return torch.randn((BATCH, length, channels) if channels else (BATCH, length))


@pytest.mark.parametrize("kind", ["Informer", "Autoformer", "TimeSeriesTransformer"])
def test_the_config_limits_the_tokens(kind: str) -> None:
    torch.manual_seed(0)
    others: dict[str, Any] = {"label_length": 4} if kind == "Autoformer" else {}
    config = getattr(transformers, f"{kind}Config")(**SETTINGS, **others)
    model = getattr(transformers, f"{kind}ForPrediction")(config)
    rm.replace_attention(model, "tssa")
    mixers = [module for module in model.modules() if isinstance(module, rm.TokenMixer)]
    assert [mixer.max_length for mixer in mixers] == [PAST + FUTURE] * 3
    past = {
        "past_values": series(PAST + LAG),
        "past_time_features": series(PAST + LAG, 1),
        "past_observed_mask": torch.ones(BATCH, PAST + LAG),
        "future_time_features": series(FUTURE, 1),
    }
    loss = model(**past, future_values=series(FUTURE), use_cache=False).loss
    loss.backward()
    assert all(p.grad is not None for mixer in mixers for p in mixer.parameters())
    assert model.eval().generate(**past).sequences.shape == (BATCH, 2, FUTURE)


def test_prediction_length_is_enough() -> None:
    """Check that the context length defaults to the prediction length."""
    settings = {key: value for key, value in SETTINGS.items() if key != "context_length"}
    config = transformers.TimeSeriesTransformerConfig(**settings)
    model = transformers.TimeSeriesTransformerForPrediction(config)
    rm.replace_attention(model, "tssa")
    assert model.model.decoder.layers[0].self_attn.mixer.max_length == 2 * FUTURE
