"""Evidence for the papers' claims: analyses, checks and trainings."""

from __future__ import annotations

import claims.checks as checks
import claims.checks_models as models
from claims.base import Analysis, Check, Runs

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


def _digits(kind: str) -> Analysis:
    return Analysis("digits", kind, "runs/digits --samples 16", (DIGITS,))


def _mnist(kind: str) -> Analysis:
    options = "runs/mnist --plugin docs/build/claims/models.py --data-dir data --samples 16"
    return Analysis("mnist", kind, options, (MNIST,))


SPECTRUM, PERMUTATION = _digits("spectrum"), _digits("permutation")
SPREAD, SORTING = _digits("softmax-spread"), _digits("sinkhorn")
RATE, COHERENCE = _mnist("rate"), _mnist("coherence")
MEMBERSHIP, CLASS_TOKEN = _mnist("membership"), _mnist("cls-attention")
FRESH = Analysis(
    "fresh",
    "collapse",
    "encoder --mixers softmax,sliceformer,csp,tssa --set dim=128 --set num_layers=6 --samples 8",
)
DEEP = Analysis(
    "deep",
    "collapse",
    "encoder --mixers softmax,sliceformer,csp --set dim=64 --set num_layers=24 --samples 4",
)
PATTERN = Analysis(
    "pattern",
    "pattern",
    "encoder --mixers butterfly,token_parallel,csp --set dim=32 --set num_layers=3 --samples 1",
)


def macs(model: str) -> Analysis:
    """Count the multiply-accumulates of a model."""
    return Analysis(model, "macs", f"{model} --samples 1")


HEADS = Check("csp-heads", "Different maps among the channels of CSP", checks.heads)
TRANSPORT = Check("csp-transport", "Maps of CSP and optimal transport", checks.transport)
ENTROPIC = Check("csp-entropic", "Maps of CSP and doubly stochastic maps", checks.entropic)
REDUNDANT = Check("csp-shift", "CSP with and without its shift", checks.redundant_shift)
CSP_SIZE = Check("csp-parameters", "Parameters of CSP and of attention", models.csp_parameters)
EXCHANGE = Check("sliceformer-exchange", "Values that max-exchange moves", checks.exchange)
INVARIANCE = Check("sliceformer-vit", "Logits of a ViT and the order of patches", checks.whole_vit)
SLICE_SIZE = Check(
    "sliceformer-parameters",
    "Parameters of Sliceformer and its baselines",
    models.sliceformer_parameters,
)
STEP = Check("tost-step", "The bound after a step of equation (10)", models.tied_step)
FOREGROUND = Check(
    "mnist-foreground", "Memberships, class-token maps and the digit", models.foreground, (MNIST,)
)
REPEATED = Check(
    "butterfly-repeated", "Butterfly layers of equal stride", checks.repeated_butterfly
)
DIMENSION_SIZE = Check(
    "dimension-parameters", "Parameters of Tables 3, 4 and 9", models.dimension_parameters
)
BUTTERFLY_COST = Check(
    "dimension-cost", "Time and memory of dense and butterfly attention", models.butterfly_cost
)
REACH = Check(
    "sinkhorn-reach", "Attention weight on other blocks", models.sinkhorn_reach, (DIGITS,)
)

ABLATION = Runs(
    "tost-table8",
    "Table 8: normalization and feed-forward branch, CIFAR-10",
    {
        row: f"tost/table8-cifar10-{row}"
        for row in ("normalized-mlp", "normalized-ista", "plain-mlp", "plain-ista")
    },
    steps=2000,
    batch_size=64,
    scale=0.25,
)
SPARSE_MLPS = Runs(
    "dimension-table3",
    "Table 3: dense and sparse layers of MLP-Mixer, CIFAR-10",
    {
        f"{kind}-e{expansion}": f"dimension_mixer/table3-{kind}-e{expansion}"
        for expansion in (1, 2)
        for kind in ("dense", "butterfly_linear", "butterfly_mlp")
    },
    steps=1000,
    batch_size=64,
)
BUTTERFLY = Runs(
    "dimension-table8",
    "Tables 4 and 8: dense, butterfly and random butterfly attention, CIFAR-10",
    {
        f"{kind}-p{patch}": f"dimension_mixer/table{table}-cifar10-p{patch}-l4-{kind}"
        for patch in (4, 2)
        for table, kind in ((4, "dense"), (4, "butterfly"), (8, "random"))
    },
    steps=2000,
    batch_size=64,
    scale=0.5,
)
PARALLEL = Runs(
    "dimension-table9",
    "Table 9: token-parallel attention, CIFAR-10",
    {row: f"dimension_mixer/table9-p4-l4-{row}" for row in ("baseline", "no_wout", "tp2", "tp1")},
    steps=2000,
    batch_size=64,
    scale=0.5,
)
DENSE_NETS = ("dense_20_p16", "dense_20_p32", "dense_23_p32")
SPLIT_NETS = (
    "conv_mix_20_p32",
    "block_mix_20_p32",
    "block_mix_17_p32",
    "block_mix_20_p64",
    "conv_mix_20_p64",
    "conv_mix_23_p64",
    "block_mix_23_p64",
)
RESNETS = Runs(
    "dimension-figure7",
    "Figure 7: split channels in ResNets, CIFAR-10",
    {row: f"dimension_mixer/figure7-{row}" for row in (*DENSE_NETS, *SPLIT_NETS)},
    steps=500,
    batch_size=64,
    scale=0.5,
)


def _language(name: str, title: str, rows: dict[str, str]) -> Runs:
    return Runs(name, f"{title}, Penn Treebank", rows, steps=600, batch_size=8, scale=0.125)


TEMPERATURE = _language(
    "sinkhorn-figure3",
    "Figure 3: temperature",
    {f"tau {t:g}": f"sinkhorn/figure3-ptb-tau{t}" for t in (0.25, 0.5, 0.75, 1.0)},
)
ITERATIONS = _language(
    "sinkhorn-figure4",
    "Figure 4: iterations",
    {f"k = {k}": f"sinkhorn/figure4-ptb-k{k}" for k in (2, 5, 10, 20)},
)
SORTING_NETWORK = _language(
    "sinkhorn-table8",
    "Table 8: sorting network",
    {
        row: f"sinkhorn/table8-ptb-{row}"
        for row in ("relu-mlp", "mlp", "relu", "linear", "tied", "no-sinkhorn")
    },
)
