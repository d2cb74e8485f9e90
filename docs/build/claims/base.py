"""Claims of papers: evidence, judges and verdicts.

A claim names its evidence. A measurement of the evidence is in docs/data/claims.csv. A judge turns
its data into a judgement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from claims.files import stored

HOLDS, PART, FAILS = "holds", "holds in part", "does not hold here"
DEPENDS = "depends on the measure"
UNDECIDED = "within the noise"
NOT_RUN = "not run yet"
VERDICTS = (HOLDS, FAILS, PART, DEPENDS, UNDECIDED, NOT_RUN)

Data = Mapping[str, Any]
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Judgement:
    """A verdict and the numbers that it follows from.

    Attributes:
        verdict: one of `VERDICTS`.
        shows: the numbers in words.
    """

    verdict: str
    shows: str


Judge = Callable[[Data], Judgement]


@dataclass(frozen=True)
class Analysis:
    """A run of `rifflemix analyze`.

    Attributes:
        look: folder of the analysis below runs/looks.
        kind: kind of analysis.
        options: target and options of the command.
        trained: commands that train the target first.
    """

    look: str
    kind: str
    options: str
    trained: Sequence[str] = ()

    @property
    def name(self) -> str:
        """Name of the measurement."""
        return f"{self.look}-{self.kind}"

    @property
    def out(self) -> str:
        """Folder that the command writes to."""
        return f"runs/looks/{self.look}"

    @property
    def command(self) -> str:
        """The command that measures."""
        return f"rifflemix analyze {self.kind} {self.options} --threads 1 --out {self.out}"


@dataclass(frozen=True)
class Check:
    """A measurement in Python that takes seconds.

    Attributes:
        name: name of the measurement.
        title: title of the measurement.
        measure: returns the data, as JSON values.
        trained: commands that train the models that it reads first.
    """

    name: str
    title: str
    measure: Callable[[], Data]
    trained: Sequence[str] = ()

    @property
    def command(self) -> str:
        """The command that measures."""
        return f"python docs/build/run_claims.py {self.name}"


@dataclass(frozen=True)
class Runs:
    """Rows of a table or figure, trained at a reduced size with several seeds.

    Attributes:
        name: name of the measurement.
        title: title of the rows.
        rows: short name of each row -> recipe.
        steps: updates of each run.
        batch_size: samples per update.
        scale: factor of the model's widths.
        seeds: every row runs with each seed.
    """

    name: str
    title: str
    rows: Mapping[str, str]
    steps: int
    batch_size: int
    scale: float = 1.0
    seeds: Sequence[int] = SEEDS

    @property
    def command(self) -> str:
        """The command that trains all rows, or continues."""
        return f"python docs/build/run_claims.py {self.name}"


Evidence = Analysis | Check | Runs


@dataclass(frozen=True)
class Claim:
    """One claim of a paper.

    Attributes:
        paper: title of the paper.
        text: the claim, and the section that makes it.
        shows: the paper's own evidence.
        evidence: the measurement here.
        judge: function from the evidence's data to the judgement.
        picture: analysis with a picture of the claim, if the evidence has no picture.
    """

    paper: str
    text: str
    shows: str
    evidence: Evidence
    judge: Judge
    picture: Analysis | None = None


def judged(claim: Claim) -> Judgement:
    """Judge a claim by the measurement of its evidence."""
    found = stored(claim.evidence.name)
    if found is None:
        return Judgement(NOT_RUN, "nothing yet")
    return claim.judge(found["data"])
