"""Graphormer, and its variant with a sort instead of queries and keys."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rifflemix.checks import (
    check_integer,
    check_padding_mask,
    check_positive,
    check_probability,
    shown,
)
from rifflemix.errors import bad_argument, check_choice
from rifflemix.models.base import Model, check_ids
from rifflemix.models.graph_encoding import GraphAttention, GraphBias, check_graph
from rifflemix.models.presets import ModelCard, Preset
from rifflemix.nn.embeddings import number_of_ids
from rifflemix.nn.layers import Dropout, FeedForward

MIXERS: Mapping[str, str] = {"softmax": "attention", "sliceformer": "sort"}
_OPTIONS: Mapping[str, tuple[str, ...]] = {"softmax": (), "sliceformer": ("variant",)}


class GraphormerBlock(nn.Module):
    """Pre-norm residual block: x += drop(attention(LN(x), bias)); x += drop(mlp(LN(x))).

    Args:
        attention: module with tokens, bias and mask as inputs.
        mlp: the feed-forward branch.
        dim: channels C.
        dropout: dropout probability after the attention.
    """

    def __init__(
        self, attention: GraphAttention, mlp: FeedForward, dim: int, dropout: float
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attention = attention
        self.drop = Dropout(dropout)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = mlp

    def forward(self, x: Tensor, bias: Tensor, *, key_padding_mask: Tensor | None = None) -> Tensor:
        """Apply the block: (B, N, C) and bias (B, H, N, N) -> (B, N, C)."""
        y = self.attention(self.norm1(x), bias, key_padding_mask=key_padding_mask)
        x = x + self.drop(y)
        return x + self.mlp(self.norm2(x))


class Graphormer(Model):
    """Graph regressor or classifier with a graph token.

    The inputs are node features, distances and the edges on shortest paths. The degree of a node
    has two embeddings, as in-degree and as out-degree; graphs here are undirected. `GraphBias`
    encodes distances and edges.

    Args:
        mixer: "softmax", or "sliceformer" for softmax(S + E) V + sort(V) without queries and keys.
        mixer_options: for "sliceformer", `variant`: "ascending" (the default), "interleave" or
            "max_exchange". "interleave" sorts some channels of each head in descending order, in
            runs that halve from layer to layer. "max_exchange" exchanges the graph token and the
            largest value of each channel.
        dim: channels C.
        num_layers: number of blocks.
        num_heads: heads, a divisor of C.
        mlp_ratio: hidden channels of the feed-forward branch divided by C.
        num_classes: number of outputs; 1 for the regression of one number.
        vocab_size: number of ids of node features; id 0 is padding.
        num_edge_tokens: number of ids of edge features; id 0 means no edge.
        num_degrees: size of the degree tables.
        num_distances: size of the distance table.
        num_hops: number of path positions with a matrix.
        path_length: maximum number of edges of a path that the bias includes.
        max_distance: mask all pairs of nodes at this distance or more, and unconnected pairs;
            None masks no pairs.
        dropout: dropout probability on the embedding and both branches.
        attention_dropout: dropout probability on the attention weights; None uses `dropout`.

    Raises:
        InputError: a size is out of range, or a mixer or mixer option is unknown.

    Source: Ying et al. 2021, "Do Transformers Really Perform Bad for Graph Representation?",
    sections 3.1 and 3.2; mixer="sliceformer": Yuan and Xu, section 4.2.3.
    """

    def __init__(
        self,
        *,
        mixer: str = "softmax",
        mixer_options: dict[str, Any] | None = None,
        dim: int = 768,
        num_layers: int = 12,
        num_heads: int = 32,
        mlp_ratio: float = 1.0,
        num_classes: int = 1,
        vocab_size: int = 512 * 9 + 1,
        num_edge_tokens: int = 512 * 3 + 1,
        num_degrees: int = 512,
        num_distances: int = 512,
        num_hops: int = 128,
        path_length: int = 5,
        max_distance: int | None = None,
        dropout: float = 0.1,
        attention_dropout: float | None = None,
    ) -> None:
        super().__init__()
        check_choice("mixer", mixer, MIXERS)
        options = _checked_options(mixer, mixer_options)
        dim = check_integer("dim", dim, 1)
        num_layers = check_integer("num_layers", num_layers, 1)
        dropout = check_probability("dropout", dropout)
        if attention_dropout is None:
            attention_dropout = dropout
        attention_dropout = check_probability("attention_dropout", attention_dropout)
        hidden_dim = max(1, round(dim * check_positive("mlp_ratio", mlp_ratio)))
        self.node = nn.Embedding(check_integer("vocab_size", vocab_size, 1), dim, padding_idx=0)
        self.num_degrees = check_integer("num_degrees", num_degrees, 2)
        self.in_degree = nn.Embedding(num_degrees, dim, padding_idx=0)
        self.out_degree = nn.Embedding(num_degrees, dim, padding_idx=0)
        self.token = nn.Parameter(torch.empty(1, 1, dim))
        self.bias = GraphBias(
            num_heads,
            num_edge_tokens=num_edge_tokens,
            num_distances=num_distances,
            num_hops=num_hops,
            path_length=path_length,
            max_distance=max_distance,
        )
        self.drop = Dropout(dropout)
        self.blocks = nn.ModuleList(
            GraphormerBlock(
                GraphAttention(
                    dim,
                    num_heads,
                    mixing=MIXERS[mixer],
                    dropout=attention_dropout,
                    layer_index=index,
                    **options,
                ),
                FeedForward(dim, hidden_dim, dropout=dropout, hidden_dropout=0.0),
                dim,
                dropout,
            )
            for index in range(num_layers)
        )
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, check_integer("num_classes", num_classes, 1))
        self._draw(num_layers)

    def _draw(self, num_layers: int) -> None:
        """Initialize as released: deviation 0.02, linear layers 0.02 / sqrt(layers)."""
        for table in (self.node, self.in_degree, self.out_degree):
            nn.init.normal_(table.weight[1:], std=0.02)
        nn.init.normal_(self.token, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02 / math.sqrt(num_layers))
                nn.init.zeros_(module.bias)

    def forward(
        self,
        inputs: Tensor,
        *,
        distances: Tensor,
        path_edges: Tensor,
        key_padding_mask: Tensor | None = None,
    ) -> Tensor:
        """Compute the outputs of each graph.

        Args:
            inputs: (B, N, F) int64 ids of the F features of each node.
            distances: (B, N, N) integers: length of a shortest path, or -1 without a path.
            path_edges: (B, N, N, L, E) integers: ids of the E features of each edge on the path,
                0 after its end.
            key_padding_mask: (B, N) bool, True = padding.

        Returns:
            (B, num_classes).

        Raises:
            InputError: a shape or dtype does not fit, or an id has no embedding.
        """
        check_ids("inputs", inputs, "(B, N, F)", below=number_of_ids(self.node), rank=3)
        check_padding_mask(key_padding_mask, inputs)
        check_graph(distances, path_edges, inputs.shape[:2], number_of_ids(self.bias.edge))
        bias = self.bias(distances, path_edges, key_padding_mask)
        x = self._embed(inputs, distances, key_padding_mask)
        mask = None
        if key_padding_mask is not None:
            mask = F.pad(key_padding_mask, (1, 0), value=False)
        for block in self.blocks:
            x = self.run_block(block, x, bias, key_padding_mask=mask)
        return self.head(self.norm(x[:, 0]))

    def _embed(self, inputs: Tensor, distances: Tensor, mask: Tensor | None) -> Tensor:
        """Embed the graph token and all nodes, (B, N + 1, C)."""
        neighbours = distances == 1
        if mask is not None:
            neighbours = neighbours & ~mask.unsqueeze(1)
        degree = (neighbours.sum(dim=-1) + 1).clamp(max=self.num_degrees - 1)
        x = self.node(inputs).sum(dim=-2) + self.in_degree(degree) + self.out_degree(degree)
        return self.drop(torch.cat((self.token.to(x.dtype).expand(x.shape[0], -1, -1), x), 1))


def _checked_options(mixer: str, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Check the names of the mixer options; `GraphAttention` checks the values."""
    known = ", ".join(_OPTIONS[mixer]) or "it has none here"
    expected = f"options of {mixer} ({known})"
    if options is not None and not isinstance(options, Mapping):
        raise bad_argument("mixer_options", f"a mapping with {expected}", shown(options))
    own = {} if options is None else dict(options)
    for name in own:
        if name not in _OPTIONS[mixer]:
            raise bad_argument("mixer_options", expected, shown(name))
    return own


_SLICEFORMER = (
    "Yuan and Xu, Sliceformer: Make Multi-head Attention as Simple as Sorting in Discriminative "
    "Tasks"
)
_PRESET: tuple[tuple[str, str, str, str, dict[str, Any]], ...] = (
    (
        "graphormer_pcqm4m",
        "Graphormer for molecules",
        "Ying et al. 2021, Do Transformers Really Perform Bad for Graph Representation?",
        "47.09 M",
        {"mixer": "softmax"},
    ),
    (
        "sliceformer_graph_pcqm4m",
        "Sliceformer for molecules: softmax(S + E) V + sort(V)",
        _SLICEFORMER,
        "32.91 M",
        {"mixer": "sliceformer"},
    ),
)

PRESETS = tuple(
    Preset(
        ModelCard(
            name=name,
            title=title,
            paper=paper,
            inputs="graphs",
            printed=printed,
            printed_in="Sliceformer, Table VI",
        ),
        Graphormer,
        settings,
    )
    for name, title, paper, printed, settings in _PRESET
)
