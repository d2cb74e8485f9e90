"""Tiny transformers models with random weights, in evaluation mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision_shim import declare_operators

declare_operators()
transformers = pytest.importorskip("transformers", reason="needs transformers")

VOCABULARY, DIM, HEADS, LENGTH = 37, 16, 2, 24
_SHARED = {
    "vocab_size": VOCABULARY,
    "hidden_size": DIM,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "intermediate_size": 24,
    "max_position_embeddings": LENGTH,
}
_IMAGES = {"image_size": 8, "patch_size": 4, "num_channels": 3}
_ONE_GROUP = {"num_key_value_heads": 1}
_IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def _bert(kind: str, **changed: Any) -> nn.Module:
    config = getattr(transformers, f"{kind}Config")(**{**_SHARED, **changed})
    return getattr(transformers, f"{kind}Model")(config)


def _decoder(kind: str, **changed: Any) -> nn.Module:
    config = getattr(transformers, f"{kind}Config")(**{**_SHARED, **_IDS, **changed})
    return getattr(transformers, f"{kind}ForCausalLM")(config)


def _gpt2(**changed: Any) -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=LENGTH,
        n_embd=DIM,
        n_layer=2,
        n_head=HEADS,
        **{**_IDS, **changed},
    )
    return transformers.GPT2LMHeadModel(config)


def _distilbert() -> nn.Module:
    config = transformers.DistilBertConfig(
        vocab_size=VOCABULARY, max_position_embeddings=LENGTH, dim=DIM, n_layers=2, n_heads=HEADS
    )
    return transformers.DistilBertModel(config)


def _whisper() -> nn.Module:
    config = transformers.WhisperConfig(
        vocab_size=VOCABULARY,
        num_mel_bins=8,
        d_model=DIM,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=24,
        decoder_ffn_dim=24,
        max_source_positions=12,
        max_target_positions=LENGTH,
        decoder_start_token_id=1,
        **_IDS,
    )
    return transformers.WhisperModel(config)


MODELS: dict[str, Callable[..., nn.Module]] = {
    "bert": lambda **changed: _bert("Bert", **changed),
    "roberta": lambda: _bert("Roberta", max_position_embeddings=LENGTH + 2),
    "electra": lambda: _bert("Electra", embedding_size=DIM),
    "albert": lambda: _bert("Albert", embedding_size=8),
    "distilbert": _distilbert,
    "vit": lambda: _bert("ViT", **_IMAGES),
    "deit": lambda: _bert("DeiT", **_IMAGES),
    "whisper": _whisper,
    "gpt2": _gpt2,
    "llama": lambda **changed: _decoder("Llama", **{**_ONE_GROUP, **changed}),
    "qwen2": lambda **changed: _decoder("Qwen2", **{**_ONE_GROUP, **changed}),
    "mistral": lambda **changed: _decoder("Mistral", **{**_ONE_GROUP, **changed}),
    "qwen3": lambda: _decoder("Qwen3", **_ONE_GROUP, head_dim=4),
    "gpt_neox": lambda: _decoder("GPTNeoX"),
    "modernbert": lambda: _bert("ModernBert", **_IDS, layer_types=["full_attention"] * 2),
    "deberta": lambda: _bert("Deberta"),
    "deberta_v2": lambda: _bert("DebertaV2"),
}


def build(name: str, implementation: str = "sdpa", **changed: Any) -> Any:
    """Build a model by name, with fixed nonzero weights."""
    torch.manual_seed(5)
    model = MODELS[name](**changed).eval()
    model.set_attn_implementation(implementation)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def inputs_of(name: str, batch: int = 3, padding: bool = True) -> dict[str, Tensor]:
    """Return a batch for a model; tokens have right padding."""
    torch.manual_seed(6)
    if name in ("vit", "deit"):
        return {"pixel_values": torch.randn(batch, 3, 8, 8)}
    if name == "whisper":
        ids = torch.randint(3, VOCABULARY, (batch, 5))
        return {"input_features": torch.randn(batch, 8, 24), "decoder_input_ids": ids}
    ids = torch.randint(3, VOCABULARY, (batch, 11))
    mask = torch.ones_like(ids)
    if padding:
        mask[1, 7:] = 0
        mask[2, 10:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def outputs_of(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    """Return logits or hidden states (B, N, ...), zero at padded positions."""
    with torch.no_grad():
        found: Tensor = model(**inputs)[0]
    mask = inputs.get("attention_mask")
    return found if mask is None else found * mask.unsqueeze(-1)
