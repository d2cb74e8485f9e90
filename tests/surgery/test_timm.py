"""timm's vision transformers as host models."""

from __future__ import annotations

import copy
import importlib.util
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rifflemix as rm
from rifflemix.surgery import attn_layer

if importlib.util.find_spec("timm") is None:
    pytest.skip("timm is not installed", allow_module_level=True)
from torchvision_shim import declare_operators

declare_operators()
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import timm
    from timm.layers.attention import AttentionRope
    from timm.models import fastvit, nest, volo
    from timm.models.eva import EvaAttention
    from timm.models.vision_transformer import Block

TINY: dict[str, Any] = {
    "img_size": 32,
    "patch_size": 8,
    "embed_dim": 32,
    "depth": 2,
    "num_heads": 4,
    "num_classes": 5,
}


def create(name: str, **overrides: Any) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = timm.create_model(name, **{**TINY, **overrides}).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    return model


@pytest.mark.parametrize(
    "overrides",
    [{}, {"qkv_bias": False}, {"proj_bias": False}, {"class_token": False, "global_pool": "avg"}],
    ids=["vit", "no qkv bias", "no proj bias", "no class token"],
)
def test_softmax_with_copied_weights_equals_the_original(overrides: dict[str, Any]) -> None:
    model = create("vit_tiny_patch16_224", **overrides)
    images = torch.randn(2, 3, 32, 32)
    expected = model(images)
    report = rm.replace_attention(model, "softmax")
    torch.testing.assert_close(model(images), expected, atol=1e-5, rtol=1e-5)
    assert report.replaced == ["blocks.0.attn", "blocks.1.attn"]
    assert report.parameters_before == report.parameters_after
    rm.restore_attention(model)
    assert torch.equal(model(images), expected)


PARTS: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "eva": (EvaAttention, {"scale_norm": False}),
    "eva with split maps": (EvaAttention, {"scale_norm": False, "qkv_fused": False}),
    "eva without bias": (EvaAttention, {"scale_norm": False, "qkv_bias": False}),
    "rope": (AttentionRope, {}),
    "rope with shared keys": (AttentionRope, {"qkv_fused": False, "num_kv_heads": 2}),
    "rope of wider heads": (AttentionRope, {"attn_head_dim": 12}),
}


@pytest.mark.parametrize("part", PARTS)
def test_attention_of_other_kinds_is_copied_exactly(part: str) -> None:
    cls, options = PARTS[part]
    model = nn.ModuleDict({"attn": cls(32, num_heads=4, **options)}).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    x = torch.randn(2, 9, 32)
    expected = model["attn"](x, None, None)
    rm.replace_attention(model, "softmax")
    torch.testing.assert_close(model["attn"](x, None, None), expected, atol=1e-5, rtol=1e-5)


def test_xca_is_copied_exactly_except_for_its_temperature() -> None:
    model = timm.create_model("xcit_nano_12_p16_224", **{**TINY, "patch_size": 16}).eval()
    host = model.blocks[0].attn
    nn.init.normal_(host.qkv.weight, std=0.2)
    x = torch.randn(2, 9, 32)
    expected = host(x)
    report = rm.replace_attention(model, "xca")
    torch.testing.assert_close(model.blocks[0].attn(x), expected, atol=1e-5, rtol=1e-5)
    assert report.replaced == ["blocks.0.attn", "blocks.1.attn"]
    assert all("token" in reason for _, reason in report.skipped)
    assert any("linear" in note for note in report.notes)
    assert report.macs_before == report.macs_after


@pytest.mark.parametrize("mixer", rm.list_mixers())
def test_every_mixer_in_a_vit(mixer: str) -> None:
    model = create("vit_tiny_patch16_224")
    images = torch.randn(2, 3, 32, 32)
    before = model(images)
    rm.replace_attention(model, mixer, max_length=17)
    after = model(images)
    assert after.shape == before.shape
    assert after.isfinite().all()


REFUSED: dict[str, dict[str, Any]] = {
    "beit_base_patch16_224": {},
    "swin_tiny_patch4_window7_224": {
        "embed_dim": 16,
        "patch_size": 4,
        "depths": (1,),
        "num_heads": (2,),
        "depth": None,
        "window_size": 4,
    },
    "vit_relpos_small_patch16_224": {},
}


@pytest.mark.parametrize("name", REFUSED)
def test_relative_biases_are_refused(name: str) -> None:
    overrides = {**TINY, **REFUSED[name]}
    model = timm.create_model(name, **{k: v for k, v in overrides.items() if v is not None})
    with pytest.raises(rm.InputError, match=r"model: .*attn: .*position"):
        rm.replace_attention(model, "tssa")
    report = rm.replace_attention(model, "tssa", dry_run=True)
    assert not report.replaced
    assert all("position" in reason for _, reason in report.skipped)


def test_images_with_their_channels_first_are_refused() -> None:
    model = torch.nn.Sequential(fastvit.Attention(32))
    with pytest.raises(rm.InputError, match=r"\(B, C, H, W\)"):
        rm.replace_attention(model, "tssa")


def test_a_beit_without_biases_is_replaced_and_refuses_them_in_the_call() -> None:
    model = create("beit_base_patch16_224", use_rel_pos_bias=False)
    rm.replace_attention(model, "tssa")
    x = torch.randn(1, 17, 32)
    assert model.blocks[0].attn(x).shape == x.shape
    with pytest.raises(rm.InputError, match="shared_rel_pos_bias"):
        model.blocks[0].attn(x, shared_rel_pos_bias=torch.zeros(1, 4, 17, 17))


def test_fused_blocks_are_refused() -> None:
    model = create(
        "vit_tiny_patch16_224", block_fn=timm.models.vision_transformer.ParallelScalingBlock
    )
    with pytest.raises(rm.InputError, match=r"blocks\.0"):
        rm.replace_attention(model, "tssa")


def test_lost_rotary_positions_are_warned_of_once() -> None:
    model = create("eva02_tiny_patch14_224")
    with pytest.warns(UserWarning, match="rotary") as caught:
        report = rm.replace_attention(model, "tssa")
    assert len(caught) == 1
    assert "rotary" in str(report)
    assert model(torch.randn(1, 3, 32, 32)).shape == (1, 5)


def test_normalised_queries_are_reported() -> None:
    report = rm.replace_attention(create("vit_tiny_patch16_224", qk_norm=True), "tssa")
    (note,) = report.notes
    assert "(qk_norm)" in note


def test_class_token_with_a_sort_is_reported() -> None:
    with_token = rm.replace_attention(create("vit_tiny_patch16_224"), "csp")
    assert "global_pool='avg'" in str(with_token)
    pooled = create("vit_tiny_patch16_224", class_token=False, global_pool="avg")
    assert rm.replace_attention(pooled, "csp").notes == []
    assert rm.replace_attention(create("vit_tiny_patch16_224"), "tssa").notes == []


def test_class_tokens_at_other_positions_are_detected() -> None:
    """Check CrossViT and NaFlexViT.

    CrossViT has one class token per branch. NaFlexViT stores it next to the patch embeddings.
    """
    with torch.device("meta"):
        crossvit = timm.create_model("crossvit_9_240")
        naflexvit = timm.create_model(
            "naflexvit_base_patch16_gap", depth=1, class_token=True, global_pool="token"
        )
    for model in (crossvit, naflexvit):
        report = rm.replace_attention(model, "csp", max_length=512, dry_run=True)
        assert "global_pool='avg'" in str(report)


def test_dropout_of_the_output_is_kept() -> None:
    model = create("vit_tiny_patch16_224", attn_drop_rate=0.1, proj_drop_rate=0.3)
    rm.replace_attention(model, "softmax")
    assert model.blocks[1].attn.proj_drop.p == 0.3
    assert model.blocks[1].attn.mixer.dropout == 0.1
    assert model.blocks[1].attn.mixer.layer_index == 1


def tokens_of_blocks() -> nn.ModuleList:
    torch.manual_seed(0)
    return nn.ModuleList([Block(32, 4) for _ in range(2)]).eval()


def run(blocks: nn.ModuleList, x: Tensor, **masks: Any) -> Tensor:
    for block in blocks:
        x = block(x, **masks)
    return x


@pytest.mark.parametrize("additive", [False, True], ids=["bool", "additive"])
def test_masks_hide_padding(additive: bool) -> None:
    blocks = tokens_of_blocks()
    rm.replace_attention(blocks, "tssa")
    x = torch.randn(2, 9, 32)
    keep = torch.arange(9) < torch.tensor([[9], [6]])
    mask = keep[:, None, None, :]
    if additive:
        mask = torch.zeros(2, 1, 1, 9).masked_fill(~mask, float("-inf"))
    y = run(blocks, x, attn_mask=mask)
    other = run(blocks, x.masked_fill(~keep[..., None], 7.0), attn_mask=mask)
    torch.testing.assert_close(y[keep], other[keep])
    torch.testing.assert_close(y[1, :6], run(blocks, x[1:, :6])[0], atol=1e-5, rtol=1e-5)


def test_causal_calls() -> None:
    blocks = tokens_of_blocks()
    x = torch.randn(2, 9, 32)
    expected = run(blocks, x, is_causal=True)
    both_ways = copy.deepcopy(blocks)
    rm.replace_attention(both_ways, "tssa")
    with pytest.raises(rm.InputError, match="causal=True"):
        run(both_ways, x, is_causal=True)
    rm.replace_attention(blocks, "softmax", causal=True)
    torch.testing.assert_close(run(blocks, x, is_causal=True), expected, atol=1e-5, rtol=1e-5)


def test_attn_layer_builds_the_model_with_mixers() -> None:
    layer = attn_layer("tssa", num_layers=2)
    model = create("vit_tiny_patch16_224", attn_layer=layer, proj_drop_rate=0.2)
    mixers = [block.attn.mixer for block in model.blocks]
    assert [(m.layer_index, m.num_layers, m.num_heads) for m in mixers] == [(0, 2, 4), (1, 2, 4)]
    assert model.blocks[0].attn.proj_drop.p == 0.2
    assert model(torch.randn(1, 3, 32, 32)).shape == (1, 5)
    with pytest.raises(rm.InputError, match="qk_norm"):
        create("vit_tiny_patch16_224", attn_layer=layer, qk_norm=True)


def test_a_model_built_with_mixers_is_pickled_and_copied(tmp_path: Path) -> None:
    layer = attn_layer("tssa", num_layers=2)
    model = create("vit_tiny_patch16_224", attn_layer=layer)
    images = torch.randn(1, 3, 32, 32)
    torch.save(model, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    for twin in (loaded, copy.deepcopy(model)):
        assert torch.equal(twin(images), model(images))


@pytest.mark.parametrize("kind", ["nest", "volo"])
def test_tokens_of_images_and_of_blocks(kind: str) -> None:
    """Check blocks (B, T, N, C), mixed separately, and images (B, H, W, C)."""
    cls = {"nest": nest.Attention, "volo": volo.Attention}[kind]
    model = nn.ModuleDict({"attn": cls(32, num_heads=4)}).eval()
    x = torch.randn(2, 3, 5, 32)
    expected = model["attn"](x)
    rm.replace_attention(model, "softmax")
    torch.testing.assert_close(model["attn"](x), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_swapped_vit_compiles_to_one_graph() -> None:
    model = create("vit_tiny_patch16_224")
    rm.replace_attention(model, "tssa")
    images = torch.randn(2, 3, 32, 32)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(images), model(images))
