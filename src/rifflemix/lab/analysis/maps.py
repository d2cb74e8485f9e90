"""The map over tokens that a mixer applies: a permutation per channel, or a matrix per head."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from rifflemix.errors import RunFailed
from rifflemix.lab.analysis.trace import Call, TorchAttention, undisturbed
from rifflemix.mixers.cross_attention import CrossAttention
from rifflemix.mixers.permutation_mixer import PermutationMixer

_Hook = Callable[[nn.Module, Any, Tensor], Tensor | None]


def takes_ranks(mixer: nn.Module) -> bool:
    """Check for a causal CSP or Sliceformer.

    Their windows do not permute the tokens.
    """
    return isinstance(mixer, PermutationMixer) and mixer.causal


def permutation_of(call: Call) -> Tensor | None:
    """Return the source of each value in a permutation layer.

    These layers permute values channel by channel.

    Args:
        call: a call that `trace` recorded.

    Returns:
        (B, N, C) int64: output n of channel c is the value of token index[b, n, c]. It is the
        identity at padded positions. None for all other mixers.

    Raises:
        RunFailed: the layer's values at the index are not its permuted values.

    Example:
        >>> import torch, rifflemix as rm
        >>> mixer = rm.create_mixer("csp", 4, group_size=2)
        >>> ((call,),) = rm.analysis.trace(mixer, [torch.randn(2, 16, 4)])
        >>> index = rm.analysis.permutation_of(call)
        >>> torch.equal(index.sort(1).values[0, :, 0], torch.arange(16))
        True
    """
    mixer = call.module
    if not isinstance(mixer, PermutationMixer) or takes_ranks(mixer):
        return None
    x = _without_padding(call)
    with undisturbed(mixer):
        values = mixer.value(x)
        permuted, index = mixer.permute(values, call.key_padding_mask, with_index=True)
    if index is not None and not _gathers(values, index, permuted, call.key_padding_mask):
        raise RunFailed(f"{call.name}: expected the index of its permuted values, got another one")
    return index


def _gathers(values: Tensor, index: Tensor, permuted: Tensor, mask: Tensor | None) -> bool:
    """Check that an index selects the permuted values at valid positions."""
    selected = values.gather(1, index)
    differs = (selected != permuted) & ~(selected.isnan() & permuted.isnan())
    return not bool((differs if mask is None else differs[~mask]).any())


def matrix_of(call: Call, *, first: int | None = None) -> Tensor | None:
    """Measure the matrix that a layer applies to its values, by head.

    Unit vectors replace the values, and N / D passes of the layer return the columns of the matrix.
    The product of the matrix and the values must equal the output of the layer. So this works for
    any mixer with the projections `qkv` and `proj` that is linear in its values: softmax, local,
    block-sparse, sorted, linear and low-rank attention.

    Args:
        call: a call that `trace` recorded.
        first: number of rows (outputs) to return; None for all.

    Returns:
        (B, H, N, N), rows are outputs, zero at padded positions. (B, H, N, M) for attention to a
        memory. 16-bit layers are measured in float32. None for a mixer without such a matrix, for
        example if it mixes channels or has no values.

    Example:
        >>> import torch, rifflemix as rm
        >>> mixer = rm.create_mixer("softmax", 64, num_heads=4)
        >>> ((call,),) = rm.analysis.trace(mixer, [torch.randn(2, 16, 64)])
        >>> weights = rm.analysis.matrix_of(call)
        >>> weights.shape, torch.allclose(weights.sum(-1), torch.ones(2, 4, 16), atol=1e-4)
        (torch.Size([2, 4, 16, 16]), True)
    """
    if isinstance(call.module, TorchAttention):
        with undisturbed(call.module):
            return call.module.weights(call.x, call.key_padding_mask, first=first)
    call = _wide(call)
    if isinstance(call.module, CrossAttention):
        return _cross_matrix(call)[:, :, :first]
    host = _attention_in(call.module)
    if host is None:
        return None
    x, mask = _without_padding(call), call.key_padding_mask
    mixer, heads = call.module, int(host.num_heads)
    groups = int(getattr(host, "num_groups", 1))
    rows = _token_of_each_row(mixer, host, x, mask)
    layout = (groups, 3, heads // groups, -1)
    length, batch = x.shape[1], x.shape[0]

    def as_heads(y: Tensor) -> Tensor:
        split: Tensor = y.unflatten(-1, (heads, -1))
        return split.transpose(1, 2)

    seen: list[Tensor] = []

    def note(module: nn.Module, args: Any, output: Tensor) -> None:
        seen.append(output.unflatten(-1, layout)[..., 2, :, :].flatten(-3, -2))

    plain = as_heads(_unprojected(mixer, host, x, mask, note))
    if plain.shape[:3] != (batch, heads, length) or len(seen) != 1:
        return None
    width = plain.shape[-1]
    columns = []
    for start in range(0, length, width):
        units = torch.arange(start, start + width, device=x.device)
        unit = (rows.unsqueeze(-1) == units).to(x.dtype)

        def put(module: nn.Module, args: Any, output: Tensor, unit: Tensor = unit) -> Tensor:
            parts = output.unflatten(-1, layout).clone()
            parts[..., 2, :, :] = unit[..., None, None, :]
            return parts.flatten(-4)

        columns.append(as_heads(_unprojected(mixer, host, x, mask, put))[:, :, :first].clone())
    matrix = torch.cat(columns, -1)[..., :length]
    return matrix if _explains(matrix, seen[0], rows, plain[:, :, :first]) else None


def _wide(call: Call) -> Call:
    """Convert the call and a copy of its layer to float32.

    float64 stays float64. At 16 bits, neither token numbers nor the product with the values are
    exact.
    """
    dtype = torch.promote_types(call.x.dtype, torch.float32)
    if call.x.dtype == dtype:
        return call
    memory = None if call.memory is None else call.memory.to(dtype)
    module = copy.deepcopy(call.module).to(dtype)
    return replace(call, module=module, x=call.x.to(dtype), y=call.y.to(dtype), memory=memory)


def _cross_matrix(call: Call) -> Tensor:
    """Measure the matrix of attention to a memory, as in `matrix_of`.

    Unit vectors replace the values of the memory.
    """
    layer, mask, memory = call.module, call.key_padding_mask, _without_padding(call)
    numbers = torch.arange(1, memory.shape[1] + 1, device=memory.device, dtype=memory.dtype)
    rows: list[Tensor] = []

    def run(of: Tensor, hook: _Hook) -> Tensor:
        on_keys = layer.key_value.register_forward_hook(hook)
        on_output = layer.proj.register_forward_hook(_leave_out)
        with on_keys, on_output, undisturbed(layer):
            y = layer(call.x, of, key_padding_mask=mask)
        return y.unflatten(-1, (layer.num_heads, -1)).transpose(1, 2)

    def note(module: nn.Module, args: Any, output: Tensor) -> None:
        rows.append(args[0][..., 0].round().long() - 1)

    width = run(numbers[None, :, None].expand_as(memory), note).shape[-1]
    columns = []
    for start in range(0, memory.shape[1], width):
        units = torch.arange(start, start + width, device=memory.device)
        unit = (rows[0].unsqueeze(-1) == units).to(memory.dtype)

        def put(module: nn.Module, args: Any, output: Tensor, unit: Tensor = unit) -> Tensor:
            keys = output.chunk(2, -1)[0]
            return torch.cat([keys, unit.repeat(1, 1, layer.num_heads)], -1)

        columns.append(run(memory, put))
    return torch.cat(columns, -1)[..., : memory.shape[1]]


def _explains(matrix: Tensor, values: Tensor, rows: Tensor, plain: Tensor) -> bool:
    """Check that matrix times values is the output of the layer."""
    batch, _, _, length = matrix.shape
    flat = values.reshape(batch, -1, *values.shape[-2:])
    where = rows.reshape(batch, -1)
    by_token = flat.new_zeros(batch, length + 1, *flat.shape[-2:])
    index = torch.where(where < 0, length, where)[..., None, None].expand_as(flat)
    by_token = by_token.scatter(1, index, flat)[:, :length].transpose(1, 2)
    difference = (matrix @ by_token - plain).abs().max()
    return bool(difference <= 1e-3 * plain.abs().max().clamp_min(1e-6))


def _attention_in(mixer: nn.Module) -> Any:
    """Find the module with the projections: the mixer or a submodule."""
    for module in mixer.modules():
        qkv, proj = getattr(module, "qkv", None), getattr(module, "proj", None)
        has_heads = isinstance(getattr(module, "num_heads", None), int)
        three = not getattr(module, "tie_kv", False)
        if has_heads and three and isinstance(qkv, nn.Module) and hasattr(module, "proj"):
            return module if proj is None or isinstance(proj, nn.Module) else None
    return None


def _token_of_each_row(mixer: nn.Module, host: Any, x: Tensor, mask: Tensor | None) -> Tensor:
    """Return the token in each input row of `qkv`: (..., rows) int64.

    Rows without a token have -1. The layer may pad, move or group tokens, so this function runs it
    on the token numbers.
    """
    numbers = torch.arange(1, x.shape[1] + 1, device=x.device, dtype=x.dtype)
    found: list[Tensor] = []

    def note(module: nn.Module, args: Any, output: Tensor) -> None:
        found.append(args[0][..., 0].round().long() - 1)

    _unprojected(mixer, host, numbers[None, :, None].expand_as(x), mask, note)
    return found[0]


def _unprojected(
    mixer: nn.Module, host: Any, x: Tensor, mask: Tensor | None, on_qkv: _Hook
) -> Tensor:
    """Run a layer without its output projection: (B, N, H D)."""
    with ExitStack() as hooks, undisturbed(mixer):
        hooks.enter_context(host.qkv.register_forward_hook(on_qkv))
        if host.proj is not None:
            hooks.enter_context(host.proj.register_forward_hook(_leave_out))
        return mixer(x, key_padding_mask=mask)


def _leave_out(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    """Replace the output of a projection by its input (a hook)."""
    return args[0]


def _without_padding(call: Call) -> Tensor:
    """Return the input or memory with zeros at padded positions."""
    x = call.x if call.memory is None else call.memory
    if call.key_padding_mask is None:
        return x
    return x.masked_fill(call.key_padding_mask.unsqueeze(-1), 0.0)
