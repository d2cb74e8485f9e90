"""Tests of Pathfinder's tasks: options, images and splits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from pathfinder_scenes import drawn, scene_of

from rifflemix.errors import InputError
from rifflemix.lab.tasks import load_task, prepare_task, task_card
from rifflemix.lab.tasks.core.generated import Streams
from rifflemix.lab.tasks.data_io import shards
from rifflemix.lab.tasks.synthetic import pathfinder
from rifflemix.lab.tasks.synthetic.pathfinder import (
    CURRICULUM,
    PRESETS,
    PathfinderMaker,
    scenes_of,
)
from rifflemix.lab.tasks.synthetic.scene import Scene

TINY = {"num_train": 6, "num_validation": 3, "num_test": 3}
SIZES = {"pathfinder32": 32, "pathfinder64": 64, "pathfinder128": 128, "pathx": 128}


@pytest.mark.parametrize(
    "name",
    [
        "pathfinder32",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("pathfinder64", "pathfinder128", "pathx", "pathfinder256")
        ),
    ],
)
def test_every_size_has_its_sequence_length(name: str) -> None:
    task = load_task(name, preset="curv_baseline", **TINY)
    size = SIZES.get(name, 256)
    assert (task.vocab_size, task.num_classes, task.max_length) == (256, 2, size**2)
    assert {split: len(task.split(split)) for split in task.splits} == {
        "train": 6,
        "validation": 3,
        "test": 3,
    }
    pixels, label = task.split("train")[5]
    assert pixels.dtype == torch.int64
    assert pixels.shape == (size**2,)
    assert label in (0, 1)
    image, labels = PathfinderMaker(scenes_of(size, {"preset": "curv_baseline"}), 0, 0)(5, 1)
    assert np.array_equal(pixels.numpy().reshape(size, size), image[0])
    assert label == labels[0]
    assert task.options["contour_length"] == 6
    assert task.options["seed"] == 0
    assert task.data_source == "generated"
    with pytest.raises(IndexError):
        task.split("train")[6]


FEW = {"preset": "curv_baseline", "num_train": 5, "num_validation": 1, "num_test": 1}


@pytest.fixture(scope="module")
def pixels_and_label(tmp_path_factory: pytest.TempPathFactory) -> tuple[torch.Tensor, int]:
    """Load one sample with a separate cache.

    This fixture runs before the cache of the first test exists.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RIFFLEMIX_CACHE", str(tmp_path_factory.mktemp("cache")))
        pixels, label = load_task("pathfinder32", **FEW).split("train")[4]
    return pixels, label


@pytest.mark.parametrize("patch_size", [2, 4, 8, 16])
def test_patches_contain_the_pixels_of_the_image(
    pixels_and_label: tuple[torch.Tensor, int], patch_size: int
) -> None:
    task = load_task("pathfinder32", patch_size=patch_size, **FEW)
    across = 32 // patch_size
    assert (task.input_kind, task.vocab_size, task.num_features, task.max_length) == (
        "vectors",
        None,
        patch_size**2,
        across**2,
    )
    pixels, label = pixels_and_label
    patches, same = task.split("train")[4]
    image = pixels.reshape(32, 32).numpy()
    expected = [
        image[y : y + patch_size, x : x + patch_size].reshape(-1)
        for y in range(0, 32, patch_size)
        for x in range(0, 32, patch_size)
    ]
    assert (patches.dtype, label) == (torch.float32, same)
    assert np.array_equal(patches.numpy(), np.float32(expected) / np.float32(255))


@pytest.mark.parametrize("ask_for", [load_task, prepare_task])
def test_a_patch_size_that_divides_no_image(ask_for: Callable[..., object]) -> None:
    with pytest.raises(
        InputError, match=r"^patch_size: .*\b1\b.*\b2\b.*\b4\b.*\b8\b.*\b16\b.*got 3\b"
    ):
        ask_for("pathfinder32", patch_size=3, **TINY)


def test_pathx_shares_the_images_of_pathfinder128() -> None:
    tiny = {"preset": "curv_baseline", "num_train": 1, "num_validation": 1, "num_test": 1}
    assert len({prepare_task(name, **tiny) for name in ("pathx", "pathfinder128")}) == 1
    assert len({load_task(name, **tiny).fingerprint() for name in ("pathx", "pathfinder128")}) == 2


def test_presets_of_the_long_range_arena_have_their_families() -> None:
    scenes = {preset: scene_of(32, {"preset": preset}) for preset in PRESETS}
    assert {preset: s.contour_length for preset, s in scenes.items()} == PRESETS
    assert [(s.distractor_length, s.num_distractors) for s in scenes.values()] == [
        (2, 10),
        (3, 6),
        (4, 5),
    ]


# From its builders: paddle length, thickness, margins, continuity, contrast of paddles times
# contrast of snakes, marker radius, seed distance, padding, distractor dashes. Values that a
# builder does not name are the defaults of the generator.
LRA_SETTINGS = {
    32: (2, 0.5, (1,), 1.0, 0.75 * 2, 1.5, 7, 1, 20),
    64: (5, 1.0, (1,), 1.8, 0.8, 2.5, 12, 1, 22),
    128: (5, 1.5, (2, 3), 1.8, 0.9, 3, 20, 1, 35),
    256: (5, 2.0, (3,), 1.8, 1.0, 5, 27, 22, 30),
}


@pytest.mark.parametrize("size", LRA_SETTINGS)
def test_settings_equal_the_long_range_arena(size: int) -> None:
    length, thickness, gaps, continuity, contrast, radius, distance, border, dashes = LRA_SETTINGS[
        size
    ]
    scenes = scenes_of(size, {"preset": "curv_contour_length_14"})
    assert tuple(scene.gap for scene in scenes) == gaps
    for scene in scenes:
        assert (scene.paddle_length, scene.paddle_thickness) == (length, thickness)
        assert (scene.continuity, scene.contrast) == (continuity, contrast)
        assert (scene.marker_radius, scene.disc_distance) == (radius, distance)
        assert (scene.border, scene.num_distractors) == (border, dashes // 4)


def test_one_of_several_gaps_is_drawn_for_each_image(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn_for: list[tuple[float, int]] = []

    def draw(streams: Streams, count: int, scene: Scene) -> tuple[np.ndarray, np.ndarray]:
        drawn_for.append((scene.gap, count))
        labels = (streams.draw(np.arange(count), 1)[:, 0] & np.uint64(1)).astype(np.uint8)
        return np.full((count, 32, 32), int(scene.gap), dtype=np.uint8), labels

    scenes = scenes_of(32, {"preset": "curv_baseline", "gap": [1, 2, 3]})
    monkeypatch.setattr(pathfinder, "_draw", draw)
    images, labels = PathfinderMaker(scenes, 0, 0)(0, 3000)
    gaps = images[:, 0, 0]
    assert sorted(drawn_for) == [(gap, int((gaps == gap).sum())) for gap in (1, 2, 3)]
    for gap in (1, 2, 3):
        # Four standard deviations of the share of each gap, and of its mean label.
        share = (gaps == gap).mean()
        assert abs(share - 1 / 3) < 4 * (2 / 9 / 3000) ** 0.5
        assert abs(labels[gaps == gap].mean() - 0.5) < 4 * 0.5 / (gaps == gap).sum() ** 0.5


def test_image_with_several_gaps_depends_only_on_its_index() -> None:
    scenes = scenes_of(32, {"preset": "curv_baseline", "gap": [1, 1.5]})
    images, labels = PathfinderMaker(scenes, 5, 0)(0, 12)
    for first, count in ((0, 1), (3, 7), (11, 1)):
        again = PathfinderMaker(scenes, 5, 0)(first, count)
        assert np.array_equal(again[0], images[first : first + count])
        assert np.array_equal(again[1], labels[first : first + count])
    one = PathfinderMaker(scenes[:1], 5, 0)(0, 12)[0]
    assert not (one == images).all()


@pytest.mark.slow
def test_several_gaps_are_an_option() -> None:
    folders, prints = set(), set()
    for gap in (1.0, [1.0, 1.25], [1.0, 1.5]):
        options = {"preset": "curv_baseline", "gap": gap, **TINY}
        task = load_task("pathfinder32", **options)
        assert task.options["gap"] == gap
        folders.add(prepare_task("pathfinder32", **options))
        prints.add(task.fingerprint())
    assert len(folders) == len(prints) == 3


def test_curriculum_to_pathx() -> None:
    """Check Table 6 of the Dimension Mixer paper, from top to bottom."""
    steps = [
        (task, options.get("num_distractors"), options.get("gap"), options.get("contrast"))
        for task, options in CURRICULUM.values()
    ]
    assert steps == [
        ("pathfinder32", None, None, None),
        ("pathfinder64", None, None, None),
        ("pathfinder128", 5, 1.0, 0.9),
        ("pathfinder128", 5, 2.0, 0.9),
        ("pathfinder128", 14, [2.0, 3.0], 0.8),
        ("pathfinder128", 20, [2.0, 3.0], 0.73),
        ("pathx", None, None, None),
    ]
    for task, options in CURRICULUM.values():
        scenes = scenes_of(SIZES[task], {**task_card(task).options, **options})
        assert scenes[0].contour_length == (9 if task == "pathfinder64" else 14)
        for scene in scenes:
            assert len(drawn(scene, 1).labels) == 1
            assert scene.num_distractors == options.get("num_distractors", scene.num_distractors)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("contour_length", 7),
        ("num_distractors", 3),
        ("paddle_length", 2.5),
        ("paddle_thickness", 1),
        ("gap", 1.5),
        ("contrast", 0.5),
        ("continuity", 2),
    ],
)
def test_options_change_the_scene(name: str, value: float) -> None:
    before = scene_of(32, {"preset": "curv_baseline"})
    after = scene_of(32, {"preset": "curv_baseline", name: value})
    assert getattr(before, name) != value
    assert getattr(after, name) == value


def test_fingerprint_depends_on_seeds_and_options() -> None:
    base = {**FEW, "num_distractors": 0}
    prints = {
        load_task("pathfinder32", **{**base, **change}).fingerprint()
        for change in ({}, {"seed": 1}, {"gap": 1.5}, {"num_train": 4})
    }
    assert len(prints) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preset": "curv_contour_length_15"}, r"curv_contour_length_14\b"),
        ({"contour_length": 2}, r"contour_length: .*\b3\b.*\b100\b.*got 2\b"),
        ({"contour_length": 9.5}, r"contour_length: .*got 9\.5"),
        ({"num_distractors": -1}, r"num_distractors: .*\b0\b.*\b1000\b"),
        ({"gap": 0}, r"gap: .*\b0\b.*got 0\b"),
        ({"gap": 9}, r"gap: .*\b0.25\b.*\b8\b.*got 9\b"),
        ({"gap": "wide"}, "gap: .*got 'wide'"),
        ({"gap": []}, r"gap: .*\b1\b.*\b16\b"),
        ({"gap": [1, 1]}, r"gap: .*\b1\b.*\b16\b"),
        ({"gap": [1, 9]}, r"gap: .*\b0.25\b.*\b8\b.*got 9\b"),
        ({"gap": [1, "2"]}, "gap: .*got '2'"),
        ({"contrast": 4.5}, r"contrast: .*\b0\b.*\b4\b.*got 4.5\b"),
        ({"continuity": float("nan")}, r"continuity: .*\b0\b"),
        ({"continuity": 0.1}, r"continuity: .*\b0.25\b.*\b100\b"),
        ({"num_train": 0}, r"num_train: .*\b1\b"),
        ({"max_samples": 0}, r"max_samples: .*\b1\b"),
        ({"layout": "image"}, r"pathfinder32\b 'layout'"),
    ],
    ids=str,
)
def test_bad_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        load_task("pathfinder32", **{**TINY, **options})
    assert "\n" not in str(raised.value)


def test_contours_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rifflemix.lab.tasks.synthetic.contours._ROUNDS", 3)
    with pytest.raises(InputError, match="32 x 32 pixels"):
        load_task("pathfinder32", contour_length=60, **TINY)


def test_too_small_disk_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shards.shutil.disk_usage(".")._replace(free=1_000_000)
    monkeypatch.setattr(shards.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(InputError, match=r"\b3\.3\b GB.*\b0\.0\b GB"):
        load_task("pathx")


def test_full_disk_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = load_task("pathfinder32", **TINY).fingerprint()
    usage = shards.shutil.disk_usage(".")._replace(free=0)
    monkeypatch.setattr(shards.shutil, "disk_usage", lambda path: usage)
    assert load_task("pathfinder32", **TINY).fingerprint() == whole
    with pytest.raises(InputError, match=r"GB.*\b0\.0\b GB"):
        load_task("pathfinder32", **{**TINY, "num_train": 1000})


def test_card_describes_generated_images_and_their_length() -> None:
    card = task_card("pathx")
    assert not card.needs_data
    assert "16,384 tokens" in card.description
    assert card.options["num_train"] == 160_000


@pytest.mark.slow
def test_two_processes_make_the_same_images_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "_SHARD", 4)
    options = {"preset": "curv_baseline", "num_train": 10, "num_validation": 5, "num_test": 1}
    prints = []
    for cores in (1, 2):
        monkeypatch.setenv("RIFFLEMIX_CACHE", str(tmp_path / str(cores)))
        monkeypatch.setattr(shards, "_cores", lambda cores=cores: cores)
        seen: list[tuple[str, int, int | None]] = []
        task = load_task(
            "pathfinder32", progress=lambda *what, seen=seen: seen.append(what), **options
        )
        prints.append(task.fingerprint())
        assert seen[-1] == ("generating Pathfinder-32, train", 10, 10)
    assert prints[0] == prints[1]
    assert pathfinder.PRESETS["curv_baseline"] == 6
