"""Tests of molecules: features, shortest paths, splits, regression and training."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import pickle
import re
from collections import deque
from pathlib import Path

import numpy as np
import pytest
import torch

import rifflemix as rm
from rifflemix.lab.tasks import load_task
from rifflemix.lab.tasks.graphs.graphs import GraphRegression, graph_paths
from rifflemix.lab.tasks.graphs.smiles import split_groups
from rifflemix.lab.tasks.registry import task_status

pytest.importorskip("rdkit")

HEADER = "smiles,measured log solubility in mols per litre"
SMILES = ["C", "CC", "CCO", "c1ccccc1", "CC(=O)O", "C1CC1", "OC", "Cl", "Br", "F"]


def write(data: Path, rows: list[str], name: str = "esol_delaney.csv") -> Path:
    path = data / name
    content = "\n".join(rows) + "\n"
    path.write_bytes(gzip.compress(content.encode()) if name.endswith("gz") else content.encode())
    return path


@pytest.fixture
def table(data: Path) -> Path:
    chains = [f"{'C' * extra}{smiles}" for extra in range(3) for smiles in SMILES]
    write(data, [HEADER, *[f"{chain},{chain.count('C')}.5" for chain in chains]])
    return data


def walk(num_nodes: int, bonds: np.ndarray) -> np.ndarray:
    """Compute distances by breadth-first search."""
    near: dict[int, set[int]] = {i: set() for i in range(num_nodes)}
    for a, b in bonds[:, :2].tolist():
        near[a].add(b)
        near[b].add(a)
    distances = np.full((num_nodes, num_nodes), -1)
    for start in range(num_nodes):
        distances[start, start] = 0
        queue = deque([start])
        while queue:
            here = queue.popleft()
            for there in near[here]:
                if distances[start, there] < 0:
                    distances[start, there] = distances[start, here] + 1
                    queue.append(there)
    return distances


def random_bonds(rng: np.random.Generator, num_nodes: int) -> np.ndarray:
    pairs = [p for p in itertools.combinations(range(num_nodes), 2) if rng.random() < 0.3]
    features = rng.integers(0, 5, (len(pairs), 3))
    ends = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return np.concatenate((ends, features), axis=1).astype(np.uint16)


@pytest.mark.parametrize("seed", range(8))
def test_paths_are_shortest_and_contain_their_edges(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_nodes = int(rng.integers(1, 9))
    bonds = random_bonds(rng, num_nodes)
    distances, path_edges = graph_paths(num_nodes, bonds, 4)
    np.testing.assert_array_equal(distances, walk(num_nodes, bonds))
    kinds = {frozenset(b[:2]): 1 + 512 * np.arange(3) + b[2:] for b in bonds.astype(int).tolist()}
    for i, j in itertools.product(range(num_nodes), repeat=2):
        reached = {i}  # last nodes of all paths with these edges
        for hop in range(4):
            ids = path_edges[i, j, hop]
            if hop >= distances[i, j]:
                assert not ids.any()
                continue
            reached = {
                there
                for here in reached
                for there in range(num_nodes)
                if np.array_equal(kinds.get(frozenset((here, there)), []), ids)
                and (there == j or distances[there, j] == distances[i, j] - hop - 1)
            }
            assert reached
        if 0 < distances[i, j] <= 4:
            assert j in reached


def test_features_of_ethanol(table: Path) -> None:
    task = load_task("esol", data_dir=table)
    graphs = [task.split(s)[i] for s in task.splits for i in range(len(task.split(s)))]
    ethanol = next(g for g, _ in graphs if g["inputs"][:, 0].tolist() == [6, 6, 8])
    carbon, oxygen = ethanol["inputs"][0] - 1, ethanol["inputs"][2] - 1
    offsets = 512 * torch.arange(9)
    assert (carbon - offsets).tolist() == [5, 0, 4, 5, 3, 0, 2, 0, 0]
    assert (oxygen - offsets).tolist() == [7, 0, 2, 5, 1, 0, 2, 0, 0]
    assert ethanol["distances"].tolist() == [[0, 1, 2], [1, 0, 1], [2, 1, 0]]
    assert ethanol["path_edges"][0, 2, :3].tolist() == [[1, 513, 1025]] * 2 + [[0, 0, 0]]


def test_parts_of_a_salt_are_apart(data: Path) -> None:
    write(data, [HEADER, *[f"{'C' * (i + 1)}[NH3+].[Cl-],{i}.0" for i in range(10)]])
    graph, _ = load_task("esol", data_dir=data).split("train")[0]
    assert (graph["distances"][-1, :-1] == -1).all()
    assert (graph["distances"][:-1, :-1] >= 0).all()


def test_equal_molecules_give_an_empty_test_split(data: Path) -> None:
    write(data, [HEADER, *[f"{smiles},1.0" for smiles in ["CCO", "OCC"] * 5]])
    with pytest.raises(rm.InputError, match=r"esol_delaney\.csv"):
        load_task("esol", data_dir=data)


def test_batches_are_padded(table: Path) -> None:
    task = load_task("esol", data_dir=table)
    split = task.split("train")
    batch = task.collate([split[i] for i in range(4)])
    sizes = (~batch["key_padding_mask"]).sum(1)
    longest = int(sizes.max())
    assert batch["inputs"].shape == (4, longest, 9)
    assert batch["path_edges"].shape == (4, longest, longest, 5, 3)
    for row, size in enumerate(sizes.tolist()):
        assert (batch["inputs"][row, size:] == 0).all()
        assert (batch["distances"][row, size:] == -1).all()
        assert (batch["distances"][row, :, size:] == -1).all()
        assert torch.equal(batch["distances"][row, :size, :size], split[row][0]["distances"])
    assert batch["labels"].dtype == torch.float32


def test_metrics_are_in_the_units_of_the_data(table: Path) -> None:
    task = load_task("esol", data_dir=table)
    assert isinstance(task, GraphRegression)
    assert (task.metric, task.higher_is_better, task.num_classes) == ("rmse", False, 1)
    train = task.split("train").targets()
    assert task.target_mean == pytest.approx(train.mean())
    assert task.target_std == pytest.approx(train.std())
    labels = (torch.tensor([0.0, 1.0]) - task.target_mean) / task.target_std
    outputs = (torch.tensor([[3.0], [5.0]]) - task.target_mean) / task.target_std
    metrics = task.metrics(outputs, {"labels": labels})
    assert metrics["mse"] == (pytest.approx(25.0, rel=1e-4), 2)
    assert metrics["mae"] == (pytest.approx(7.0, rel=1e-4), 2)
    means = {name: total / count for name, (total, count) in metrics.items()}
    assert task.summarise(means)["rmse"] == pytest.approx(12.5**0.5)
    loss = task.loss(outputs, {"labels": labels})
    assert loss.item() == pytest.approx(12.5 / task.target_std**2, rel=1e-4)
    with pytest.raises(rm.InputError, match=r"outputs: .*\(B, 1\).*\(2, 1\)"):
        task.loss(torch.zeros(2, 3), {"labels": labels})


@pytest.mark.parametrize("rule", ["random", "scaffold"])
def test_splits_are_complete_and_groups_stay_in_one_split(rule: str) -> None:
    groups = [f"g{i % 23}" for i in range(200)]
    code = split_groups(groups, rule)
    assert (code == split_groups(groups, rule)).all()
    counts = np.bincount(code, minlength=3)
    assert counts[0] == pytest.approx(160, abs=9)
    assert counts.sum() == 200
    assert all(
        len({c for c, g in zip(code, groups, strict=True) if g == name}) == 1 for name in groups
    )


def test_a_random_split_does_not_follow_the_order_of_the_file() -> None:
    groups = [f"g{i}" for i in range(100)]
    forward = split_groups(groups, "random")
    backward = split_groups(groups[::-1], "random")[::-1]
    assert (forward == backward).all()
    assert np.bincount(forward).tolist() == [80, 10, 10]


def test_scaffold_split_puts_the_largest_groups_into_training() -> None:
    groups = ["big"] * 60 + [f"s{i}" for i in range(40)]
    code = split_groups(groups, "scaffold")
    assert (code[:60] == 0).all()
    assert np.bincount(code).tolist() == [80, 10, 10]


def test_pcqm4m_reads_the_benchmark_file_without_hidden_targets(data: Path) -> None:
    rows = [f"{i},{'C' * (i + 1)},{i}.5" for i in range(12)] + ["12,CCO,"]
    folder = data / "pcqm4m-v2" / "raw"
    folder.mkdir(parents=True)
    write(folder, ["idx,smiles,homolumogap", *rows], "data.csv.gz")
    task = load_task("pcqm4m", data_dir=data)
    assert sum(len(task.split(s)) for s in task.splits) == 12
    assert (task.metric, task.loss_kind) == ("mae", "mae")
    few = load_task("pcqm4m", data_dir=data, max_rows=10)
    assert sum(len(few.split(s)) for s in few.splits) == 10
    assert task_status("pcqm4m", data).available


DAMAGE = {
    "smiles": ([HEADER, *["C,1"] * 10, "C(C,1"], r"\b12: 'C\(C' .*SMILES"),
    "number": ([HEADER, "C,wet"], r"\b2: 'wet' .*float32"),
    "column": (["smiles,logp", "C,1"], r"esol_delaney\.csv"),
    "few": ([HEADER, "C,1"], r"\b1 molecules\b.*\b10\b"),
    "cut": ([HEADER, "C"], "line 2 "),
}


@pytest.mark.parametrize(("rows", "words"), DAMAGE.values(), ids=DAMAGE)
def test_damage_is_named(rows: list[str], words: str, data: Path) -> None:
    write(data, rows)
    with pytest.raises(rm.InputError, match=words) as caught:
        load_task("esol", data_dir=data)
    assert "esol_delaney.csv" in str(caught.value)
    assert "\n" not in str(caught.value)
    # The error and its traceback are still alive, but they keep no file open.
    held = [os.path.realpath(path) for path in Path("/proc/self/fd").glob("*")]
    assert not any("esol_delaney.csv" in name for name in held)


def test_missing_file_and_bad_options(table: Path, data: Path) -> None:
    with pytest.raises(rm.InputError, match=r"FreeSolv.*SAMPL.csv"):
        load_task("freesolv", data_dir=data)
    for option, value in (("split", "sorted"), ("path_length", 0), ("max_rows", 3)):
        with pytest.raises(rm.InputError, match=option):
            load_task("esol", data_dir=table, **{option: value})


def test_splits_pickle_and_fingerprints_depend_on_the_split(table: Path) -> None:
    task = load_task("esol", data_dir=table)
    again = pickle.loads(pickle.dumps(task.split("train")))
    assert torch.equal(again[1][0]["path_edges"], task.split("train")[1][0]["path_edges"])
    scaffold = load_task("esol", data_dir=table, split="scaffold")
    assert scaffold.fingerprint() != task.fingerprint()


SIZES = [("esol", 1128, (904, 112, 112)), ("freesolv", 643, (515, 64, 64))]


@pytest.mark.parametrize(("name", "total", "sizes"), SIZES, ids=["esol", "freesolv"])
def test_real_files_are_read(
    name: str, total: int, sizes: tuple[int, ...], shared_data: Path
) -> None:
    task = load_task(name, data_dir=shared_data)
    assert tuple(len(task.split(s)) for s in ("train", "validation", "test")) == sizes
    assert sum(sizes) == total


def test_graphormer_trains_on_molecules(table: Path, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    from rifflemix.lab.train import TrainConfig, train

    task = load_task("esol", data_dir=table)
    torch.manual_seed(0)
    model = rm.create_model(
        "sliceformer_graph_pcqm4m", dim=16, num_layers=1, num_heads=2, dropout=0.0, num_hops=5
    )
    config = TrainConfig(max_steps=30, batch_size=8, lr=0.01, eval_every=10)
    result = train(model, task, config, tmp_path / "run", device="cpu")
    assert result.finished
    assert result.metric == "rmse"
    split = task.split("train")
    batch = task.collate([split[i] for i in range(len(split))])
    extra = {name: batch[name] for name in ("distances", "path_edges", "key_padding_mask")}
    assert task.loss(model(batch["inputs"], **extra), batch).item() < 0.5  # a constant: 1
    assert result.test["rmse"] == pytest.approx(result.test["mse"] ** 0.5)


@pytest.mark.slow
def test_mixers_train_and_compare_from_the_command_line(table: Path, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    from typer.testing import CliRunner

    from rifflemix.cli.app import app

    def run(*words: str, out: str = "") -> tuple[int, str]:
        options = ["--data-dir", str(table), "--out", str(tmp_path / (out or words[0]))]
        done = CliRunner().invoke(app, [*words, "--task", "esol", *options])
        return done.exit_code, done.output + str(done.exception or "")

    small = ["--dim", "8", "--layers", "1", "--heads", "2", "--max-steps", "2"]
    code, output = run("train", "--mixer", "sliceformer", "--batch-size", "4", *small)
    assert code == 0, output
    assert "test rmse" in output
    code, output = run("compare", "--batch-size", "4", *small)
    assert code == 0, output
    assert "Test rmse" in output
    assert re.search(r"left out: .*\bcsp\b", output)
    results = json.loads((tmp_path / "compare" / "results.json").read_text())
    assert [mixer["name"] for mixer in results["mixers"]] == ["softmax", "sliceformer"]
    for mixer in results["mixers"]:
        assert mixer["test"] is None
        assert mixer["metric"]["test"]["n"] == 1
    page = (tmp_path / "compare" / "report.html").read_text()
    assert "Rmse" in page
    assert "accuracy" not in page
    assert "1 classes" not in page
    small += ["--batch-size", "4"]
    code, output = run("compare", "--mixers", "softmax", "--model", "encoder", *small)
    assert code != 0
    assert re.search("encoder.*esol", output)
    options = ["--mixers", "sliceformer", "--mixer-option", "sliceformer.variant=max_exchange"]
    code, output = run("compare", *options, *small, out="exchange")
    assert code == 0, output
    code, output = run("compare", "--mixers", "csp", *small)
    assert code != 0
    assert re.search("mixer: .*softmax, sliceformer, got 'csp'", output)
