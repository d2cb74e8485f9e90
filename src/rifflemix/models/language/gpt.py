"""Causal language models: the GPT-2 backbone with any causal mixer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rifflemix.checks import (
    check_bool,
    check_integer,
    check_padding_mask,
    check_positive,
    check_probability,
    check_room,
)
from rifflemix.errors import bad_argument, check_choice
from rifflemix.mixers import Stack, stack_name
from rifflemix.models.base import Model, check_ids
from rifflemix.models.language.generation import generate
from rifflemix.models.official import OfficialTensor
from rifflemix.models.parts import block_mixer, initialise_gpt2, positions_in_row, with_rotary
from rifflemix.nn.block import Block
from rifflemix.nn.embeddings import number_of_ids, table_of
from rifflemix.nn.layers import Dropout, FeedForward
from rifflemix.nn.positions import (
    NoPositions,
    PositionEmbedding,
    SinusoidalPositions,
    last_valid,
    valid_positions,
)

_POSITIONS: dict[str, Callable[[int, int], nn.Module]] = {
    "learned": PositionEmbedding,
    "sinusoid": SinusoidalPositions,
    "none": NoPositions,
    "rope": NoPositions,
}
_EPS = 1e-5


class GPTState(NamedTuple):
    """The state of a streaming model between two tokens.

    Attributes:
        position: (B,) int64, number of tokens of each sequence so far.
        layers: the mixer state of each layer.
    """

    position: Tensor
    layers: tuple[dict[str, Tensor], ...]


class GPT(Model):
    """Causal language model: embedding, positions, blocks, LayerNorm, logits of the next token.

    With a mask, outputs at valid positions equal the outputs for the valid tokens alone. Padding
    may be anywhere, because positions count valid tokens only.

    Args:
        mixer: registry name of a token mixer that can be causal, or a stack.
        mixer_options: options of the mixer.
        dim: channels C.
        num_layers: number of blocks.
        num_heads: number of heads, for mixers that have heads.
        mlp_ratio: hidden channels of the feed-forward branch divided by C.
        vocab_size: number of token ids.
        max_length: maximum number of tokens.
        layer_scale: initial value of the learned factor of every branch; None omits the factor.
            The released language code of ToST uses 1e-5 in all sizes. GPT-2 has no such factor.
        positions: "learned", "sinusoid" as in Tensor2Tensor, "none", or "rope": queries and keys
            of mixers with the option `rotary` are rotated by their positions.
        short_conv: tokens of a causal depthwise convolution before every mixer, see `Block`; None
            for no convolution.
        activation: activation function of the feed-forward branch.
        tie_embeddings: use the embedding for the logits too.
        scale_embeddings: initialize embeddings with standard deviation 1 / sqrt(C) and multiply
            them by sqrt(C), as in Tensor2Tensor. Otherwise the standard deviation is 0.02.
        bias: add biases to all norms and all linear layers except the last.
        dropout: dropout probability on the embedding, in the mixers and on both branches.
        hidden_dropout: dropout probability in the hidden layer of the feed-forward branch.
            Tensor2Tensor calls it relu dropout. GPT-2 has no such dropout.

    Raises:
        InputError: a size is out of range, or the mixer cannot be causal.

    Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3,
    as implemented in nanoGPT; with mixer "tssa" Wu et al. 2024, appendix C.2.

    Example:
        >>> import torch, rifflemix as rm
        >>> model = rm.models.GPT(mixer="csp", vocab_size=100, max_length=64, dim=32)
        >>> model(torch.randint(100, (2, 64))).shape
        torch.Size([2, 64, 100])
    """

    def __init__(
        self,
        *,
        mixer: Stack = "softmax",
        mixer_options: dict[str, Any] | None = None,
        dim: int = 64,
        num_layers: int = 2,
        num_heads: int = 4,
        mlp_ratio: float = 4.0,
        vocab_size: int = 256,
        max_length: int = 1024,
        layer_scale: float | None = None,
        positions: str = "learned",
        short_conv: int | None = None,
        activation: str = "gelu",
        tie_embeddings: bool = True,
        scale_embeddings: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
        hidden_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        dim, num_layers = check_integer("dim", dim, 1), check_integer("num_layers", num_layers, 1)
        vocab_size = check_integer("vocab_size", vocab_size, 1)
        check_choice("positions", positions, _POSITIONS)
        bias = check_bool("bias", bias)
        if layer_scale is not None:
            layer_scale = check_positive("layer_scale", layer_scale)
        hidden_dim = round(dim * check_positive("mlp_ratio", mlp_ratio))
        self.max_length, self.mixer = check_integer("max_length", max_length, 1), stack_name(mixer)
        self.embedding_factor = dim**0.5 if check_bool("scale_embeddings", scale_embeddings) else 1
        self.embed = nn.Embedding(vocab_size, dim)
        self.positions = _POSITIONS[positions](max_length, dim)
        self.drop = Dropout(check_probability("dropout", dropout))
        self.blocks = nn.ModuleList(
            Block(
                block_mixer(
                    mixer,
                    mixer_options,
                    dim,
                    of_host=with_rotary({"bias": bias, "out_bias": bias}, mixer, positions),
                    num_heads=num_heads,
                    max_length=max_length,
                    layer_index=index,
                    num_layers=num_layers,
                    causal=True,
                    dropout=dropout,
                ),
                FeedForward(
                    dim,
                    hidden_dim,
                    dropout=dropout,
                    hidden_dropout=hidden_dropout,
                    activation=activation,
                    bias=bias,
                ),
                dim,
                dropout=dropout,
                norm_eps=_EPS,
                norm_bias=bias,
                layer_scale=layer_scale,
                short_conv=short_conv,
            )
            for index in range(num_layers)
        )
        self.norm = nn.LayerNorm(dim, eps=_EPS, bias=bias)
        tied = check_bool("tie_embeddings", tie_embeddings)
        self.head = None if tied else nn.Linear(dim, vocab_size, bias=False)
        initialise_gpt2(self, dim**-0.5 if scale_embeddings else 0.02)

    def forward(
        self,
        tokens: Tensor,
        *,
        key_padding_mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> Tensor:
        """Compute the logits of the token after each token.

        Args:
            tokens: (B, N) int64 token ids.
            key_padding_mask: (B, N) bool, True = padding.
            cu_seqlens: (S + 1,) boundaries of S packed sequences in one row (1, N), as in
                `TokenMixer.forward`. Each sequence gives the same logits as alone.

        Returns:
            (B, N, vocab_size); values at padded positions are undefined.

        Raises:
            InputError: `tokens` has more than `max_length` tokens or another shape, or the mixer
                does not accept the packed sequences.
        """
        check_ids("tokens", tokens, "(B, N)", below=number_of_ids(self.embed))
        check_padding_mask(key_padding_mask, tokens)
        x, positions = self.embed(tokens) * self.embedding_factor, None
        if cu_seqlens is not None:
            positions = positions_in_row(x, key_padding_mask, cu_seqlens, self.max_length)
        elif key_padding_mask is not None:
            positions = self.positions_of(key_padding_mask)
        x = self.drop(self.positions(x, positions))
        for block in self.blocks:
            x = self.run_block(block, x, key_padding_mask=key_padding_mask, cu_seqlens=cu_seqlens)
        return self._logits(x)

    def positions_of(self, key_padding_mask: Tensor) -> Tensor:
        """Number the valid tokens of each sequence.

        Args:
            key_padding_mask: (B, N) bools, True = padding.

        Returns:
            (B, N) int64 positions.
        """
        return valid_positions(key_padding_mask)

    @property
    def streams(self) -> bool:
        """True if the mixer supports streaming, as `prefill` and `step` require."""
        return all(block.mixer.card.streaming for block in self._layers())

    def init_state(self, batch_size: int) -> GPTState:
        """Return the state before the first token of `batch_size` sequences.

        Args:
            batch_size: number of sequences.

        Returns:
            The state for `step`.

        Raises:
            InputError: the mixer does not support streaming.
        """
        weight = self.embed.weight
        return GPTState(
            torch.zeros(batch_size, dtype=torch.int64, device=weight.device),
            tuple(
                block.init_state(batch_size, device=weight.device, dtype=weight.dtype)
                for block in self._layers()
            ),
        )

    def prefill(
        self, tokens: Tensor, *, key_padding_mask: Tensor | None = None
    ) -> tuple[Tensor, GPTState]:
        """Process a whole prompt at once.

        Args:
            tokens: (B, N) int64 token ids, N at least 1.
            key_padding_mask: (B, N) bool, True = padding, for prompts of different lengths.

        Returns:
            (B, vocab_size) logits of the token after each prompt, and the state for `step`.

        Raises:
            InputError: the mixer does not support streaming, or there are more than `max_length`
                tokens.
        """
        check_ids("tokens", tokens, "(B, N)", below=number_of_ids(self.embed))
        check_padding_mask(key_padding_mask, tokens)
        lengths = torch.full((len(tokens),), tokens.shape[1], device=tokens.device)
        positions, last = None, lengths - 1
        if key_padding_mask is not None:
            positions = self.positions_of(key_padding_mask)
            lengths, last = (~key_padding_mask).sum(1), last_valid(key_padding_mask)
        x = self.drop(self.positions(self.embed(tokens) * self.embedding_factor, positions))
        layers = []
        for block in self._layers():
            x, state = block.prefill(x, key_padding_mask=key_padding_mask)
            layers.append(state)
        ends = x[torch.arange(len(x), device=x.device), last]
        return self._logits(ends), GPTState(lengths, tuple(layers))

    def step(self, tokens: Tensor, state: GPTState) -> tuple[Tensor, GPTState]:
        """Process one more token of each sequence.

        With mixer "tssa", memory is constant.

        Args:
            tokens: (B,) int64 token ids.
            state: result of `init_state`, `prefill` or the last `step`; it does not change.

        Returns:
            (B, vocab_size) logits, equal to the logits of `forward` at this position, and the
            next state.

        Raises:
            InputError: there are more than `max_length` tokens.
        """
        check_room("tokens", state.position, self.max_length, "model")
        check_ids("tokens", tokens, "(B,)", below=number_of_ids(self.embed), rank=1)
        embedded = self.embed(tokens).unsqueeze(1) * self.embedding_factor
        x = self.drop(self.positions(embedded, state.position.unsqueeze(1))).squeeze(1)
        layers = []
        for block, before in zip(self._layers(), state.layers, strict=True):
            x, after = block.step(x, before)
            layers.append(after)
        return self._logits(x), GPTState(state.position + 1, tuple(layers))

    def generate(
        self,
        tokens: Tensor,
        max_new_tokens: int,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Continue prompts; see `rifflemix.models.language.generation.generate`.

        Args:
            tokens: (B, N) prompts.
            max_new_tokens: number of tokens to add.
            temperature: divisor of the logits; 0 chooses the most likely token.
            top_k: sample from this number of most likely tokens.
            top_p: sample from the most likely tokens with this total probability.
            generator: source of random numbers.

        Returns:
            (B, N + max_new_tokens) prompts and continuations.
        """
        return generate(
            self,
            tokens,
            max_new_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            generator=generator,
        )

    def official_tensors(self) -> dict[str, OfficialTensor]:
        """Map the keys of nanoGPT and of the released language code of ToST to our tensors.

        Returns:
            Official key -> `OfficialTensor`.

        Raises:
            InputError: this code does not support the mixer or a setting.
        """
        if self.mixer not in _OFFICIAL_MIXERS:
            raise bad_argument("mixer", "tssa or softmax for official weights", self.mixer)
        if self.head is not None or not isinstance(self.positions, PositionEmbedding):
            raise bad_argument(
                "model", "tied embeddings and learned positions for official weights", "others"
            )
        layout = {}
        for name, tensor in self.state_dict().items():
            # There, temperatures are (H, 1) and the biases per position are (H, max_length, 1).
            deeper = name.endswith(("temperature", "denominator_bias"))
            shape = (*tensor.shape, 1) if deeper else None
            layout[_official_name(name, self.mixer)] = OfficialTensor(name, shape)
        layout["lm_head.weight"] = OfficialTensor("embed.weight", required=False)
        if self.mixer == "softmax":
            for index in range(len(self.blocks)):
                # The code keeps the causal mask as a buffer if it has no fused attention.
                layout[f"transformer.h.{index}.attn.bias"] = OfficialTensor(None, required=False)
        return layout

    def _layers(self) -> Iterable[Block]:
        return cast(Iterable[Block], self.blocks)

    def _logits(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        if self.head is None:
            return F.linear(x, table_of(self.embed))
        return self.head(x)


_OFFICIAL_PARTS = (
    ("embed.", "transformer.wte."),
    ("positions.table", "transformer.wpe.weight"),
    ("blocks.", "transformer.h."),
    (".norm1.", ".ln_1."),
    (".norm2.", ".ln_2."),
    (".mixer.", ".attn."),
    (".mlp.fc1.", ".mlp.c_fc."),
    (".mlp.fc2.", ".mlp.c_proj."),
    (".scale1.scale", ".gamma1"),
    (".scale2.scale", ".gamma2"),
)
_OFFICIAL_MIXERS: dict[str, tuple[tuple[str, str], ...]] = {
    "tssa": (
        (".attn.in_proj.", ".attn.c_attn."),
        (".attn.out_proj.", ".attn.c_proj."),
        (".attn.temperature", ".attn.temp"),
        (".attn.denominator_bias", ".attn.denom_bias"),
    ),
    "softmax": ((".attn.qkv.", ".attn.c_attn."), (".attn.proj.", ".attn.c_proj.")),
}


def _official_name(name: str, mixer: str) -> str:
    if name.startswith("norm."):
        return name.replace("norm.", "transformer.ln_f.", 1)
    for ours, theirs in (*_OFFICIAL_PARTS, *_OFFICIAL_MIXERS[mixer]):
        name = name.replace(ours, theirs)
    return name
