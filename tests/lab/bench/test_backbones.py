"""Compare whole models with third-party models: equal size and equal outputs."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from document_scripts import load_script
from rifflemix.errors import InputError
from rifflemix.lab.bench import models, peers
from rifflemix.lab.bench.layers import BACKBONES, CLASSES
from rifflemix.lab.bench.rows import Shape
from rifflemix.lab.bench.runner import Settings
from rifflemix.lab.bench.tables import bench_notes, bench_tables

SHAPE = Shape(2, 4, 32, 2)
QUICK = Settings(repeats=1)


def built(name: str) -> nn.Module:
    """Build the third-party model with any torchvision version."""
    peer = BACKBONES[name].peer(2)
    if peer.version() is None:
        pytest.skip(f"{peer.name} is not installed")
    load_script("tests/surgery/torchvision_shim.py").declare_operators()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return peer.build(SHAPE)


def size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def as_timm_names(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Convert our vision transformer's weights to the names and shapes of timm."""
    renamed = {
        re.sub(r"^norm\.", "fc_norm.", key.replace(".mixer.", ".attn.")): value
        for key, value in weights.items()
    }
    renamed["pos_embed"] = renamed.pop("positions.table").unsqueeze(0)
    patches = renamed["patch_embed.proj.weight"]  # order: rows, columns, channels
    renamed["patch_embed.proj.weight"] = patches.unflatten(1, (16, 16, 3)).permute(0, 3, 1, 2)
    return renamed


def test_timm_with_rifflemix_weights_gives_equal_logits() -> None:
    torch.manual_seed(0)
    backbone = BACKBONES["vit"]
    ours, theirs = backbone.make("softmax", 2, SHAPE).double().eval(), built("vit").double().eval()
    assert size(theirs) == size(ours)
    theirs.layer.load_state_dict(as_timm_names(ours.state_dict()))
    for module in theirs.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-5  # ours; timm uses 1e-6
    images = backbone.inputs(ours, SHAPE).double()
    assert images.shape == (2, 3, 32, 32)
    assert ours(images).shape == (2, CLASSES)
    torch.testing.assert_close(theirs(images), ours(images))


def test_bert_differs_in_size_only_by_pooler_and_token_types() -> None:
    backbone = BACKBONES["encoder"]
    ours, theirs = backbone.make("softmax", 2, SHAPE), built("encoder")
    channels = SHAPE.channels
    assert size(theirs) - size(ours) == channels * channels + 2 * channels
    assert theirs.layer.config._attn_implementation == "sdpa"
    ids = backbone.inputs(ours, SHAPE)
    torch.testing.assert_close(theirs.train()(ids), theirs.eval()(ids))  # no dropout
    assert theirs(ids).shape == (2, CLASSES)


@pytest.mark.parametrize("name", BACKBONES)
def test_package_models_are_measured_with_rifflemix_models(name: str) -> None:
    built(name)
    result = models.run((SHAPE,), model=name, layers=1, mixers=["tssa"], peers=True, settings=QUICK)
    peer = BACKBONES[name].peer(1).name
    rows = [(row["kind"], row["name"], row["status"], row["note"]) for row in result["rows"]]
    assert rows == [
        *(("model", ours, "measured", "") for ours in (models.NO_MIXER, "softmax", "tssa")),
        ("peer", peer, "measured", ""),
    ]
    (status,) = result["peers"]
    assert (status["name"], status["takes_part"]) == (peer, True)
    row = result["rows"][-1]
    assert len(row["gate"]) == 1
    assert row["passes"]["forward"]["ratios"].keys() == {models.NO_MIXER, "softmax"}
    for kind, rate in (
        ("forward", "forward_samples_per_second"),
        ("training_step", "samples_per_second"),
    ):
        assert row["extra"][rate] == pytest.approx(SHAPE.batch / row["passes"][kind]["p50"])
    assert 0 < row["extra"]["forward_kernel_share"] <= 1
    for table in bench_tables(result):
        assert table.rows[-1][0] == f"{peer} (package)"
        assert {"Samples/s", "In kernels, %"} <= set(table.headers)


def test_missing_package_is_named_and_rifflemix_models_are_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda module: None)
    result = models.run((SHAPE,), model="vit", layers=1, mixers=[], peers=True, settings=QUICK)
    assert {row["kind"] for row in result["rows"]} == {"model"}
    assert re.match("timm: .*pip install timm", bench_notes(result)[-1])


def test_package_with_other_outputs_fails_its_check() -> None:
    def wrong(shape: Shape) -> nn.Module:
        return nn.Sequential(nn.Embedding(256, CLASSES + 1), nn.Flatten(1))

    subject = models.Subject("other", wrong, kind="peer")
    (check,) = subject.candidate(QUICK).gate(SHAPE)
    assert not check.passed
    assert "logits" in check.failure()


@pytest.fixture(scope="module")
def by_tokens() -> dict[str, Any]:
    shapes = (Shape(1, 4, 8, 2), Shape(1, 9, 8, 2))
    return models.run(shapes, layers=1, mixers=["csp"], settings=QUICK)


def test_shapes_that_differ_in_tokens_share_one_table_per_pass(by_tokens: dict[str, Any]) -> None:
    times, memory, *training = bench_tables(by_tokens)
    assert times.title.startswith("forward, ms ")
    assert times.headers == ["Name", "N=4", "N=9"]
    row = by_tokens["rows"][1]
    cell = times.rows[1][1]
    assert cell.endswith(f"(1.00), {100 * row['extra']['forward_kernel_share']:.0f} %")
    assert memory.title.startswith("forward, ")
    assert len(training) == 2
    wider = {**row, "shape": {**row["shape"], "channels": 16}}
    apart = bench_tables({**by_tokens, "rows": [*by_tokens["rows"], wider]})
    assert [table.headers[1] for table in apart] == ["p50, ms"] * 6


def test_skipped_row_by_tokens_is_marked(by_tokens: dict[str, Any]) -> None:
    left_out = {**by_tokens["rows"][0], "passes": {}, "extra": {}, "status": "left out"}
    tables = bench_tables({**by_tokens, "rows": [left_out, *by_tokens["rows"][1:]]})
    assert [table.rows[0][1] for table in tables] == ["left out", "-", "left out", "-"]


@pytest.mark.parametrize("name", ["vit", pytest.param("encoder", marks=pytest.mark.slow)])
def test_models_in_bfloat16(name: str) -> None:
    settings = Settings("bfloat16", repeats=1)
    result = models.run((SHAPE,), model=name, layers=1, mixers=["csp", "tssa"], settings=settings)
    assert {(row["status"], row["note"]) for row in result["rows"]} == {("measured", "")}
    model = models.Subject("", lambda shape: nn.Linear(2, 2))._ready(settings, SHAPE)[0]
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"model": "vits"}, "vit.*got 'vits'"),
        ({"model": "vit", "shapes": (Shape(1, 60, 8, 2),)}, "tokens: .*got 60"),
    ],
)
def test_bad_settings_are_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        models.run(**options)
