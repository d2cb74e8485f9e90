"""The papers' claims, their evidence and their judges.

A claim keeps its number, so new claims are at the end. docs/write_claims.py sorts them by paper.
"""

from __future__ import annotations

from claims_base import Analysis, Claim, Evidence, Judge
from claims_evidence import (
    ABLATION,
    BUTTERFLY,
    BUTTERFLY_COST,
    CLASS_TOKEN,
    COHERENCE,
    CSP_SIZE,
    DEEP,
    DENSE_NETS,
    DIMENSION_SIZE,
    ENTROPIC,
    EXCHANGE,
    FOREGROUND,
    FRESH,
    HEADS,
    INVARIANCE,
    ITERATIONS,
    MEMBERSHIP,
    PARALLEL,
    PATTERN,
    PERMUTATION,
    RATE,
    REACH,
    REDUNDANT,
    REPEATED,
    RESNETS,
    SLICE_SIZE,
    SORTING,
    SORTING_NETWORK,
    SPARSE_MLPS,
    SPECTRUM,
    SPLIT_NETS,
    SPREAD,
    STEP,
    TEMPERATURE,
    TRANSPORT,
    macs,
)
from claims_judges import (
    all_ones,
    balanced,
    bound_falls,
    bound_is_above,
    collapses,
    connected,
    doubly_stochastic,
    harder,
    incoherent,
    indistinguishable,
    low_risk,
    noise_spread,
    operator_lowers,
    order_free,
    printed_macs,
    slower_decay,
    theorem_1,
)
from claims_judges_checks import (
    cheaper_when_long,
    converges,
    equal_strides_do_not_mix,
    fewer_parameters,
    fewer_than_baselines,
    foreground_has_a_head,
    only_the_largest,
    optimal,
    own_maps,
    pairs_add_maps,
    printed_parameters,
    quasi_global,
    segments_better,
    shift_is_redundant,
    step_lowers,
    third_of_parameters,
    whole_model_is_invariant,
)
from claims_judges_runs import is_better, is_comparable, splitting_does_not_help

CSP, SLICE = "Channel-wise Sample Permutation", "Sliceformer"
TOST, DIM, SINK = "Token Statistics Transformer", "Dimension Mixer", "Sparse Sinkhorn Attention"
NORM, SKIP, ALONE = "with norm", "with norm and skip", "mixers alone"


def _csp(text: str, shows: str, evidence: Evidence, judge: Judge) -> Claim:
    return Claim(CSP, text, shows, evidence, judge)


def _slice(text: str, shows: str, evidence: Evidence, judge: Judge) -> Claim:
    return Claim(SLICE, text, shows, evidence, judge)


def _tost(
    text: str, shows: str, evidence: Evidence, judge: Judge, picture: Analysis | None = None
) -> Claim:
    return Claim(TOST, text, shows, evidence, judge, picture)


def _dim(text: str, shows: str, evidence: Evidence, judge: Judge) -> Claim:
    return Claim(DIM, text, shows, evidence, judge)


def _sink(text: str, shows: str, evidence: Evidence, judge: Judge) -> Claim:
    return Claim(SINK, text, shows, evidence, judge)


_MACS = (
    ("The dense MLP-Mixer needs 20.73 M MACs", "Table 3", "mlp_mixer_dense_e1"),
    ("MLP-Mixer with butterfly-linear layers needs 5.0 M MACs", "Table 3",
     "mlp_mixer_butterfly_linear_e1"),
    ("MLP-Mixer with butterfly MLPs needs 5.33 M MACs", "Table 3", "mlp_mixer_butterfly_mlp_e1"),
    ("MLP-Mixer c1 of 7 layers needs 74.65 M MACs", "Table 7", "mlp_mixer_c1_l7"),
    ("The patch-only mixer of 7 layers needs 23.04 M MACs", "Table 7", "patch_only_cifar10_l7"),
)  # fmt: skip

CLAIMS = (
    _csp("The implicit maps are permutations, so their spectrum is all ones (section 1).",
         "an argument", SPECTRUM, all_ones),
    _csp("The spectra of CSP's outputs decay more slowly than attention's (section 4.1).",
         "Figure 3, on ImageNet-1k", SPECTRUM, slower_decay("csp")),
    _csp("The spectra of shifting alone decay more slowly, too (section 4.1).",
         "Figure 3, on ImageNet-1k", SPECTRUM, slower_decay("shift")),
    _csp("The rank residual after l layers has the bound of theorem 1.",
         "a proof", FRESH, theorem_1),
    _csp("Without skip connections, softmax attention collapses and CSP does not (section 3.2.1).",
         "theorem 1, and Dong et al. 2021 for attention",
         FRESH, collapses("softmax", "csp", (NORM, NORM))),
    _csp("Softmax attention collapses and CSP does not at a depth of 24 layers.",
         "nothing: the bound is for any depth",
         DEEP, collapses("softmax", "csp", (NORM, NORM))),
    _csp("Softmax attention collapses and CSP does not without norms, biases included.",
         "nothing: the bound is for any weights",
         DEEP, collapses("softmax", "csp", (ALONE, ALONE))),
    _csp("Maps that are permutations carry a low risk of rank collapse (section 3.2.1).",
         "theorem 1, with the rank residual as its measure", FRESH, low_risk),
    _csp("Skip connections keep softmax attention from collapsing (Dong et al. 2021).",
         "section 3.2.1 quotes that it collapses without them",
         FRESH, collapses("softmax", "softmax", (NORM, SKIP))),
    _csp("Every channel has its own map: one head per channel (section 3.2).",
         "equation (4)", HEADS, own_maps),
    _csp("Shifts and pairs connect all tokens within a few layers (section 3.2.2).",
         "Figure 2, the shifting strategies", PATTERN, connected("csp", 2, 0.9)),
    _slice("One layer of sorting does not depend on the order of the tokens (section 4).",
           "section 4 announces a test", PERMUTATION, order_free),
    _slice("Singular values of its outputs decay more slowly than ViT's (section 4.3).",
           "Figure 4, on CIFAR-10", SPECTRUM, slower_decay("sliceformer")),
    _slice("Max-exchange moves two values of a channel, the largest to the front (section 3.3).",
           "a definition", EXCHANGE, only_the_largest),
    _slice("The deviation of softmax weights falls fast as N grows (section 3.1).",
           "Figure 2, on random vectors", SPREAD, noise_spread),
    _slice("So the weights become indistinguishable on long sequences (section 3.1).",
           "an argument from Figure 2", SPREAD, indistinguishable),
    _slice("Attention maps tend to be doubly stochastic during training (section 3.1, Sander et "
           "al.).", "Figure 2 of Sander et al. 2022", SPREAD, doubly_stochastic),
    _tost("The compression term mostly falls from layer to layer (section 4.1).",
          "Figure 4a, on ImageNet-1k", RATE, bound_falls),
    _tost("Each trained operator lowers the variational bound of its input (section 3.2).",
          "equation (10), with the output map tied to the input map", RATE, operator_lowers),
    _tost("The variational form is an upper bound of the coding rate (section 3.1).",
          "equation (4) and a proof", RATE, bound_is_above),
    _tost("Memberships cluster the tokens: the foreground goes to one head (section 4.1).",
          "Figures 4b and 9, ToST-S on ImageNet-1k", FOREGROUND, foreground_has_a_head, MEMBERSHIP),
    _tost("The learned subspaces of the heads are approximately incoherent (appendix D.4).",
          "Figure 11, ToST-S", COHERENCE, incoherent),
    _tost("The class token's maps segment better than XCiT's and ViT's (section 4.2).",
          "Figures 5 and 10, the penultimate layer", FOREGROUND, segments_better, CLASS_TOKEN),
    _dim("Butterfly attention with blocks of sqrt(N) mixes all tokens in two layers (Figure 3a).",
         "Figures 3a and 4", PATTERN, connected("butterfly", 2, 0.125)),
    _dim("Butterfly layers of equal stride do not mix every token (Figure 4, aa).",
         "Figure 4", REPEATED, equal_strides_do_not_mix),
    _dim("Token-parallel attention mixes all tokens in one layer (Figure 5).",
         "Figure 5", PATTERN, connected("token_parallel", 1, 0.0)),
    *(_dim(f"{text} ({table}).", table, macs(model), printed_macs(model))
      for text, table, model in _MACS),
    _sink("A few iterations make the sorting matrices doubly stochastic (sections 3 and 6.3).",
          "5 to 10 iterations are best, Figure 4", SORTING, balanced),
    _sink("A lower temperature sorts harder (section 6.2).",
          "section 3.2.1, in words", SORTING, harder),
    _sink("Sorted blocks make local attention quasi-global (section 3).",
          "Figure 1", REACH, quasi_global),
    _csp("Pairs raise the number of heads from N to C if C > N (section 3.2.2).",
         "an argument", HEADS, pairs_add_maps),
    _csp("Sorting a group is the optimal transport to the reference channel (appendix B).",
         "a derivation", TRANSPORT, optimal),
    _csp("Doubly stochastic maps converge to CSP's maps as the temperature falls (theorem 2).",
         "a proof by citation", ENTROPIC, converges),
    _csp("The shift is redundant if the whole sequence is sorted, K = 1 (section 3.2.2).",
         "an argument", REDUNDANT, shift_is_redundant),
    _csp("CSP has one third of the parameters of multi-head attention (section 3.2.1).",
         "an argument", CSP_SIZE, third_of_parameters),
    _csp("Models with CSP have the printed, smaller numbers of parameters (section 4.1).",
         "Table 3", CSP_SIZE, fewer_parameters),
    _slice("A Vision Sliceformer does not depend on the order of the patches (section 4).",
           "section 4 announces a test", INVARIANCE, whole_model_is_invariant),
    _slice("At equal depth and width it has fewer parameters than all baselines (section 4.1).",
           "an argument; Table II prints no sizes", SLICE_SIZE, fewer_than_baselines),
    _tost("The operator of equation (10) lowers the variational bound (section 3.2).",
          "a derivation", STEP, step_lowers),
    _tost("Normalized memberships and an MLP are both needed (appendix D.1).",
          "Table 8, CIFAR-10, 400 epochs", ABLATION,
          is_better(("normalized-mlp", "plain-mlp"), ("normalized-mlp", "normalized-ista"))),
    _dim("The models of Tables 3, 4 and 9 have the printed numbers of parameters.",
         "Tables 3, 4 and 9", DIMENSION_SIZE, printed_parameters),
    _dim("Butterfly MLPs are slightly more accurate than butterfly-linear layers (section 4).",
         "Table 3, CIFAR-10, 8 seeds", SPARSE_MLPS,
         is_better(("butterfly_mlp-e1", "butterfly_linear-e1"),
                   ("butterfly_mlp-e2", "butterfly_linear-e2"))),
    _dim("Sparse layers are comparable in accuracy to dense ones (section 4).",
         "Table 3, CIFAR-10, 8 seeds", SPARSE_MLPS,
         is_comparable(*((f"butterfly_{kind}-e{e}", f"dense-e{e}")
                         for e in (1, 2) for kind in ("linear", "mlp")))),
    _dim("Butterfly attention is more accurate than dense attention on images (section 4).",
         "Table 4, CIFAR-10 and CIFAR-100", BUTTERFLY,
         is_better(("butterfly-p4", "dense-p4"), ("butterfly-p2", "dense-p2"))),
    _dim("Butterfly attention is better with neighboring tokens than with random ones "
         "(appendix B).", "Table 8, CIFAR-10 and CIFAR-100", BUTTERFLY,
         is_better(("butterfly-p4", "random-p4"), ("butterfly-p2", "random-p2"))),
    _dim("Random butterfly attention beats dense attention in some cases (appendix B).",
         "Table 8, CIFAR-10 and CIFAR-100", BUTTERFLY,
         is_better(("random-p4", "dense-p4"), ("random-p2", "dense-p2"), need=1)),
    _dim("Token-parallel attention and attention without W_out are comparable (appendix D.1).",
         "Table 9, CIFAR-10", PARALLEL,
         is_comparable(("no_wout", "baseline"), ("tp2", "baseline"), ("tp1", "baseline"))),
    _dim("Splitting channels does not improve accuracy at equal parameters (appendix D.2).",
         "Figure 7, CIFAR-10", RESNETS, splitting_does_not_help(DENSE_NETS, SPLIT_NETS)),
    _sink("Soft sorting is better than hard sorting (section 6.2).",
          "Figure 3, LM1B", TEMPERATURE,
          is_better(("tau 0.75", "tau 0.25"), ("tau 1", "tau 0.25"))),
    _sink("The best temperature is 0.75 (section 6.2).",
          "Figure 3, LM1B", TEMPERATURE,
          is_better(*(("tau 0.75", f"tau {t}") for t in ("0.25", "0.5", "1")))),
    _sink("5 to 10 iterations are better than fewer or more (section 6.3).",
          "Figure 4, LM1B", ITERATIONS,
          is_better(*((f"k = {k}", f"k = {other}") for k in (5, 10) for other in (2, 20)))),
    _sink("A linear layer is the best sorting network (section 6.1).",
          "Table 8, LM1B", SORTING_NETWORK,
          is_better(*(("linear", other) for other in ("relu-mlp", "mlp", "relu")))),
    _sink("Equal keys and values hurt (section 6.1).",
          "Table 8, LM1B", SORTING_NETWORK, is_better(("linear", "tied"))),
    _sink("Without Sinkhorn normalization the model is much worse (section 6.1).",
          "Table 8, LM1B", SORTING_NETWORK, is_better(("linear", "no-sinkhorn"))),
    _dim("Butterfly attention needs less time and memory on long sequences (section 4).",
         "Table 4: time 0.99, 1.8 and 7.4, memory 1.1, 3.1 and 9.8 times as large if dense",
         BUTTERFLY_COST, cheaper_when_long),
)  # fmt: skip
