"""Tests of rates, memberships, subspaces and class tokens against numpy in float64."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from torch import Tensor, nn

import rifflemix as rm
from rifflemix.errors import InputError, RunFailed
from rifflemix.lab.analysis import Subject, analyze, own_subject, trace
from rifflemix.lab.analysis.drawing import COLOURS, as_grid, image_of, text_of
from rifflemix.lab.analysis.kinds.cls_attention import class_attention
from rifflemix.lab.analysis.kinds.coherence import coherence_of
from rifflemix.lab.analysis.kinds.membership import layer_memberships
from rifflemix.lab.analysis.kinds.rate import bound_in, layer_rates, nearest_orthonormal, rate_in
from rifflemix.lab.analysis.trace import undisturbed
from rifflemix.mixers import SoftmaxCrossAttention
from rifflemix.models.vision.tost_layers import ClassAttention

N, C, H = 6, 8, 2
MASK = torch.tensor([[False] * 6, [False, True, False, False, False, True]])


class One(nn.Module):
    """Model with a single mixer."""

    def __init__(self, mixer: nn.Module) -> None:
        super().__init__()
        self.mixer = mixer

    def forward(self, inputs: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        return self.mixer(inputs, key_padding_mask=key_padding_mask)


def tssa(masked: bool = False, **options: Any) -> Subject:
    mixer = rm.create_mixer("tssa", C, num_heads=H, max_length=N, **options).double()
    batch = {"inputs": torch.randn(2, N, C, dtype=torch.float64)}
    if masked:
        batch["key_padding_mask"] = MASK
    return own_subject(One(mixer), [batch], label="one")


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "padded"])
def test_rates_by_their_equations(masked: bool) -> None:
    subject = tssa(masked)
    (layer,) = layer_rates(subject)
    ((call,),) = trace(subject.model, subject.batches)
    weight = call.module.in_proj.weight.detach().numpy().reshape(H, C // H, C)
    for sample in range(2):
        valid = ~MASK[sample].numpy() if masked else np.ones(N, bool)
        z, y = call.x[sample].numpy()[valid], call.y[sample].numpy()[valid]
        with torch.no_grad():
            pi = call.module.membership(call.x, key_padding_mask=call.key_padding_mask)
        pi = pi[sample].numpy()[:, valid]
        spans = [np.linalg.svd(u, full_matrices=False) for u in weight]
        bases = [left @ right for left, _, right in spans]
        assert layer.rate[sample] == pytest.approx(log_det(z, pi, [np.eye(C)] * H), rel=1e-6)
        assert layer.rate_after[sample] == pytest.approx(
            log_det(z + y, pi, [np.eye(C)] * H), rel=1e-6
        )
        assert layer.bound[sample] == pytest.approx(bound(z, pi, weight), rel=1e-6)
        assert layer.bound_after[sample] == pytest.approx(bound(z + y, pi, weight), rel=1e-6)
        assert layer.span_rate[sample] == pytest.approx(log_det(z, pi, bases), rel=1e-6)
        assert layer.span_bound[sample] == pytest.approx(bound(z, pi, bases), rel=1e-6)
    assert layer.gap >= 0.0


def second_moment(z: np.ndarray, weights: np.ndarray, basis: np.ndarray) -> np.ndarray:
    inside = z @ basis.T
    return inside.T @ (weights[:, None] * inside) / weights.sum()


def log_det(z: np.ndarray, pi: np.ndarray, bases: Any) -> float:
    parts = [
        w.sum() * np.linalg.slogdet(np.eye(len(u)) + second_moment(z, w, u))[1]
        for w, u in zip(pi, bases, strict=True)
    ]
    return float(0.5 * sum(parts) / pi.sum())


def bound(z: np.ndarray, pi: np.ndarray, bases: Any) -> float:
    parts = [
        w.sum() * np.log1p(np.diag(second_moment(z, w, u))).sum()
        for w, u in zip(pi, bases, strict=True)
    ]
    return float(0.5 * sum(parts) / pi.sum())


def test_the_gap_closes_at_the_principal_directions() -> None:
    z = torch.randn(1, 40, C, dtype=torch.float64) @ torch.randn(C, C, dtype=torch.float64)
    membership = torch.rand(1, H, 40, dtype=torch.float64)
    membership = membership / membership.sum(1, keepdim=True)
    whole = torch.linalg.eigh(torch.einsum("hn,nc,nd->hcd", membership[0], z[0], z[0]))[1].mT
    difference = bound_in(whole, z, membership) - rate_in(whole, z, membership)
    assert float(difference) == pytest.approx(0.0, abs=1e-7)
    turned = nearest_orthonormal(torch.randn(H, C, C, dtype=torch.float64))
    assert float(bound_in(turned, z, membership) - rate_in(turned, z, membership)) > 1e-3


def test_nearest_orthonormal_rows() -> None:
    bases = torch.randn(3, 2, 5, dtype=torch.float64)
    found = nearest_orthonormal(bases)
    torch.testing.assert_close(found @ found.mT, torch.eye(2).double().expand(3, 2, 2))
    both = torch.cat((bases, found), 1)
    assert torch.linalg.matrix_rank(both).tolist() == [2, 2, 2]
    for _ in range(20):  # no rotation within the span is closer
        angle = torch.tensor(float(torch.randn(()))).double()
        turn = torch.stack((angle.cos(), -angle.sin(), angle.sin(), angle.cos())).view(2, 2)
        assert (bases - found).norm() <= (bases - turn @ found).norm() + 1e-12


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("causal", [False, True], ids=["both", "causal"])
def test_memberships_and_their_entropies(masked: bool, causal: bool) -> None:
    subject = tssa(masked, causal=causal)
    (layer,) = layer_memberships(subject)
    ((call,),) = trace(subject.model, subject.batches)
    with torch.no_grad():
        pi = call.module.membership(call.x, key_padding_mask=call.key_padding_mask).numpy()
    for sample in range(2):
        valid = ~MASK[sample].numpy() if masked else np.ones(N, bool)
        of = pi[sample][:, valid]
        assert layer.token_entropy[sample] == pytest.approx(-(of * np.log(of)).sum(0).mean())
        within = of / of.sum(1, keepdims=True)
        expected = -(within * np.log(within)).sum(1) / np.log(valid.sum())
        np.testing.assert_allclose(layer.head_entropy[sample], expected)
        np.testing.assert_allclose(layer.head_share[sample], of.mean(1))
    assert layer.largest_error < 1e-12


def test_memberships_that_do_not_sum_to_one_are_refused() -> None:
    subject = tssa()
    with torch.no_grad():
        next(subject.model.parameters()).fill_(float("nan"))
    with pytest.raises(RunFailed, match="finite"):
        layer_memberships(subject)


def test_coherence_of_known_directions() -> None:
    apart = coherence_of("a", torch.eye(4), 2)
    assert (apart.between, apart.within, apart.largest) == (0.0, 0.0, 0.0)
    same = coherence_of("a", torch.tensor([[1.0, 0.0], [2.0, 0.0]]), 2)
    assert same.between == pytest.approx(1.0)
    assert same.largest == pytest.approx(1.0)
    assert coherence_of("a", torch.eye(4), 1).between == 0.0
    rows = torch.randn(6, 6, dtype=torch.float64)
    found = coherence_of("a", rows, 2)
    unit = rows.numpy() / np.linalg.norm(rows.numpy(), axis=1, keepdims=True)
    cosines = np.abs(unit @ unit.T)
    assert found.between == pytest.approx(cosines[:3, 3:].mean())
    assert found.within == pytest.approx((cosines[:3, :3].sum() + cosines[3:, 3:].sum() - 6) / 12)
    random = torch.randn(20_000, 6, dtype=torch.float64)
    random = random / random.norm(dim=1, keepdim=True)
    measured = float((random[::2] * random[1::2]).sum(1).abs().mean())
    assert found.expected == pytest.approx(measured, abs=0.01)


def test_class_attention_gives_the_weights_that_it_gathers_with() -> None:
    layer = ClassAttention(C, H).double()
    x = torch.randn(2, 5, C, dtype=torch.float64)
    with torch.no_grad():
        weights = layer.weights(x)
        values = layer.qkv(x).unflatten(-1, (3, H, -1))[:, :, 2].transpose(1, 2)
        gathered = (weights.unsqueeze(2) @ values).transpose(1, 2).flatten(2)
        torch.testing.assert_close(layer.proj(gathered), layer(x), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, H).double())


def tiny(name: str, **settings: Any) -> rm.models.Model:
    return rm.create_model(
        name,
        dim=8,
        num_layers=2,
        num_heads=2,
        num_classes=3,
        image_size=8,
        patch_size=4,
        **settings,
    )


@pytest.mark.parametrize(
    ("name", "settings", "layers"),
    [("tost_tiny_16", {}, 2), ("tost_tiny_16", {"mixer": "xca"}, 2), ("vit_mnist", {}, 2)],
    ids=["ToST", "XCiT", "ViT"],
)
def test_maps_of_the_class_token(name: str, settings: dict[str, Any], layers: int) -> None:
    model = tiny(name, **settings)
    images = torch.randn(2, 1 if name == "vit_mnist" else 3, 8, 8)
    found = class_attention(own_subject(model, [images]))
    assert len(found) == layers
    for layer in found:
        assert layer.first.shape == (2, 2, 4)
        assert layer.first.sum(-1).numpy() == pytest.approx(np.ones((2, 2)))
        assert all(0.0 <= value <= 1.0 + 1e-9 for value in layer.entropies)
    finding = analyze("cls-attention", model, [images])
    assert len(finding.rows) == layers


def test_models_without_images_class_token_or_token_statistics_are_refused() -> None:
    encoder = rm.create_model("encoder", vocab_size=9, max_length=4, mixer="tssa", dim=8)
    tokens = [torch.randint(9, (2, 4))]
    with pytest.raises(InputError, match=r"^Encoder: .*images"):
        analyze("cls-attention", encoder, tokens)
    with pytest.raises(InputError, match=r"^ViT: .*class token"):
        analyze("cls-attention", tiny("vit_mnist", pool="mean"), [torch.randn(1, 1, 8, 8)])
    with pytest.raises(InputError, match=r"^ViT: .*weights"):
        analyze(
            "cls-attention", tiny("vit_mnist", mixer="tssa", pool="cls"), [torch.randn(1, 1, 8, 8)]
        )
    vectors = rm.create_model("encoder", in_channels=3, max_length=4, mixer="tssa", dim=8)
    with pytest.raises(InputError, match=r"^Encoder: .*images"):
        analyze("membership", vectors, [torch.randn(1, 4, 3)])
    for kind in ("rate", "membership", "coherence"):
        with pytest.raises(InputError, match=r"^ViT: .*tssa"):
            analyze(kind, tiny("vit_mnist"), [torch.randn(1, 1, 8, 8)])


@pytest.mark.parametrize("kind", ["rate", "membership", "coherence"])
def test_findings_of_token_statistics(kind: str) -> None:
    model = tiny("tost_tiny_16")
    finding = analyze(kind, model, [torch.randn(2, 3, 8, 8)])
    assert len(finding.rows) == 2
    assert all(len(row) == len(finding.headers) for row in finding.rows)


def test_memberships_over_text() -> None:
    encoder = rm.create_model("encoder", vocab_size=9, max_length=4, mixer="tssa", dim=8)
    assert analyze("membership", encoder, [torch.randint(9, (2, 4))]).figure.axes


def test_bytes_are_decoded_as_in_their_task(tmp_path: Path) -> None:
    """Check byte 0: it is text in a language model and padding in other tasks."""
    text = "To be, or not to be"
    (tmp_path / "tinyshakespeare.txt").write_text(f"{text}\n" * 40)
    settings = {"level": "byte", "max_length": 12}
    language = rm.tasks.load_task("shakespeare", data_dir=tmp_path, **settings)
    ids = np.array([[byte + 1 for byte in f"{text} {n:02}".encode()] for n in range(20)])
    reviews = replace(rm.Task.from_arrays(ids, np.arange(20) % 2), options={"level": "byte"})
    for task in (language, reviews):
        batch = task.collate([task.split("train")[0]])
        shown = text_of(own_subject(nn.Identity(), [batch], task=task), 0, 12)
        assert shown is not None
        assert "".join(shown) == text[:12]


def test_class_token_is_not_part_of_the_text() -> None:
    settings = {"vocab_size": 9, "max_length": 8, "dim": 16, "num_heads": 4, "num_layers": 1}
    model = rm.create_model("encoder", mixer="tssa", pool="cls", **settings)
    ids = torch.randint(9, (2, 8))
    finding = analyze("membership", model, [ids])
    ((call,),) = trace(model, [ids])
    with undisturbed(call.module):
        likeliest = call.module.membership(call.x)[0].argmax(0)[1:].tolist()
    drawn = finding.figure.axes[0].texts
    assert [text.get_text() for text in drawn] == [str(i) for i in ids[0].tolist()]
    colours = [to_hex(text.get_bbox_patch().get_facecolor()) for text in drawn]
    assert colours == [COLOURS[head].lower() for head in likeliest]


def test_decoder_has_a_separate_text_and_pattern() -> None:
    settings = {"vocab_size": 9, "max_length": 8, "dim": 16, "num_heads": 4, "num_layers": 1}
    model = rm.create_model("seq2seq", mixer="tssa", **settings)
    batch = {"inputs": torch.randint(9, (2, 8)), "decoder_inputs": torch.randint(9, (2, 6))}
    (axes,) = analyze("membership", model, [batch]).figure.axes
    assert len(axes.texts) == 8
    assert {len(value) for value in analyze("pattern", model, [batch]).arrays.values()} == {8}
    batch["decoder_inputs"] = batch["inputs"]
    assert len(analyze("pattern", model, [batch]).rows) == 1
    stacks = analyze("collapse", model, [batch]).data["models"]["Seq2Seq"]["stacks"]
    assert {len(depths["residual"]) for depths in stacks.values()} == {2}, "one layer reads"
    tokens = torch.randn(2, 8, 16)
    with pytest.raises(InputError, match=r"memory"):
        analyze("pattern", SoftmaxCrossAttention(16), [(tokens, tokens)])


def test_images_and_grids() -> None:
    images = torch.tensor([[[[0.0, 4.0], [2.0, 8.0]]]])
    shown = image_of(own_subject(nn.Identity(), [images]), 0)
    assert shown.tolist() == [[0.0, 0.5], [0.25, 1.0]]
    assert as_grid(torch.arange(5)).tolist() == [[1, 2], [3, 4]]
    assert as_grid(torch.arange(4)).tolist() == [[0, 1], [2, 3]]
    with pytest.raises(InputError, match="image, got 7"):
        as_grid(torch.arange(7))
