"""The papers' claims: what each says, the analysis that tests it, and who judges its numbers.

`docs/write_claims.py` fills docs/claims.md from this list and the files in docs/claims.
"""

from __future__ import annotations

from dataclasses import dataclass

from claims_judges import (
    Judge,
    alone,
    balanced,
    bound_falls,
    bound_is_above,
    connected,
    distinct_maps,
    doubly_stochastic,
    exchange_is_local,
    full_rank,
    harder,
    hidden_collapse,
    incoherent,
    never_connected,
    no_collapse,
    noise_spread,
    operator_lowers,
    order_free,
    printed_macs,
    sharper_maps,
    skips_save_softmax,
    slower_decay,
    theorem_1,
    tokens_cluster,
    trained_spread,
)

CSP, SLICE = "Channel-wise Sample Permutation", "Sliceformer"
TOST, DIM, SINK = "Token Statistics Transformer", "Dimension Mixer", "Sparse Sinkhorn Attention"


@dataclass(frozen=True)
class Claim:
    """One claim.

    Attributes:
        paper: the heading that it stands under.
        says: the claim and where the paper makes it.
        shows: what the paper shows for it.
        look: the folder of the analysis, `LOOKS` has its command.
        kind: the analysis.
        judge: from the analysis's data to the verdict and what ours shows.
    """

    paper: str
    says: str
    shows: str
    look: str
    kind: str
    judge: Judge


CLAIMS = (
    Claim(
        CSP,
        "The implicit maps are permutations, so their spectrum is all ones (section 1).",
        "an argument",
        "digits",
        "spectrum",
        full_rank,
    ),
    Claim(
        CSP,
        "The spectra of CSP's outputs decay more slowly than those of attention (section 4.1).",
        "Figure 3, on ImageNet-1k",
        "digits",
        "spectrum",
        slower_decay("csp"),
    ),
    Claim(
        CSP,
        "So do those of shifting alone (section 4.1).",
        "Figure 3, on ImageNet-1k",
        "digits",
        "spectrum",
        slower_decay("shift"),
    ),
    Claim(
        CSP,
        "The rank residual after l layers is bounded as theorem 1 says.",
        "a proof",
        "fresh",
        "collapse",
        theorem_1,
    ),
    Claim(
        CSP,
        "Without skip connections, softmax attention collapses and CSP does not (section 3.2.1).",
        "theorem 1, and Dong et al. 2021 for attention",
        "fresh",
        "collapse",
        no_collapse,
    ),
    Claim(
        CSP,
        "The same at a depth of 24 layers.",
        "nothing: the bound is for any depth",
        "deep",
        "collapse",
        no_collapse,
    ),
    Claim(
        CSP,
        "The same with the mixers alone, their biases included, without norms.",
        "nothing: the bound is for any weights",
        "deep",
        "collapse",
        alone,
    ),
    Claim(
        CSP,
        "Maps that are permutations carry a low risk of rank collapse (section 3.2.1).",
        "theorem 1, whose measure is the rank residual",
        "fresh",
        "collapse",
        hidden_collapse,
    ),
    Claim(
        CSP,
        "Skip connections keep softmax attention from collapsing (Dong et al. 2021).",
        "section 3.2.1 quotes that without them it collapses",
        "fresh",
        "collapse",
        skips_save_softmax,
    ),
    Claim(
        CSP,
        "Every channel has a map of its own, as many heads as channels (section 3.2).",
        "equation (4)",
        "digits",
        "permutation",
        distinct_maps,
    ),
    Claim(
        CSP,
        "Shifts and pairs let all tokens meet within a few layers (section 3.2.2).",
        "Figure 2, the shifting strategies",
        "pattern",
        "pattern",
        connected("csp", 2, 1.0),
    ),
    Claim(
        SLICE,
        "Sorting does not see the order of the tokens (section 4).",
        "section 4 announces a test of it",
        "digits",
        "permutation",
        order_free,
    ),
    Claim(
        SLICE,
        "Singular values of its outputs decay more slowly than ViT's (section 4.3).",
        "Figure 4, on CIFAR-10",
        "digits",
        "spectrum",
        slower_decay("sliceformer"),
    ),
    Claim(
        SLICE,
        "Max-exchange moves few values, the largest of each channel (section 3.3).",
        "section 3.3: two tokens a channel change places",
        "digits",
        "permutation",
        exchange_is_local,
    ),
    Claim(
        SLICE,
        "The deviation of softmax weights falls fast as N grows (section 3.1).",
        "Figure 2, on random vectors",
        "digits",
        "softmax-spread",
        noise_spread,
    ),
    Claim(
        SLICE,
        "So attention maps are over-smoothed on long sequences (section 3.1).",
        "an argument",
        "digits",
        "softmax-spread",
        trained_spread,
    ),
    Claim(
        SLICE,
        "Trained attention maps tend to be doubly stochastic (section 3.1, after Sander et al.).",
        "Figure 2 of Sander et al. 2022",
        "digits",
        "softmax-spread",
        doubly_stochastic,
    ),
    Claim(
        TOST,
        "The compression term mostly falls from layer to layer (section 4.1).",
        "Figure 4a, on ImageNet-1k",
        "mnist",
        "rate",
        bound_falls,
    ),
    Claim(
        TOST,
        "Each operator is a step that lowers the variational bound (section 3.2).",
        "equation (10), with the output map bound to the input map",
        "mnist",
        "rate",
        operator_lowers,
    ),
    Claim(
        TOST,
        "The variational form is an upper bound of the coding rate (section 3.1).",
        "equation (4) and a proof",
        "mnist",
        "rate",
        bound_is_above,
    ),
    Claim(
        TOST,
        "Memberships cluster the tokens: the foreground goes to one head (section 4.1).",
        "Figures 4b and 9, ToST-S on ImageNet-1k",
        "mnist",
        "membership",
        tokens_cluster,
    ),
    Claim(
        TOST,
        "The learned subspaces of the heads are approximately incoherent (appendix D.4).",
        "Figure 11, ToST-S",
        "mnist",
        "coherence",
        incoherent,
    ),
    Claim(
        TOST,
        "The class token's maps segment better than those of XCiT and ViT (section 4.2).",
        "Figures 5 and 10, the penultimate layer",
        "mnist",
        "cls-attention",
        sharper_maps,
    ),
    Claim(
        DIM,
        "Butterfly attention with blocks of sqrt(N) mixes all tokens in two layers (Figure 3a).",
        "Figures 3a and 4",
        "pattern",
        "pattern",
        connected("butterfly", 2, 1.0),
    ),
    Claim(
        DIM,
        "The same blocks again and again do not mix every token (Figure 4, aa).",
        "Figure 4",
        "pattern",
        "pattern",
        never_connected,
    ),
    Claim(
        DIM,
        "Token-parallel attention mixes all tokens in one layer (Figure 5).",
        "Figure 5",
        "pattern",
        "pattern",
        connected("token_parallel", 1, 1.0),
    ),
    *(
        Claim(DIM, f"{title} takes {macs} MACs ({table}).", table, name, "macs", printed_macs(name))
        for title, macs, table, name in (
            ("The dense MLP-Mixer", "20.73 M", "Table 3", "mlp_mixer_dense_e1"),
            ("With butterfly-linear maps it", "5.0 M", "Table 3", "mlp_mixer_butterfly_linear_e1"),
            ("With butterfly MLPs it", "5.33 M", "Table 3", "mlp_mixer_butterfly_mlp_e1"),
            ("MLP-Mixer c1 of 7 layers", "74.65 M", "Table 7", "mlp_mixer_c1_l7"),
            ("The patch-only mixer of 7 layers", "23.04 M", "Table 7", "patch_only_cifar10_l7"),
        )
    ),
    Claim(
        SINK,
        "A few iterations make the sorting matrices doubly stochastic (sections 3 and 6.3).",
        "5 to 10 iterations are best, Figure 4",
        "digits",
        "sinkhorn",
        balanced,
    ),
    Claim(
        SINK,
        "A lower temperature sorts harder (section 6.2).",
        "Figure 3 names it so",
        "digits",
        "sinkhorn",
        harder,
    ),
    Claim(
        SINK,
        "Sorted blocks make local attention quasi-global (section 3).",
        "Figure 1",
        "pattern",
        "pattern",
        connected("sinkhorn", 1, 1.0),
    ),
)
