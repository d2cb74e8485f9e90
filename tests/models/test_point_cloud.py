"""The classifiers of point clouds and film reviews."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import rifflemix as rm
from rifflemix.lab.tasks import load_task

SMALL: dict[str, Any] = {"dim": 16, "num_layers": 2, "max_length": 24}
EQUIVARIANT = [m for m in rm.list_mixers() if rm.mixer_card(m).permutation_equivariant]


@pytest.mark.parametrize("mixer", rm.list_mixers())
def test_every_mixer_works_on_points(mixer: str) -> None:
    model = rm.create_model("point_cloud", mixer=mixer, **SMALL).eval()
    points = torch.randn(2, 24, 3)
    scores = model(points)
    assert scores.shape == (2, 8)
    assert torch.isfinite(scores).all()


@pytest.mark.parametrize("mixer", EQUIVARIANT)
def test_output_does_not_depend_on_the_order_of_points(mixer: str) -> None:
    assert {"softmax", "tssa"} <= set(EQUIVARIANT)
    model = rm.create_model("point_cloud", mixer=mixer, **SMALL).double().eval()
    points, order = torch.randn(2, 24, 3).double(), torch.randperm(24)
    torch.testing.assert_close(model(points[:, order]), model(points))


def test_points_may_be_padded() -> None:
    model = rm.create_model("point_cloud", mixer="sliceformer", **SMALL).eval()
    points, mask = torch.randn(2, 24, 3), torch.arange(24) >= torch.tensor([[24], [10]])
    found = model(points, key_padding_mask=mask)
    torch.testing.assert_close(found[1:], model(points[1:, :10]))


@pytest.mark.parametrize("mixer", ["tssa", "sliceformer"])
def test_learns_shapes(mixer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train on two shapes that are easy to distinguish: a sphere and a helix."""
    monkeypatch.setenv("RIFFLEMIX_CACHE", str(tmp_path))
    task = load_task("point_clouds", num_points=32, num_train=64, num_validation=8, num_test=8)
    split = task.split("train")
    batch = task.collate([split[i] for i in range(len(split)) if split[i][1] in (0, 7)])
    model = rm.create_model("point_cloud", mixer=mixer, dim=32, num_layers=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    for _ in range(60):
        loss = task.loss(model(batch["inputs"]), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.3


IMDB = [({}, 8_835_074, "8.84"), ({"mixer": "sliceformer"}, 8_045_570, "8.05")]


@pytest.mark.parametrize(("changes", "count", "printed"), IMDB, ids=["transformer", "sliceformer"])
def test_printed_counts_of_the_review_classifier(
    changes: dict[str, Any], count: int, printed: str
) -> None:
    with torch.device("meta"):
        model = rm.create_model("imdb_classifier", mixer_options={"bias": True}, **changes)
    assert model.num_parameters() == count
    assert f"{count / 1e6:.2f}" == printed


def test_review_classifier_is_post_norm_with_max_pooling() -> None:
    model = rm.create_model("imdb_classifier", vocab_size=11, dim=16, num_layers=2, num_heads=2)
    model.eval()
    ids = torch.randint(11, (2, 9))
    x = model.positions(model.embed(ids))
    for block in model.blocks:
        x = block.norm1(x + block.mixer(x))
        x = block.norm2(x + block.mlp.fc2(block.mlp.fc1(x).relu()))
    torch.testing.assert_close(model(ids), model.head(x.amax(1)))


def test_review_classifier_has_dropout_at_the_end_of_branches_only() -> None:
    model = rm.create_model("imdb_classifier", vocab_size=11, dim=16, num_layers=1, num_heads=2)
    block = model.blocks[0]
    assert (block.drop.p, block.mlp.drop.p) == (0.1, 0.1)
    assert (model.drop.p, block.mixer.dropout, block.mlp.hidden_drop.p) == (0.0, 0.0, 0.0)
