"""Host models of the matrix: tiny random models of several libraries with one interface."""

from __future__ import annotations

import functools
import importlib.util
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

B, N, C, H = 2, 11, 16, 4
LONGEST = 16

Run = Callable[[nn.Module, Tensor, Tensor | None], Tensor]


@dataclass(frozen=True)
class Host:
    """One kind of host model.

    Attributes:
        name: Entry of the table.
        build: Returns a tiny random model in evaluation mode, identical at every call.
        run: (model, tokens (B, N, C), padding (B, N) or None) -> (B, N, C).
        causal: Whether the model hides later tokens.
        masks: Whether the model accepts padding.
        traced: Whether to compile and export the model as well (takes seconds).
        cached: Like `run`, in chunks with a cache between them.
        swap: Further arguments of replace_attention.
        quick: Whether every test run tests a few mixers in this host.
        pretrained: Builds the transformers model that is or contains this host.
    """

    name: str
    build: Callable[[], nn.Module]
    run: Run
    causal: bool = False
    masks: bool = True
    traced: bool = False
    cached: Run | None = None
    swap: dict[str, Any] = field(default_factory=dict)
    quick: bool = True
    pretrained: Callable[[], Any] | None = None


def seeded(build: Callable[[], nn.Module]) -> nn.Module:
    """Call `build` with a fixed seed; initialize weights large enough to matter."""
    torch.manual_seed(0)
    model = build().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


class Holder(nn.Module):
    """A user's block around torch.nn.MultiheadAttention."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(C)
        self.attention = nn.MultiheadAttention(C, H, batch_first=True)

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        y = self.norm(x)
        mixed: Tensor = self.attention(y, y, y, key_padding_mask=key_padding_mask)[0]
        return x + mixed


def encoder(batch_first: bool) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        layer = nn.TransformerEncoderLayer(C, H, 2 * C, batch_first=batch_first)
        return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    return lambda: seeded(build)


def run_encoder(model: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    return model(x, src_key_padding_mask=mask)


def run_batch_second(model: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    return model(x.transpose(0, 1), src_key_padding_mask=mask).transpose(0, 1)


def run_causal(model: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    return model(x, mask=later, src_key_padding_mask=mask, is_causal=True)


def run_plain(model: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    return model(x) if mask is None else model(x, key_padding_mask=mask)


HOSTS: list[Host] = [
    Host("torch.nn.MultiheadAttention", lambda: seeded(Holder), run_plain),
    Host("torch.nn.TransformerEncoder", encoder(True), run_encoder, traced=True),
    Host("torch.nn.TransformerEncoder, batch second", encoder(False), run_batch_second),
    Host(
        "torch.nn.TransformerEncoder, causal",
        encoder(True),
        run_causal,
        causal=True,
        swap={"causal": True},
    ),
]


def timm_hosts() -> list[Host]:
    """Build hosts from timm's blocks; imported here since timm may be missing."""
    from torchvision_shim import declare_operators

    declare_operators()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from timm.models.eva import EvaBlock
        from timm.models.vision_transformer import Block

    def stack(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        return lambda: seeded(lambda: nn.ModuleList([make() for _ in range(2)]))

    def run(model: nn.Module, x: Tensor, mask: Tensor | None, **arguments: Any) -> Tensor:
        attend = None if mask is None else ~mask[:, None, None, :]
        for block in model:  # type: ignore[attr-defined]
            x = block(x, attn_mask=attend, **arguments)
        return x

    def run_causal(model: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
        return run(model, x, mask, is_causal=True)

    return [
        Host("timm Attention", stack(lambda: Block(C, H)), run, traced=True),
        Host(
            "timm Attention, causal",
            stack(lambda: Block(C, H)),
            run_causal,
            causal=True,
            swap={"causal": True},
        ),
        Host("timm EvaAttention", stack(lambda: EvaBlock(C, H)), run),
    ]


def transformers_hosts() -> list[Host]:
    """Build transformers models that accept embeddings, and stacks of layers.

    Imported here since transformers may be missing.
    """
    import tiny_transformers

    def run(model: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
        attend = None if mask is None else (~mask).long()
        return model(inputs_embeds=x, attention_mask=attend)[0]

    def run_causal(model: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
        attend = None if mask is None else (~mask).long()
        return model(inputs_embeds=x, attention_mask=attend, use_cache=False)[0]

    def run_pieces(model: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
        found, past = [], None
        for piece in x.split([5, 1, 3, *[1] * (x.shape[1] - 9)], 1):
            out = model(inputs_embeds=piece, past_key_values=past, use_cache=True)
            past = out.past_key_values
            found.append(out[0])
        return torch.cat(found, 1)

    def run_layers(model: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
        attend = None if mask is None else ~mask[:, None, None, :]
        for layer in model:  # type: ignore[attr-defined]
            y = layer(x, attend)
            x = y[0] if isinstance(y, tuple) else y
        return x

    def layers(name: str, title: str, of: str) -> Host:
        return Host(
            f"transformers {title}",
            lambda: tiny_transformers.build(name).get_submodule(of),
            run_layers,
            quick=False,
            pretrained=lambda: tiny_transformers.build(name),
        )

    def language(name: str, title: str, *, quick: bool = True, traced: bool = False) -> Host:
        return Host(
            f"transformers {title}",
            lambda: tiny_transformers.build(name),
            run_causal,
            causal=True,
            traced=traced,
            cached=run_pieces,
            quick=quick,
            pretrained=lambda: tiny_transformers.build(name),
        )

    def encoder(name: str, title: str, *, quick: bool = True, traced: bool = False) -> Host:
        return Host(
            f"transformers {title}",
            lambda: tiny_transformers.build(name),
            run,
            traced=traced,
            quick=quick,
            pretrained=lambda: tiny_transformers.build(name),
        )

    return [
        encoder("bert", "BERT", traced=True),
        encoder("roberta", "RoBERTa", quick=False),
        encoder("modernbert", "ModernBERT", quick=False),
        layers("vit", "ViT", "layers"),
        layers("whisper", "Whisper", "encoder.layers"),
        language("gpt2", "GPT-2", traced=True),
        language("gpt_neox", "GPT-NeoX", quick=False),
        language("llama", "Llama"),
        language("qwen2", "Qwen2", quick=False),
    ]


@functools.cache
def all_hosts() -> list[Host]:
    """Return the hosts of all installed libraries."""
    found = list(HOSTS)
    if importlib.util.find_spec("timm"):
        found += timm_hosts()
    if importlib.util.find_spec("transformers"):
        found += transformers_hosts()
    return found
