"""Named language models: GPT-2, ToST, and the models of the Sinkhorn Transformer."""

from __future__ import annotations

from typing import Any

from rifflemix.models.language.gpt import GPT
from rifflemix.models.language.seq2seq import Seq2Seq
from rifflemix.models.presets import ModelCard, Preset
from rifflemix.models.sequence.encoder import Encoder

_GPT2 = "Radford et al. 2019, Language Models are Unsupervised Multitask Learners"
_TOST = (
    "Wu et al. 2024, Token Statistics Transformer: Linear-Time Attention via Variational Rate "
    "Reduction"
)
_SINKHORN = "Tay et al. 2020, Sparse Sinkhorn Attention"

# GPT-2's 50,257 token ids, rounded up to a multiple of 64 as in nanoGPT.
_GPT2_TEXT = {"vocab_size": 50304, "max_length": 1024}
_TENSOR2TENSOR = {
    "mixer": "sinkhorn",
    "num_heads": 8,
    "num_layers": 6,
    "positions": "sinusoid",
    "activation": "relu",
    "tie_embeddings": False,
    "scale_embeddings": True,
    "dropout": 0.1,
    "hidden_dropout": 0.1,
}
_BASE = {"dim": 512, "mlp_ratio": 4.0}
_BIG = {"dim": 2048, "mlp_ratio": 4.0}
_SUBWORDS = {"vocab_size": 32768, "max_length": 256}
_CHARACTERS = {"vocab_size": 256, "max_length": 1024}


def _tost(size: str, printed: str, num_layers: int, num_heads: int, dim: int) -> Preset:
    card = ModelCard(
        name=f"tost_lm_{size}",
        title=f"ToST language model, {size}: causal token statistics in GPT-2",
        paper=_TOST,
        inputs="tokens",
        printed=printed,
        printed_in="Table 4",
        note="the reported count leaves out positions, as in nanoGPT; the released configurations "
        "have bias=False",
    )
    return Preset(
        card,
        GPT,
        _GPT2_TEXT
        | {
            "mixer": "tssa",
            "num_layers": num_layers,
            "num_heads": num_heads,
            "dim": dim,
            "layer_scale": 1e-5,
        },
    )


def _sinkhorn(
    name: str,
    title: str,
    settings: dict[str, Any],
    block_size: int,
    *,
    printed: str = "",
    printed_in: str = "",
    note: str = "",
) -> Preset:
    card = ModelCard(
        name=name,
        title=title,
        paper=_SINKHORN,
        inputs="tokens",
        printed=printed,
        printed_in=printed_in,
        note=note,
    )
    options = {"block_size": block_size, "bias": False}
    return Preset(card, GPT, _TENSOR2TENSOR | {"mixer_options": options} | settings)


GPT_PRESETS = (
    Preset(
        ModelCard(
            name="gpt",
            title="Causal language model, the backbone of `compare` on text",
            paper=_GPT2,
            inputs="tokens",
        ),
        GPT,
    ),
    Preset(
        ModelCard(
            name="gpt2_base",
            title="GPT-2 base, softmax attention",
            paper=_GPT2,
            inputs="tokens",
            printed="124 M",
            printed_in="Wu et al. 2024, Table 4",
        ),
        GPT,
        _GPT2_TEXT | {"mixer": "softmax", "num_layers": 12, "num_heads": 12, "dim": 768},
    ),
    _tost("base", "110 M", 12, 12, 768),
    _tost("medium", "304 M", 24, 16, 1024),
    _tost("large", "655 M", 36, 20, 1280),
    _sinkhorn(
        "sinkhorn_lm_base",
        "Sinkhorn Transformer on LM1B subwords, base",
        _BASE | _SUBWORDS,
        32,
        printed="50 M",
        printed_in="Table 2",
        note="The paper rounds; 2^15 subwords, block size 32.",
    ),
    _sinkhorn(
        "sinkhorn_lm_big",
        "Sinkhorn Transformer on LM1B subwords, big",
        _BIG | _SUBWORDS,
        32,
        printed="430 M",
        printed_in="Table 2",
        note="The paper rounds to 450 M in Table 3; 2^15 subwords, block size 32.",
    ),
    _sinkhorn(
        "sinkhorn_char_base",
        "Sinkhorn Transformer on LM1B characters (bytes), base",
        _BASE | _CHARACTERS,
        128,
    ),
    _sinkhorn(
        "sinkhorn_char_big",
        "Sinkhorn Transformer on LM1B characters (bytes), big",
        _BIG | _CHARACTERS,
        128,
    ),
    _sinkhorn(
        "sinkhorn_pixel_cifar10",
        "Sinkhorn Transformer on the 3,072 numbers of a CIFAR-10 image",
        _BASE | {"vocab_size": 256, "max_length": 3072},
        256,
        note="The paper's text has 3,076; a CIFAR-10 image has 32 x 32 x 3 numbers.",
    ),
)

_SORT_BLOCK = {"block_size": 32, "bias": False}


def _sortcut(
    name: str, what: str, vocab_size: int, max_length: int, num_classes: int = 2
) -> Preset:
    card = ModelCard(
        name=f"sinkhorn_sortcut_{name}",
        title=f"SortCut encoder for {what}: all queries share 2 sorted blocks of 8",
        paper=_SINKHORN,
        inputs="tokens",
        note="Tensor2Tensor's transformer_tiny; the plain Sinkhorn encoder has sortcut 0",
    )
    settings = {
        "mixer": "sinkhorn",
        "mixer_options": {"block_size": 8, "sortcut": 2, "bias": False},
        "dim": 128,
        "num_layers": 2,
        "num_heads": 4,
        "mlp_ratio": 4.0,
        "vocab_size": vocab_size,
        "num_classes": num_classes,
        "max_length": max_length,
        "norm_eps": 1e-6,
        "activation": "relu",
        "positions": "sinusoid",
        "dropout": 0.1,
    }
    return Preset(card, Encoder, settings)


SEQ2SEQ_PRESETS = (
    Preset(
        ModelCard(
            name="seq2seq",
            title="Encoder-decoder, the backbone of `compare` on pairs of sequences",
            paper="Vaswani et al. 2017, Attention Is All You Need",
            inputs="tokens and decoder tokens",
        ),
        Seq2Seq,
    ),
    Preset(
        ModelCard(
            name="sinkhorn_seq2seq_sort",
            title="Sinkhorn Transformer that sorts sequences of up to 512 symbols",
            paper=_SINKHORN,
            inputs="tokens and decoder tokens",
            note="Tensor2Tensor's transformer_base; 512 symbols, padding and an end token",
        ),
        Seq2Seq,
        {
            "mixer": "sinkhorn",
            "mixer_options": _SORT_BLOCK,
            "cross": "sinkhorn",
            "cross_options": _SORT_BLOCK,
            "dim": 512,
            "num_layers": 6,
            "num_heads": 8,
            "mlp_ratio": 4.0,
            "vocab_size": 514,
            "max_length": 513,
            "dropout": 0.1,
        },
    ),
    _sortcut("imdb", "film reviews of 512 words", 8192, 512),
    _sortcut("imdb_char", "film reviews of 2,048 bytes", 257, 2048),
    _sortcut("nli", "premise and hypothesis in one sequence of words", 8192, 512, num_classes=3),
)
