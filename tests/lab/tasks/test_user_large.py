"""Large user data: encoded once, mapped, and resumable."""

import pickle
import warnings

import numpy as np
import pytest

import rifflemix as rm
from rifflemix.errors import InputError
from rifflemix.lab.tasks.core.base import PreparationStopped
from rifflemix.lab.tasks.data_io import columns
from rifflemix.lab.tasks.data_io.splits import duplicates_across_splits
from rifflemix.lab.tasks.user_data import hub, prepared, tables

pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow")

COUNT = 200
TEXTS = [f"text {n} {'long' * (n % 5)}" for n in range(COUNT)]
CLASSES = [n % 3 for n in range(COUNT)]
WANTED = {"input": "text", "label": "label"}


@pytest.fixture
def large(tmp_path, monkeypatch):
    """Keep every table on disk, in a new cache, and read it in small batches."""
    monkeypatch.setenv("RIFFLEMIX_CACHE", str(tmp_path / "cache"))
    for module in (hub, tables):
        monkeypatch.setattr(module, "MOST_IN_MEMORY", 10)
    monkeypatch.setattr(columns, "_BATCH", 16)


def write(path, **columns):
    from pyarrow import parquet

    parquet.write_table(pyarrow.table(columns), path, row_group_size=50)
    return path


def contents(task):
    return {
        name: [(x.tolist(), y) for x, y in map(task.split(name).__getitem__, range(size))]
        for name in ("train", "validation", "test")
        for size in [len(task.split(name))]
    }


@pytest.mark.parametrize("tokenizer", ["bytes", "words", "bpe:270"])
@pytest.mark.filterwarnings("ignore:.*earlier split:rifflemix.errors.InputWarning")
def test_samples_on_disk_equal_samples_in_memory(tmp_path, large, tokenizer):
    pytest.importorskip("tokenizers", reason="needs tokenizers")
    path = write(tmp_path / "rows.parquet", text=TEXTS, label=CLASSES)
    found = rm.Task.from_csv(path, **WANTED, tokenizer=tokenizer)
    expected = rm.Task.from_arrays(TEXTS, CLASSES, tokenizer=tokenizer)
    assert isinstance(found.split("train").samples, prepared.MappedSamples)
    assert contents(found) == contents(expected)
    assert (found.vocab_size, found.max_length) == (expected.vocab_size, expected.max_length)
    assert found.inputs.encode(["a text"])[0].equal(expected.inputs.encode(["a text"])[0])
    assert found.class_counts("test") == expected.class_counts("test")


@pytest.mark.parametrize("tokenizer", ["words", "bpe:270"])
def test_a_tokenizer_of_prepared_texts_is_learned_once(tmp_path, large, tokenizer, monkeypatch):
    pytest.importorskip("tokenizers", reason="needs tokenizers")
    texts = [f"text{n} {'long ' * (n % 5)}" for n in range(COUNT)]
    path = write(tmp_path / "rows.parquet", text=texts, label=CLASSES)
    options = {**WANTED, "tokenizer": tokenizer}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rm.errors.InputWarning)
        first = rm.Task.from_csv(path, **options)
        other = rm.Task.from_csv(path, **options, seed=1)
        monkeypatch.setattr(prepared.ColumnTexts, "chosen", None)
        again = rm.Task.from_csv(path, **options)
    assert again.inputs == first.inputs != other.inputs
    assert contents(again) == contents(first)


@pytest.mark.filterwarnings("ignore:.*earlier split:rifflemix.errors.InputWarning")
def test_splits_are_drawn_once(tmp_path, large, monkeypatch):
    labels = [f"class {n % 3}" for n in range(COUNT)]
    path = write(tmp_path / "rows.parquet", text=TEXTS, label=labels, other=CLASSES)
    first = rm.Task.from_csv(path, **WANTED)
    changes = [{"seed": 1}, {"split": (0.5, 0.3, 0.2)}, {"label": "other"}, {"folds": 3, "fold": 0}]
    others = [rm.Task.from_csv(path, **{**WANTED, **change}) for change in changes]
    monkeypatch.setattr(prepared, "divide", None)
    again = rm.Task.from_csv(path, **WANTED)
    assert contents(again) == contents(first)
    assert (again.classes, again.split_note) == (first.classes, first.split_note)
    assert others[2].classes == ("0", "1", "2")
    for other in others[:2] + others[3:]:
        assert contents(other) != contents(first)


@pytest.mark.filterwarnings("ignore:.*earlier split:rifflemix.errors.InputWarning")
def test_names_of_classes_are_stored_exactly(tmp_path, large):
    path = write(tmp_path / "rows.parquet", text=TEXTS, label=["a", "a\0"] * (COUNT // 2))
    for _ in range(2):  # drawn, then read from the cache
        assert rm.Task.from_csv(path, **WANTED).classes == ("a", "a\0")


@pytest.mark.filterwarnings("ignore:.*earlier split:rifflemix.errors.InputWarning")
def test_several_labels_per_sample_are_read_into_memory(tmp_path, large):
    datasets = pytest.importorskip("datasets", reason="needs datasets")
    labels = [["a"] if n % 2 else ["b", "a"] for n in range(COUNT)]
    path = write(tmp_path / "rows.parquet", text=TEXTS, label=labels)
    data = datasets.Dataset.from_dict({"text": TEXTS, "label": labels})
    for task in (rm.Task.from_csv(path, **WANTED), rm.Task.from_datasets(data, **WANTED)):
        assert (task.of_kind.name, task.classes) == ("multilabel", ("a", "b"))


def test_vectors_and_token_ids_stay_on_disk_too(tmp_path, large):
    vectors = [[[0.5 * n, 1.0]] * (1 + n % 3) for n in range(COUNT)]
    ids = [[n % 7, 3] for n in range(COUNT)]
    path = write(tmp_path / "rows.parquet", x=vectors, ids=ids, y=CLASSES)
    task = rm.Task.from_csv(path, input="x", label="y")
    assert contents(task) == contents(rm.Task.from_arrays([np.array(v) for v in vectors], CLASSES))
    with pytest.warns(rm.errors.InputWarning, match="earlier split"):
        tokens = rm.Task.from_csv(path, input="ids", label="y")
    assert (tokens.vocab_size, tokens.num_features) == (7, None)


def test_data_sets_of_the_library_stay_on_disk_too(large):
    datasets = pytest.importorskip("datasets", reason="needs datasets")
    data = datasets.Dataset.from_dict({"text": TEXTS, "label": CLASSES})
    task = rm.Task.from_datasets(data, **WANTED)
    assert isinstance(task.split("train").samples, prepared.MappedSamples)
    assert contents(task) == contents(rm.Task.from_arrays(TEXTS, CLASSES))
    parts = {"train": data.select(range(150)), "test": data.select(range(150, COUNT))}
    given = rm.Task.from_datasets(parts, **WANTED)
    assert len(given.split("test")) == 50
    ids, label = given.split("test")[0]
    assert (bytes((ids - 1).tolist()).decode(), label) == (TEXTS[150], CLASSES[150])


@pytest.mark.parametrize("stops", [1, 5])
def test_a_stopped_preparation_continues(tmp_path, large, stops):
    path = write(tmp_path / "rows.parquet", text=TEXTS, label=CLASSES)
    seen = []

    def stop(what, done, total):
        seen.append((done, total))
        return len(seen) == stops

    options = {"data": str(path), **WANTED}
    with pytest.raises(PreparationStopped):
        rm.tasks.load_task("parquet", **options, progress=stop)
    done = seen[-1][0]
    assert 0 < done < COUNT
    rest = []
    task = rm.tasks.load_task("parquet", **options, progress=lambda *work: rest.append(work[1]))
    assert rest[0] > done
    assert rest[-1] == COUNT
    assert contents(task) == contents(rm.Task.from_arrays(TEXTS, CLASSES))


def test_a_file_is_encoded_once(tmp_path, large):
    path = write(tmp_path / "rows.parquet", text=TEXTS, label=CLASSES)
    first = rm.Task.from_csv(path, **WANTED)
    work = []
    options = {"data": str(path), **WANTED}
    rm.tasks.load_task("parquet", **options, progress=lambda *done: work.append(done))
    assert not work
    path.unlink()
    write(path, text=[f"new {text}" for text in TEXTS], label=CLASSES)
    assert contents(rm.Task.from_csv(path, **WANTED)) != contents(first)


def test_a_pickled_task_does_not_contain_its_samples(tmp_path, large):
    texts = [f"{n} {'x' * 5000}" for n in range(COUNT)]
    task = rm.Task.from_csv(write(tmp_path / "r.parquet", text=texts, label=CLASSES), **WANTED)
    stored = pickle.dumps(task)
    assert len(stored) < 100_000
    assert contents(pickle.loads(stored)) == contents(task)


@pytest.mark.parametrize(
    ("columns", "match"),
    [
        ({"text": ["", *TEXTS[1:]], "label": CLASSES}, "^x: .*sample 0"),
        ({"text": [*TEXTS[:-1], None], "label": CLASSES}, "^x: "),
        ({"text": TEXTS, "label": [None, *CLASSES[1:]]}, "row 1: .*'label'"),
        ({"text": TEXTS, "other": CLASSES}, "'label'"),
        ({"text": [[1.0]] * 9 + [[float("nan")]] * 191, "label": CLASSES}, "^x: .*sample 9"),
        ({"text": [[[1.0]]] * 9 + [[[1.0, 2.0]]] * 191, "label": CLASSES}, "^x: .*sample 9"),
        ({"text": [[1]] * 9 + [[-1]] * 191, "label": CLASSES}, "^x: .* 9"),
    ],
)
def test_damaged_rows_are_refused(tmp_path, large, columns, match):
    with pytest.raises(InputError, match=match):
        rm.Task.from_csv(write(tmp_path / "rows.parquet", **columns), **WANTED)


def test_duplicates_are_counted_with_their_repetitions():
    hashes = {"train": np.array([1, 2, 2]), "validation": np.array([2, 2, 9]), "test": iter([9, 7])}
    assert "2 of validation and 1 of test" in duplicates_across_splits(hashes)
