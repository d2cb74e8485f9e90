"""Graphormer, and its form with a sort instead of queries and keys."""

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
from rifflemix.models.graphs.graph_encoding import GraphAttention, GraphBias, check_graph
from rifflemix.models.presets import ModelCard, Preset
from rifflemix.nn.dropout import Dropout
from rifflemix.nn.embeddings import number_of_ids
from rifflemix.nn.feed_forward import FeedForward

MIXERS: Mapping[str, str] = {"softmax": "attention", "sliceformer": "sort"}
_OPTIONS: Mapping[str, tuple[str, ...]] = {"softmax": (), "sliceformer": ("variant",)}


class GraphormerBlock(nn.Module):
    """Pre-norm residual block: x += drop(attention(LN(x), bias)); x += drop(mlp(LN(x))).

    Args:
        attention: takes tokens, bias and mask.
        mlp: the feed-forward branch.
        dim: channels C.
        dropout: probability after the attention.
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
        """(B, N, C) and a bias (B, H, N, N) -> (B, N, C)."""
        y = self.attention(self.norm1(x), bias, key_padding_mask=key_padding_mask)
        x = x + self.drop(y)
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class Graphormer(Model):
    """Graph regressor or classifier: node features and degrees in, a graph token read out.

    Centrality is the embedding of a node's degree, twice (in and out; graphs here are
    undirected). Distance and edge encoding: `GraphBias`.

    Args:
        mixer: "softmax", or "sliceformer" for softmax(S + E) V + sort(V) without queries and keys.
        mixer_options: for "sliceformer", `variant`: "ascending" (the default), "interleave" or
            "max_exchange". "interleave" sorts some channels of each head in descending order, in
            runs that halve from layer to layer. "max_exchange" exchanges the graph token and the
            largest value of each channel.
        dim: channels C.
        num_layers: blocks.
        num_heads: heads, a divisor of C.
        mlp_ratio: hidden channels of the feed-forward branch over C.
        num_classes: outputs; 1 for the regression of one number.
        vocab_size: ids of node features; id 0 is padding.
        num_edge_tokens: ids of edge features; id 0 is no edge.
        num_degrees: rows of the tables of degrees.
        num_distances: rows of the table of distances.
        num_hops: positions on a path that have a map.
        path_length: edges of a path that count.
        max_distance: from this distance on, and in different components, nodes do not see each
            other; None lets all see all.
        dropout: probability, on the embedding and both branches.
        attention_dropout: probability of dropping an attention weight; unset, `dropout`.

    Raises:
        InputError: a size out of range, another mixer, or an option that it does not have.

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
        """As released: tables with deviation 0.02, maps with 0.02 / sqrt(layers), biases zero."""
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
        """Outputs of each graph.

        Args:
            inputs: (B, N, F) int64 ids of the F features of each node.
            distances: (B, N, N) integers: edges on a shortest path, -1 where there is none.
            path_edges: (B, N, N, L, E) integers: ids of the features of the path's edges.
            key_padding_mask: (B, N) bool, True = padding.

        Returns:
            (B, num_classes).

        Raises:
            InputError: a shape or type that does not fit, or an id without an embedding.
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
        out: Tensor = self.head(self.norm(x[:, 0]))
        return out

    def _embed(self, inputs: Tensor, distances: Tensor, mask: Tensor | None) -> Tensor:
        """(B, N + 1, C): the graph token, and each node's features and centrality."""
        neighbours = distances == 1
        if mask is not None:
            neighbours = neighbours & ~mask.unsqueeze(1)
        degree = (neighbours.sum(dim=-1) + 1).clamp(max=self.num_degrees - 1)
        x = self.node(inputs).sum(dim=-2) + self.in_degree(degree) + self.out_degree(degree)
        dropped: Tensor = self.drop(
            torch.cat((self.token.to(x.dtype).expand(x.shape[0], -1, -1), x), 1)
        )
        return dropped


def _checked_options(mixer: str, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """The mixer's options as a dict, all of them known; their values are checked in use."""
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
