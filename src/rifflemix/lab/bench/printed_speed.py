"""Reported values of the Sliceformer paper's Table III.

The paper used JAX on its own GPUs with sequences of 1K to 4K. It does not give the task, the
batch size or the exact length of a K. None means that the paper reports OOM.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

LENGTHS = (1024, 2048, 3072, 4096)
"""N for the paper's 1K, 2K, 3K and 4K (the paper does not give exact numbers)."""

Figures = tuple[float | None, float | None, float | None, float | None]


@dataclass(frozen=True)
class Printed:
    """Reported values of one model by N.

    Attributes:
        title: name in the paper.
        training_step: training steps per second.
        forward: inference steps per second.
        memory: peak memory in GB.
    """

    title: str
    training_step: Figures
    forward: Figures
    memory: Figures

    def to_dict(self) -> dict[str, object]:
        """Return JSON values with the figures by N."""
        figures = {
            name: {str(n): value for n, value in zip(LENGTHS, values, strict=True)}
            for name, values in asdict(self).items()
            if name != "title"
        }
        return {"title": self.title, **figures}


PRINTED: dict[str, Printed] = {
    "softmax": Printed(
        "Transformer", (27.49, 9.45, 4.73, None),
        (41.54, 32.90, 16.09, None), (11.64, 32.45, 65.67, None),
    ),
    "local": Printed(
        "Local Attention", (31.41, 25.47, 18.06, 13.80),
        (41.24, 41.34, 42.35, 42.27), (6.23, 9.24, 12.26, 15.27),
    ),
    "linear": Printed(
        "Linear Trans.", (31.35, 25.79, 17.07, 12.32),
        (41.98, 42.51, 42.39, 42.12), (6.50, 9.84, 13.18, 16.52),
    ),
    "reformer": Printed(
        "Reformer", (31.55, 22.00, 13.42, 8.84),
        (42.80, 42.25, 41.65, 34.25), (6.91, 12.22, 19.54, 28.88),
    ),
    "sinkformer": Printed(
        "Sinkformer", (18.72, 5.82, 2.86, None),
        (41.74, 20.49, 9.12, None), (14.13, 41.58, 82.53, None),
    ),
    "sparse_transformer": Printed(
        "SparseTrans", (27.39, 9.47, 4.72, None),
        (41.16, 40.45, 41.37, 42.12), (11.64, 32.45, 65.71, None),
    ),
    "sinkhorn": Printed(
        "SinkhornTrans", (29.88, 22.00, 15.66, 11.70),
        (41.16, 40.45, 41.37, 42.12), (6.70, 10.23, 13.78, 17.32),
    ),
    "linformer": Printed(
        "Linformer", (28.47, 28.08, 19.08, 14.55),
        (41.72, 42.42, 42.23, 42.12), (5.95, 8.82, 11.65, 14.47),
    ),
    "performer": Printed(
        "Performer", (28.84, 26.67, 18.97, 14.10),
        (41.50, 42.31, 41.87, 41.69), (6.25, 9.35, 12.45, 15.54),
    ),
    "synthesizer": Printed(
        "Synthesizer", (19.57, 6.27, 3.01, None),
        (41.84, 27.44, 13.21, None), (12.77, 37.53, 75.23, None),
    ),
    "longformer": Printed(
        "Longformer", (17.56, 5.67, 2.74, None),
        (40.91, 32.52, 15.79, None), (13.00, 37.07, 75.46, None),
    ),
    "bigbird": Printed(
        "BigBird", (27.27, 14.34, 9.76, 7.21),
        (40.84, 41.50, 34.85, 26.02), (9.59, 16.53, 23.16, 30.07),
    ),
    "cosformer": Printed(
        "Cosformer", (28.42, 26.13, 17.56, 12.58),
        (41.62, 40.78, 40.56, 40.50), (6.36, 9.68, 13.36, 16.95),
    ),
    "sliceformer": Printed(
        "Sliceformer", (32.79, 32.26, 21.79, 16.25),
        (43.73, 43.72, 43.29, 42.89), (5.61, 8.12, 10.64, 13.14),
    ),
}  # fmt: skip
