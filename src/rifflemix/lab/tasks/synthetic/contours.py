"""Contours of dashes without contact or self-contact, for many images at once.

The images advance together. Each image uses its own random stream and is independent of the others.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rifflemix.errors import InputError
from rifflemix.lab.tasks.core.generated import Streams
from rifflemix.lab.tasks.synthetic.scene import TURN, Floats, Pictures, Scene

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_ANGLES = np.arange(TURN) * (2 * math.pi / TURN)
_DIRECTIONS = np.stack([np.cos(_ANGLES), np.sin(_ANGLES)], axis=1).astype(np.float32)

_STARTS = 32  # candidate positions for the start of a contour
_BENDS = 6  # candidate bends for the next dash
_TRIES = 8  # attempts at a contour before the image restarts
_ROUNDS = 500  # attempts at an image
_NEIGHBOURHOOD = 0.5  # most distance of the second contour from a disc, divided by the extent
_ALIKE = 0.06  # most difference in spread between the two layouts, divided by the extent
_CELLS = 4  # cells of the grid of occupied positions along one clearance


class _Contours(NamedTuple):
    """One contour in each of S images.

    Attributes:
        dashes: (S, L, 2, 2) both ends of every dash.
        directions: (S, L) directions of the dashes.
    """

    dashes: Floats
    directions: Ints

    def begun(self) -> _Contours:
        """Return the first dash of each contour."""
        return _Contours(self.dashes[:, :1], self.directions[:, :1])

    def begun_from_end(self) -> _Contours:
        """Return the last dash of each contour, reversed."""
        turned = (self.directions[:, -1:] + TURN // 2) % TURN
        return _Contours(self.dashes[:, -1:, ::-1], turned)


class _Occupied:
    """Grids of blocked positions, one grid per image.

    Each grid has a margin around the image for cells that are blocked near the edge.
    """

    def __init__(self, scene: Scene, grids: Bools) -> None:
        self._scene = scene
        self._cell = np.float32(scene.clearance / _CELLS)
        self._room = _room(scene)
        self._side = _side(scene)
        self._grids = grids

    @classmethod
    def empty(cls, scene: Scene, count: int) -> _Occupied:
        """Create grids without blocked positions."""
        return cls(scene, np.zeros((count, _side(scene) ** 2), dtype=bool))

    def of(self, images: Ints) -> _Occupied:
        """Copy the grids of the given images."""
        return _Occupied(self._scene, self._grids[images])

    def put(self, images: Ints, other: _Occupied, positions: Ints) -> None:
        """Replace the grids of `images` by the grids at `positions` of `other`."""
        self._grids[images] = other._grids[positions]

    def free(self, points: Floats) -> Bools:
        """Check which points (S, ..., 2) are inside the frame and not blocked."""
        low, high = self._scene.border, self._scene.size - self._scene.border
        x, y = points[..., 0], points[..., 1]
        inside = (x >= low) & (x <= high) & (y >= low) & (y <= high)
        return inside & ~self._grids.reshape(-1)[self._cells(points)]

    def block(self, points: Floats, radius: float) -> None:
        """Block all positions within `radius` of points (S, ..., 2)."""
        around = _disc_cells(radius / float(self._cell), self._side)
        self._grids.reshape(-1)[self._cells(points)[..., None] + around] = True

    def _cells(self, points: Floats) -> Ints:
        """Return flat grid indices of points (S, ..., 2), clipped to the image."""
        cells = (points / self._cell).astype(np.int64) + self._room
        np.clip(cells, self._room, self._side - 1 - self._room, out=cells)
        first = np.arange(len(points)).reshape(-1, *(1,) * (points.ndim - 2)) * self._side**2
        return first + cells[..., 1] * self._side + cells[..., 0]


def _room(scene: Scene) -> int:
    return math.ceil(max(scene.clearance, scene.disc_clearance) * _CELLS / scene.clearance)


def _side(scene: Scene) -> int:
    return math.ceil(scene.size * _CELLS / scene.clearance) + 1 + 2 * _room(scene)


@functools.cache
def _disc_cells(radius: float, side: int) -> Ints:
    """Return the (K,) flat offsets from a cell to the cells within `radius`.

    A row of the grid has `side` cells.
    """
    steps = np.arange(-math.ceil(radius), math.ceil(radius) + 1)
    x, y = np.meshgrid(steps, steps)
    within = x * x + y * y <= radius * radius
    return y[within] * side + x[within]


def draw_scenes(streams: Streams, count: int, scene: Scene) -> Pictures:
    """Lay out the dashes and discs of `count` images.

    Each image gets two layouts with the same discs and the same dashes under the discs:

    - Label 1: a long contour joins the discs, and a second long contour is next to it.
    - Label 0: two long contours begin at the discs and end elsewhere.

    An image is kept only if both layouts are possible. Its label then selects the layout.
    Therefore the discs and the dashes under them have the same distribution in both classes. For
    the same reason, the second contour begins near a disc, and both layouts have a similar spread.

    Raises:
        InputError: the contours almost never fit into the image.
    """
    rows = np.arange(count)
    labels = (streams.draw(rows, 1)[:, 0] & np.uint64(1)).astype(np.uint8)
    total = 2 * scene.contour_length + scene.num_distractors * scene.distractor_length
    dashes = np.zeros((count, total, 2, 2), dtype=np.float32)
    discs = np.zeros((count, 2, 2), dtype=np.float32)
    for _ in range(_ROUNDS):
        layout = _Layout(streams, rows, scene)
        found, ends = layout.images(labels[rows] == 1)
        dashes[rows[layout.alive]], discs[rows[layout.alive]] = (
            found[layout.alive],
            ends[layout.alive],
        )
        rows = rows[~layout.alive]
        if not len(rows):
            return Pictures(dashes, discs, labels)
    raise InputError(
        f"the contours do not fit into {scene.size} x {scene.size} pixels; ask for fewer or "
        "shorter ones (num_distractors, contour_length, paddle_length, gap)"
    )


class _Layout:
    """Lays out contours in several images at once. `alive` marks images without a failure."""

    def __init__(self, streams: Streams, rows: Ints, scene: Scene) -> None:
        self._streams, self._rows, self._scene = streams, rows, scene
        self.alive = np.ones(len(rows), dtype=bool)

    def images(self, is_joined: Bools) -> tuple[Floats, Floats]:
        """Lay out images with the two discs joined or apart.

        Returns:
            Dashes (S, T, 2, 2) and discs (S, 2, 2).
        """
        scene = self._scene
        joined = self._grow(self._nothing(), scene.contour_length, marked=True)
        discs = np.stack([joined.dashes[:, 0, 0], joined.dashes[:, -1, 1]], axis=1)
        self.alive &= _discs_are_clear(joined.dashes, discs, scene)
        apart, apart_grid = self._two_apart(joined, discs)
        beside, beside_grid = self._one_beside(joined, discs, apart)
        chosen = np.flatnonzero(is_joined)
        apart[chosen] = beside[chosen]
        apart_grid.put(chosen, beside_grid, chosen)
        short = [
            self._grow(apart_grid, scene.distractor_length).dashes
            for _ in range(scene.num_distractors)
        ]
        return np.concatenate([apart, *short], axis=1), discs

    def _nothing(self) -> _Occupied:
        return _Occupied.empty(self._scene, len(self._rows))

    def _two_apart(self, joined: _Contours, discs: Floats) -> tuple[Floats, _Occupied]:
        """Lay out two contours that begin at the ends of `joined`, and return their grid."""
        scene = self._scene
        ends = joined.begun(), joined.begun_from_end()
        grid = self._nothing()
        grid.block(_along(ends[1].dashes, scene), scene.clearance)
        grid.block(discs[:, 1], scene.disc_clearance)
        first = self._grow(grid, scene.contour_length, ends[0], marked=True).dashes
        grid = self._nothing()
        grid.block(_along(first, scene), scene.clearance)
        grid.block(discs[:, 0], scene.disc_clearance)
        second = self._grow(grid, scene.contour_length, ends[1], marked=True).dashes
        return np.concatenate([first, second], axis=1), grid

    def _one_beside(
        self, joined: _Contours, discs: Floats, apart: Floats
    ) -> tuple[Floats, _Occupied]:
        """Add a second contour to `joined` that spreads like `apart`. Also return the grid."""
        beside, grid = np.zeros_like(apart), self._nothing()
        grid.block(_along(joined.dashes, self._scene), self._scene.clearance)
        grid.block(discs, self._scene.disc_clearance)
        wanted, done = self.alive, np.zeros_like(self.alive)
        for _ in range(_TRIES):
            self.alive = wanted & ~done
            if not self.alive.any():
                break
            trial = grid.of(np.arange(len(discs)))
            second = self._grow(trial, self._scene.contour_length, near=discs).dashes
            both = np.concatenate([joined.dashes, second], axis=1)
            alike = np.flatnonzero(self.alive & _spread_alike(apart, both, discs, self._scene))
            beside[alike], done[alike] = both[alike], True
            grid.put(alike, trial, alike)
        self.alive = done
        return beside, grid

    def _grow(
        self,
        occupied: _Occupied,
        length: int,
        begun: _Contours | None = None,
        marked: bool = False,
        near: Floats | None = None,
    ) -> _Contours:
        """Add a contour to each image that is alive, and block its positions.

        Args:
            occupied: grids of blocked positions. The contour avoids them, then they are updated.
            length: number of dashes.
            begun: first dash, or None for a random first dash.
            marked: whether the contour begins at a disc.
            near: (S, K, 2) positions. The contour begins near one of them.
        """
        count = len(self._rows)
        dashes = np.zeros((count, length, 2, 2), dtype=np.float32)
        directions = np.zeros((count, length), dtype=np.int64)
        pending = np.flatnonzero(self.alive)
        for _ in range(_TRIES):
            if not len(pending):
                break
            trial = occupied.of(pending)
            pen = _Pen(self._streams, self._rows[pending], self._scene, trial, length)
            if begun is not None:
                pen.begin_with(begun.dashes[pending, 0], begun.directions[pending, 0])
            elif near is not None:
                pen.begin_near(near[pending])
            else:
                pen.begin()
            pen.go_on(self._scene.disc_clearance if marked else self._scene.clearance)
            good = np.flatnonzero(pen.alive)
            dashes[pending[good]] = pen.dashes[good]
            directions[pending[good]] = pen.directions[good]
            occupied.put(pending[good], trial, good)
            pending = pending[~pen.alive]
        self.alive[pending] = False
        return _Contours(dashes, directions)


class _Pen:
    """Draws a contour in each of several images at once. Some contours may fail."""

    def __init__(
        self, streams: Streams, rows: Ints, scene: Scene, occupied: _Occupied, length: int
    ) -> None:
        self._streams, self._rows, self._scene = streams, rows, scene
        self._occupied = occupied
        self.dashes = np.zeros((len(rows), length, 2, 2), dtype=np.float32)
        self.directions = np.zeros((len(rows), length), dtype=np.int64)
        self.alive = np.ones(len(rows), dtype=bool)

    def begin(self) -> None:
        """Draw the first dash at a random position."""
        low, high = self._scene.border, self._scene.size - self._scene.border
        random = self._streams.uniform(self._rows, 3 * _STARTS).reshape(-1, _STARTS, 3)
        tails = random[..., :2] * np.float32(high - low) + np.float32(low)
        self._choose(0, tails, (random[..., 2] * np.float32(TURN)).astype(np.int64))

    def begin_near(self, positions: Floats) -> None:
        """Draw the first dash near one of the positions (S, K, 2)."""
        random = self._streams.uniform(self._rows, 4 * _STARTS).reshape(-1, _STARTS, 4)
        chosen = (random[..., 0] * np.float32(positions.shape[1])).astype(np.int64)
        centres = positions[np.arange(len(positions))[:, None], chosen]
        around = _DIRECTIONS[(random[..., 1] * np.float32(TURN)).astype(np.int64)]
        distance = np.sqrt(random[..., 2:3]) * np.float32(_NEIGHBOURHOOD * self._scene.extent)
        directions = (random[..., 3] * np.float32(TURN)).astype(np.int64)
        self._choose(0, centres + around * distance, directions)

    def begin_with(self, dashes: Floats, directions: Ints) -> None:
        """Set the first dash: ends (S, 2, 2) and directions (S,)."""
        self.dashes[:, 0], self.directions[:, 0] = dashes, directions

    def go_on(self, start_clearance: float) -> None:
        """Draw the remaining dashes.

        A dash at least `Scene.lag` steps back becomes an obstacle to the contour itself.
        """
        scene, length = self._scene, self.dashes.shape[1]
        random = self._streams.uniform(self._rows, (length - 1) * _BENDS)
        bends = (random * np.float32(2 * scene.max_bend + 1)).astype(np.int64) - scene.max_bend
        bends = bends.reshape(len(bends), length - 1, _BENDS)
        for step in range(1, length):
            if step == scene.lag:
                self._occupied.block(self.dashes[:, 0, 0], start_clearance)
            if step >= scene.lag:
                self._occupy(step - scene.lag)
            before = self.directions[:, step - 1, None]
            bend = bends[:, step - 1]
            across = _DIRECTIONS[(before + bend // 2) % TURN] * np.float32(scene.gap)
            tails = self.dashes[:, step - 1, None, 1] + across
            self._choose(step, tails, (before + bend) % TURN)
        for step in range(max(length - scene.lag, 0), length):
            self._occupy(step)

    def _choose(self, step: int, tails: Floats, directions: Ints) -> None:
        """Choose the first candidate dash that fits.

        Candidates with room for another dash straight ahead come first, because fewer contours
        then reach a dead end.

        Args:
            step: index of the dash in the contour.
            tails: (S, K, 2) start points of the candidates.
            directions: (S, K) directions of the candidates.
        """
        heads = tails + _DIRECTIONS[directions] * np.float32(self._scene.paddle_length)
        dashes = np.stack([tails, heads], axis=2)
        fits = self._occupied.free(_along(dashes, self._scene)).all(axis=-1)
        ahead = self._occupied.free(heads + (heads - tails) * np.float32(self._scene.look_ahead))
        images, best = np.arange(len(tails)), (fits * (1 + ahead)).argmax(axis=1)
        self.dashes[:, step] = dashes[images, best]
        self.directions[:, step] = directions[images, best]
        self.alive &= np.asarray(fits)[images, best]

    def _occupy(self, step: int) -> None:
        self._occupied.block(_along(self.dashes[:, step], self._scene), self._scene.clearance)


def _along(dashes: Floats, scene: Scene) -> Floats:
    """Sample points on dashes, at most half a clearance apart.

    Args:
        dashes: (..., 2, 2) both ends of each dash.
        scene: settings of the images.

    Returns:
        Points (..., P, 2).
    """
    part = _parts(1 + math.ceil(2 * scene.paddle_length / scene.clearance))
    return dashes[..., :1, :] + (dashes[..., 1:, :] - dashes[..., :1, :]) * part


@functools.cache
def _parts(count: int) -> Floats:
    return np.linspace(0, 1, count, dtype=np.float32)[:, None]


def _spread_alike(one: Floats, other: Floats, discs: Floats, scene: Scene) -> Bools:
    """Check that two layouts spread similarly around the image center and the discs."""
    middle = discs.mean(axis=1)[:, None]
    most = np.float32(_ALIKE * scene.extent)
    positions = one.mean(axis=2), other.mean(axis=2)
    off_centre = [
        _lengths(position.mean(axis=1) - np.float32(scene.size / 2)) for position in positions
    ]
    around = [_lengths(position - middle).mean(axis=1) for position in positions]
    differences = np.stack([off_centre[0] - off_centre[1], around[0] - around[1]])
    return (np.abs(differences) <= most).all(axis=0)


def _lengths(vectors: Floats) -> Floats:
    return np.sqrt(np.square(vectors).sum(axis=-1))


def _discs_are_clear(dashes: Floats, discs: Floats, scene: Scene) -> Bools:
    """Check that the discs are apart and the contour avoids its last disc."""
    apart = np.square(discs[:, 0] - discs[:, 1]).sum(axis=-1) >= scene.disc_distance**2
    earlier = _along(dashes[:, : -scene.lag], scene).reshape(len(dashes), -1, 2)
    squares = np.square(earlier - discs[:, 1:]).sum(axis=-1)
    return apart & (squares >= scene.disc_clearance**2).all(axis=1)
