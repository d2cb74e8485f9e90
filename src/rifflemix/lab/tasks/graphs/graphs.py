"""Graphs with a number each: what regression tasks on molecules are made of."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from rifflemix.errors import InputError
from rifflemix.lab.tasks.core.base import Batch, Sample
from rifflemix.lab.tasks.core.numbers import NumberTask
from rifflemix.lab.tasks.data_io.files import Array
from rifflemix.lab.tasks.graphs.smiles import BOND_FEATURES, WIDTH

Integers = NDArray[np.int64]

# Axes that count nodes, axes after them, and what fills padded positions.
_LAYOUTS = {"inputs": (1, 1, 0), "distances": (2, 0, -1), "path_edges": (2, 2, 0)}


@dataclass(frozen=True, eq=False)
class GraphSplit:
    """Some rows of decoded molecules (`rifflemix.lab.tasks.graphs.smiles.decode_molecules`).

    Attributes:
        arrays: the decoded arrays by name.
        rows: which molecules, in order.
        path_length: edges of each shortest path that are given.
    """

    arrays: Mapping[str, Array]
    rows: Integers
    path_length: int

    def __len__(self) -> int:
        """Number of molecules."""
        return len(self.rows)

    def __getitem__(self, index: int) -> Sample:
        """Nodes (N, 9) int64, distances (N, N) int64 and path_edges (N, N, L, 3); the target."""
        atoms, bonds, target = self._molecule(int(self.rows[index]))
        offsets = 1 + WIDTH * np.arange(atoms.shape[1])
        distances, path_edges = graph_paths(len(atoms), bonds, self.path_length)
        parts = {
            "inputs": torch.from_numpy(atoms.astype(np.int64) + offsets),
            "distances": torch.from_numpy(distances),
            "path_edges": torch.from_numpy(path_edges),
        }
        return parts, target

    def targets(self) -> NDArray[np.float64]:
        """(M,) targets, in order."""
        values: NDArray[np.float64] = self.arrays["targets"].values[self.rows].astype(np.float64)
        return values

    def digest(self) -> bytes:
        """Hash of every atom, bond and target, in order."""
        total = hashlib.blake2b(digest_size=16)
        for row in self.rows.tolist():
            atoms, bonds, target = self._molecule(row)
            total.update(f"{atoms.shape},{bonds.shape},{target!r};".encode())
            total.update(atoms.tobytes() + bonds.tobytes())
        return total.digest()

    def _molecule(self, row: int) -> tuple[NDArray[np.uint8], NDArray[np.uint16], float]:
        parts = []
        for name in ("atom", "bond"):
            ends = self.arrays[f"{name}_ends"].values
            start = int(ends[row - 1]) if row else 0
            parts.append(self.arrays[f"{name}s"].values[start : int(ends[row])])
        return parts[0], parts[1], float(self.arrays["targets"].values[row])


def graph_paths(
    num_nodes: int, bonds: NDArray[np.uint16], path_length: int
) -> tuple[Integers, NDArray[np.int32]]:
    """Distances in an undirected graph, and the edges of a shortest path between any two nodes.

    Args:
        num_nodes: nodes N.
        bonds: (E, 5): both ends of an edge and its features.
        path_length: edges L of a path that are given.

    Returns:
        (N, N) int64 edges on a shortest path, -1 where there is none; and (N, N, L, 3) int32 ids
        of the features of its edge 1, 2, ... from the first node on, 0 after the end.

    Raises:
        InputError: SciPy is missing.
    """
    shortest_path = _shortest_path()
    edge_ids = np.zeros((num_nodes, num_nodes, BOND_FEATURES), dtype=np.int32)
    first, second = bonds[:, 0].astype(np.int64), bonds[:, 1].astype(np.int64)
    ids = 1 + WIDTH * np.arange(BOND_FEATURES) + bonds[:, 2:].astype(np.int32)
    edge_ids[first, second] = edge_ids[second, first] = ids
    adjacent = (edge_ids[:, :, 0] > 0).astype(np.float64)
    lengths, before = shortest_path(adjacent, unweighted=True, return_predecessors=True)
    distances = np.where(np.isinf(lengths), -1, lengths).astype(np.int64)
    # before[j, i] is the node before i on the way from j: the next one on the way from i to j.
    path_edges = np.zeros((num_nodes, num_nodes, path_length, BOND_FEATURES), dtype=np.int32)
    goal = np.broadcast_to(np.arange(num_nodes), (num_nodes, num_nodes))
    here = goal.T.copy()
    for step in range(path_length):
        on_the_way = step < distances
        there = np.where(on_the_way, before[goal, here], here)
        path_edges[:, :, step] = edge_ids[here, there] * on_the_way[:, :, None]
        here = there
    return distances, path_edges


def _shortest_path() -> Any:
    try:
        from scipy.sparse.csgraph import shortest_path
    except ImportError as error:
        raise InputError(
            "distances in graphs need SciPy, which is not installed; pip install 'rifflemix[graph]'"
        ) from error
    return shortest_path


@dataclass(frozen=True, eq=False)
class GraphRegression(NumberTask):
    """A task that gives a number to each graph."""

    def collate(self, samples: Sequence[Sample]) -> Batch:
        """Graphs padded to the largest among them.

        Returns:
            inputs (B, N, F), key_padding_mask (B, N), distances (B, N, N) with -1 and path_edges
            (B, N, N, L, E) with 0 at padded positions, and labels (B,) float32.
        """
        graphs = [graph for graph, _ in samples]
        sizes = torch.tensor([len(graph["inputs"]) for graph in graphs])
        nodes = int(sizes.max())
        batch: Batch = {}
        for name, (axes, features, fill) in _LAYOUTS.items():
            parts = [
                functional.pad(
                    g[name], (0, 0) * features + (0, nodes - len(g[name])) * axes, value=fill
                )
                for g in graphs
            ]
            batch[name] = torch.stack(parts)
        batch["key_padding_mask"] = torch.arange(nodes) >= sizes[:, None]
        batch["labels"] = self.deviations(samples)
        return batch
