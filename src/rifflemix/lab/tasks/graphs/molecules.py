"""Regression of molecular properties from SMILES: ESOL, FreeSolv and PCQM4M."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np

from rifflemix.errors import InputError, check_choice
from rifflemix.lab.tasks.core.base import SPLITS, Progress
from rifflemix.lab.tasks.core.builder import Request, check_integer
from rifflemix.lab.tasks.core.card import TaskCard
from rifflemix.lab.tasks.data_io.file_task import FileTask, Form, Options, Paths
from rifflemix.lab.tasks.data_io.files import Array, Arrays, Source
from rifflemix.lab.tasks.graphs.graphs import (
    GraphRegression,
    GraphShapes,
    GraphSplit,
    MoleculeInputs,
)
from rifflemix.lab.tasks.graphs.smiles import (
    ATOM_FEATURES,
    SPLIT_RULES,
    WIDTH,
    decode_molecules,
    read_csv,
)

_VERSION = 1
_LAYOUT = (
    "Atoms with nine features, bonds with three, as the Open Graph Benchmark has them. split "
    "random: 80 / 10 / 10 % by a hash of the canonical SMILES; scaffold: the same shares, the "
    "largest Bemis-Murcko scaffolds for training. Equal molecules are never in two splits."
)


@dataclass(frozen=True)
class Molecules(FileTask):
    """Regression task over a table of SMILES with one number each.

    Attributes:
        card: description of the task.
        files: possible names of the table, or paths below the data folder.
        smiles: name of the column with the SMILES.
        target: name of the column with the target.
        metric: "rmse" or "mae".
        get_it: download instructions for the table.
    """

    card: TaskCard
    files: tuple[str, ...]
    smiles: str
    target: str
    metric: str
    get_it: str

    def check(self, options: Options) -> None:
        check_choice("split", options["split"], SPLIT_RULES)
        check_integer(options, "path_length", 1, 64)
        if options["max_rows"] is not None:
            check_integer(options, "max_rows", 10)

    def key(self, options: Options) -> tuple[object, ...]:
        return _VERSION, options["split"], options["max_rows"]

    def forms(self, options: Options) -> Sequence[Form]:
        """List the table under each of its possible names."""
        read = partial(self._decode, options)
        return [Form("{table}", {"table": name}, read) for name in self.files]

    def build(
        self, request: Request, source: Source, arrays: Mapping[str, Array]
    ) -> GraphRegression:
        inputs = MoleculeInputs(int(request.options["path_length"]))
        split_of = np.asarray(arrays["split_of"].values)
        splits = {
            name: GraphSplit(arrays, np.flatnonzero(split_of == code), inputs)
            for code, name in enumerate(SPLITS)
        }
        for name, split in splits.items():
            if len(split) == 0:
                raise InputError(
                    f"task {self.card.name}: {source.name} leaves no molecules for the {name} split"
                )
        train = splits["train"].targets()
        sizes = np.diff(arrays["atom_ends"].values, prepend=0)
        rule = request.options["split"]
        return GraphRegression(
            name=self.card.name,
            options=dict(request.options),
            input_kind="graphs",
            vocab_size=1 + WIDTH * ATOM_FEATURES,
            num_features=ATOM_FEATURES,
            num_classes=1,
            max_length=int(sizes.max()),
            padding=True,
            split_note=f"80 / 10 / 10 % train / validation / test, {rule} by molecule, no seed",
            data_source=source.description,
            splits=splits,
            metric=self.metric,
            higher_is_better=False,
            target_mean=float(train.mean()),
            target_std=float(train.std()) or 1.0,
            inputs=inputs,
            loss_kind={"rmse": "mse", "mae": "mae"}[self.metric],
        )

    def _decode(self, options: Options, paths: Paths, progress: Progress) -> Arrays:
        path = paths["table"]
        with closing(read_csv(path, self.smiles, self.target)) as table:
            rows = islice(table, options["max_rows"])
            return decode_molecules(path, rows, options["split"], progress)


def _pcqm4m_shapes(options: Options) -> GraphShapes:
    return GraphShapes(
        input_kind="graphs",
        num_classes=1,
        max_length=51,
        vocab_size=1 + WIDTH * ATOM_FEATURES,
        num_features=ATOM_FEATURES,
        padding=True,
        longest=20,
        path_length=options["path_length"],
    )


def _card(
    name: str,
    title: str,
    source: str,
    licence: str,
    description: str,
    shapes: Callable[[Options], GraphShapes] | None = None,
) -> TaskCard:
    return TaskCard(
        name=name,
        title=title,
        source=source,
        licence=licence,
        description=f"{description} {_LAYOUT}",
        needs_data=True,
        output="number",
        backbone="graphormer_pcqm4m",
        options={"split": "random", "path_length": 5, "max_rows": None},
        shapes=shapes,
    )


ESOL = Molecules(
    card=_card(
        "esol",
        "ESOL",
        "Delaney, ESOL: Estimating Aqueous Solubility Directly from Molecular Structure (2004)",
        "MIT (the file of DeepChem)",
        "Solubility in water of 1,128 molecules, log mol/l; the root mean squared error counts.",
    ),
    files=("esol_delaney.csv", "delaney-processed.csv"),
    smiles="smiles",
    target="measured log solubility in mols per litre",
    metric="rmse",
    get_it="delaney-processed.csv from https://github.com/deepchem/deepchem/tree/master/datasets",
)

FREESOLV = Molecules(
    card=_card(
        "freesolv",
        "FreeSolv",
        "Mobley and Guthrie, FreeSolv: a database of hydration free energies (2014)",
        "MIT (the file of DeepChem)",
        "Free energy of hydration of 642 molecules, kcal/mol; the root mean squared error counts.",
    ),
    files=("freesolv_sampl.csv", "SAMPL.csv"),
    smiles="smiles",
    target="expt",
    metric="rmse",
    get_it="SAMPL.csv from https://github.com/deepchem/deepchem/tree/master/examples/sampl",
)

PCQM4M = Molecules(
    card=_card(
        "pcqm4m",
        "PCQM4M",
        "Hu et al., OGB-LSC: A Large-Scale Challenge for Machine Learning on Graphs (2021)",
        "CC BY 4.0",
        "HOMO-LUMO gap of about 3.8 million molecules, eV; the mean absolute error counts. Its "
        "own splits are pickles that rifflemix does not read, and its test targets are hidden: "
        "rows without a target are left out and the others split here. max_rows takes the "
        "first rows only.",
        _pcqm4m_shapes,
    ),
    files=(
        "pcqm4m.csv",
        "pcqm4m_kddcup2021/raw/data.csv.gz",
        "pcqm4m-v2/raw/data.csv.gz",
        "data.csv.gz",
    ),
    smiles="smiles",
    target="homolumogap",
    metric="mae",
    get_it="the raw data.csv.gz of https://ogb.stanford.edu/docs/lsc/pcqm4mv2",
)
