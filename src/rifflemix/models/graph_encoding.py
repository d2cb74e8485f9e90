"""Attention biases for graphs, from distances between nodes and the edges on their paths."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rifflemix.checks import check_divides, check_integer, check_probability, shown
from rifflemix.errors import bad_argument, check_choice
from rifflemix.models.base import check_ids
from rifflemix.nn.layers import KeepsConstants
from rifflemix.ops import group_sort, max_exchange
from rifflemix.ops.dropout.backends import dropout as drop
from rifflemix.ops.dropout.backends import dropout_attention

MIXINGS = ("attention", "sort")
VARIANTS = ("ascending", "interleave", "max_exchange")
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)


class GraphBias(nn.Module):
    """Attention bias S + E for each head and pair of nodes, including the graph token.

    S is a learned value for every distance, with a separate value for unconnected pairs. E covers
    the first `path_length` edges of a shortest path. Each position on the path has a learned matrix
    from heads to heads. E averages the edge features, each multiplied by the matrix of its
    position.

    Args:
        num_heads: heads H.
        num_edge_tokens: number of ids of edge features; id 0 means no edge.
        num_distances: size of the distance table; the last entry means no path.
        num_hops: number of path positions with a matrix.
        path_length: maximum number of edges of a path that E includes.
        max_distance: mask all pairs of nodes at this distance or more, and unconnected pairs.
            None masks no pairs, as in the paper and its training code.

    Raises:
        InputError: a size is below 1, or `path_length` exceeds `num_hops`.

    Source: Ying et al. 2021, "Do Transformers Really Perform Bad for Graph Representation?",
    equations (6) and (7), and the released code.
    """

    def __init__(
        self,
        num_heads: int,
        *,
        num_edge_tokens: int,
        num_distances: int,
        num_hops: int,
        path_length: int,
        max_distance: int | None = None,
    ) -> None:
        super().__init__()
        self.num_heads = check_integer("num_heads", num_heads, 1)
        self.path_length = check_integer("path_length", path_length, 1)
        num_hops = check_integer("num_hops", num_hops, self.path_length)
        self.last = check_integer("num_distances", num_distances, 3) - 1
        if max_distance is not None:
            max_distance = check_integer("max_distance", max_distance, 1, self.last - 1)
        self.max_distance = max_distance
        self.edge = nn.Embedding(
            check_integer("num_edge_tokens", num_edge_tokens, 1), num_heads, padding_idx=0
        )
        self.hop = nn.Parameter(torch.empty(num_hops, num_heads, num_heads))
        self.distance = nn.Embedding(num_distances, num_heads, padding_idx=0)
        self.token_distance = nn.Parameter(torch.empty(num_heads))
        for table in (self.edge.weight, self.distance.weight):
            nn.init.normal_(table[1:], std=0.02)
        for parameter in (self.hop, self.token_distance):
            nn.init.normal_(parameter, std=0.02)

    def forward(
        self, distances: Tensor, path_edges: Tensor, key_padding_mask: Tensor | None
    ) -> Tensor:
        """Compute the bias of every pair.

        Args:
            distances: (B, N, N) integers: length of a shortest path, or -1 without a path.
            path_edges: (B, N, N, L, E) integers: ids of the E features of edge 1, 2, ... of the
                path from the first node to the second, 0 after its end.
            key_padding_mask: (B, N) bool, True = padding.

        Returns:
            (B, H, N + 1, N + 1), minus infinity for masked pairs.
        """
        near = torch.ones_like(distances, dtype=torch.bool)
        if self.max_distance is not None:
            near = (distances >= 0) & (distances < self.max_distance)
        if key_padding_mask is not None:
            near = near & ~key_padding_mask.unsqueeze(1)
        positions = torch.where(distances < 0, self.last, distances.clamp(max=self.last - 2) + 1)
        bias = self.distance(positions) + self._along_paths(distances, path_edges)
        bias = bias.masked_fill(~near.unsqueeze(-1), -torch.inf).permute(0, 3, 1, 2)
        return self._with_token(bias, key_padding_mask)

    def _along_paths(self, distances: Tensor, path_edges: Tensor) -> Tensor:
        length = min(self.path_length, path_edges.shape[3])
        edges = self.edge(path_edges[:, :, :, :length]).mean(dim=-2)  # (B, N, N, L, H)
        summed = torch.einsum("bijlh,lhk->bijk", edges, self.hop[:length].to(edges.dtype))
        return summed / distances.clamp(1, self.path_length).unsqueeze(-1).to(summed.dtype)

    def _with_token(self, bias: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """Add the graph token, at one learned distance from every node."""
        batch, heads, nodes, _ = bias.shape
        token = self.token_distance.to(bias.dtype).view(1, heads, 1, 1)
        full = torch.cat((token.expand(batch, -1, nodes, 1), bias), dim=3)
        first = token.expand(batch, -1, 1, nodes + 1)
        if key_padding_mask is not None:
            padded = F.pad(key_padding_mask, (1, 0), value=False)[:, None, None]
            first = first.masked_fill(padded, -torch.inf)
        return torch.cat((first, full), dim=2)


def check_graph(
    distances: Tensor, path_edges: Tensor, nodes: tuple[int, ...], num_edge_tokens: int
) -> None:
    """Raise InputError unless distances and path edges fit a batch of graphs.

    Args:
        distances: (B, N, N) integers.
        path_edges: (B, N, N, L, E) ids.
        nodes: (B, N).
        num_edge_tokens: number of ids of edge features.
    """
    expected = (*nodes, nodes[1])
    if not isinstance(distances, Tensor) or tuple(distances.shape) != expected:
        found = tuple(distances.shape) if isinstance(distances, Tensor) else shown(distances)
        raise bad_argument("distances", f"shape (B, N, N) = {expected}", found)
    if distances.dtype not in _INTEGERS:
        raise bad_argument("distances", "integers, edges on a shortest path", distances.dtype)
    check_ids("path_edges", path_edges, "(B, N, N, L, E)", below=num_edge_tokens, rank=5)
    if tuple(path_edges.shape[:3]) != expected:
        layout = f"shape (B, N, N, L, E) with (B, N, N) = {expected}"
        raise bad_argument("path_edges", layout, tuple(path_edges.shape))


class GraphAttention(KeepsConstants):
    """Attention with a bias on its scores, or a sort instead of queries and keys.

    "attention": softmax(q k^T / sqrt(D) + bias) v. "sort": softmax(bias) v + sort(v). The sort
    orders each channel over the valid tokens.

    Args:
        dim: channels C.
        num_heads: heads H, a divisor of C.
        mixing: "attention" or "sort".
        dropout: dropout probability on the attention weights.
        variant: variant of the sort; must be None for "attention". "ascending" is the default.
            "interleave" sorts the channels of `haar_columns` in descending order. "max_exchange"
            exchanges the first token and the largest token of each channel.
        layer_index: 0-based position of the layer in its stack, for "interleave".

    Raises:
        InputError: an argument is out of range, or `variant` is set for "attention".

    Source: Ying et al. 2021, equation (6); "sort": Yuan and Xu, "Sliceformer: Make Multi-head
    Attention as Simple as Sorting in Discriminative Tasks", section 4.2.3, as in the released code.
    """

    descending: Tensor | None

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        mixing: str = "attention",
        dropout: float = 0.0,
        variant: str | None = None,
        layer_index: int = 0,
    ) -> None:
        super().__init__()
        check_choice("mixing", mixing, MIXINGS)
        if variant is not None:
            if mixing != "sort":
                expected = f"none, since mixing {mixing!r} has no sort"
                raise bad_argument("variant", expected, shown(variant))
            check_choice("variant", variant, VARIANTS)
        self.num_heads = check_divides("num_heads", num_heads, dim, "dim")
        self.dropout = check_probability("dropout", dropout)
        self.is_sort = mixing == "sort"
        self.exchanges = variant == "max_exchange"
        columns = haar_columns(dim // num_heads, layer_index) if variant == "interleave" else None
        self.keep_constants(lambda: {"descending": _mask_of(columns, dim // num_heads, num_heads)})
        self.maps = nn.Linear(dim, dim if self.is_sort else 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, bias: Tensor, *, key_padding_mask: Tensor | None = None) -> Tensor:
        """Mix the tokens: (B, N, C) -> (B, N, C).

        Args:
            x: tokens (B, N, C).
            bias: (B, H, N, N), added to the scores; minus infinity at padded keys.
            key_padding_mask: (B, N) bool, True = padding, for the sort.
        """
        dropout = self.dropout if self.training else 0.0
        maps = self.maps(x)
        if self.is_sort:
            weights = drop(bias.softmax(dim=-1), dropout).to(maps.dtype)
            y = (weights @ self._heads(maps)).transpose(1, 2).flatten(2)
            y = y + self._permute(maps, key_padding_mask)
        else:
            q, k, v = (self._heads(part) for part in maps.chunk(3, dim=-1))
            y = dropout_attention(q, k, v, mask=bias.to(q.dtype), dropout_p=dropout)
            y = y.transpose(1, 2).flatten(2)
        return self.proj(y)

    def _permute(self, v: Tensor, mask: Tensor | None) -> Tensor:
        """Sort every channel of (B, N, C) according to the variant."""
        y: Tensor
        if self.exchanges:
            y = max_exchange(v, key_padding_mask=mask)
        else:
            y = group_sort(v, order="ascending", descending=self.descending, key_padding_mask=mask)
        return y

    def _heads(self, x: Tensor) -> Tensor:
        """Split the heads: (B, N, C) -> (B, H, N, D)."""
        heads: Tensor = x.unflatten(-1, (self.num_heads, -1))
        return heads.transpose(1, 2)


def haar_columns(width: int, layer_index: int) -> list[int]:
    """List the columns of a head that "interleave" sorts in descending order.

    The result agrees with the released Graphormer code. The runs of columns follow
    `rifflemix.ops.interleave_columns`. If they do not fill the head, the rest begins one run after
    the last listed column.

    Args:
        width: columns of a head.
        layer_index: 0-based position of the layer in its stack.

    Returns:
        Column indices in ascending order; an empty list for layer 0 and for heads of one column.
    """
    level = check_integer("layer_index", layer_index, 0)
    run = max(1, width >> level)
    columns = [
        column
        for pair in range(width // (2 * run))
        for column in range((2 * pair + 1) * run, (2 * pair + 2) * run)
    ]
    return columns + list(range(columns[-1] + run, width)) if columns else columns


def _mask_of(columns: list[int] | None, width: int, num_heads: int) -> Tensor | None:
    """Mark these columns of every head in a (C,) bool tensor."""
    if columns is None:
        return None
    head = torch.zeros(width, dtype=torch.bool)
    head[columns] = True
    return head.repeat(num_heads)
