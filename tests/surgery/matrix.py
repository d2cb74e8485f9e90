"""Hosts x mixers x properties: what a swapped model must do, as functions that raise.

`HOSTS` and `PROPERTIES` are the axes; tests/surgery/test_matrix.py runs them.
"""

from __future__ import annotations

import copy
import importlib.util
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rifflemix as rm

B, N, C, H = 2, 11, 16, 4
LONGEST = 16
VALID = 7  # of the second sequence
COMPILED = ("tssa",)  # which takes ten seconds a host

Run = Callable[[nn.Module, Tensor, Tensor | None], Tensor]


@dataclass(frozen=True)
class Host:
    """One kind of model.

    Attributes:
        name: row of the table.
        build: a tiny random model in evaluation mode, the same at every call.
        run: (model, tokens (B, N, C), padding (B, N) or None) -> (B, N, C).
        causal: hides later tokens.
        masks: takes padding.
        compiles: is compiled too, which takes seconds.
        swap: further arguments of replace_attention.
    """

    name: str
    build: Callable[[], nn.Module]
    run: Run
    causal: bool = False
    masks: bool = True
    compiles: bool = False
    swap: dict[str, Any] = field(default_factory=dict)


def seeded(build: Callable[[], nn.Module]) -> nn.Module:
    """The model that `build` makes from a fixed seed, with weights large enough to matter."""
    torch.manual_seed(0)
    model = build().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def swapped(host: Host, mixer: str) -> nn.Module:
    model = host.build()
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of rotary positions
        rm.replace_attention(model, mixer, max_length=LONGEST, **host.swap)
    return model


def tokens(seed: int = 2, length: int = N) -> Tensor:
    return torch.randn(B, length, C, generator=torch.Generator().manual_seed(seed))


def padding(length: int = N) -> Tensor:
    return torch.arange(length).expand(B, length) >= torch.tensor([[length], [VALID]])


def padding_content(host: Host, mixer: str) -> None:
    """What stands in padded places reaches no valid token."""
    model, mask = swapped(host, mixer), padding()
    x = tokens()
    other = torch.where(mask.unsqueeze(-1), 10 * tokens(3), x)
    torch.testing.assert_close(host.run(model, x, mask)[~mask], host.run(model, other, mask)[~mask])


def padding_amount(host: Host, mixer: str) -> None:
    """Valid tokens do not depend on how much padding follows."""
    model, mask = swapped(host, mixer), padding()
    x = tokens()
    alone = host.run(model, x[1:, :VALID], None)
    found = host.run(model, x, mask)[1:, :VALID]
    torch.testing.assert_close(found, alone, atol=1e-5, rtol=1e-4)


def causal_leak(host: Host, mixer: str) -> None:
    """No output moves when a later token changes."""
    model = swapped(host, mixer)
    x, other = tokens(), tokens(3)
    whole = host.run(model, x, None)
    for first in (1, N // 2, N - 1):
        changed = torch.cat((x[:, :first], other[:, first:]), 1)
        torch.testing.assert_close(host.run(model, changed, None)[:, :first], whole[:, :first])


def refused(host: Host, mixer: str) -> None:
    """A mixer of both ways is refused, and the model stays as it was."""
    model = host.build()
    before = [id(module) for module in model.modules()]
    with pytest.raises(rm.InputError, match="causal"):
        rm.replace_attention(model, mixer, max_length=LONGEST, **host.swap)
    assert [id(module) for module in model.modules()] == before


def reload(host: Host, mixer: str) -> None:
    """Saved and loaded into the architecture before the swap: the same outputs."""
    model = swapped(host, mixer)
    with tempfile.TemporaryDirectory() as folder:
        rm.save_swapped(model, folder)
        other = rm.load_swapped(folder, host.build())
    assert torch.equal(host.run(other, tokens(), None), host.run(model, tokens(), None))


def restored(host: Host, mixer: str) -> None:
    """The very modules come back, with their outputs."""
    model = host.build()
    before, expected = list(model.modules()), host.run(model, tokens(), None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rm.replace_attention(model, mixer, max_length=LONGEST, **host.swap)
    rm.restore_attention(model)
    assert [id(module) for module in model.modules()] == [id(module) for module in before]
    assert torch.equal(host.run(model, tokens(), None), expected)


def copied(host: Host, mixer: str) -> None:
    """copy.deepcopy gives the same outputs."""
    model = swapped(host, mixer)
    expected = host.run(model, tokens(), None)
    assert torch.equal(host.run(copy.deepcopy(model), tokens(), None), expected)


def bfloat16(host: Host, mixer: str) -> None:
    """A model of bfloat16 gets a mixer of bfloat16."""
    model = host.build().bfloat16()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rm.replace_attention(model, mixer, max_length=LONGEST, **host.swap)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    y = host.run(model, tokens().bfloat16(), padding() if host.masks else None)
    assert y.dtype == torch.bfloat16
    assert y.isfinite().all()


def compiled(host: Host, mixer: str) -> None:
    """torch.compile, without graph breaks, at two lengths."""
    model = swapped(host, mixer)
    run = torch.compile(host.run, backend="eager", fullgraph=True)
    torch._dynamo.reset()
    for length in (N, N + 2):
        x = tokens(length=length)
        expected = host.run(model, x, None)
        torch.testing.assert_close(run(model, x, None), expected, atol=1e-5, rtol=1e-4)


PROPERTIES: dict[str, Callable[[Host, str], None]] = {
    "padding content": padding_content,
    "padding amount": padding_amount,
    "no causal leak": causal_leak,
    "two-sided refused": refused,
    "reload": reload,
    "restore": restored,
    "deepcopy": copied,
    "bfloat16": bfloat16,
    "compile": compiled,
}


def applies(name: str, host: Host, mixer: str) -> bool:
    """Whether a property is asked of a mixer in a host."""
    card = rm.mixer_card(mixer)
    if host.causal and not card.causal:
        return name == "two-sided refused"
    return {
        "padding content": host.masks and card.padding,
        "padding amount": host.masks and card.padding and not card.layout_over_length,
        "no causal leak": host.causal,
        "two-sided refused": False,
        "compile": host.compiles and mixer in COMPILED,
    }.get(name, True)


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
    y: Tensor = model(x, src_key_padding_mask=mask)
    return y


def run_batch_second(model: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    y: Tensor = model(x.transpose(0, 1), src_key_padding_mask=mask).transpose(0, 1)
    return y


def run_causal(model: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    y: Tensor = model(x, mask=later, src_key_padding_mask=mask, is_causal=True)
    return y


def run_plain(model: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    y: Tensor = model(x) if mask is None else model(x, key_padding_mask=mask)
    return y


HOSTS: list[Host] = [
    Host("torch.nn.MultiheadAttention", lambda: seeded(Holder), run_plain),
    Host("torch.nn.TransformerEncoder", encoder(True), run_encoder, compiles=True),
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
    """Built of timm's own blocks; imported here, since timm may be absent."""
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
        Host("timm Attention", stack(lambda: Block(C, H)), run, compiles=True),
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
    """Whole models, which are given embeddings in place of ids; imported here likewise."""
    import tiny_transformers

    def run(model: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
        attend = None if mask is None else (~mask).long()
        y: Tensor = model(inputs_embeds=x, attention_mask=attend)[0]
        return y

    def run_causal(model: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
        attend = None if mask is None else (~mask).long()
        y: Tensor = model(inputs_embeds=x, attention_mask=attend, use_cache=False)[0]
        return y

    return [
        Host("transformers BERT", lambda: tiny_transformers.build("bert"), run),
        Host("transformers GPT-2", lambda: tiny_transformers.build("gpt2"), run_causal, True),
        Host("transformers Llama", lambda: tiny_transformers.build("llama"), run_causal, True),
    ]


def all_hosts() -> list[Host]:
    """Those whose libraries are installed."""
    found = list(HOSTS)
    if importlib.util.find_spec("timm"):
        found += timm_hosts()
    if importlib.util.find_spec("transformers"):
        found += transformers_hosts()
    return found
