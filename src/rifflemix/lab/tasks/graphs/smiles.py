"""Decode SMILES to arrays of atoms and bonds with RDKit."""

from __future__ import annotations

import csv
import functools
import hashlib
import importlib
import math
from collections import defaultdict
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rifflemix.errors import require_packages
from rifflemix.lab.tasks.core.base import Progress
from rifflemix.lab.tasks.data_io.files import Arrays, damaged, reading
from rifflemix.lab.tasks.data_io.safe_readers import read_csv_lines

ATOM_FEATURES = 9
BOND_FEATURES = 3
WIDTH = 512
"""Number of ids per feature.

Value v of feature f has id 1 + WIDTH * f + v. Id 0 is padding or a missing bond.
"""

SPLIT_RULES = ("random", "scaffold")
_MOST_ATOMS = (1 << 16) - 1  # bonds store their ends in 16 bits
_HELD_OUT = 10  # one tenth for validation, one tenth for test

_HYBRIDIZATIONS = ("SP", "SP2", "SP3", "SP3D", "SP3D2")
_CHIRALITIES = ("CHI_UNSPECIFIED", "CHI_TETRAHEDRAL_CW", "CHI_TETRAHEDRAL_CCW", "CHI_OTHER")
_BONDS = ("SINGLE", "DOUBLE", "TRIPLE", "AROMATIC")
_STEREOS = ("STEREONONE", "STEREOZ", "STEREOE", "STEREOCIS", "STEREOTRANS", "STEREOANY")


def read_csv(path: Path, smiles: str, target: str) -> Generator[tuple[int, str, float]]:
    """Read the rows with a target from a .csv or .csv.gz file.

    Yields:
        Line number, SMILES and target of each row.

    Raises:
        InputError: the file is damaged, a column is missing, or a target is not a number.
    """
    with reading(path), closing(read_csv_lines(path)) as lines:
        rows = csv.DictReader(lines, strict=True)
        for name in (smiles, target):
            if name not in (rows.fieldnames or ()):
                raise damaged(path, f"it has no column {name!r}")
        for row in rows:
            code, value = row[smiles], row[target]
            if code is None or value is None:
                raise damaged(path, f"line {rows.line_num} is cut off")
            if value.strip():
                yield rows.line_num, code.strip(), _number(path, rows.line_num, value)


def decode_molecules(
    path: Path, rows: Iterable[tuple[int, str, float]], rule: str, progress: Progress
) -> Arrays:
    """Decode molecules and assign them to splits.

    Returns:
        Arrays that concatenate all molecules:

        - "atoms" (A, 9) uint8.
        - "bonds" (E, 5) uint16: both ends within the molecule, and three features.
        - "atom_ends" and "bond_ends" (M,) int64: end of each molecule in "atoms" and "bonds".
        - "targets" (M,) float32.
        - "split_of" (M,) uint8: see `split_groups`.

    Raises:
        InputError: RDKit is missing, there are fewer than ten molecules, a molecule is too large,
            or a SMILES is invalid.
    """
    atoms, bonds = bytearray(), bytearray()
    atom_ends, bond_ends, targets, groups = [], [], [], []
    for done, (line, smiles, target) in enumerate(rows):
        if done % 1000 == 0:
            progress(f"reading molecules of {path.name}", done, None)
        try:
            molecule = read_smiles(smiles)
        except UnreadableSmiles as error:
            raise damaged(path, f"line {line}: {error}") from error
        atoms += molecule.atoms.tobytes()
        bonds += molecule.bonds.tobytes()
        atom_ends.append(len(atoms) // ATOM_FEATURES)
        bond_ends.append(len(bonds) // (2 * (2 + BOND_FEATURES)))
        targets.append(target)
        groups.append(_group(molecule.rdkit, rule))
    if len(targets) < _HELD_OUT:
        raise damaged(path, f"{len(targets)} molecules, expected at least {_HELD_OUT}")
    return {
        "atoms": np.frombuffer(bytes(atoms), dtype=np.uint8).reshape(-1, ATOM_FEATURES),
        "bonds": np.frombuffer(bytes(bonds), dtype=np.uint16).reshape(-1, 2 + BOND_FEATURES),
        "atom_ends": np.array(atom_ends, dtype=np.int64),
        "bond_ends": np.array(bond_ends, dtype=np.int64),
        "targets": np.array(targets, dtype=np.float32),
        "split_of": split_groups(groups, rule),
    }


class UnreadableSmiles(ValueError):
    """A SMILES that is damaged or too large."""


class Molecule(NamedTuple):
    """A decoded molecule.

    Attributes:
        atoms: (N, 9) uint8 features.
        bonds: (E, 5) uint16: both ends, and three features.
        rdkit: molecule of RDKit.
    """

    atoms: NDArray[np.uint8]
    bonds: NDArray[np.uint16]
    rdkit: Any


def read_smiles(smiles: str) -> Molecule:
    """Decode a molecule.

    Raises:
        UnreadableSmiles: RDKit cannot read the SMILES, or the molecule is too large.
        InputError: RDKit is missing.
    """
    molecule = _rdkit().MolFromSmiles(smiles)
    if molecule is None or molecule.GetNumAtoms() == 0:
        raise UnreadableSmiles(f"{smiles!r} is no SMILES that RDKit can read")
    if molecule.GetNumAtoms() > _MOST_ATOMS:
        raise UnreadableSmiles(
            f"expected at most {_MOST_ATOMS:,} atoms, got {molecule.GetNumAtoms():,}"
        )
    atoms = [_atom_features(atom) for atom in molecule.GetAtoms()]
    bonds = [
        (bond.GetBeginAtomIdx(), bond.GetEndAtomIdx(), *_bond_features(bond))
        for bond in molecule.GetBonds()
    ]
    return Molecule(
        np.array(atoms, dtype=np.uint8).reshape(-1, ATOM_FEATURES),
        np.array(bonds, dtype=np.uint16).reshape(-1, 2 + BOND_FEATURES),
        molecule,
    )


def split_groups(groups: Sequence[str], rule: str) -> Any:
    """Assign groups of molecules to 80 / 10 / 10 % splits.

    All members of a group go to the same split. A group that does not fit into any split goes to
    train.

    Args:
        groups: name of the group of each molecule.
        rule: order of the groups. "random" sorts by a hash of the name, so the order of the file
            has no effect. "scaffold" begins with the largest group, as in MoleculeNet, so
            validation and test contain rare scaffolds.

    Returns:
        (M,) uint8: 0 train, 1 validation, 2 test.
    """
    members: dict[str, list[int]] = defaultdict(list)
    for index, name in enumerate(groups):
        members[name].append(index)
    if rule == "scaffold":
        order = sorted(members, key=lambda name: (-len(members[name]), name))
    else:
        order = sorted(members, key=lambda name: hashlib.blake2b(name.encode()).digest())
    held = len(groups) // _HELD_OUT
    room = {0: len(groups) - 2 * held, 1: held, 2: held}
    split_of = np.zeros(len(groups), dtype=np.uint8)
    for name in order:
        part = next((p for p in room if room[p] >= len(members[name])), 0)
        room[part] -= len(members[name])
        split_of[members[name]] = part
    return split_of


def _group(molecule: Any, rule: str) -> str:
    """Name the group of a molecule: its canonical SMILES or its scaffold."""
    if rule == "random":
        return _rdkit().MolToSmiles(molecule)
    scaffolds: Any = importlib.import_module("rdkit.Chem.Scaffolds.MurckoScaffold")
    return scaffolds.MurckoScaffoldSmiles(mol=molecule, includeChirality=False)


def _atom_features(atom: Any) -> tuple[int, ...]:
    """Compute the nine atom features of the Open Graph Benchmark."""
    return (
        min(atom.GetAtomicNum(), 119) - 1 if atom.GetAtomicNum() > 0 else 118,
        _position(str(atom.GetChiralTag()), _CHIRALITIES),
        min(atom.GetTotalDegree(), 11),
        atom.GetFormalCharge() + 5 if -5 <= atom.GetFormalCharge() <= 5 else 11,
        min(atom.GetTotalNumHs(), 9),
        min(atom.GetNumRadicalElectrons(), 5),
        _position(str(atom.GetHybridization()), _HYBRIDIZATIONS),
        int(atom.GetIsAromatic()),
        int(atom.IsInRing()),
    )


def _bond_features(bond: Any) -> tuple[int, ...]:
    """Compute the three bond features of the Open Graph Benchmark."""
    return (
        _position(str(bond.GetBondType()), _BONDS),
        _position(str(bond.GetStereo()), _STEREOS),
        int(bond.GetIsConjugated()),
    )


def _position(name: str, known: Sequence[str]) -> int:
    """Return the index of `name` in `known`, or `len(known)` if it is missing."""
    return known.index(name) if name in known else len(known)


# The loss squares errors in float32.
_LARGEST = math.sqrt(float(np.finfo(np.float32).max))


def _number(path: Path, line: int, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not abs(number) <= _LARGEST:
        raise damaged(path, f"line {line}: {value[:40]!r} is not a finite float32 number")
    return number


@functools.cache
def _rdkit() -> Any:
    require_packages("reading molecules", "graph", "rdkit")
    # decode_molecules reports invalid SMILES
    importlib.import_module("rdkit.RDLogger").DisableLog("rdApp.*")
    return importlib.import_module("rdkit.Chem")
