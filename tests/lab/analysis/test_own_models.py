"""Tests of analyses of user modules: swapped models, files and refusals."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rifflemix as rm
from rifflemix.errors import InputError
from rifflemix.lab.analysis import View, analyze, analyze_into, find_subjects, own_subject, trace
from rifflemix.lab.analysis.kinds.measures import one_infinity_norm, rank_residual
from rifflemix.lab.analysis.kinds.rate import rate

B, N, C = 2, 12, 16


def encoder(mixer: str, **options: Any) -> nn.Module:
    sizes = {"in_channels": 3, "max_length": N, "dim": C, "num_layers": 2, "num_heads": 2}
    causal = options.pop("causal", False)
    return rm.create_model("encoder", mixer=mixer, causal=causal, mixer_options=options, **sizes)


def batch() -> Tensor:
    return torch.randn(B, N, 3)


class Prompted(nn.Module):
    """Language model with a cache that receives a prompt instead of a `forward` call."""

    def __init__(self) -> None:
        super().__init__()
        self.mixer = rm.create_mixer("tssa", C, num_heads=2, causal=True, max_length=N)

    def forward(self, x: Tensor) -> Tensor:
        y, self.state = self.mixer.prefill(x)
        return y


def test_prefill_is_traced_as_a_call() -> None:
    model, x = Prompted(), torch.randn(B, N, C)
    ((call,),) = trace(model, [x])
    assert call.name == "mixer"
    assert torch.equal(call.x, x)
    assert torch.equal(call.y, model(x))
    assert "prefill" not in vars(model.mixer)


def test_failing_model_leaves_no_hooks() -> None:
    model = Prompted()
    with pytest.raises(InputError, match=r"^x: .*\b16\b.*got \(2, 12, 17\)"):
        list(trace(model, [torch.randn(B, N, C + 1)]))
    assert "prefill" not in vars(model.mixer)
    assert not model.mixer._forward_hooks


@pytest.mark.parametrize("mixer", ["csp", "sliceformer"])
def test_causal_permutations_are_windows(mixer: str) -> None:
    model = encoder(mixer, causal=True)
    with pytest.raises(InputError, match=r"^Encoder: .*CSP.*got.*causal"):
        analyze("permutation", model, [batch()])
    (layer, _) = analyze("spectrum", model, [batch()]).data["models"]["Encoder"]
    assert layer["map"] is None, "windows are no permutation"
    collapse = analyze("collapse", model, [batch()]).data["models"]["Encoder"]
    assert collapse["theorem_1"] is None
    reached = analyze("pattern", model, [batch()]).arrays
    assert not any(np.triu(value, 1).any() for value in reached.values()), "no later token"


def test_files_of_a_module(tmp_path: Path) -> None:
    out = tmp_path / "looks"
    kinds = ("spectrum", "sinkhorn")
    written, left_out = analyze_into(str(out), kinds, encoder("tssa"), batches=[batch()])
    assert {path.name for path in written} >= {"spectrum.json", "spectrum.png", "analysis.html"}
    assert json.loads((out / "spectrum.json").read_text())["subjects"] == [{"label": "Encoder"}]
    assert list(left_out) == ["sinkhorn"]
    assert re.search("<title>[^<]*Encoder", (out / "analysis.html").read_text())


def test_missing_files_of_an_earlier_run_are_written(tmp_path: Path) -> None:
    model, page, picture = encoder("tssa"), tmp_path / "analysis.html", tmp_path / "macs.png"
    for _ in range(2):
        analyze_into(tmp_path, ("spectrum", "macs"), model, batches=[batch()])
        assert picture.exists()
        assert page.read_text().count("<img") == 2
        picture.unlink()
        page.unlink()
    analyze_into(tmp_path, ("spectrum", "macs"), model, batches=[batch()])
    page.unlink()
    assert analyze_into(tmp_path, ("spectrum", "macs"), model, batches=[batch()])[0] == []
    assert page.exists()


NOT_A_LIST = {
    "a generator": (x for x in ()),
    "a tensor": torch.zeros(2, N, 3),
    "one batch": {"inputs": torch.zeros(2, N, 3)},
    "a loader": torch.utils.data.DataLoader(torch.zeros(2, N, 3)),
}


@pytest.mark.parametrize("batches", NOT_A_LIST.values(), ids=NOT_A_LIST)
def test_batches_that_are_not_a_list_are_refused(batches: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^batches: .*list") as caught:
        analyze("macs", encoder("csp"), batches)
    assert str(caught.value).endswith(type(batches).__name__)
    with pytest.raises(InputError, match=r"^batches: .*list"):
        analyze_into(tmp_path / "out", ("macs",), encoder("csp"), batches=batches)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["spectrum", "collapse", "rate"])
def test_weights_that_are_not_finite(kind: str, tmp_path: Path) -> None:
    model = encoder("tssa")
    with torch.no_grad():
        model.blocks[0].mixer.in_proj.weight.fill_(float("nan"))
    with pytest.raises(InputError, match=f"^{kind}: .*finite"):
        analyze_into(tmp_path / "out", (kind,), model, batches=[batch()])
    assert not (tmp_path / "out").exists()


def test_sample_of_padding_only_is_ignored() -> None:
    model, x = encoder("softmax"), batch()
    padding = torch.tensor([[False] * N, [True] * N])
    both = analyze("softmax-spread", model, [{"inputs": x, "key_padding_mask": padding}])
    alone = analyze("softmax-spread", model, [x[:1]])
    for name in ("row_sums", "column_sums"):
        found = [[layer[name] for layer in f.data["models"]["Encoder"]] for f in (both, alone)]
        assert found[0] == pytest.approx(found[1], abs=1e-6)


def test_error_names_every_model_without_the_mixer() -> None:
    subjects = [own_subject(encoder(m), [batch()], label=m) for m in ("csp", "sliceformer")]
    with pytest.raises(InputError, match=r"^csp, sliceformer: .*tssa, got none$"):
        rate(subjects)


def test_preset_of_vectors_accepts_ids_on_request(tmp_path: Path) -> None:
    sizes = {"vocab_size": 40, "dim": C, "num_layers": 1, "num_heads": 2}
    view = View(samples=1, tokens=N, mixers=("tssa",), settings=sizes)
    (subject,) = find_subjects("encoder", view)
    assert subject.batches[0].shape == (1, N)
    assert analyze("membership", subject).data["models"]["tssa"]


def test_medians_of_many_numbers() -> None:
    """torch.quantile accepts at most 2^24 numbers."""
    x = torch.randn(3, 7, 4, dtype=torch.float64)
    x = torch.cat([x, x[:, :1]], 1)
    for tokens in (x, x[:, :7]):
        centre = tokens.quantile(0.5, dim=1, keepdim=True)
        expected = one_infinity_norm(tokens - centre) / one_infinity_norm(tokens)
        assert rank_residual(tokens).tolist() == pytest.approx(expected.tolist())
