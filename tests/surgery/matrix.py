"""Host models x mixers x properties: functions that raise if a swapped model is wrong.

`all_hosts` of matrix_hosts.py and `PROPERTIES` are the axes; test_matrix.py runs them.
"""

from __future__ import annotations

import copy
import io
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from matrix_hosts import LONGEST, B, C, Host, N, all_hosts
from torch import Tensor, nn

import rifflemix as rm

VALID = 7  # valid tokens of the second sequence
TRACED = ("softmax", "tssa", "csp", "linear")  # compiled and exported: seconds per host
LENGTHS = (N, N + 2, LONGEST)


def swapped(host: Host, mixer: str) -> nn.Module:
    model = host.build()
    swap(model, mixer, **host.swap)
    return model


def swap(model: nn.Module, mixer: str, **arguments: Any) -> None:
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about rotary positions
        rm.replace_attention(model, mixer, max_length=LONGEST, **arguments)


def expect_same_state(model: nn.Module, other: nn.Module) -> None:
    """Compare all tensors bit for bit.

    Outputs would hide a small weight that is re-initialized.
    """
    pairs = model.state_dict(), other.state_dict()
    assert list(pairs[0]) == list(pairs[1])
    assert [name for name in pairs[0] if not torch.equal(pairs[0][name], pairs[1][name])] == []
    buffers = dict(model.named_buffers()), dict(other.named_buffers())
    assert [n for n in buffers[0] if not torch.equal(buffers[0][n], buffers[1][n])] == []


def tokens(seed: int = 2, length: int = N) -> Tensor:
    return torch.randn(B, length, C, generator=torch.Generator().manual_seed(seed))


def padding(length: int = N) -> Tensor:
    return torch.arange(length).expand(B, length) >= torch.tensor([[length], [VALID]])


def padding_content(host: Host, mixer: str) -> None:
    """Check that the content of padded positions does not change valid tokens."""
    model, mask = swapped(host, mixer), padding()
    x = tokens()
    other = torch.where(mask.unsqueeze(-1), 10 * tokens(3), x)
    torch.testing.assert_close(host.run(model, x, mask)[~mask], host.run(model, other, mask)[~mask])


def padding_amount(host: Host, mixer: str) -> None:
    """Check that valid tokens do not depend on the amount of padding."""
    model, mask = swapped(host, mixer), padding()
    x = tokens()
    alone = host.run(model, x[1:, :VALID], None)
    found = host.run(model, x, mask)[1:, :VALID]
    torch.testing.assert_close(found, alone, atol=1e-5, rtol=1e-4)


def causal_leak(host: Host, mixer: str) -> None:
    """Check that no output changes with a later token."""
    model = swapped(host, mixer)
    x, other = tokens(), tokens(3)
    whole = host.run(model, x, None)
    for first in (1, N // 2, N - 1):
        changed = torch.cat((x[:, :first], other[:, first:]), 1)
        torch.testing.assert_close(host.run(model, changed, None)[:, :first], whole[:, :first])


def refused(host: Host, mixer: str) -> None:
    """Check that bidirectional mixers raise and leave the model unchanged."""
    model = host.build()
    before = [id(module) for module in model.modules()]
    with pytest.raises(rm.InputError, match="causal"):
        rm.replace_attention(model, mixer, max_length=LONGEST, **host.swap)
    assert [id(module) for module in model.modules()] == before


def reload(host: Host, mixer: str) -> None:
    """Save, load into the original architecture, and compare the outputs."""
    model = swapped(host, mixer)
    with tempfile.TemporaryDirectory() as folder:
        rm.save_swapped(model, folder)
        other = rm.load_swapped(folder, host.build())
    expect_same_state(model, other)
    assert torch.equal(host.run(other, tokens(), None), host.run(model, tokens(), None))


def from_pretrained(host: Host, mixer: str) -> None:
    """Check that `from_pretrained` loads the shards that `save_pretrained` wrote."""
    assert host.pretrained is not None
    rm.register_hf()
    model = host.pretrained()
    # Only Whisper has a decoder. It is causal.
    swap(model, mixer, layers=lambda _, name: not name.startswith("decoder"))
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.add_(1 + number)  # far from any initial value
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder, max_shard_size="10KB")
        expect_same_state(model, type(model).from_pretrained(folder))


def restored(host: Host, mixer: str) -> None:
    """Check that the original module objects and outputs come back."""
    model = host.build()
    before, expected = list(model.modules()), host.run(model, tokens(), None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rm.replace_attention(model, mixer, max_length=LONGEST, **host.swap)
    rm.restore_attention(model)
    assert [id(module) for module in model.modules()] == [id(module) for module in before]
    assert torch.equal(host.run(model, tokens(), None), expected)


def copied(host: Host, mixer: str) -> None:
    """Check that copy.deepcopy gives the same outputs."""
    model = swapped(host, mixer)
    expected = host.run(model, tokens(), None)
    assert torch.equal(host.run(copy.deepcopy(model), tokens(), None), expected)


def bfloat16(host: Host, mixer: str) -> None:
    """Check that a bfloat16 model gets a bfloat16 mixer."""
    model = host.build().bfloat16()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rm.replace_attention(model, mixer, max_length=LONGEST, **host.swap)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    y = host.run(model, tokens().bfloat16(), padding() if host.masks else None)
    assert y.dtype == torch.bfloat16
    assert y.isfinite().all()


def cached(host: Host, mixer: str) -> None:
    """Check that chunks with a cache equal the whole sequence."""
    assert host.cached is not None
    model = swapped(host, mixer)
    expected = host.run(model, tokens(), None)
    found = host.cached(model, tokens(), None)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def compiled(host: Host, mixer: str) -> None:
    """Check torch.compile without graph breaks at three lengths."""
    model = swapped(host, mixer)
    run = torch.compile(host.run, backend="eager", fullgraph=True)
    torch._dynamo.reset()
    for length in LENGTHS:
        x = tokens(length=length)
        expected = host.run(model, x, None)
        torch.testing.assert_close(run(model, x, None), expected, atol=1e-5, rtol=1e-4)


class Program(nn.Module):
    """Wraps a host as a function of tokens alone, for exporters."""

    def __init__(self, host: Host, model: nn.Module) -> None:
        super().__init__()
        self.model, self.run = model, host.run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self.model, x, None)


OPEN_LENGTH = ({1: torch.export.Dim("length", min=3, max=LONGEST)},)


def exported(host: Host, mixer: str) -> None:
    """Check torch.export with a dynamic number of tokens at three lengths."""
    whole = Program(host, swapped(host, mixer)).eval()
    found = torch.export.export(whole, (tokens(),), dynamic_shapes=OPEN_LENGTH, strict=False)
    for length in LENGTHS:
        x = tokens(length=length)
        torch.testing.assert_close(found.module()(x), whole(x), atol=1e-5, rtol=1e-4)


def onnx(host: Host, mixer: str) -> None:
    """Check the ONNX export in onnxruntime."""
    import onnxruntime

    whole = Program(host, swapped(host, mixer)).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Exports the module: a torch.export program contains a stable sort, unsupported by the ONNX
        # exporter.
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
    """Return weights unused by the original host (pooler, word embeddings)."""
    model = host.build()
    host.run(model, tokens(), None).sum().backward()
    return {name for name, p in model.named_parameters() if p.grad is None}


def distributed(host: Host, mixer: str) -> None:
    """Check two DistributedDataParallel steps: every weight has the same gradient as without."""
    model = Program(host, swapped(host, mixer))
    unused = unused_weights(host)
    for name, parameter in model.model.named_parameters():
        parameter.requires_grad_(name not in unused)
    plain = copy.deepcopy(model)
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    # Held until DDP's reducer is deleted. A reducer with the last reference to the group waits for
    # the group's threads while it holds the GIL. That is a deadlock if one of the threads waits for
    # the GIL.
    world = torch.distributed.group.WORLD
    try:
        _steps_side_by_side(model, plain)
    finally:
        torch.distributed.destroy_process_group()
        del world


def _steps_side_by_side(model: Program, plain: Program) -> None:
    wrapped = nn.parallel.DistributedDataParallel(model)
    for seed in (2, 3):  # DDP raises in the second step if a gradient was missing in the first
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
    "from_pretrained": from_pretrained,
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
    """Check whether a property is tested for a mixer in a host."""
    card = rm.mixer_card(mixer)
    if host.causal and not card.causal:
        return name == "two-sided refused"
    if name in SLOW and not (host.traced and mixer in TRACED):
        return False
    if name in SLOW:  # each pair is compiled or exported, each mixer exported to ONNX in one host
        place = [other.name for other in all_hosts() if other.traced].index(host.name)
        every, turn = {"compile": (2, 0), "export": (2, 1), "ONNX": (4, 0)}[name]
        return (place + TRACED.index(mixer)) % every == turn
    return {
        "padding content": host.masks and card.padding,
        "padding amount": host.masks and card.padding,
        "no causal leak": host.causal,
        "two-sided refused": False,
        "from_pretrained": host.pretrained is not None,
        "cache = no cache": host.cached is not None and card.streaming,
    }.get(name, True)
