"""Linear recurrences over a matrix state: linear attention with decay and removal.

Sources: Yang et al. 2024, "Gated Linear Attention Transformers with Hardware-Efficient Training"
(GLA); Yang et al. 2024, "Parallelizing Linear Transformers with the Delta Rule over Sequence
Length" (DeltaNet); Peng et al. 2025, "RWKV-7 Goose with Expressive Dynamic State Evolution".
"""

from rifflemix.ops.recurrence.api import linear_recurrence

__all__ = ["linear_recurrence"]
