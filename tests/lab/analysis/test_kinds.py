"""Tests of each analysis against a closed form or an independent computation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rifflemix as rm
from rifflemix.errors import InputError, RunFailed
from rifflemix.lab.analysis import Finding, Subject, analyze, own_subject, trace
from rifflemix.lab.analysis.kinds.collapse import ALONE, NORM, SKIP, WHOLE, collapse_of
from rifflemix.lab.analysis.kinds.pattern import reach_after, reach_of
from rifflemix.lab.analysis.kinds.permutation import layer_permutations, order_change
from rifflemix.lab.analysis.kinds.spectrum import layer_spectra
from rifflemix.lab.report.page import figure_png
from rifflemix.mixers import MixerCard, TokenMixer
from rifflemix.mixers.csp import CSP
from rifflemix.ops.permutation.arguments import Permuted

N, C = 6, 4
MASK = torch.tensor([[False] * 6, [False, True, False, False, False, True]])


class Stack(nn.Module):
    """Apply mixers one after the other."""

    def __init__(self, *mixers: nn.Module) -> None:
        super().__init__()
        self.mixers = nn.ModuleList(mixers)

    def forward(self, inputs: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        x = inputs
        for mixer in self.mixers:
            x = mixer(x, key_padding_mask=key_padding_mask)
        return x


class Reverse(TokenMixer):
    """Mixer that reverses the order of the tokens."""

    card = MixerCard("reverse", "Reverse", "none", "none", "O(N C)", 1.0)

    def mix(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        return x.flip(1)


def subject_of(*mixers: nn.Module, masked: bool = False) -> Subject:
    batch = {"inputs": torch.randn(2, N, C, dtype=torch.float64)}
    if masked:
        batch["key_padding_mask"] = MASK
    return own_subject(Stack(*mixers).double(), [batch], label="stack")


def mixer(name: str, layer: int = 0, layers: int = 1, **options: Any) -> TokenMixer:
    return rm.create_mixer(
        name, C, num_heads=2, max_length=N, layer_index=layer, num_layers=layers, **options
    )


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "padded"])
def test_ranks_of_outputs_agree_with_numpy(masked: bool) -> None:
    subject = subject_of(mixer("softmax"), mixer("csp"), masked=masked)
    layers = layer_spectra(subject)
    (calls,) = trace(subject.model, subject.batches)
    for layer, call in zip(layers, calls, strict=True):
        values = [np.linalg.svd(y, compute_uv=False) for y in valid_rows(call.y, masked)]
        shares = [of / of.sum() for of in values]
        found = layer.after.means()
        assert found["effective_rank"] == pytest.approx(
            np.mean([np.exp(-(s * np.log(np.maximum(s, 1e-300))).sum()) for s in shares])
        )
        assert found["stable_rank"] == pytest.approx(
            np.mean([(of**2).sum() / of[0] ** 2 for of in values])
        )
        assert found["second_over_first"] == pytest.approx(
            np.mean([of[1] / of[0] for of in values])
        )
    valid = float((~MASK).sum(1).double().mean()) if masked else N
    of_csp, of_softmax = layers[1].maps, layers[0].maps
    assert (of_csp.least, of_csp.most) == (1.0, 1.0), "a permutation has singular values 1 only"
    assert of_csp.count == 2 * C, "one map for each channel of each sample"
    assert 1.0 <= of_softmax.means()["effective_rank"] < valid


def valid_rows(y: Tensor, masked: bool) -> list[np.ndarray]:
    return [of[~MASK[n]].numpy() if masked else of.numpy() for n, of in enumerate(y)]


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("name", ["csp", "sliceformer"])
def test_spectra_before_the_projection_equal_the_permuted_values(name: str, masked: bool) -> None:
    subject = subject_of(mixer(name), masked=masked)
    (layer,) = layer_spectra(subject)
    ((call,),) = trace(subject.model, subject.batches)
    mask = MASK if masked else None
    x = call.x.masked_fill(MASK.unsqueeze(-1), 0.0) if masked else call.x
    with torch.no_grad():
        permuted = call.module.permute(call.module.value(x), mask)[0]
    values = [np.linalg.svd(y, compute_uv=False) for y in valid_rows(permuted, masked)]
    expected = np.mean([of[1] / of[0] for of in values])
    assert layer.before.means()["second_over_first"] == pytest.approx(expected)
    assert layer.after.means()["second_over_first"] != pytest.approx(expected, rel=1e-3)


class Repeats(CSP):
    """CSP with the second token also in the place of the first."""

    def permute(self, v: Tensor, mask: Tensor | None, *, with_index: bool = False) -> Permuted:
        y, index = super().permute(v, mask, with_index=True)
        keep = torch.arange(y.shape[1]).clamp_min(1)
        keep[0] = 1
        return y[:, keep], index[:, keep]


class WrongIndex(CSP):
    """CSP that reports a reversed index."""

    def permute(self, v: Tensor, mask: Tensor | None, *, with_index: bool = False) -> Permuted:
        y, index = super().permute(v, mask, with_index=True)
        return y, index.flip(1)


def test_a_map_that_repeats_a_token_does_not_have_full_rank() -> None:
    layer = layer_spectra(subject_of(Repeats(C)))[0].maps
    assert (layer.least, layer.most) == (0.0, pytest.approx(np.sqrt(2)))
    assert layer.means()["stable_rank"] == pytest.approx(N / 2)


def test_an_index_that_does_not_select_the_values_is_reported() -> None:
    with pytest.raises(RunFailed, match="index"):
        layer_spectra(subject_of(WrongIndex(C)))


def test_a_permutation_in_every_kind() -> None:
    """Check that CSP with equal steps and no sort moves every channel by two tokens."""
    shift = mixer("csp", group_size=1, shift=[2] * C)
    (layer,) = layer_permutations(subject_of(shift))
    assert layer.distinct == [1, 1]
    assert layer.commonest == [1.0, 1.0]
    assert layer.moves == {2: (N - 2) * C * 2, 2 - N: 2 * C * 2}


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "padded"])
def test_sort_is_invariant_to_order_and_shift_is_not(masked: bool) -> None:
    sort, shift = mixer("sliceformer"), mixer("csp", group_size=1)
    changes = []
    for layer in (sort, shift):
        subject = subject_of(layer, masked=masked)
        ((call,),) = trace(subject.model, subject.batches)
        changes.append(order_change(call))
    # A sort does not depend on the valid positions that the values came from.
    assert changes[0] == pytest.approx(0.0, abs=1e-12)
    assert changes[1] > 0.1


def test_permutations_need_a_mixer_that_permutes() -> None:
    with pytest.raises(InputError, match=r"^Stack: .*CSP.*Sliceformer.*got none"):
        analyze("permutation", Stack(mixer("tssa")).double(), subject_of(mixer("csp")).batches)


def test_pattern_of_a_flip_and_of_skips_around_it() -> None:
    subject = subject_of(Reverse(C), Reverse(C))
    (calls,) = trace(subject.model, subject.batches)
    flip, eye = np.eye(N, dtype=bool)[::-1], np.eye(N, dtype=bool)
    assert np.array_equal(reach_of(calls[0]), flip)
    after = reach_after([reach_of(call) for call in calls])
    assert np.array_equal(after[0], flip | eye)
    assert np.array_equal(after[1], flip | eye)


def test_pattern_ignores_padding() -> None:
    subject = subject_of(mixer("softmax"), masked=True)
    ((call,),) = trace(subject.model, subject.batches)
    assert reach_of(call, sample=1).shape == (4, 4)
    assert reach_of(call, sample=1).all()


def test_pattern_of_causal_attention_and_of_a_permutation() -> None:
    ((call,),) = trace(*own("softmax", causal=True))
    assert np.array_equal(reach_of(call), np.tri(N, dtype=bool))
    ((call,),) = trace(*own("csp", group_size=1, shift=[0, 1, 1, 3]))
    expected = np.zeros((N, N), dtype=bool)
    for step in (0, 1, 3):
        expected[np.arange(N), (np.arange(N) - step) % N] = True
    assert np.array_equal(reach_of(call), expected)
    assert reach_of(*trace_one("identity")).sum() == N


def trace_one(name: str) -> tuple[Any]:
    ((call,),) = trace(*own(name))
    return (call,)


def own(name: str, **options: Any) -> tuple[nn.Module, Any]:
    subject = subject_of(mixer(name, **options))
    return subject.model, subject.batches


def test_butterfly_connects_all_pairs_after_one_layer_per_stride() -> None:
    model = Stack(*(mixer("butterfly", i, 3, block_size=2) for i in range(3))).double()
    finding = analyze("pattern", model, [torch.randn(1, 4, C, dtype=torch.float64)])
    shares = finding.data["models"]["Stack"]["connected_share"]
    assert shares == pytest.approx([0.5, 1.0, 1.0])


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "padded"])
def test_rank_of_stacks_is_kept_or_lost_as_expected(masked: bool) -> None:
    """An average collapses at once and the identity never; skips keep the rank of the average."""
    average = collapse_of(subject_of(mixer("average"), mixer("average"), masked=masked))
    identity = collapse_of(subject_of(mixer("identity"), mixer("identity"), masked=masked))
    means = average.stacks[ALONE].means()
    assert means["residual"][1:] == pytest.approx([0.0, 0.0], abs=1e-6)
    assert means["effective"][1:] == pytest.approx([1.0, 1.0], abs=1e-4)
    assert average.stacks[SKIP].means()["effective"][2] > 1.2
    assert all(value > 1.0 for value in identity.stacks[ALONE].means()["stable"])
    before, *after = identity.stacks[ALONE].means()["effective"]
    assert after == pytest.approx([before, before])
    assert set(average.stacks) == {ALONE, NORM, SKIP}, "there are no blocks around them"


def test_theorem_1_is_computed_if_it_applies() -> None:
    found = collapse_of(subject_of(mixer("csp", 0, 2), mixer("sliceformer", 1, 2)))
    assert found.bound is not None
    assert found.bounded_residual is not None
    pairs = zip(found.bounded_residual, found.bound, strict=True)
    assert all(residual <= bound * (1 + 1e-9) for residual, bound in pairs)
    assert collapse_of(subject_of(mixer("csp"), mixer("tssa"))).bound is None
    assert collapse_of(subject_of(mixer("csp"), masked=True)).bound is None


def test_the_residual_hides_what_the_spectrum_shows() -> None:
    """Check that a sort keeps the residual of CSP but has a lower effective rank."""
    torch.manual_seed(0)
    ranks = {}
    for name in ("sliceformer", "csp"):
        layers = [rm.create_mixer(name, 128, layer_index=i, num_layers=6) for i in range(6)]
        found = collapse_of(own_subject(Stack(*layers), [torch.randn(1, 64, 128)]))
        ranks[name] = found.stacks[NORM].means()
    assert ranks["sliceformer"]["residual"][-1] > 0.8
    assert ranks["csp"]["residual"][-1] > 0.8
    assert ranks["csp"]["effective"][-1] > 3 * ranks["sliceformer"]["effective"][-1]


def test_blocks_are_measured_with_their_residuals() -> None:
    model = rm.create_model("encoder", in_channels=3, mixer="tssa", dim=8, num_layers=2)
    found = collapse_of(own_subject(model, [torch.randn(2, 5, 3)]))
    assert len(found.stacks[WHOLE].residual) == 3


KINDS = ("pattern", "permutation", "spectrum", "collapse")


@pytest.mark.parametrize("kind", KINDS)
def test_findings_are_complete(kind: str) -> None:
    model = rm.create_model("encoder", in_channels=3, mixer="csp", dim=8, num_layers=2)
    finding: Finding = analyze(kind, model, [torch.randn(2, 5, 3), torch.randn(1, 5, 3)])
    assert finding.kind == kind
    assert finding.summary
    assert finding.seen == finding.summary
    assert all(len(row) == len(finding.headers) for row in finding.rows)
    width = int.from_bytes(figure_png(finding.figure)[16:20], "big")
    assert width == 1200
    plots = [axes for axes in finding.figure.axes if axes.get_visible() and not axes.images]
    assert all(axes.get_xlabel() or axes.get_ylabel() or axes.get_title("left") for axes in plots)
