"""The public functions of this family: arguments checked, then handed to `unchecked`."""

from __future__ import annotations

from torch import Tensor

from rifflemix.checks import check_floating, check_probability
from rifflemix.ops.dropout import unchecked


def dropout(x: Tensor, p: float, *, backend: str = "auto") -> Tensor:
    """Each element becomes zero with probability p, the others x / (1 - p).

    On a CPU the elements that are dropped follow from one number that torch's generator draws: the
    same for any number of threads and for every backend, again where the generator's state is
    restored (a resumed run, a checkpointed block), others in the next call. Only that number is
    kept for the gradient. On other devices, in a graph that torch compiles without the kernels, and
    under transforms of torch.func or forward-mode differentiation it is torch's own dropout.

    Args:
        x: floating-point, of any shape.
        p: probability in [0, 1), exact to 2^-32; it drops whenever it is not 0, so pass 0 when not
            training.
        backend: "auto", "reference", "eager" or "cpu".

    Returns:
        Like `x`; `x` itself for p = 0. Elements that are dropped are 0 also where x is not finite.

    Raises:
        InputError: another dtype, `p` out of range, or a backend that cannot run this.

    Source: Srivastava et al. 2014, "Dropout"; the numbers are those of Salmon et al. 2011,
    "Parallel Random Numbers: As Easy as 1, 2, 3".
    """
    check_floating("x", x, "(...)")
    return unchecked.dropout(x, check_probability("p", p), backend)
