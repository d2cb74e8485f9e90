"""Parts that models share: mixers of blocks, positions of packed sequences, initialization."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from rifflemix.checks import shown
from rifflemix.errors import bad_argument
from rifflemix.mixers import Stack, TokenMixer, create_mixer, mixer_options, stack_name
from rifflemix.mixers.cards import JOIN, layer_mixer
from rifflemix.mixers.packed import check_packed, segments_of
from rifflemix.nn.block import Block
from rifflemix.nn.positions import packed_positions


def block_mixer(
    mixer: Stack,
    options: Mapping[str, Any] | None,
    dim: int,
    *,
    of_host: Mapping[str, Any] | None = None,
    setting: str = "mixer_options",
    **shared: Any,
) -> TokenMixer:
    """Create the mixer of one block.

    Args:
        mixer: registry name, or a stack whose mixers the layers take in turn.
        options: options of the mixer from the caller of the model.
        dim: channels C.
        of_host: default options from the model. Mixers without such an option ignore it, and
            `options` take precedence.
        setting: the name of `options` in error messages.
        shared: arguments that all mixers accept, see `create_mixer`.

    Raises:
        InputError: the mixer is unknown, `options` is not a mapping or contains an argument that
            the model sets, or a value is out of range.
    """
    if options is not None and not isinstance(options, Mapping):
        raise bad_argument(
            setting, f"a mapping with options of {stack_name(mixer)}", shown(options)
        )
    name, chosen = layer_mixer(mixer, options, shared.get("layer_index", 0), setting)
    known = mixer_options(name)
    if of_host is not None and not isinstance(of_host, Mapping):
        raise bad_argument("host_options", "a mapping", shown(of_host))
    own = {} if chosen is None else dict(chosen)
    for option in own:
        if not isinstance(option, str) or option in ("name", "dim", *shared):
            expected = f"options of {name} ({', '.join(known) or 'it has none'})"
            raise bad_argument(setting, expected, shown(option), "the rest is set by the model")
    hosted = {option: value for option, value in (of_host or {}).items() if option in known}
    return create_mixer(name, dim, **shared, **(hosted | own))


def with_rotary(
    of_host: Mapping[str, Any] | None, mixer: Stack, positions: str
) -> Mapping[str, Any] | None:
    """Add the option `rotary` to the default options of a model with positions="rope".

    Raises:
        InputError: no mixer of the model has this option.
    """
    if positions != "rope":
        return of_host
    name = stack_name(mixer)
    if not any("rotary" in mixer_options(each) for each in name.split(JOIN)):
        raise bad_argument(
            "positions",
            f"none, learned or sinusoid for mixer {name}",
            "'rope'",
            "mixers with the option rotary can use rope",
        )
    return {**(of_host or {}), "rotary": True}


def positions_in_row(
    x: Tensor, key_padding_mask: Tensor | None, cu_seqlens: Tensor, max_length: int
) -> Tensor:
    """Return the position of each token of a packed batch in its sequence.

    Returns:
        (1, N) int64.

    Raises:
        InputError: `TokenMixer.forward` would not accept the arguments.
    """
    return packed_positions(lengths_in_row(x, key_padding_mask, cu_seqlens, max_length), x.device)


def lengths_in_row(
    x: Tensor, key_padding_mask: Tensor | None, cu_seqlens: Tensor, max_length: int
) -> list[int]:
    """Return the length of each sequence of a packed batch (1, N, C).

    Raises:
        InputError: `TokenMixer.forward` would not accept the arguments.
    """
    check_packed(x, key_padding_mask)
    return segments_of(cu_seqlens, x, max_length).lengths


def check_no_empty(lengths: list[int]) -> None:
    """Raise InputError if a sequence is empty, since it cannot be pooled."""
    if 0 in lengths:
        raise bad_argument(
            "cu_seqlens", "at least one token in each sequence", f"none in {lengths.index(0)}"
        )


def with_class_tokens(token: Tensor, x: Tensor, lengths: list[int]) -> Tensor:
    """Insert the class token before each sequence: (1, N, C) -> (1, N + S, C)."""
    size = torch.tensor(lengths, device="cpu")
    number = torch.arange(len(lengths), device="cpu").repeat_interleave(size)
    own = (torch.arange(len(number), device="cpu") + number + 1).to(x.device)
    first = torch.tensor([0, *accumulate(length + 1 for length in lengths)][:-1], device=x.device)
    row = x.new_zeros(1, len(own) + len(first), x.shape[2]).index_copy(1, own, x)
    return row.index_copy(1, first, token.to(x.dtype).expand(1, len(first), -1))


def modules_to_draw(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield names and modules inside `model`, except networks with `keeps_start = True`.

    Such networks generate weights, for example the values of a kernel, and have a matching
    initialization. Weights of the usual scale of a model would make the generated values almost
    zero.
    """
    kept = tuple(
        f"{name}." for name, part in model.named_modules() if getattr(part, "keeps_start", False)
    )
    for name, part in model.named_modules():
        if not name.startswith(kept):
            yield name, part


BERT_STD = 0.02


def bert_normal(module: nn.Module) -> None:
    """Initialize every `nn.Linear` inside `module` as BERT: deviation 0.02, zero biases.

    Networks that `modules_to_draw` skips keep their weights.

    Source: Devlin et al. 2019, "BERT", as implemented in fairseq.
    """
    for _, layer in modules_to_draw(module):
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=BERT_STD)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


_FUSED = {"qkv": 3, "global_qkv": 3, "kv": 2, "to_qkv": 3, "to_kv": 2}
"""Fused linear layers by name, with their number of projections; each is initialized alone."""


def xavier_uniform(module: nn.Module) -> None:
    """Initialize every `nn.Linear` inside `module` with Glorot's uniform rule.

    The biases are normal with deviation 1e-6, as in the JAX code of the Long Range Arena. Networks
    that `modules_to_draw` skips keep their weights.

    Source: Glorot and Bengio 2010, "Understanding the difficulty of training deep feedforward
    neural networks", equation (16).
    """
    for name, layer in modules_to_draw(module):
        if isinstance(layer, nn.Linear):
            owner, _, own_name = name.rpartition(".")
            _draw(layer, _maps_in(layer, own_name, module.get_submodule(owner)))


def _maps_in(layer: nn.Linear, name: str, owner: nn.Module) -> int:
    """Count the projections in a fused layer.

    The input width of the output projection `proj` gives the width of each projection. The name
    alone can be misleading, for example if a layer has values only or shared keys and values.
    """
    proj = getattr(owner, "proj", None)
    if name in _FUSED and isinstance(proj, nn.Linear) and layer.out_features >= proj.in_features:
        return layer.out_features // proj.in_features
    return _FUSED.get(name, 1)


@torch.no_grad()
def _draw(layer: nn.Linear, maps: int) -> None:
    for part in layer.weight.chunk(maps):
        nn.init.xavier_uniform_(part)
    if layer.bias is not None:
        nn.init.normal_(layer.bias, std=1e-6)


def initialise_gpt2(model: nn.Module, embedding_std: float = 0.02) -> None:
    """Initialize a model as GPT-2: normal weights with deviation 0.02, zero biases.

    The last linear layer of each residual branch has standard deviation 0.02 / sqrt(2 L). All
    parameters outside linear layers and embeddings keep their initialization, for example sorting
    networks and temperatures. So do the networks that `modules_to_draw` skips.

    Args:
        model: the model; L is its number of `Block`s.
        embedding_std: standard deviation of the embeddings.

    Source: Radford et al. 2019, section 2.3, as implemented in nanoGPT.
    """
    for _, module in modules_to_draw(model):
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=embedding_std)
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    for block in blocks:
        ends = [block.mlp.fc2, *(getattr(block.mixer, name, None) for name in ("proj", "out_proj"))]
        for end in ends:
            if isinstance(end, nn.Linear):
                nn.init.normal_(end.weight, std=0.02 / math.sqrt(2 * len(blocks)))
