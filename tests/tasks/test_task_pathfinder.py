"""Pathfinder: what the pictures hold, that nothing simple gives the label away, options."""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from rifflemix.errors import InputError
from rifflemix.tasks import load_task, prepare_task, task_card
from rifflemix.tasks.core.random_words import Streams, mix
from rifflemix.tasks.data_io import shards
from rifflemix.tasks.pathfinder import pathfinder
from rifflemix.tasks.pathfinder.contours import Pictures, Scene, draw_scenes
from rifflemix.tasks.pathfinder.drawing import draw_images
from rifflemix.tasks.pathfinder.pathfinder import CURRICULUM, PRESETS, PathfinderMaker, scenes_of

TINY = {"num_train": 6, "num_validation": 3, "num_test": 3}
SIZES = {"pathfinder32": 32, "pathfinder64": 64, "pathfinder128": 128, "pathx": 128}


def scene_of(size: int, options: dict[str, object]) -> Scene:
    """The first scene, of several gaps that with the first of them."""
    return scenes_of(size, options)[0]


def drawn(scene: Scene, count: int, first: int = 0, seed: int = 0) -> Pictures:
    return draw_scenes(Streams(seed, 0, np.arange(first, first + count)), count, scene)


def contours(pictures: Pictures, scene: Scene, image: int) -> list[np.ndarray]:
    """The contours (L, 2, 2) of an image, the two long ones first."""
    cuts = [scene.contour_length] * 2 + [scene.distractor_length] * scene.num_distractors
    return np.split(pictures.dashes[image], np.cumsum(cuts)[:-1])


@pytest.fixture(scope="module")
def scene() -> Scene:
    return scene_of(32, {"preset": "curv_contour_length_9"})


@pytest.fixture(scope="module")
def many(scene: Scene) -> Pictures:
    return drawn(scene, 2400)


def images_of(pictures: Pictures, scene: Scene) -> np.ndarray:
    return draw_images(
        pictures.dashes,
        pictures.discs,
        size=scene.size,
        thickness=scene.paddle_thickness,
        radius=scene.marker_radius,
        contrast=scene.contrast,
    )


def test_words_are_those_of_splitmix64() -> None:
    # The first outputs for seed 0, as the algorithm's authors publish them.
    counters = np.arange(1, 4).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert mix(counters).tolist() == expected


def test_streams_do_not_depend_on_company() -> None:
    together = Streams(3, 1, np.arange(5))
    rows = np.arange(5)
    first = together.draw(rows, 4)
    later = together.draw(rows[2:3], 3)
    alone = Streams(3, 1, np.array([2]))
    assert np.array_equal(alone.draw(np.array([0]), 7)[0], [*first[2], *later[0]])
    assert len(np.unique(first)) == 20
    for other in (Streams(4, 1, rows), Streams(3, 2, rows), Streams(3, 1, rows + 5)):
        assert not np.isin(other.draw(rows, 4), first).any()
    uniform = together.uniform(rows, 2000)
    assert uniform.dtype == np.float32
    assert 0 <= uniform.min() < uniform.max() < 1
    assert uniform.mean() == pytest.approx(0.5, abs=0.02)


def test_an_image_depends_on_seed_split_and_number_alone(scene: Scene) -> None:
    images, labels = PathfinderMaker((scene,), 5, 0)(0, 20)
    for first, count in ((0, 1), (3, 7), (19, 1)):
        again = PathfinderMaker((scene,), 5, 0)(first, count)
        assert np.array_equal(again[0], images[first : first + count])
        assert np.array_equal(again[1], labels[first : first + count])
    for other in (PathfinderMaker((scene,), 6, 0), PathfinderMaker((scene,), 5, 1)):
        assert not (other(0, 20)[0] == images).all(axis=(1, 2)).any()


def test_images_are_what_they_were() -> None:
    """Raise pathfinder._VERSION when this changes: kept images would be mixed with others."""
    digests = [
        hashlib.blake2b(
            PathfinderMaker(scenes_of(size, {"preset": preset}), 0, 0)(0, 2)[0].tobytes()
        )
        for size, preset in (
            (32, "curv_contour_length_14"),
            (64, "curv_baseline"),
            (128, "curv_baseline"),
        )
    ]
    assert [digest.hexdigest()[:16] for digest in digests] == IMAGES


IMAGES = ["e5523500d6d71336", "71e0ba42b9ef085c", "8553cfe3beebd84a"]


@pytest.mark.parametrize(
    ("size", "options"),
    [
        pytest.param(32, {"preset": "curv_contour_length_14"}, id="32-14"),
        pytest.param(32, {"preset": "curv_baseline"}, id="32-6"),
        pytest.param(64, {"preset": "curv_contour_length_9"}, id="64-9"),
        pytest.param(128, {"preset": "curv_contour_length_14"}, id="128-14"),
        pytest.param(256, {"preset": "curv_baseline"}, id="256-6"),
        pytest.param(
            32,
            {"preset": "curv_baseline", "gap": 2.5, "continuity": 3.0, "num_distractors": 1},
            id="options",
        ),
        pytest.param(
            48 // 3 * 2, {"preset": "curv_baseline", "paddle_length": 1, "gap": 2}, id="short"
        ),
        pytest.param(
            32,
            {"preset": "curv_baseline", "contour_length": 3, "num_distractors": 2},
            id="distractors-of-one-dash",
        ),
    ],
)
def test_contours_are_as_the_scene_says(size: int, options: dict[str, object]) -> None:
    scene = scene_of(size, options)
    pictures = drawn(scene, 12)
    assert 0 < pictures.labels.sum() < 12
    for image, label in enumerate(pictures.labels):
        first, second, *short = contours(pictures, scene, image)
        ends = (first[0, 0], first[-1, 1]) if label else (first[0, 0], second[0, 0])
        assert np.array_equal(pictures.discs[image], ends)
        assert np.hypot(*(ends[0] - ends[1])) >= scene.disc_distance
        assert [len(contour) for contour in short] == (
            [scene.distractor_length] * scene.num_distractors
        )
        for contour in (first, second, *short):
            check_dashes(contour, scene)
        for one, other in itertools.combinations((first, second, *short), 2):
            # The grid is a quarter of the clearance wide.
            assert least_distance(one, other) > scene.clearance * (1 - 1.5 / 4)


def check_dashes(contour: np.ndarray, scene: Scene) -> None:
    assert contour.min() >= scene.border
    assert contour.max() <= scene.size - scene.border
    along = contour[:, 1] - contour[:, 0]
    assert np.hypot(*along.T) == pytest.approx(scene.paddle_length, rel=1e-4)
    gaps = contour[1:, 0] - contour[:-1, 1]
    if len(contour) > 1:
        assert np.hypot(*gaps.T) == pytest.approx(scene.gap, rel=1e-4)
    angles = np.unwrap(np.arctan2(along[:, 1], along[:, 0]))
    assert np.abs(np.diff(angles)).max(initial=0) <= np.pi / 3 / scene.continuity + 2e-3


def least_distance(one: np.ndarray, other: np.ndarray) -> float:
    part = np.linspace(0, 1, 9)[:, None]
    points = [
        (contour[:, None, 0] * (1 - part) + contour[:, None, 1] * part).reshape(-1, 2)
        for contour in (one, other)
    ]
    return float(np.linalg.norm(points[0][:, None] - points[1], axis=-1).min())


def test_a_straight_horizontal_dash_by_hand() -> None:
    dashes = np.array([[[[2.0, 3.5], [6.0, 3.5]]]], dtype=np.float32)
    nothing = np.zeros((1, 0, 2), dtype=np.float32)
    image = draw_images(dashes, nothing, size=8, thickness=1.0, radius=1.0, contrast=0.5)[0]
    # The caps are round: their outermost pixels are covered as far as their middle line is.
    assert image[3].tolist() == [0, 0, 128, 128, 128, 128, 0, 0]
    assert image.sum() == 4 * 128


@pytest.mark.parametrize("thickness", [0.25, 0.5, 0.75, 1.0, 1.5])
def test_a_dash_has_as_much_light_as_its_area(thickness: float) -> None:
    # Without its caps: the difference of two dashes, one 8 pixels longer.
    light = []
    for length in (20.0, 12.0):
        dashes = np.array([[[[5.0, 6.5], [5.0 + length, 6.5]]]], dtype=np.float32)
        nothing = np.zeros((1, 0, 2), dtype=np.float32)
        image = draw_images(dashes, nothing, size=32, thickness=thickness, radius=1, contrast=1.0)
        light.append(image.sum() / 255)
    assert light[0] - light[1] == pytest.approx(8 * thickness, rel=0.02)


def test_contrast_over_one_makes_thin_dashes_bright_and_nothing_brighter_than_white() -> None:
    dashes = np.array([[[[2.0, 3.5], [9.0, 3.5]]]], dtype=np.float32)
    nothing = np.zeros((1, 0, 2), dtype=np.float32)
    for contrast, expected in ((1.0, 128), (1.5, 191), (3.0, 255)):
        image = draw_images(dashes, nothing, size=12, thickness=0.5, radius=1.0, contrast=contrast)
        assert image.max() == expected


def test_a_disc_is_round_white_and_cut_at_the_edge() -> None:
    nothing = np.zeros((2, 0, 2, 2), dtype=np.float32)
    discs = np.array([[[4.0, 4.0]], [[0.0, 4.0]]], dtype=np.float32)
    whole, cut = draw_images(nothing, discs, size=8, thickness=1.0, radius=2.0, contrast=0.5)
    assert whole[3:5, 3:5].min() == 255
    assert np.array_equal(whole, whole.T)
    assert np.array_equal(whole, whole[::-1])
    assert whole.sum() / 255 == pytest.approx(np.pi * 4, rel=0.03)
    assert np.array_equal(cut[:, :4], whole[:, 4:])
    assert cut[:, 4:].max() == 0


def test_labels_are_even(many: Pictures) -> None:
    assert many.labels.mean() == pytest.approx(0.5, abs=4 * 0.5 / 2400**0.5)


def simple_statistics(pictures: Pictures, scene: Scene) -> dict[str, np.ndarray]:
    images = images_of(pictures, scene).astype(np.float64)
    discs = pictures.discs.astype(np.float64)
    middle = discs.mean(axis=1) - scene.size / 2
    pixels = np.arange(scene.size) + 0.5
    mass = images / images.sum(axis=(1, 2), keepdims=True)
    centre = np.stack([mass.sum(axis=1) @ pixels, mass.sum(axis=2) @ pixels], axis=1)
    away = np.hypot(
        pixels - middle[:, :1, None] - scene.size / 2,
        pixels[:, None] - middle[:, 1:, None] - scene.size / 2,
    )
    apart = discs[:, 0] - discs[:, 1]
    first = pictures.dashes[np.arange(len(discs)), 0]
    heading = first[:, 1] - first[:, 0]
    return {
        "brightness": images.mean(axis=(1, 2)),
        "contrast": images.std(axis=(1, 2)),
        "bright pixels": (images > 200).sum(axis=(1, 2)),
        "edge": images[:, [0, 1, -2, -1]].mean(axis=(1, 2)),
        "disc distance": np.hypot(*apart.T),
        "disc x": discs[:, 0, 0],
        "disc y": discs[:, 1, 1],
        "discs from the centre": np.hypot(*middle.T),
        "first dash to the other disc": -(heading * apart).sum(axis=1) / np.hypot(*apart.T),
        "brightness off the centre": np.hypot(*(centre - scene.size / 2).T),
        "brightness between the discs": (images * (away < 8)).sum(axis=(1, 2)),
    }


def check_statistics(pictures: Pictures, scene: Scene) -> None:
    """By how often a sample of one class has the larger value: half of the time, by chance."""
    count = len(pictures.labels)
    for name, values in simple_statistics(pictures, scene).items():
        ranks = values.argsort(kind="stable").argsort()
        one, other = (ranks[pictures.labels == label] for label in (1, 0))
        share = (one.mean() - (len(one) - 1) / 2) / len(other)
        # Four standard deviations by chance, and as much again for what is not quite alike.
        assert abs(share - 0.5) < 4 * (1 / 3 / count) ** 0.5 + 0.05, name


def test_no_simple_statistic_gives_the_label_away(many: Pictures, scene: Scene) -> None:
    check_statistics(many, scene)


@pytest.mark.slow
def test_no_simple_statistic_gives_it_away_in_larger_images() -> None:
    scene = scene_of(64, {"preset": "curv_contour_length_9"})
    check_statistics(drawn(scene, 2400), scene)


def test_a_linear_classifier_of_pixels_stays_at_chance(many: Pictures, scene: Scene) -> None:
    pixels = images_of(many, scene).reshape(len(many.labels), -1).astype(np.float64) / 255
    pixels -= pixels.mean(axis=0)
    target = many.labels * 2.0 - 1
    # Ridge regression for logistic: in closed form, and as good a linear classifier.
    train, test = slice(0, 1600), slice(1600, None)
    gram = pixels[train].T @ pixels[train]
    for ridge in (10.0, 1000.0):
        weights = np.linalg.solve(gram + ridge * np.eye(len(gram)), pixels[train].T @ target[train])
        right = ((pixels[test] @ weights > 0) == (target[test] > 0)).mean()
        assert abs(right - 0.5) < 4 * 0.5 / 800**0.5


@pytest.mark.parametrize("name", [*SIZES, "pathfinder256"])
def test_tasks(name: str) -> None:
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


def test_pathx_shares_the_images_of_pathfinder128() -> None:
    tiny = {"preset": "curv_baseline", "num_train": 1, "num_validation": 1, "num_test": 1}
    assert len({prepare_task(name, **tiny) for name in ("pathx", "pathfinder128")}) == 1
    assert len({load_task(name, **tiny).fingerprint() for name in ("pathx", "pathfinder128")}) == 2


def test_the_families_of_the_long_range_arena() -> None:
    scenes = {preset: scene_of(32, {"preset": preset}) for preset in PRESETS}
    assert {preset: s.contour_length for preset, s in scenes.items()} == PRESETS
    assert [(s.distractor_length, s.num_distractors) for s in scenes.values()] == [
        (2, 10),
        (3, 6),
        (4, 5),
    ]


# Of its builders: paddle length, thickness, margins, continuity, contrast of paddles times that of
# snakes, marker radius, seed distance, padding, distractor dashes. What a builder does not name
# is the generator's default.
ARENA = {
    32: (2, 0.5, (1,), 1.0, 0.75 * 2, 1.5, 7, 1, 20),
    64: (5, 1.0, (1,), 1.8, 0.8, 2.5, 12, 1, 22),
    128: (5, 1.5, (2, 3), 1.8, 0.9, 3, 20, 1, 35),
    256: (5, 2.0, (3,), 1.8, 1.0, 5, 27, 22, 30),
}


@pytest.mark.parametrize("size", ARENA)
def test_looks_are_those_of_the_long_range_arena(size: int) -> None:
    length, thickness, gaps, continuity, contrast, radius, distance, border, dashes = ARENA[size]
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
        # Four standard deviations: of how many have a gap, and of the labels among them.
        share = (gaps == gap).mean()
        assert abs(share - 1 / 3) < 4 * (2 / 9 / 3000) ** 0.5
        assert abs(labels[gaps == gap].mean() - 0.5) < 4 * 0.5 / (gaps == gap).sum() ** 0.5


def test_an_image_of_several_gaps_depends_on_its_number_alone() -> None:
    scenes = scenes_of(32, {"preset": "curv_baseline", "gap": [1, 1.5]})
    images, labels = PathfinderMaker(scenes, 5, 0)(0, 12)
    for first, count in ((0, 1), (3, 7), (11, 1)):
        again = PathfinderMaker(scenes, 5, 0)(first, count)
        assert np.array_equal(again[0], images[first : first + count])
        assert np.array_equal(again[1], labels[first : first + count])
    one = PathfinderMaker(scenes[:1], 5, 0)(0, 12)[0]
    assert not (one == images).all()


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
    """Table 6 of the Dimension Mixer paper, from top to bottom."""
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
def test_options_change_what_is_drawn(name: str, value: float) -> None:
    before = scene_of(32, {"preset": "curv_baseline"})
    after = scene_of(32, {"preset": "curv_baseline", name: value})
    assert getattr(before, name) != value
    assert getattr(after, name) == value


def test_contrast_is_the_brightness_of_dashes_not_of_discs(many: Pictures, scene: Scene) -> None:
    few = Pictures(*(part[:20] for part in many))
    bright = images_of(few, replace(scene, contrast=1.0)).astype(int)
    dim = images_of(few, replace(scene, contrast=0.5)).astype(int)
    discs = images_of(few._replace(dashes=few.dashes[:, :0]), scene)
    assert (dim[discs == 255] == 255).all()
    assert np.abs(dim - bright / 2)[discs == 0].max() <= 1
    assert bright[discs == 0].max() >= 127  # half of a pixel, where no other dash is near


def test_fingerprint_tells_seeds_and_options_apart() -> None:
    base = {"preset": "curv_baseline", "num_distractors": 0, **TINY}
    prints = {
        load_task("pathfinder32", **{**base, **change}).fingerprint()
        for change in ({}, {"seed": 1}, {"gap": 1.5}, {"num_train": 5})
    }
    assert len(prints) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preset": "curv_contour_length_15"}, "did you mean curv_contour_length_14"),
        ({"contour_length": 2}, "contour_length: expected 3 to 100, got 2"),
        ({"contour_length": 9.5}, "contour_length: expected an integer"),
        ({"num_distractors": -1}, "num_distractors: expected 0 to 1000"),
        ({"gap": 0}, "gap: expected a number above 0, got 0"),
        ({"gap": 9}, "gap: expected 0.25 to 8 pixels, got 9"),
        ({"gap": "wide"}, "gap: expected a number, got 'wide'"),
        ({"gap": []}, "gap: expected a number, or 1 to 16 different ones"),
        ({"gap": [1, 1]}, "gap: expected a number, or 1 to 16 different ones"),
        ({"gap": [1, 9]}, "gap: expected 0.25 to 8 pixels, got 9"),
        ({"gap": [1, "2"]}, "gap: expected a number, got '2'"),
        ({"contrast": 4.5}, "contrast: expected more than 0, at most 4, got 4.5"),
        ({"continuity": float("nan")}, "continuity: expected a number above 0"),
        ({"continuity": 0.1}, "continuity: expected 0.25 to 100"),
        ({"num_train": 0}, "num_train: expected at least 1"),
        ({"max_samples": 0}, "max_samples: expected at least 1"),
        ({"layout": "image"}, "unknown option of task pathfinder32 'layout'"),
    ],
    ids=str,
)
def test_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        load_task("pathfinder32", **{**TINY, **options})
    assert "\n" not in str(raised.value)


def test_what_does_not_fit_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rifflemix.tasks.pathfinder.contours._ROUNDS", 3)
    with pytest.raises(InputError, match="do not fit into 32 x 32 pixels; ask for fewer"):
        load_task("pathfinder32", contour_length=60, **TINY)


def test_disk_that_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shards.shutil.disk_usage(".")._replace(free=1_000_000)
    monkeypatch.setattr(shards.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(InputError, match=r"needs 3\.3 GB, but its disk has only 0\.0 GB free"):
        load_task("pathx")


def test_card_names_what_is_generated_and_how_long_it_is() -> None:
    card = task_card("pathx")
    assert not card.needs_data
    assert "16,384 tokens" in card.description
    assert card.options["num_train"] == 160_000


def test_two_processes_make_what_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
