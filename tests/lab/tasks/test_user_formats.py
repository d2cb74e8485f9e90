"""Formats of user tables: Parquet, Arrow and FASTA."""

import json

import numpy as np
import pytest

import rifflemix as rm
from rifflemix.errors import InputError
from rifflemix.lab.trained.data import read_inputs

pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow")

TEXTS = [f"text number {n}" for n in range(40)]
CLASSES = ["odd" if n % 2 else "even" for n in range(40)]


def write(path, table):
    """Write a table of pyarrow in the format of the file's extension."""
    from pyarrow import ipc, parquet

    if path.suffix == ".parquet":
        parquet.write_table(table, path, row_group_size=7)
    elif path.suffix == ".feather":
        with ipc.new_file(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=7)
    else:  # as the datasets library
        with ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=7)
    return path


def contents(task):
    return [
        (np.asarray(x).tolist(), np.asarray(y).tolist())
        for name in ("train", "validation", "test")
        for x, y in (task.split(name)[i] for i in range(len(task.split(name))))
    ]


@pytest.mark.parametrize("ending", [".parquet", ".feather", ".arrow"])
def test_arrow_tables_give_the_samples_of_json_lines(tmp_path, ending):
    rows = [{"text": x, "label": y} for x, y in zip(TEXTS, CLASSES, strict=True)]
    lines = tmp_path / "rows.jsonl"
    lines.write_text("\n".join(map(json.dumps, rows)))
    table = write(tmp_path / f"rows{ending}", pyarrow.Table.from_pylist(rows))
    wanted = {"input": "text", "label": "label"}
    task = rm.Task.from_csv(table, **wanted)
    assert contents(task) == contents(rm.Task.from_csv(lines, **wanted))
    named = rm.tasks.load_task("parquet", data=str(table), **wanted)
    assert contents(named) == contents(task)
    assert read_inputs(task.inputs, table, "text").values == TEXTS


def test_lists_of_numbers_in_a_parquet_file_are_sequences(tmp_path):
    x = [[[0.5 * n, 1.0]] * (1 + n % 3) for n in range(40)]
    path = write(tmp_path / "rows.parquet", pyarrow.table({"x": x, "y": CLASSES}))
    task = rm.Task.from_csv(path, input="x", label="y")
    assert (task.input_kind, task.num_features, task.max_length) == ("vectors", 2, 3)


def test_a_parquet_file_of_datasets_contains_recordings(tmp_path):
    soundfile = pytest.importorskip("soundfile", reason="needs soundfile")
    cells = []
    for number in range(20):
        path = tmp_path / f"{number}.wav"
        soundfile.write(path, np.linspace(-0.5, 0.5, 40 + number), 8000)
        content = path.read_bytes() if number % 2 else None
        cells.append({"bytes": content, "path": path.name})
    table = write(tmp_path / "rows.parquet", pyarrow.table({"audio": cells, "y": CLASSES[:20]}))
    task = rm.Task.from_csv(table, input="audio", label="y", frame=8)
    assert (task.inputs.rate, task.max_length) == (8000, 8)
    files = [tmp_path / f"{number}.wav" for number in range(20)]
    given = task.inputs.encode(read_inputs(task.inputs, table).values)
    assert all(a.equal(b) for a, b in zip(given, task.inputs.encode(files), strict=True))
    cells[3] = {"bytes": None, "path": None}
    write(table, pyarrow.table({"audio": cells, "y": CLASSES[:20]}))
    with pytest.raises(InputError, match="row 4: "):
        rm.Task.from_csv(table, input="audio", label="y")


def test_a_folder_of_parquet_files_has_given_splits(tmp_path):
    for name, end in (("train", 40), ("val", 12), ("test", 20)):
        y = ["a", "b"] * (end // 2)
        text = [f"{name} {n}" for n in range(end)]
        write(tmp_path / f"{name}.parquet", pyarrow.table({"text": text, "label": y}))
    task = rm.Task.from_folder(tmp_path)
    assert [len(task.split(name)) for name in ("train", "validation", "test")] == [40, 12, 20]


@pytest.mark.parametrize("ending", [".parquet", ".arrow"])
def test_file_with_the_wrong_extension_is_refused(tmp_path, ending):
    path = tmp_path / f"rows{ending}"
    path.write_text("text,label\na,b\n")
    with pytest.raises(InputError, match=f"rows{ending}: .*damaged"):
        rm.Task.from_csv(path, input="text", label="label")


def test_missing_columns_and_values_of_a_parquet_file_are_named(tmp_path):
    values = [None if n == 3 else text for n, text in enumerate(TEXTS)]
    path = write(tmp_path / "rows.parquet", pyarrow.table({"text": values, "y": CLASSES}))
    with pytest.raises(InputError, match="'label'"):
        rm.Task.from_csv(path, input="text", label="label")
    with pytest.raises(InputError, match=r"row 4: .*'text'"):
        rm.Task.from_csv(path, input="text", label="y")


def fasta(path, count=40):
    lines = [
        f">p{n} of a test class={('other', 'tata')[n % 2]}\nACGT{'ta' * (n % 3)}\n{'GC' * (n + 1)}"
        for n in range(count)
    ]
    path.write_text("\n".join(lines))
    return path


def test_fasta_records_have_labels_in_their_headers(tmp_path):
    task = rm.tasks.load_task("fasta", data=str(fasta(tmp_path / "p.fa")), label="class")
    assert task.classes == ("other", "tata")
    read = {bytes((np.asarray(x) - 1).astype(np.uint8)).decode() for x, _ in contents(task)}
    assert "ACGTTATA" + "GC" * 6 in read
    assert read_inputs(task.inputs, tmp_path / "p.fa").values[0] == "ACGTGC"


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("ACGT\n", "line 1: .*'>'"),
        (">a\n>b\nAC\n", "line 1"),
        (">a\nAC GT!\n", "line 2"),
        (">a x=1\nACGT\n", "'class'"),
    ],
)
def test_damaged_fasta_files_are_refused_with_their_line(tmp_path, content, match):
    path = tmp_path / "p.fasta"
    path.write_text(content)
    with pytest.raises(InputError, match=match):
        rm.Task.from_csv(path, input="sequence", label="class")


def test_token_ids_of_a_table_are_whole_numbers(tmp_path):
    task = rm.Task.from_arrays(np.arange(80).reshape(40, 2), CLASSES)
    path = tmp_path / "new.csv"
    path.write_text("a,b\n1,2\n3,2.5\n")
    with pytest.raises(InputError, match=r"line 3: .*whole"):
        read_inputs(task.inputs, path, "a,b")
    path.write_text("a,b\n1,2\n3,4\n")
    assert read_inputs(task.inputs, path, "a,b").values.tolist() == [[1, 2], [3, 4]]
