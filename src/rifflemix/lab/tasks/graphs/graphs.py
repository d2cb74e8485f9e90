"""Splits, shortest paths and batches for regression on graphs of molecules."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from rifflemix.errors import require_packages
from rifflemix.lab.tasks.core.arrays import bad_input, texts
from rifflemix.lab.tasks.core.base import Batch, Sample
from rifflemix.lab.tasks.core.card import Shapes
from rifflemix.lab.tasks.core.numbers import NumberTask
from rifflemix.lab.tasks.data_io.files import Array
from rifflemix.lab.tasks.graphs.smiles import (
    ATOM_FEATURES,
    BOND_FEATURES,
    WIDTH,
    UnreadableSmiles,
    read_smiles,
)

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class MoleculeInputs:
    """Molecules in SMILES notation.

    Attributes:
        path_length: maximum number of edges to store per shortest path.
    """

    kind: ClassVar[str] = "molecules"
    path_length: int

    def encode(self, raw: Any) -> list[dict[str, Tensor]]:
        """Convert SMILES, such as "CCO", to graphs.

        Raises:
            InputError: RDKit or SciPy is missing, or RDKit cannot read a SMILES.
        """
        return [self._graph(smiles, number) for number, smiles in enumerate(texts(raw))]

    def convert(self, atoms: NDArray[np.uint8], bonds: NDArray[np.uint16]) -> dict[str, Tensor]:
        """Convert atoms (N, 9) and bonds (E, 5).

        Returns:
            Nodes "inputs" (N, 9) int64, "distances" (N, N) int64 and "path_edges" (N, N, L, 3)
            int32.
        """
        offsets = 1 + WIDTH * np.arange(atoms.shape[1])
        distances, path_edges = graph_paths(len(atoms), bonds, self.path_length)
        return {
            "inputs": torch.from_numpy(atoms.astype(np.int64) + offsets),
            "distances": torch.from_numpy(distances),
            "path_edges": torch.from_numpy(path_edges),
        }

    def _graph(self, smiles: str, number: int) -> dict[str, Tensor]:
        try:
            molecule = read_smiles(smiles.strip())
        except UnreadableSmiles as error:
            raise bad_input("a molecule in SMILES", error, number) from error
        return self.convert(molecule.atoms, molecule.bonds)


def graph_paths(
    num_nodes: int, bonds: NDArray[np.uint16], path_length: int
) -> tuple[Integers, NDArray[np.int32]]:
    """Compute distances and shortest paths in an undirected graph.

    Args:
        num_nodes: number of nodes N.
        bonds: (E, 5) both ends of each edge and its three features.
        path_length: maximum number of edges L to return per path.

    Returns:
        Two arrays:

        - (N, N) int64 number of edges on a shortest path, -1 if there is no path.
        - (N, N, L, 3) int32 feature ids of edge 1, 2, ... of the path from the first node to the
          second, 0 after the end.

    Raises:
        InputError: SciPy is missing.
    """
    require_packages("distances in graphs", "graph", "scipy")
    from scipy.sparse.csgraph import shortest_path

    edge_ids = np.zeros((num_nodes, num_nodes, BOND_FEATURES), dtype=np.int32)
    first, second = bonds[:, 0].astype(np.int64), bonds[:, 1].astype(np.int64)
    ids = 1 + WIDTH * np.arange(BOND_FEATURES) + bonds[:, 2:].astype(np.int32)
    edge_ids[first, second] = edge_ids[second, first] = ids
    adjacent = (edge_ids[:, :, 0] > 0).astype(np.float64)
    lengths, before = shortest_path(adjacent, unweighted=True, return_predecessors=True)
    distances = np.where(np.isinf(lengths), -1, lengths).astype(np.int64)
    # before[j, i] is the predecessor of i on the path from j to i. The graph is undirected, so it
    # is also the next node on the path from i to j.
    path_edges = np.zeros((num_nodes, num_nodes, path_length, BOND_FEATURES), dtype=np.int32)
    goal = np.broadcast_to(np.arange(num_nodes), (num_nodes, num_nodes))
    here = goal.T.copy()
    for step in range(path_length):
        on_the_way = step < distances
        there = np.where(on_the_way, before[goal, here], here)
        path_edges[:, :, step] = edge_ids[here, there] * on_the_way[:, :, None]
        here = there
    return distances, path_edges


# Number of node axes, number of axes after them, and fill value of padded positions.
_LAYOUTS = {"inputs": (1, 1, 0), "distances": (2, 0, -1), "path_edges": (2, 2, 0)}


@dataclass(frozen=True, kw_only=True)
class GraphShapes(Shapes):
    """Shapes of graphs.

    Attributes:
        path_length: maximum number of edges to store per shortest path.
    """

    path_length: int

    def zeros(self, size: int, output: str) -> Batch:
        nodes = (size, self.tokens)
        pairs = (*nodes, self.tokens)
        edges = (*pairs, self.path_length, BOND_FEATURES)
        return {
            "inputs": torch.zeros(*nodes, ATOM_FEATURES, dtype=torch.int64),
            "key_padding_mask": torch.zeros(*nodes, dtype=torch.bool),
            "distances": torch.zeros(*pairs, dtype=torch.int64),
            "path_edges": torch.zeros(*edges, dtype=torch.int32),
            "labels": torch.zeros(size, dtype=torch.int64),
        }


@dataclass(frozen=True, eq=False)
class GraphSplit:
    """Molecules of one split, selected from the result of `decode_molecules`.

    Attributes:
        arrays: decoded arrays by name.
        rows: indices of the molecules, in order.
        inputs: conversion of atoms and bonds.
    """

    arrays: Mapping[str, Array]
    rows: Integers
    inputs: MoleculeInputs

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Sample:
        """Return a molecule, as `MoleculeInputs.convert`, and its target."""
        atoms, bonds, target = self._molecule(int(self.rows[index]))
        return self.inputs.convert(atoms, bonds), target

    def targets(self) -> NDArray[np.float64]:
        """Return the targets (M,), in order."""
        return self.arrays["targets"].values[self.rows].astype(np.float64)

    def digest(self) -> bytes:
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


@dataclass(frozen=True, eq=False)
class GraphRegression(NumberTask):
    """Regression task with one target number per graph."""

    def collate(self, samples: Sequence[Sample]) -> Batch:
        """Pad graphs to the largest graph of the batch and stack them.

        Returns:
            A batch with these entries:

            - inputs (B, N, F), 0 at padded positions.
            - key_padding_mask (B, N).
            - distances (B, N, N), -1 at padded positions.
            - path_edges (B, N, N, L, E), 0 at padded positions.
            - labels (B,) float32.
        """
        batch = self.stack([graph for graph, _ in samples])
        return {**batch, "labels": self.deviations(samples)}

    def stack(self, inputs: Sequence[Any]) -> Batch:
        """Stack graphs; see `stack_graphs`."""
        return stack_graphs(inputs)


def stack_graphs(graphs: Sequence[Mapping[str, Tensor]]) -> Batch:
    """Pad graphs to the largest one and stack them.

    Args:
        graphs: "inputs" (N, F), "distances" (N, N) and "path_edges" (N, N, L, E) of each graph.

    Returns:
        These entries for all graphs, and "key_padding_mask" (B, N).
    """
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
    return batch
