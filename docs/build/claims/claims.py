"""Evidence and judge of each claim of docs/claims.md. A claim keeps its number."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import claims.checks as check
import claims.checks_models as models
import claims.judges as judge
from claims.base import Analysis, Check, Evidence, Judge, Runs

DIGITS = (
    "rifflemix compare --task digits "
    "--mixers softmax,csp,sliceformer,tssa,butterfly,sinkhorn,shift=csp,exchange=sliceformer "
    "--mixer-option exchange.variant=max_exchange --mixer-option shift.group_size=1 "
    "--dim 32 --layers 4 --max-steps 500 --batch-size 32 --seeds 1 --threads 1 --keep-weights "
    "--out runs/digits"
)
MNIST = (
    "rifflemix compare --plugin docs/build/claims/models.py --model small_tost "
    "--task mnist --task-option layout=image --task-option max_samples=4000 --data-dir data "
    "--mixers tssa,xca,softmax --dim 32 --layers 4 --max-steps 1000 --batch-size 32 --lr 2e-3 "
    "--seeds 1 --threads 1 --keep-weights --out runs/mnist"
)
SPECTRUM, PERMUTATION, SPREAD, SORTING = (
    Analysis(f"digits-{kind}", "runs/digits --samples 16", (DIGITS,))
    for kind in ("spectrum", "permutation", "softmax-spread", "sinkhorn")
)
_MNIST = "runs/mnist --plugin docs/build/claims/models.py --data-dir data --samples 16"
RATE, COHERENCE, *MORE = (
    Analysis(f"mnist-{kind}", _MNIST, (MNIST,))
    for kind in ("rate", "coherence", "membership", "cls-attention")
)
"""`MORE` has evidence in claims.csv that no claim needs."""
FRESH, DEEP, PATTERN = (
    Analysis(name, f"encoder --mixers {mixers} {size} --samples {count}")
    for name, mixers, size, count in (
        ("fresh-collapse", "softmax,sliceformer,csp,tssa", "--set dim=128 --set num_layers=6", 8),
        ("deep-collapse", "softmax,sliceformer,csp", "--set dim=64 --set num_layers=24", 4),
        ("pattern-pattern", "butterfly,token_parallel,csp", "--set dim=32 --set num_layers=3", 1),
    )
)
MACS = {
    model: Analysis(f"{model}-macs", f"{model} --samples 1")
    for model in (
        "mlp_mixer_dense_e1", "mlp_mixer_butterfly_linear_e1", "mlp_mixer_butterfly_mlp_e1",
        "mlp_mixer_c1_l7", "patch_only_cifar10_l7",
    )
}  # fmt: skip

HEADS = Check("csp-heads", check.heads)
SLICE_SIZE = Check("sliceformer-parameters", models.sliceformer_parameters)
CSP_SIZE = Check("csp-parameters", models.csp_parameters)
FOREGROUND = Check("mnist-foreground", models.foreground, (MNIST,))


def _rows(recipe: str, *rows: str) -> dict[str, str]:
    return {row: recipe.format(row) for row in rows}


_images = partial(Runs, batch_size=64)
ABLATION = _images(
    "tost-table8",
    _rows("tost/table8-cifar10-{}", "normalized-mlp", "normalized-ista", "plain-mlp", "plain-ista"),
    steps=600,
    scale=0.25,
)
_SPARSE = (f"{of}-e{e}" for e in (1, 2) for of in ("dense", "butterfly_linear", "butterfly_mlp"))
SPARSE_MLPS = _images("dimension-table3", _rows("dimension_mixer/table3-{}", *_SPARSE), steps=400)
BUTTERFLY = _images(
    "dimension-table8",
    {
        kind: f"dimension_mixer/table{table}-cifar10-p4-l4-{kind}"
        for table, kind in ((4, "dense"), (4, "butterfly"), (8, "random"))
    },
    steps=400,
    scale=0.5,
)
_PARALLEL = _rows("dimension_mixer/table9-p4-l4-{}", "baseline", "no_wout", "tp2", "tp1")
PARALLEL = _images("dimension-table9", _PARALLEL, steps=500, scale=0.5)
DENSE_NETS = ("dense_20_p16", "dense_20_p32", "dense_23_p32")
SPLIT_NETS = ("conv_mix_20_p32", "block_mix_20_p32", "block_mix_17_p32")
_NETS = _rows("dimension_mixer/figure7-{}", *DENSE_NETS, *SPLIT_NETS)
RESNETS = _images("dimension-figure7", _NETS, steps=200, scale=0.5)
_language = partial(Runs, steps=600, batch_size=2, scale=0.125)
TEMPERATURE = _language(
    "sinkhorn-figure3",
    {f"tau {t:g}": f"sinkhorn/figure3-ptb-tau{t}" for t in (0.25, 0.5, 0.75, 1.0)},
    steps=400,
)
ITERATIONS = _language(
    "sinkhorn-figure4",
    {f"k = {k}": f"sinkhorn/figure4-ptb-k{k}" for k in (2, 5, 10, 20)},
    steps=400,
)
_NETWORKS = ("relu-mlp", "mlp", "relu", "linear", "tied", "no-sinkhorn")
SORTING_NETWORK = _language("sinkhorn-table8", _rows("sinkhorn/table8-ptb-{}", *_NETWORKS))

NORM, SKIP, ALONE = "with norm", "with norm and skip", "mixers alone"
better, comparable = judge.is_better, judge.is_comparable

JUDGED: Mapping[int, tuple[Evidence, Judge]] = {
    1: (SPECTRUM, judge.all_ones),
    2: (SPECTRUM, judge.slower_decay("csp")),
    3: (SPECTRUM, judge.slower_decay("shift")),
    4: (FRESH, judge.theorem_1),
    5: (FRESH, judge.collapses("softmax", "csp", (NORM, NORM))),
    6: (DEEP, judge.collapses("softmax", "csp", (NORM, NORM))),
    7: (DEEP, judge.collapses("softmax", "csp", (ALONE, ALONE))),
    8: (FRESH, judge.low_risk),
    9: (FRESH, judge.collapses("softmax", "softmax", (NORM, SKIP))),
    10: (HEADS, check.own_maps),
    11: (PATTERN, judge.connected("csp", 2, 0.9)),
    12: (PERMUTATION, judge.order_free),
    13: (SPECTRUM, judge.slower_decay("sliceformer")),
    14: (Check("sliceformer-exchange", check.exchange), check.only_the_largest),
    15: (SPREAD, judge.noise_spread),
    16: (SPREAD, judge.indistinguishable),
    17: (SPREAD, judge.doubly_stochastic),
    18: (RATE, judge.bound_falls),
    19: (RATE, judge.operator_lowers),
    20: (RATE, judge.bound_is_above),
    21: (FOREGROUND, models.foreground_has_a_head),
    22: (COHERENCE, judge.incoherent),
    23: (FOREGROUND, models.segments_better),
    24: (PATTERN, judge.connected("butterfly", 2, 0.125)),
    25: (Check("butterfly-repeated", check.repeated_butterfly), check.equal_strides_do_not_mix),
    26: (PATTERN, judge.connected("token_parallel", 1, 0.0)),
    **{27 + n: (of, judge.printed_macs(name)) for n, (name, of) in enumerate(MACS.items())},
    32: (SORTING, judge.balanced),
    33: (SORTING, judge.harder),
    34: (Check("sinkhorn-reach", models.sinkhorn_reach, (DIGITS,)), models.quasi_global),
    35: (HEADS, check.pairs_add_maps),
    36: (Check("csp-transport", check.transport), check.optimal),
    37: (Check("csp-entropic", check.entropic), check.converges),
    38: (Check("csp-shift", check.redundant_shift), check.shift_is_redundant),
    39: (CSP_SIZE, models.third_of_parameters),
    40: (CSP_SIZE, models.fewer_parameters),
    41: (Check("sliceformer-vit", check.whole_vit), check.whole_model_is_invariant),
    42: (SLICE_SIZE, models.fewer_than_baselines),
    43: (Check("tost-step", models.tied_step), models.step_lowers),
    44: (ABLATION, better(("normalized-mlp", "plain-mlp"),
                             ("normalized-mlp", "normalized-ista"))),
    45: (Check("dimension-parameters", models.dimension_parameters), models.printed_parameters),
    46: (SPARSE_MLPS, better(("butterfly_mlp-e1", "butterfly_linear-e1"),
                                ("butterfly_mlp-e2", "butterfly_linear-e2"))),
    47: (SPARSE_MLPS, comparable(*((f"butterfly_{kind}-e{e}", f"dense-e{e}")
                                      for e in (1, 2) for kind in ("linear", "mlp")))),
    48: (BUTTERFLY, better(("butterfly", "dense"))),
    49: (BUTTERFLY, better(("butterfly", "random"))),
    50: (BUTTERFLY, better(("random", "dense"))),
    51: (PARALLEL, comparable(*((row, "baseline") for row in ("no_wout", "tp2", "tp1")))),
    52: (RESNETS, judge.splitting_does_not_help(DENSE_NETS, SPLIT_NETS)),
    53: (TEMPERATURE, better(("tau 0.75", "tau 0.25"), ("tau 1", "tau 0.25"))),
    54: (TEMPERATURE, better(*(("tau 0.75", f"tau {t}") for t in ("0.25", "0.5", "1")))),
    55: (ITERATIONS, better(*((f"k = {k}", f"k = {other}")
                                 for k in (5, 10) for other in (2, 20)))),
    56: (SORTING_NETWORK, better(*(("linear", other) for other in ("relu-mlp", "mlp", "relu")))),
    57: (SORTING_NETWORK, better(("linear", "tied"))),
    58: (SORTING_NETWORK, better(("linear", "no-sinkhorn"))),
    59: (Check("dimension-cost", models.butterfly_cost), models.cheaper_when_long),
}  # fmt: skip
EVIDENCE = {of.name: of for of in (*(evidence for evidence, _ in JUDGED.values()), *MORE)}
