"""Tests of Pathfinder images: their contents, and no simple clue to the label."""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import replace

import numpy as np
import pytest
from pathfinder_scenes import drawn, scene_of

from rifflemix.lab.tasks.core.generated import Streams, mix
from rifflemix.lab.tasks.synthetic.contours import _discs_are_clear
from rifflemix.lab.tasks.synthetic.pathfinder import PathfinderMaker, scenes_of
from rifflemix.lab.tasks.synthetic.scene import Pictures, Scene, draw_images


def contours(pictures: Pictures, scene: Scene, image: int) -> list[np.ndarray]:
    """Return the contours (L, 2, 2), the two long contours first."""
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


def test_random_words_equal_splitmix64() -> None:
    # The first outputs for seed 0, as published by the authors of the algorithm.
    counters = np.arange(1, 4).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert mix(counters).tolist() == expected


def test_random_streams_are_independent() -> None:
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


@pytest.mark.slow
def test_image_depends_on_seed_split_and_index_only(scene: Scene) -> None:
    images, labels = PathfinderMaker((scene,), 5, 0)(0, 20)
    for first, count in ((0, 1), (3, 7), (19, 1)):
        again = PathfinderMaker((scene,), 5, 0)(first, count)
        assert np.array_equal(again[0], images[first : first + count])
        assert np.array_equal(again[1], labels[first : first + count])
    for other in (PathfinderMaker((scene,), 6, 0), PathfinderMaker((scene,), 5, 1)):
        assert not (other(0, 20)[0] == images).all(axis=(1, 2)).any()


def test_images_equal_those_of_earlier_versions() -> None:
    """Raise pathfinder._VERSION if this fails: cached images would be mixed with new images."""
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
        pytest.param(
            128, {"preset": "curv_contour_length_14"}, id="128-14", marks=pytest.mark.slow
        ),
        pytest.param(256, {"preset": "curv_baseline"}, id="256-6", marks=pytest.mark.slow),
        pytest.param(
            32,
            {"preset": "curv_baseline", "gap": 2.5, "continuity": 3.0, "num_distractors": 1},
            id="options",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            48 // 3 * 2, {"preset": "curv_baseline", "paddle_length": 1, "gap": 2}, id="short"
        ),
        pytest.param(
            32,
            {"preset": "curv_baseline", "contour_length": 3, "num_distractors": 2},
            id="distractors-of-one-dash",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_contours_follow_the_settings_of_the_scene(size: int, options: dict[str, object]) -> None:
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
            # The grid spacing is a quarter of the clearance.
            assert least_distance(one, other) > scene.clearance * (1 - 1.5 / 4)


def test_discs_are_separate_and_contours_do_not_return(scene: Scene) -> None:
    """Use one good image, one with discs too close, and one with a contour that returns."""
    row = np.array([[4.0, 20.0], [6.0, 20.0]])
    dashes = np.tile(row, (3, scene.lag + 1, 1, 1))
    discs = np.array([[[4.0, 4.0], [4.0 + scene.disc_distance, 4.0]]] * 3)
    discs[1, 1, 0] -= 0.1
    dashes[2, 0] = discs[2, 1]
    dashes[:, 1:] = discs[:, None, 1:]  # the last dashes may be near
    clear = _discs_are_clear(dashes.astype(np.float32), discs.astype(np.float32), scene)
    assert clear.tolist() == [True, False, False]


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


def test_straight_horizontal_dash_equals_explicit_pixels() -> None:
    dashes = np.array([[[[2.0, 3.5], [6.0, 3.5]]]], dtype=np.float32)
    nothing = np.zeros((1, 0, 2), dtype=np.float32)
    image = draw_images(dashes, nothing, size=8, thickness=1.0, radius=1.0, contrast=0.5)[0]
    # The caps are round: their outermost pixels are covered up to the middle line.
    assert image[3].tolist() == [0, 0, 128, 128, 128, 128, 0, 0]
    assert image.sum() == 4 * 128


@pytest.mark.parametrize("thickness", [0.25, 0.5, 0.75, 1.0, 1.5])
def test_brightness_of_a_dash_equals_its_area(thickness: float) -> None:
    # The difference of two dashes, one 8 pixels longer, cancels the caps.
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


def test_disc_is_round_white_and_clipped_at_the_edge() -> None:
    nothing = np.zeros((2, 0, 2, 2), dtype=np.float32)
    discs = np.array([[[4.0, 4.0]], [[0.0, 4.0]]], dtype=np.float32)
    whole, cut = draw_images(nothing, discs, size=8, thickness=1.0, radius=2.0, contrast=0.5)
    assert whole[3:5, 3:5].min() == 255
    assert np.array_equal(whole, whole.T)
    assert np.array_equal(whole, whole[::-1])
    assert whole.sum() / 255 == pytest.approx(np.pi * 4, rel=0.03)
    assert np.array_equal(cut[:, :4], whole[:, 4:])
    assert cut[:, 4:].max() == 0


@pytest.mark.slow
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
    """Check that simple statistics do not separate the classes.

    A sample of one class has the larger value half of the time, by chance.
    """
    count = len(pictures.labels)
    for name, values in simple_statistics(pictures, scene).items():
        ranks = values.argsort(kind="stable").argsort()
        one, other = (ranks[pictures.labels == label] for label in (1, 0))
        share = (one.mean() - (len(one) - 1) / 2) / len(other)
        # Four standard deviations, plus a tolerance for small true differences.
        assert abs(share - 0.5) < 4 * (1 / 3 / count) ** 0.5 + 0.05, name


@pytest.mark.slow
def test_no_simple_statistic_predicts_the_label(many: Pictures, scene: Scene) -> None:
    check_statistics(many, scene)


@pytest.mark.slow
def test_no_simple_statistic_predicts_the_label_of_larger_images() -> None:
    scene = scene_of(64, {"preset": "curv_contour_length_9"})
    check_statistics(drawn(scene, 2400), scene)


@pytest.mark.slow
def test_a_linear_classifier_of_pixels_stays_at_chance(many: Pictures, scene: Scene) -> None:
    pixels = images_of(many, scene).reshape(len(many.labels), -1).astype(np.float64) / 255
    pixels -= pixels.mean(axis=0)
    target = many.labels * 2.0 - 1
    # Ridge regression instead of logistic: closed form, and an equally good linear classifier.
    train, test = slice(0, 1600), slice(1600, None)
    gram = pixels[train].T @ pixels[train]
    for ridge in (10.0, 1000.0):
        weights = np.linalg.solve(gram + ridge * np.eye(len(gram)), pixels[train].T @ target[train])
        right = ((pixels[test] @ weights > 0) == (target[test] > 0)).mean()
        assert abs(right - 0.5) < 4 * 0.5 / 800**0.5


@pytest.mark.slow
def test_contrast_is_the_brightness_of_dashes_not_of_discs(many: Pictures, scene: Scene) -> None:
    few = Pictures(*(part[:20] for part in many))
    bright = images_of(few, replace(scene, contrast=1.0)).astype(int)
    dim = images_of(few, replace(scene, contrast=0.5)).astype(int)
    discs = images_of(few._replace(dashes=few.dashes[:, :0]), scene)
    assert (dim[discs == 255] == 255).all()
    assert np.abs(dim - bright / 2)[discs == 0].max() <= 1
    assert bright[discs == 0].max() >= 127  # half of a pixel, if no other dash is near
