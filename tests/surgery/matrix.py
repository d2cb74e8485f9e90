"""Hosts x mixers x properties: what a swapped model must do, as functions that raise.

`HOSTS` and `PROPERTIES` are the axes; tests/surgery/test_matrix.py runs them.
"""

from __future__ import annotations

import copy
import importlib.util
import io
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
TRACED = ("softmax", "tssa", "csp", "linear")  # compiled, exported: seconds a host
LENGTHS = (N, N + 2, LONGEST)

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
        traced: is compiled and exported too, which takes seconds.
        cached: the same run piece by piece, with a cache between the pieces.
        swap: further arguments of replace_attention.
        quick: a few mixers are tested in it at every run of the tests.
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


def cached(host: Host, mixer: str) -> None:
    """Piece by piece with a cache, the outputs are those of the whole sequence."""
    assert host.cached is not None
    model = swapped(host, mixer)
    expected = host.run(model, tokens(), None)
    found = host.cached(model, tokens(), None)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def compiled(host: Host, mixer: str) -> None:
    """torch.compile, without graph breaks, at three lengths."""
    model = swapped(host, mixer)
    run = torch.compile(host.run, backend="eager", fullgraph=True)
    torch._dynamo.reset()
    for length in LENGTHS:
        x = tokens(length=length)
        expected = host.run(model, x, None)
        torch.testing.assert_close(run(model, x, None), expected, atol=1e-5, rtol=1e-4)


class Program(nn.Module):
    """A host as a function of tokens alone, for exporters."""

    def __init__(self, host: Host, model: nn.Module) -> None:
        super().__init__()
        self.model, self.run = model, host.run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self.model, x, None)


OPEN_LENGTH = ({1: torch.export.Dim("length", min=3, max=LONGEST)},)


def exported(host: Host, mixer: str) -> None:
    """torch.export with an open number of tokens, at three lengths."""
    whole = Program(host, swapped(host, mixer)).eval()
    found = torch.export.export(whole, (tokens(),), dynamic_shapes=OPEN_LENGTH, strict=False)
    for length in LENGTHS:
        x = tokens(length=length)
        torch.testing.assert_close(found.module()(x), whole(x), atol=1e-5, rtol=1e-4)


def onnx(host: Host, mixer: str) -> None:
    """The same as ONNX, run by onnxruntime."""
    import onnxruntime

    whole = Program(host, swapped(host, mixer)).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Of the module: a program of torch.export has a stable sort, which ONNX takes from none.
        made = torch.onnx.export(
            whole,
            (tokens(),),
            dynamic_shapes=OPEN_LENGTH,
            dynamo=True,
            optimize=False,
            verbose=False,
        )
    assert made is not None
    file = io.BytesIO()
    made.save(file)
    session = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    for length in LENGTHS:
        x = tokens(length=length)
        (y,) = session.run(None, {name: x.numpy()})
        torch.testing.assert_close(torch.from_numpy(y), whole(x).detach(), atol=1e-4, rtol=1e-3)


def unused_weights(host: Host) -> set[str]:
    """Weights that no output of the host as it came depends on (a pooler, the words' table)."""
    model = host.build()
    host.run(model, tokens(), None).sum().backward()
    return {name for name, p in model.named_parameters() if p.grad is None}


def distributed(host: Host, mixer: str) -> None:
    """DistributedDataParallel: every weight has a gradient, which is that without it, twice."""
    model = Program(host, swapped(host, mixer))
    unused = unused_weights(host)
    for name, parameter in model.model.named_parameters():
        parameter.requires_grad_(name not in unused)
    plain = copy.deepcopy(model)
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    # Held until DDP's reducer is gone: one with the last reference to the group waits for the
    # group's threads while it holds Python's lock, which one of them may be waiting for.
    world = torch.distributed.group.WORLD
    try:
        _steps_side_by_side(model, plain)
    finally:
        torch.distributed.destroy_process_group()
        del world


def _steps_side_by_side(model: Program, plain: Program) -> None:
    wrapped = nn.parallel.DistributedDataParallel(model)
    for seed in (2, 3):  # what had no gradient in the first step is an error in the second
        for part in (plain, wrapped):
            part.zero_grad()
            part(tokens(seed)).square().sum().backward()
        for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad)


PROPERTIES: dict[str, Callable[[Host, str], None]] = {
    "padding content": padding_content,
    "padding amount": padding_amount,
    "no causal leak": causal_leak,
    "two-sided refused": refused,
    "cache = no cache": cached,
    "reload": reload,
    "restore": restored,
    "deepcopy": copied,
    "bfloat16": bfloat16,
    "DDP": distributed,
    "compile": compiled,
    "export": exported,
    "ONNX": onnx,
}
SLOW = ("compile", "export", "ONNX")


def applies(name: str, host: Host, mixer: str) -> bool:
    """Whether a property is asked of a mixer in a host."""
    card = rm.mixer_card(mixer)
    if host.causal and not card.causal:
        return name == "two-sided refused"
    if name in SLOW and not (host.traced and mixer in TRACED):
        return False
    if name in SLOW:  # every pair is compiled or exported; each mixer, in one host, becomes ONNX
        place = [other.name for other in all_hosts() if other.traced].index(host.name)
        every, turn = {"compile": (2, 0), "export": (2, 1), "ONNX": (4, 0)}[name]
        return (place + TRACED.index(mixer)) % every == turn
    return {
        "padding content": host.masks and card.padding,
        "padding amount": host.masks and card.padding,
        "no causal leak": host.causal,
        "two-sided refused": False,
        "cache = no cache": host.cached is not None and card.streaming,
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
    """Models that are given embeddings in place of ids, and stacks of layers; imported likewise."""
    import tiny_transformers

    def run(model: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
        attend = None if mask is None else (~mask).long()
        y: Tensor = model(inputs_embeds=x, attention_mask=attend)[0]
        return y

    def run_causal(model: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
        attend = None if mask is None else (~mask).long()
        y: Tensor = model(inputs_embeds=x, attention_mask=attend, use_cache=False)[0]
        return y

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

    def layers(name: str, of: str) -> Callable[[], nn.Module]:
        return lambda: tiny_transformers.build(name).get_submodule(of)

    def language(name: str, title: str, *, quick: bool = True, traced: bool = False) -> Host:
        return Host(
            f"transformers {title}",
            lambda: tiny_transformers.build(name),
            run_causal,
            causal=True,
            traced=traced,
            cached=run_pieces,
            quick=quick,
        )

    def encoder(name: str, title: str, *, quick: bool = True, traced: bool = False) -> Host:
        return Host(
            f"transformers {title}",
            lambda: tiny_transformers.build(name),
            run,
            traced=traced,
            quick=quick,
        )

    return [
        encoder("bert", "BERT", traced=True),
        encoder("roberta", "RoBERTa", quick=False),
        encoder("modernbert", "ModernBERT", quick=False),
        Host("transformers ViT", layers("vit", "layers"), run_layers, quick=False),
        Host("transformers Whisper", layers("whisper", "encoder.layers"), run_layers, quick=False),
        language("gpt2", "GPT-2", traced=True),
        language("gpt_neox", "GPT-NeoX", quick=False),
        language("llama", "Llama"),
        language("qwen2", "Qwen2", quick=False),
    ]


def all_hosts() -> list[Host]:
    """Those whose libraries are installed."""
    found = list(HOSTS)
    if importlib.util.find_spec("timm"):
        found += timm_hosts()
    if importlib.util.find_spec("transformers"):
        found += transformers_hosts()
    return found
