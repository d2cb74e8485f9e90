"""Scenes of Pathfinder as the tests draw them."""

from __future__ import annotations

import numpy as np

from rifflemix.lab.tasks.core.random_words import Streams
from rifflemix.lab.tasks.pathfinder.contours import Pictures, Scene, draw_scenes
from rifflemix.lab.tasks.pathfinder.pathfinder import scenes_of


def scene_of(size: int, options: dict[str, object]) -> Scene:
    """The first scene, of several gaps that with the first of them."""
    return scenes_of(size, options)[0]


def drawn(scene: Scene, count: int, first: int = 0, seed: int = 0) -> Pictures:
    return draw_scenes(Streams(seed, 0, np.arange(first, first + count)), count, scene)
