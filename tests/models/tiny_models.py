"""Every registered model in a size for tests: settings to override, and inputs."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import rifflemix as rm

Inputs = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Tiny:
    """Overrides that make a model small, and a function that creates inputs for a batch size."""

    overrides: Mapping[str, Any]
    inputs: Callable[[int], Inputs]


def images(channels: int, height: int, width: int) -> Callable[[int], Inputs]:
    return lambda batch: ((torch.randn(batch, channels, height, width),), {})


def tokens(vocabulary: int, length: int, *, padding: bool = True) -> Callable[[int], Inputs]:
    """Create token IDs; all samples except the first end in padding."""

    def make(batch: int) -> Inputs:
        ids = torch.randint(vocabulary, (batch, length))
        mask = torch.arange(length) >= length - torch.arange(batch).unsqueeze(1)
        return (ids,), {"key_padding_mask": mask} if padding else {}

    return make


def token_pairs(vocabulary: int, length: int) -> Callable[[int], Inputs]:
    """Create pairs of sequences with different lengths."""

    def make(batch: int) -> Inputs:
        (ids,), options = tokens(vocabulary, length)(2 * batch)
        mask = options["key_padding_mask"].unflatten(0, (batch, 2))
        return (ids.unflatten(0, (batch, 2)),), {"key_padding_mask": mask}

    return make


def vectors(features: int, length: int) -> Callable[[int], Inputs]:
    """Create vectors; all samples except the first end in padding."""

    def make(batch: int) -> Inputs:
        _, options = tokens(2, length)(batch)
        return (torch.randn(batch, length, features),), options

    return make


def graphs(features: int, nodes: int) -> Callable[[int], Inputs]:
    """Create chains of nodes; all graphs except the first end in padding."""

    def make(batch: int) -> Inputs:
        _, options = tokens(2, nodes)(batch)
        positions = torch.arange(nodes)
        distances = (positions - positions.unsqueeze(1)).abs().expand(batch, -1, -1)
        edges = torch.randint(1, 9, (batch, nodes, nodes, 3, 2))
        edges *= (torch.arange(3) < distances.unsqueeze(-1)).unsqueeze(-1)
        inputs = torch.randint(1, 9, (batch, nodes, features))
        return (inputs,), {**options, "distances": distances, "path_edges": edges}

    return make


TINY_GRAPH = {
    "dim": 16,
    "num_layers": 2,
    "num_heads": 2,
    "vocab_size": 9,
    "num_edge_tokens": 9,
    "num_degrees": 4,
    "num_distances": 9,
    "num_hops": 3,
    "path_length": 3,
    "max_distance": 4,
}

TINY_LRA = {"vocab_size": 11, "dim": 16, "num_layers": 2, "max_length": 12, "head_hidden": [8]}


def pair_of_sequences(vocabulary: int, length: int, written: int) -> Callable[[int], Inputs]:
    """Create padded encoder inputs and decoder inputs."""

    def make(batch: int) -> Inputs:
        (ids,), options = tokens(vocabulary, length)(batch)
        return (ids, torch.randint(vocabulary, (batch, written))), options

    return make


TINY_GPT = {"vocab_size": 11, "dim": 16, "max_length": 12, "num_layers": 2}

TINY_IMAGE = {"dim": 16, "num_layers": 2, "num_heads": 2, "num_classes": 5}
TINY_VIT = Tiny({**TINY_IMAGE, "image_size": 8, "patch_size": 2, "in_channels": 3}, images(3, 8, 8))
TINY_TOST = Tiny({**TINY_IMAGE, "image_size": 32}, images(3, 32, 32))

# Keys are name patterns; the first match counts.
TINY: dict[str, Tiny] = {
    "encoder": Tiny({"vocab_size": 11, "dim": 16, "max_length": 12}, tokens(11, 12)),
    "*compressor": Tiny({"vocab_size": 11, "dim": 16, "max_length": 12}, tokens(11, 12)),
    "mixer_stack": Tiny(
        {"vocab_size": 11, "dim": 16, "num_layers": 2, "max_length": 12}, tokens(11, 12)
    ),
    "gpt*": Tiny({**TINY_GPT, "num_heads": 2}, tokens(11, 12)),
    "tost_lm_*": Tiny({**TINY_GPT, "num_heads": 2}, tokens(11, 12)),
    "sinkhorn_[!s]*": Tiny(
        {**TINY_GPT, "num_heads": 2, "mixer_options": {"block_size": 4}}, tokens(11, 12)
    ),
    "sinkhorn_sortcut_*": Tiny(
        {**TINY_GPT, "num_heads": 2, "mixer_options": {"block_size": 4, "sortcut": 2}},
        tokens(11, 12),
    ),
    "*seq2seq*": Tiny({**TINY_GPT, "num_heads": 2}, pair_of_sequences(11, 12, 9)),
    "imdb_classifier": Tiny(
        {"vocab_size": 11, "dim": 16, "num_layers": 2, "num_heads": 2, "max_length": 12},
        tokens(11, 12),
    ),
    "point_cloud": Tiny({"dim": 16, "num_layers": 2, "max_length": 12}, vectors(3, 12)),
    "graphormer_*": Tiny(TINY_GRAPH, graphs(2, 7)),
    "sliceformer_graph_*": Tiny(TINY_GRAPH, graphs(2, 7)),
    "lra_retrieval": Tiny({**TINY_LRA, "num_heads": 2}, token_pairs(11, 12)),
    "lra_*": Tiny({**TINY_LRA, "num_heads": 2}, tokens(11, 12)),
    "mega*_retrieval": Tiny(
        {**TINY_LRA, "num_layers": 1, "z_dim": 6, "hidden_dim": 20}, token_pairs(11, 12)
    ),
    "mega*_lra_*": Tiny(
        {**TINY_LRA, "num_layers": 1, "z_dim": 6, "hidden_dim": 20},
        tokens(11, 12),
    ),
    "s4_lra_retrieval": Tiny(TINY_LRA, token_pairs(11, 12)),
    "s4_lra_*": Tiny(TINY_LRA, tokens(11, 12)),
    "vit_*": TINY_VIT,
    "tost_*": TINY_TOST,
    "xcit_*": TINY_TOST,
    "crate_*": TINY_TOST,
    "dimmixer_vit_*": Tiny(
        {"image_size": 8, "patch_size": 2, "dim": 16, "num_layers": 2}, images(3, 8, 8)
    ),
    "mlp_mixer_c1_*": Tiny(
        {"image_size": 8, "resize": 12, "dim": 9, "num_layers": 2}, images(3, 8, 8)
    ),
    "mlp_mixer_*": Tiny({"image_size": 8, "dim": 9, "num_layers": 2}, images(3, 8, 8)),
    "patch_only_*": Tiny(
        {"image_size": 8, "patch_sizes": [2, 3], "num_layers": 2}, images(3, 8, 8)
    ),
    "resnet_*": Tiny({"blocks_per_stage": 2}, images(3, 8, 8)),
}


def tiny(name: str) -> Tiny:
    """Return the entry of a registered model."""
    for pattern, entry in TINY.items():
        if fnmatch.fnmatchcase(name, pattern):
            return entry
    raise KeyError(f"model {name} has no line in TINY of tests/models/tiny_models.py")


def build(name: str, **more: Any) -> rm.models.Model:
    """Create the tiny model with fixed weights."""
    torch.manual_seed(0)
    return rm.create_model(name, **{**tiny(name).overrides, **more})


def sample(name: str, batch: int = 3) -> Inputs:
    """Create fixed arguments for the forward pass."""
    torch.manual_seed(1)
    return tiny(name).inputs(batch)


def outputs_of(result: Any) -> list[Tensor]:
    """Return all tensors in the result of a forward pass."""
    if isinstance(result, Tensor):
        return [result]
    values = result.values() if isinstance(result, dict) else result
    return [tensor for value in values for tensor in outputs_of(value)]
