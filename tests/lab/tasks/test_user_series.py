"""Series of user data: channels, scales, gaps, frames and recordings."""

import json

import numpy as np
import pytest

import rifflemix as rm
from rifflemix.errors import InputError, InputWarning
from rifflemix.lab.tasks.user_data.splits import frame_counts, to_frames
from rifflemix.lab.trained.data import read_inputs

RANDOM = np.random.default_rng(0)
SERIES = [RANDOM.normal(3, 5, size=(6 + n % 5, 2)).astype(np.float32) for n in range(40)]
LABELS = ["a", "b"] * 20
SPLIT = {"train": range(24), "validation": range(24, 32), "test": range(32, 40)}


def task_of(series=SERIES, **options):
    return rm.Task.from_arrays(series, LABELS, split=SPLIT, **options)


def test_channels_are_scaled_with_the_training_split():
    task = task_of(normalize=True)
    train = np.concatenate([task.split("train")[n][0].numpy() for n in range(24)])
    np.testing.assert_allclose(train.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(train.std(0), 1, atol=1e-5)
    joined = np.concatenate(SERIES[:24])
    test = task.split("test")[0][0].numpy()
    expected = (SERIES[32] - joined.mean(0)) / joined.std(0)
    np.testing.assert_allclose(test, expected, atol=1e-5)


@pytest.mark.parametrize(
    "options", [{"normalize": True}, {"frame": 3, "hop": 2}, {"missing": "mask"}]
)
def test_predictions_convert_series_like_training(options):
    task = task_of(**options)
    for row, encoded in enumerate(task.inputs.encode(SERIES[24:32])):
        assert encoded.equal(task.split("validation")[row][0])


def test_lists_and_padded_rows_are_equal():
    lengths = [len(one) for one in SERIES]
    rows = np.zeros((40, max(lengths), 2), dtype=np.float32)
    for row, one in zip(rows, SERIES, strict=True):
        row[: len(one)] = one
    options = {"normalize": True, "frame": 3, "hop": 2}
    listed, padded = task_of(**options), task_of(rows, lengths=lengths, **options)
    for name in SPLIT:
        for index in range(len(listed.split(name))):
            assert listed.split(name)[index][0].equal(padded.split(name)[index][0])


def test_missing_values_have_separate_channels():
    gaps = [one.copy() for one in SERIES]
    gaps[0][1, 0] = np.nan
    gaps[30][2, 1] = np.nan
    task = task_of(gaps, missing="mask", normalize=True)
    assert task.num_features == 4
    values = task.split("train")[0][0]
    assert values[1].tolist()[::2] == [0.0, 1.0]
    assert values[:, 2:].sum() == 1
    assert task.split("validation")[6][0][2, [1, 3]].tolist() == [0.0, 1.0]
    with pytest.raises(InputError, match=r"^x: .*sample 0.*missing"):
        task_of(gaps)


@pytest.mark.parametrize("missing", ["error", "mask"])
def test_infinity_is_refused(missing):
    series = [*SERIES[:-1], np.full((3, 2), np.inf)]
    with pytest.raises(InputError, match=r"^x: .*inf in sample 39"):
        task_of(series, missing=missing)


def test_frames_cover_every_step():
    values = np.arange(10, dtype=np.float32).reshape(5, 2)
    assert to_frames(values, 3, 2).tolist() == [[0, 1, 2, 3, 4, 5], [4, 5, 6, 7, 8, 9]]
    assert to_frames(values, 4, 4).tolist()[1] == [8, 9, 0, 0, 0, 0, 0, 0]
    for length in range(1, 30):
        for frame, hop in ((1, 1), (4, 4), (5, 2), (40, 7)):
            count = frame_counts(np.array([length]), frame, hop)[0]
            assert len(to_frames(np.ones((length, 1), dtype=np.float32), frame, hop)) == count
            assert (count - 1) * hop + frame >= length


def test_long_series_become_short_sequences_of_frames():
    long = [RANDOM.normal(size=(100_000 + n, 1)) for n in range(6)] * 1
    split = {"train": range(4), "validation": [4], "test": [5]}
    task = rm.Task.from_arrays(long, [0, 1, 0, 1, 0, 1], split=split, frame=400, hop=160)
    assert (task.num_features, task.max_length) == (400, 624)
    with pytest.warns(InputWarning, match="6 of 6"):
        cut = rm.Task.from_arrays(
            long, [0, 1, 0, 1, 0, 1], split=split, frame=400, hop=160, max_length=100
        )
    assert cut.max_length == len(cut.split("test")[0][0]) == 100
    with pytest.raises(InputError, match=r"^x: .*vectors"):
        rm.Task.from_arrays(long, [0, 1, 0, 1, 0, 1], split=split, normalize=True)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"frame": 0}, "frame"),
        ({"hop": 2}, "hop"),
        ({"frame": 2, "hop": 3}, "hop"),
        ({"missing": "drop"}, "missing"),
        ({"normalize": "yes"}, "normalize"),
    ],
)
def test_impossible_options_are_refused(options, name):
    with pytest.raises(InputError, match=rf"^{name}\b"):
        task_of(**options)


def test_tokens_and_texts_have_no_frames():
    with pytest.raises(InputError, match=r"^frame"):
        rm.Task.from_arrays([f"text {n}" for n in range(40)], LABELS, split=SPLIT, frame=2)


def recordings(folder, ending, rate=8000):
    soundfile = pytest.importorskip("soundfile", reason="needs soundfile")
    paths = []
    for n, one in enumerate(SERIES):
        paths.append(folder / f"{n}{ending}")
        if ending == ".npy":
            np.save(paths[-1], one)
        else:
            soundfile.write(paths[-1], np.clip(one / 20, -1, 1), rate)
    return paths


@pytest.mark.parametrize("ending", [".wav", ".flac", ".npy"])
def test_recordings_are_read_from_their_files(tmp_path, ending):
    paths = recordings(tmp_path, ending)
    task = task_of(paths, frame=2)
    assert (task.num_features, task.inputs.rate) == (4, None if ending == ".npy" else 8000)
    lines = ["file,label", *(f"{p.name},{y}" for p, y in zip(paths, LABELS, strict=True))]
    (tmp_path / "table.csv").write_text("\n".join(lines))
    table = rm.tasks.load_task(
        "csv", data=str(tmp_path / "table.csv"), input="file", label="label", frame=2
    )
    assert table.num_features == 4
    for source, column in ((tmp_path / "table.csv", "file"), (tmp_path, None)):
        assert len(read_inputs(task.inputs, source, column).values) == 40
    (encoded,) = task.inputs.encode([paths[0]])
    assert encoded.equal(task.split("train")[0][0])


def test_recordings_that_differ_or_are_damaged_are_refused(tmp_path):
    soundfile = pytest.importorskip("soundfile", reason="needs soundfile")
    paths = recordings(tmp_path, ".wav")
    soundfile.write(paths[7], SERIES[7] / 20, 16_000)
    with pytest.raises(InputError, match=r"7\.wav: .*8,000.*16,000"):
        task_of(paths)
    soundfile.write(paths[7], SERIES[7][:, :1] / 20, 8000)
    with pytest.raises(InputError, match=r"7\.wav: .*2 channels.*1"):
        task_of(paths)
    paths[7].write_text("no sound")
    with pytest.raises(InputError, match=r"7\.wav: .*damaged"):
        task_of(paths)
    with pytest.raises(InputError, match="missing"):
        task_of([tmp_path / "none.wav"] * 40)


@pytest.mark.parametrize("ending", [".csv", ".jsonl"])
def test_empty_cells_of_a_table_can_be_marked(ending, tmp_path):
    path, rows = tmp_path / f"rows{ending}", [[n % 7, n * 0.5] for n in range(40)]
    rows[0][1] = None
    if ending == ".csv":
        lines = [f"{a},{'' if b is None else b},{LABELS[n]}" for n, (a, b) in enumerate(rows)]
        path.write_text("\n".join(["a,b,y", *lines]))
    else:
        rows_as_json = [{"a": a, "b": b, "y": LABELS[n]} for n, (a, b) in enumerate(rows)]
        path.write_text("\n".join(map(json.dumps, rows_as_json)))
    with pytest.raises(InputError, match=r"'b', got none"):
        rm.Task.from_csv(path, input=["a", "b"], label="y")
    task = rm.Task.from_csv(path, input=["a", "b"], label="y", missing="mask")
    given = task.inputs.encode(read_inputs(task.inputs, path).values)
    assert given[0].tolist() == [[0.0, 0.0], [0.0, 1.0]]
    assert given[1].tolist() == [[1.0, 0.0], [0.5, 0.0]]


def test_inputs_without_an_order_or_a_path_are_refused():
    for wrong in ([""], ["a text"], set("ab")):
        with pytest.raises(InputError, match=r"^inputs: "):
            task_of(missing="mask").inputs.encode(wrong)


def test_a_run_keeps_the_scale_and_the_frames(tmp_path):
    task = task_of(normalize=True, frame=3, hop=2)
    rm.compare(task, ["tssa"], out=tmp_path / "run", max_steps=2, dim=8, num_layers=1, threads=1)
    run = rm.load_run(tmp_path / "run")
    assert run.inputs == task.inputs
    assert run.predict(SERIES[:3]).shape == (3,)
    assert run.encode(SERIES[:2])["inputs"].shape[2] == 6


@pytest.mark.parametrize("embedded", [False, True])
def test_audio_columns_of_data_sets_are_recordings(embedded, tmp_path):
    datasets = pytest.importorskip("datasets")
    soundfile = pytest.importorskip("soundfile")
    cells = []
    for row, one in enumerate(SERIES):
        path = tmp_path / f"{row}.flac"
        soundfile.write(path, one / 50, 8000, subtype="PCM_24")
        cells.append({"bytes": path.read_bytes() if embedded else None, "path": str(path)})
    cell = {"bytes": datasets.Value("binary"), "path": datasets.Value("string")}
    features = datasets.Features({"audio": cell, "y": datasets.Value("string")})
    plain = datasets.Dataset.from_dict({"audio": cells, "y": LABELS}, features)
    data = plain.cast_column("audio", datasets.Audio())
    task = rm.Task.from_datasets(data, input="audio", label="y", frame=2)
    assert (task.inputs.rate, task.num_features) == (8000, 4)
    [encoded] = task.inputs.encode([tmp_path / "3.flac"])
    assert encoded.flatten().numpy()[:4] == pytest.approx(SERIES[3].flatten()[:4] / 50, abs=1e-6)
    other = data.cast_column("audio", datasets.Audio(sampling_rate=16000))
    with pytest.raises(InputError, match="16000"):
        rm.Task.from_datasets(other, input="audio", label="y")
