"""Tests of swapped models of transformers: adapters, arguments, training, dtypes and lengths."""

from __future__ import annotations

import copy

import pytest
import torch
from test_transformers_hosts import SMALL, swap
from tiny_transformers import VOCABULARY, build, inputs_of, outputs_of, transformers
from torch import Tensor, nn

import rifflemix as rm
from rifflemix.surgery import replace_attention, restore_attention


class _LoRA(nn.Linear):
    def __init__(self, base: nn.Linear) -> None:
        super().__init__(base.in_features, base.out_features)
        self.added = nn.Linear(base.in_features, base.out_features)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.added(x)


def test_projections_with_adapters_are_refused() -> None:
    """Check adapters: copying the base layer alone would lose the adapter's weights."""
    model = build("bert")
    attention = model.encoder.layer[0].attention.self
    attention.query = _LoRA(attention.query)
    report = replace_attention(model, "softmax")
    assert report.replaced == ["encoder.layer.1.attention.self"]
    assert "_LoRA" in report.skipped[0][1]


def test_cross_attention_is_not_replaced() -> None:
    model = build("gpt2", add_cross_attention=True)
    report = replace_attention(model, "tssa")
    assert [name for name, _ in report.skipped] == [
        f"transformer.h.{i}.crossattention" for i in (0, 1)
    ]
    assert all("cross-attention" in reason for _, reason in report.skipped)
    ids, memory = inputs_of("gpt2", padding=False)["input_ids"], torch.randn(3, 4, 16)
    assert outputs_of(model, {"input_ids": ids, "encoder_hidden_states": memory}).isfinite().all()


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "vit", "whisper"])
def test_output_attentions_is_refused(name: str) -> None:
    model = swap(name, "tssa")
    with pytest.raises(rm.InputError, match=r"output_attentions: .*False.*got True"):
        model(**inputs_of(name), output_attentions=True)
    hidden = model(**inputs_of(name), output_hidden_states=True)
    assert len(hidden.get("hidden_states", hidden.get("encoder_hidden_states"))) == 3


def test_packed_sequences_and_empty_ones_are_refused() -> None:
    model = swap("gpt2", "tssa")
    ids = torch.randint(3, VOCABULARY, (2, 5))
    positions = torch.tensor([[0, 1, 2, 0, 1]]).expand(2, -1)
    with pytest.raises(rm.InputError, match=r"mask: .*packed"):
        model(ids, position_ids=positions, use_cache=False)
    with pytest.raises(rm.InputError, match=r"mask: .*\b0\b.*\b2\b"):
        model(ids, attention_mask=torch.zeros_like(ids))
    ends = torch.tensor([0, 3, 5])  # arguments of flash attention instead of a mask
    with pytest.raises(rm.InputError, match=r"cu_seq_lens_q: .*None"):
        model(ids, cu_seq_lens_q=ends, cu_seq_lens_k=ends, use_cache=False)


def test_flash_attention_reads_packed_sequences_from_positions() -> None:
    """Check packed sequences without a mask: restarting positions separate them."""
    model = swap("llama", "tssa")
    for module in model.modules():
        if hasattr(module, "config"):
            module.config._attn_implementation = "flash_attention_2"
    ids = torch.randint(3, VOCABULARY, (1, 5))
    again = torch.tensor([[0, 1, 2, 0, 1]])
    for use_cache in (True, False):
        with pytest.raises(rm.InputError, match=r"position_ids: .*packed"):
            model(ids, position_ids=again, use_cache=use_cache)
    first = model(ids[:, :3], position_ids=again[:, :3] + 4)
    model(ids[:, 3:], position_ids=again[:, 3:] + 7, past_key_values=first.past_key_values)


def test_encoder_hidden_states_are_refused() -> None:
    attention = swap("bert", "tssa").encoder.layer[0].attention.self
    x = torch.randn(1, 3, 16)
    with pytest.raises(rm.InputError, match=r"encoder_hidden_states: .*None"):
        attention(x, encoder_hidden_states=x)


def test_arguments_by_position() -> None:
    """Check masks that a host passes by position."""
    attention = swap("vit", "tssa").layers[0].attention
    x, mask = torch.randn(1, 3, 16), torch.tensor([[[[True, True, False]]]])
    y, weights = attention(x, mask)
    assert weights is None
    torch.testing.assert_close(y, attention(x, attention_mask=mask)[0])
    assert not torch.equal(y, attention(x)[0])


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_gradients_with_and_without_checkpointing_are_equal(name: str) -> None:
    """Check the host's dropout and all gradients, with and without checkpointing."""
    model = swap(name, "tssa")
    inputs = inputs_of(name)
    gradients = []
    for checkpointing in (False, True):
        model.train()
        if checkpointing:
            model.activation_checkpointing_enable({"use_reentrant": False})
        model.zero_grad()
        torch.manual_seed(0)
        model(**inputs, use_cache=False)[0].square().mean().backward()
        gradients.append([p.grad.clone() for n, p in model.named_parameters() if "mixer" in n])
    for plain, again in zip(*gradients, strict=True):
        assert plain.abs().sum() > 0
        torch.testing.assert_close(again, plain)
    assert model.training
    first, second = (model(**inputs, use_cache=False)[0] for _ in range(2))
    assert not torch.equal(first, second)


def test_dropout_after_the_output_projection_is_kept() -> None:
    model = build("gpt2", attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.5)
    replace_attention(model, "identity")
    attention = model.transformer.h[0].attn.train()
    y, _ = attention(torch.ones(1, 20, 16))
    assert set(y.unique().tolist()) == {0.0, 2.0}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_outputs_have_the_dtype_of_the_model(dtype: torch.dtype) -> None:
    model = build("bert").to(dtype)
    replace_attention(model, "linear")
    assert outputs_of(model, inputs_of("bert")).dtype == dtype


def test_deep_copies_are_independent() -> None:
    model, inputs = swap("gpt2", "tssa"), inputs_of("gpt2")
    before = outputs_of(model, inputs)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.transformer.h[0].attn.mixer.in_proj.weight.zero_()
    assert torch.equal(outputs_of(model, inputs), before)
    restore_attention(other)
    assert torch.equal(outputs_of(other, inputs), outputs_of(build("gpt2"), inputs))


def test_max_length_is_copied_from_the_model() -> None:
    expected = {"bert": 24, "roberta": 24, "gpt2": 24, "llama": 24}
    for name, length in expected.items():
        mixers = [m for m in swap(name, "tssa").modules() if isinstance(m, rm.TokenMixer)]
        assert [m.max_length for m in mixers] == [length, length], name
    whisper = swap("whisper", "tssa")
    assert whisper.encoder.layers[0].self_attn.mixer.max_length == 12
    assert whisper.decoder.layers[0].self_attn.mixer.max_length == 24


def test_image_length_is_set_for_mixers_that_need_it() -> None:
    """Check larger images: there may be more tokens than positions."""
    for name, length in {"vit": 5, "deit": 6}.items():
        report = replace_attention(build(name), "synthesizer", dry_run=True)
        assert report.length == length
        mixers = [m for m in swap(name, "synthesizer").modules() if isinstance(m, rm.TokenMixer)]
        assert [m.max_length for m in mixers] == [length, length], name
    model = swap("vit", "csp")
    assert model.layers[0].attention.mixer.max_length is None
    found = model(torch.randn(1, 3, 16, 12), interpolate_pos_encoding=True)[0]
    assert found.shape == (1, 4 * 3 + 1, 16)
    config = transformers.Dinov2WithRegistersConfig(
        **{k: v for k, v in SMALL.items() if "v" not in k},
        image_size=8,
        patch_size=4,
        num_register_tokens=3,
    )
    registers = transformers.Dinov2WithRegistersModel(config)
    replace_attention(registers, "synthesizer")
    assert registers(torch.randn(1, 3, 8, 8))[0].shape == (1, 4 + 1 + 3, 16)


def test_offloaded_weights_are_refused() -> None:
    accelerate = pytest.importorskip("accelerate", reason="needs accelerate")
    model = accelerate.cpu_offload(build("bert"), execution_device=torch.device("cpu"))
    encoder: nn.Module = nn.ModuleList([nn.MultiheadAttention(16, 2)])
    accelerate.cpu_offload(encoder, execution_device=torch.device("cpu"))
    for host in (model, encoder):
        with pytest.raises(rm.InputError, match=r"\(device_map\)"):
            replace_attention(host, "tssa")
