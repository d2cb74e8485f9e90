"""Helpers that draw scenes of Pathfinder."""

from __future__ import annotations

import numpy as np

from rifflemix.lab.tasks.core.generated import Streams
from rifflemix.lab.tasks.synthetic.contours import draw_scenes
from rifflemix.lab.tasks.synthetic.pathfinder import scenes_of
from rifflemix.lab.tasks.synthetic.scene import Pictures, Scene


def scene_of(size: int, options: dict[str, object]) -> Scene:
    """Return the first scene; with several gaps, it has the first gap."""
    return scenes_of(size, options)[0]


def drawn(scene: Scene, count: int, first: int = 0, seed: int = 0) -> Pictures:
    return draw_scenes(Streams(seed, 0, np.arange(first, first + count)), count, scene)
