"""Examples of the kinds of user data: generated, or from the digits of the package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rifflemix.lab.tasks.core.base import Request, Task, check_integer
from rifflemix.lab.tasks.core.card import Budget, TaskCard
from rifflemix.lab.tasks.core.generated import GeneratedTask
from rifflemix.lab.tasks.core.kinds import FORECAST, MASKED_TOKEN, MULTILABEL, Kind
from rifflemix.lab.tasks.images.digits import read_digits
from rifflemix.lab.tasks.user_data.arrays import from_arrays_once

NOISE = 0.2
"""Standard deviation of the noise of `SeasonalSeries`."""

PARTS = {"train": 0.6, "validation": 0.2, "test": 0.2}


class Example(GeneratedTask):
    """Example of a kind. Subclasses make its data with `build`."""

    kind: Kind

    def build(self, options: Mapping[str, Any], seed: int) -> Task:
        """Make the data and the task."""
        raise NotImplementedError

    def load(self, request: Request) -> Task:
        """Make the task, with the card of this example."""
        task = self.build(request.options, request.seed)
        seed = {"seed": request.seed} if self.takes_seed else {}
        return replace(
            task,
            name=self.card.name,
            options={**request.options, **seed},
            data_source=self.at_hand,
            card=None,
        )


def _card(name: str, title: str, kind: Kind, description: str, **options: Any) -> TaskCard:
    return TaskCard(
        name=name,
        title=title,
        source="this package",
        licence="Apache-2.0, as this package",
        description=description,
        needs_data=False,
        options=options,
        output=kind.output,
        backbone=kind.backbone,
        budget=Budget(max_steps=500, batch_size=32, lr=3e-3),
    )


class SeasonalSeries(Example):
    """Two series with two seasons each, a slow trend and normal noise."""

    card = _card(
        "seasonal",
        "Seasonal series",
        FORECAST,
        "Forecasts of two channels with seasons of 12 and 30 steps, and normal noise of deviation "
        "0.2. No forecast has a mean absolute error below 0.16, the mean absolute noise.",
        steps=1500,
        context=60,
        horizon=12,
    )

    def build(self, options: Mapping[str, Any], seed: int) -> Task:
        """Generate the series."""
        steps = check_integer(options, "steps", 500)
        time, random = np.arange(steps), np.random.default_rng(seed)
        waves = [np.sin(2 * np.pi * time / period) for period in (12, 30)]
        clean = np.stack([waves[0] + 0.5 * waves[1], 2 * waves[1] - waves[0]], axis=1)
        return from_arrays_once(
            clean + NOISE * random.normal(size=clean.shape),
            kind=FORECAST.name,
            context=options["context"],
            horizon=options["horizon"],
            season=12,
        )


class DigitPairs(Example):
    """Two digits side by side; the labels are the digits that occur."""

    card = _card(
        "digit_sets",
        "Sets of digits",
        MULTILABEL,
        "Two of the real handwritten digits of task digits next to each other, as 16 columns of 8 "
        "pixels. The labels are the digits that occur, one or two of ten.",
        pairs=1500,
    )

    def build(self, options: Mapping[str, Any], seed: int) -> Task:
        """Draw pairs of images. No image is in two splits."""
        images, labels, rows = read_digits()
        random, x, y, names = np.random.default_rng(seed), [], [], []
        count = check_integer(options, "pairs", 50)
        for split, share in PARTS.items():
            for _ in range(round(count * share)):
                chosen = random.choice(rows[split], size=2, replace=False)
                x.append(np.concatenate([images[row].T for row in chosen]) / 16.0 - 0.3)
                y.append(np.isin(np.arange(10), labels[chosen]))
                names.append(split)
        return from_arrays_once(np.array(x), np.array(y), kind=MULTILABEL.name, split=names)


class Motifs(Example):
    """Random DNA with copies of a few motifs."""

    card = _card(
        "dna_motifs",
        "DNA with motifs",
        MASKED_TOKEN,
        "Sequences of A, C, G and T (ids 0 to 3): copies of 8 random motifs of 8 bases, with "
        "random bases between them. A masked base in a motif follows from its neighbors.",
        length=96,
        sequences=2000,
    )

    def build(self, options: Mapping[str, Any], seed: int) -> Task:
        """Generate the sequences."""
        random = np.random.default_rng(seed)
        length = check_integer(options, "length", 16)
        motifs = random.integers(0, 4, (8, 8))
        rows = random.integers(0, 4, (check_integer(options, "sequences", 50), length))
        for row in rows:
            at = int(random.integers(0, 8))
            while at + 8 <= length:
                row[at : at + 8] = motifs[random.integers(8)]
                at += 8 + int(random.integers(0, 4))
        return from_arrays_once(rows, kind=MASKED_TOKEN.name)


EXAMPLES = (SeasonalSeries(), DigitPairs(), Motifs())
