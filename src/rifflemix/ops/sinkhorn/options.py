"""Options of Sparse Sinkhorn attention and the rules between them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rifflemix.checks import check_bool, check_integer, check_positive
from rifflemix.errors import bad_argument, check_choice

SORT_NETS = ("linear", "relu", "mlp", "relu_mlp")
GUMBEL = ("training", "always", "never")
KERNELS = ("exp", "relu")
COMBINE = ("concat", "sum_logits", "sum_out")


@dataclass(frozen=True)
class SinkhornOptions:
    """Options of the sort matrix, and of the attention to sorted blocks.

    `rifflemix.mixers.sinkhorn.Sinkhorn` describes the attributes.
    """

    causal: bool = False
    sort_net: str = "linear"
    temperature: float = 0.75
    num_iterations: int = 8
    gumbel: str = "training"
    kernel: str = "exp"
    top_k: int = 0
    null_kv: bool = False
    final_row_norm: bool = True
    combine: str = "concat"
    sortcut: int = 0
    sortcut_local: bool = False
    mixture: bool = False
    rotate_heads: bool = False

    def checked(self, num_blocks: int, num_heads: int) -> SinkhornOptions:
        """Check all options of a layer with `num_blocks` blocks.

        Returns:
            The options, with NumPy numbers as Python numbers.

        Raises:
            InputError: options are out of range or incompatible.
        """
        options = self.checked_balancing().checked_attention(num_blocks)
        check_choice("sort_net", self.sort_net, (*SORT_NETS, "attention"))
        check_choice("gumbel", self.gumbel, GUMBEL)
        top_k = check_integer("top_k", self.top_k, 0, num_blocks)
        if top_k and self.kernel != "exp":
            raise bad_argument("kernel", '"exp" with top_k', repr(self.kernel))
        if top_k and options.sortcut > top_k:
            raise bad_argument("sortcut", f"at most top_k = {top_k}", options.sortcut)
        if self.null_kv and not self.causal:
            raise bad_argument("null_kv", "False without causal=True", True)
        if not self.final_row_norm and (top_k or not self.causal):
            raise bad_argument("final_row_norm", "True unless balancing is causal", False)
        if self.rotate_heads and not (self.causal and num_heads > 1):
            raise bad_argument("rotate_heads", "False without causal=True and 2 heads", True)
        return replace(options, top_k=top_k)

    def checked_balancing(self) -> SinkhornOptions:
        """Check the options of the sort matrix that `gumbel_sinkhorn` has."""
        check_choice("kernel", self.kernel, KERNELS)
        check_bool("causal", self.causal)
        check_bool("final_row_norm", self.final_row_norm)
        return replace(
            self,
            temperature=check_positive("temperature", self.temperature),
            num_iterations=check_integer("num_iterations", self.num_iterations, 0),
        )

    def checked_attention(self, most: int) -> SinkhornOptions:
        """Check the options that `sinkhorn_attention` has, for SortCut with up to `most` blocks.

        `top_k` is the number of sorted blocks of each query block; 0 means 1.
        """
        check_choice("combine", self.combine, COMBINE)
        for name in ("sortcut_local", "mixture", "causal"):
            check_bool(name, getattr(self, name))
        sortcut = check_integer("sortcut", self.sortcut, 0, most)
        if sortcut and self.causal:
            hint = "SortCut is for encoders only"
            raise bad_argument("sortcut", "0 with causal=True", sortcut, hint)
        if self.sortcut_local and not sortcut:
            raise bad_argument("sortcut_local", "False without sortcut", True)
        if sortcut and not self.sortcut_local and self.combine != "concat":
            expected = '"concat" for SortCut without a local term'
            raise bad_argument("combine", expected, repr(self.combine))
        if self.combine == "sum_logits" and (sortcut or self.top_k) > 1:
            expected = "another value if a query block has several sorted blocks"
            raise bad_argument("combine", expected, repr(self.combine))
        return replace(self, sortcut=sortcut)
