"""Contours of dashes that touch neither each other nor themselves, for many images at once.

All images are worked on in step, but each draws from its own stream and sees only itself.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rifflemix.errors import InputError
from rifflemix.lab.tasks.core.random_words import Streams

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

# Directions are whole parts of a turn, read off a table: the same on every processor.
_TURN = 4096
_ANGLES = np.arange(_TURN) * (2 * math.pi / _TURN)
_DIRECTIONS = np.stack([np.cos(_ANGLES), np.sin(_ANGLES)], axis=1).astype(np.float32)

_STARTS = 32  # positions looked at for a contour to begin
_BENDS = 6  # bends looked at for it to go on
_TRIES = 8  # times a contour is begun again before the whole image is
_ROUNDS = 500  # times an image is begun again
_NEIGHBOURHOOD = 0.5  # of a contour's length: how far from a disc the contour beside begins
_ALIKE = 0.06  # of a contour's length: by how much the spread of the two answers may differ
_CELLS = 4  # cells of the grid of occupied positions in one clearance


@dataclass(frozen=True)
class Scene:
    """The contents of the images; lengths in pixels.

    Attributes:
        size: height and width of the image.
        contour_length: dashes of each of the two long contours.
        num_distractors: short contours.
        distractor_length: dashes of each.
        paddle_length: of a dash.
        paddle_thickness: of a dash.
        gap: between a dash and the next of its contour.
        clearance: least distance between the middle lines of two contours, kept on a grid of
            quarters of it.
        continuity: larger is straighter: a bend is at most 60 degrees / continuity.
        contrast: brightness of a dash where the discs have 1; over 1, thin dashes stand out.
        marker_radius: of the two discs.
        disc_distance: least distance between the two discs.
        border: width of the frame that stays free.
    """

    size: int
    contour_length: int
    num_distractors: int
    distractor_length: int
    paddle_length: float
    paddle_thickness: float
    gap: float
    clearance: float
    continuity: float
    contrast: float
    marker_radius: float
    disc_distance: float
    border: float

    @property
    def lag(self) -> int:
        """A contour may be nearer than the clearance to this many of its own last dashes."""
        return 2 + int(self.clearance // (self.paddle_length + self.gap))

    @property
    def max_bend(self) -> int:
        """Largest bend between two dashes, in parts of a turn."""
        return round(_TURN / 6 / self.continuity)

    @property
    def look_ahead(self) -> float:
        """From the head of a dash to where the next would end, in dashes."""
        return 1 + self.gap / self.paddle_length

    @property
    def extent(self) -> float:
        """How far a long contour can reach in the image."""
        return min(self.size, self.contour_length * (self.paddle_length + self.gap))

    @property
    def disc_clearance(self) -> float:
        """Least distance between the middle of a disc and other contours."""
        return self.marker_radius + self.clearance / 2


class Pictures(NamedTuple):
    """The shapes to draw in S images.

    Attributes:
        dashes: (S, T, 2, 2) both ends of every dash, as x and y.
        discs: (S, 2, 2) middle of both discs.
        labels: (S,) 1 where both discs are on one contour.
    """

    dashes: Floats
    discs: Floats
    labels: NDArray[np.uint8]


class _Contours(NamedTuple):
    """One contour in each of S images: both ends of its dashes, and their directions.

    Attributes:
        dashes: (S, L, 2, 2).
        directions: (S, L).
    """

    dashes: Floats
    directions: Ints

    def begun(self) -> _Contours:
        """The first dash only."""
        return _Contours(self.dashes[:, :1], self.directions[:, :1])

    def begun_from_end(self) -> _Contours:
        """The last dash only, walked backwards."""
        turned = (self.directions[:, -1:] + _TURN // 2) % _TURN
        return _Contours(self.dashes[:, -1:, ::-1], turned)


class _Occupied:
    """Grids, one an image, of the positions that are too close to what is there already.

    Around the image the grids have room for what is blocked at its edge.
    """

    def __init__(self, scene: Scene, grids: Bools) -> None:
        self._scene = scene
        self._cell = np.float32(scene.clearance / _CELLS)
        self._room = _room(scene)
        self._side = _side(scene)
        self._grids = grids

    @classmethod
    def empty(cls, scene: Scene, count: int) -> _Occupied:
        """Nothing is there yet."""
        return cls(scene, np.zeros((count, _side(scene) ** 2), dtype=bool))

    def of(self, images: Ints) -> _Occupied:
        """A copy for some of the images."""
        return _Occupied(self._scene, self._grids[images])

    def put(self, images: Ints, other: _Occupied, positions: Ints) -> None:
        """Take the grids at `positions` of another."""
        self._grids[images] = other._grids[positions]

    def free(self, points: Floats) -> Bools:
        """Whether points (S, ..., 2) are inside the frame and far enough from everything."""
        low, high = self._scene.border, self._scene.size - self._scene.border
        x, y = points[..., 0], points[..., 1]
        inside = (x >= low) & (x <= high) & (y >= low) & (y <= high)
        return inside & ~self._grids.reshape(-1)[self._cells(points)]

    def block(self, points: Floats, radius: float) -> None:
        """Keep others `radius` away from points (S, ..., 2)."""
        around = _disc_cells(radius / float(self._cell), self._side)
        self._grids.reshape(-1)[self._cells(points)[..., None] + around] = True

    def _cells(self, points: Floats) -> Ints:
        """Where points (S, ..., 2) lie in the grids, all flat; those outside lie at the edge."""
        cells = (points / self._cell).astype(np.int64) + self._room
        np.clip(cells, self._room, self._side - 1 - self._room, out=cells)
        first = np.arange(len(points)).reshape(-1, *(1,) * (points.ndim - 2)) * self._side**2
        flat: Ints = first + cells[..., 1] * self._side + cells[..., 0]
        return flat


def _room(scene: Scene) -> int:
    return math.ceil(max(scene.clearance, scene.disc_clearance) * _CELLS / scene.clearance)


def _side(scene: Scene) -> int:
    return math.ceil(scene.size * _CELLS / scene.clearance) + 1 + 2 * _room(scene)


@functools.cache
def _disc_cells(radius: float, side: int) -> Ints:
    """(K,) steps to the cells that a disc of this radius around a cell touches, rows of `side`."""
    steps = np.arange(-math.ceil(radius), math.ceil(radius) + 1)
    x, y = np.meshgrid(steps, steps)
    within = x * x + y * y <= radius * radius
    cells: Ints = y[within] * side + x[within]
    return cells


def draw_scenes(streams: Streams, count: int, scene: Scene) -> Pictures:
    """The dashes and discs of `count` images.

    Both answers are laid out for each image: a long contour between the two discs with a second
    one beside it, and two long contours that begin at the same discs with the same dashes but go
    elsewhere. An image is kept where both are possible, and shows the one that its label asks
    for: so the discs and the dashes under them are alike in both classes. For the same reason
    the second contour begins not far from a disc, and both answers have to spread alike.

    Raises:
        InputError: hardly any image can be laid out.
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
    """One attempt at each of some images; `alive` tells where all has gone well so far."""

    def __init__(self, streams: Streams, rows: Ints, scene: Scene) -> None:
        self._streams, self._rows, self._scene = streams, rows, scene
        self.alive = np.ones(len(rows), dtype=bool)

    def images(self, is_joined: Bools) -> tuple[Floats, Floats]:
        """Dashes (S, T, 2, 2) and discs (S, 2, 2) of images with the two discs joined or not."""
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
        """Two contours that begin like both ends of one, and what they occupy."""
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
        """A contour with a second one, together spread like two apart, and what they occupy."""
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
        """One more contour in each image that is alive; its cells are then occupied.

        Args:
            occupied: what it may not touch.
            length: dashes.
            begun: its first dash.
            marked: it begins with a disc.
            near: (S, K, 2) positions, not far from one of which it begins.
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
    """One try at a contour in each of some images."""

    def __init__(
        self, streams: Streams, rows: Ints, scene: Scene, occupied: _Occupied, length: int
    ) -> None:
        self._streams, self._rows, self._scene = streams, rows, scene
        self._occupied = occupied
        self.dashes = np.zeros((len(rows), length, 2, 2), dtype=np.float32)
        self.directions = np.zeros((len(rows), length), dtype=np.int64)
        self.alive = np.ones(len(rows), dtype=bool)

    def begin(self) -> None:
        """The first dash, anywhere."""
        low, high = self._scene.border, self._scene.size - self._scene.border
        random = self._streams.uniform(self._rows, 3 * _STARTS).reshape(-1, _STARTS, 3)
        tails = random[..., :2] * np.float32(high - low) + np.float32(low)
        self._choose(0, tails, (random[..., 2] * np.float32(_TURN)).astype(np.int64))

    def begin_near(self, positions: Floats) -> None:
        """The first dash, in the neighbourhood of one of positions (S, K, 2)."""
        random = self._streams.uniform(self._rows, 4 * _STARTS).reshape(-1, _STARTS, 4)
        chosen = (random[..., 0] * np.float32(positions.shape[1])).astype(np.int64)
        centres = positions[np.arange(len(positions))[:, None], chosen]
        around = _DIRECTIONS[(random[..., 1] * np.float32(_TURN)).astype(np.int64)]
        distance = np.sqrt(random[..., 2:3]) * np.float32(_NEIGHBOURHOOD * self._scene.extent)
        directions = (random[..., 3] * np.float32(_TURN)).astype(np.int64)
        self._choose(0, centres + around * distance, directions)

    def begin_with(self, dashes: Floats, directions: Ints) -> None:
        """The first dash, given: (S, 2, 2) and (S,)."""
        self.dashes[:, 0], self.directions[:, 0] = dashes, directions

    def go_on(self, start_clearance: float) -> None:
        """The other dashes; what is far enough behind becomes an obstacle to the contour itself."""
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
            across = _DIRECTIONS[(before + bend // 2) % _TURN] * np.float32(scene.gap)
            tails = self.dashes[:, step - 1, None, 1] + across
            self._choose(step, tails, (before + bend) % _TURN)
        for step in range(max(length - scene.lag, 0), length):
            self._occupy(step)

    def _choose(self, step: int, tails: Floats, directions: Ints) -> None:
        """The first dash that fits, of tails (S, K, 2) and directions (S, K).

        One with room for another dash straight ahead goes before: fewer contours get stuck.
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
    """Points (..., P, 2) on dashes (..., 2, 2), half a clearance apart or less."""
    part = _parts(1 + math.ceil(2 * scene.paddle_length / scene.clearance))
    points: Floats = dashes[..., :1, :] + (dashes[..., 1:, :] - dashes[..., :1, :]) * part
    return points


@functools.cache
def _parts(count: int) -> Floats:
    return np.linspace(0, 1, count, dtype=np.float32)[:, None]


def _spread_alike(one: Floats, other: Floats, discs: Floats, scene: Scene) -> Bools:
    """Whether the dashes of two answers are about as far from the image's centre and the discs."""
    middle = discs.mean(axis=1)[:, None]
    most = np.float32(_ALIKE * scene.extent)
    positions = one.mean(axis=2), other.mean(axis=2)
    off_centre = [
        _lengths(position.mean(axis=1) - np.float32(scene.size / 2)) for position in positions
    ]
    around = [_lengths(position - middle).mean(axis=1) for position in positions]
    differences = np.stack([off_centre[0] - off_centre[1], around[0] - around[1]])
    alike: Bools = (np.abs(differences) <= most).all(axis=0)
    return alike


def _lengths(vectors: Floats) -> Floats:
    lengths: Floats = np.sqrt(np.square(vectors).sum(axis=-1))
    return lengths


def _discs_are_clear(dashes: Floats, discs: Floats, scene: Scene) -> Bools:
    """Whether the discs are apart, and the contour between them does not come back to its end."""
    apart = np.square(discs[:, 0] - discs[:, 1]).sum(axis=-1) >= scene.disc_distance**2
    earlier = _along(dashes[:, : -scene.lag], scene).reshape(len(dashes), -1, 2)
    squares = np.square(earlier - discs[:, 1:]).sum(axis=-1)
    clear: Bools = apart & (squares >= scene.disc_clearance**2).all(axis=1)
    return clear
