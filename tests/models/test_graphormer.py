"""Graphormer and its variant with sorting: parameter counts, literal formulas, node order."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import rifflemix as rm
from rifflemix.models.graph_encoding import GraphAttention, GraphBias, haar_columns

SMALL: dict[str, Any] = {
    "dim": 12,
    "num_layers": 2,
    "num_heads": 3,
    "vocab_size": 11,
    "num_edge_tokens": 7,
    "num_degrees": 6,
    "num_distances": 9,
    "num_hops": 4,
    "path_length": 3,
    "max_distance": 4,
    "dropout": 0.0,
}
NAMES = ("graphormer_pcqm4m", "sliceformer_graph_pcqm4m")
EXCHANGE: dict[str, Any] = {"mixer_options": {"variant": "max_exchange"}}
INTERLEAVE: dict[str, Any] = {"mixer_options": {"variant": "interleave"}}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "softmax": (NAMES[0], {}),
    "interleave": (NAMES[1], INTERLEAVE),
    "ascending": (NAMES[1], {"mixer_options": {"variant": "ascending"}}),
    "max_exchange": (NAMES[1], EXCHANGE),
}


@pytest.mark.parametrize(
    ("name", "count", "printed"),
    [(NAMES[0], 47_085_377, "47.09"), (NAMES[1], 32_911_169, "32.91")],
)
def test_parameter_counts_equal_the_paper(name: str, count: int, printed: str) -> None:
    with torch.device("meta"):
        model = rm.create_model(name)
    assert model.num_parameters() == count
    assert f"{count / 1e6:.2f}" == printed
    assert rm.models.model_card(name).printed == f"{printed} M"


def test_the_difference_is_the_queries_and_keys() -> None:
    full, sliced = (rm.create_model(name, **SMALL).num_parameters() for name in NAMES)
    assert full - sliced == 2 * 2 * (12 * 12 + 12)
    assert rm.create_model(NAMES[1], **SMALL, **EXCHANGE).num_parameters() == sliced


def test_ascending_is_the_default() -> None:
    models = [
        rm.create_model(NAMES[1], **SMALL, **options)
        for options in ({}, MODELS["ascending"][1], EXCHANGE)
    ]
    g = graph()
    outputs = []
    for model in models:
        model.load_state_dict(models[0].state_dict())
        outputs.append(model.eval()(**g))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


def graph(nodes: int = 5, batch: int = 2, edges: int = 3) -> dict[str, Tensor]:
    """Create a chain and one isolated node, with random edge features.

    Edge features are 0 behind the end of a path.
    """
    positions = torch.arange(nodes)
    distances = (positions - positions.unsqueeze(1)).abs()
    distances[-1, :-1] = distances[:-1, -1] = -1
    path = torch.randint(1, 7, (nodes, nodes, edges, 2))
    path = path * (torch.arange(edges) < distances.unsqueeze(-1)).unsqueeze(-1)
    return {
        "inputs": torch.randint(1, 11, (batch, nodes, 2)),
        "distances": distances.expand(batch, -1, -1).contiguous(),
        "path_edges": path.expand(batch, -1, -1, -1, -1).contiguous(),
    }


def literal_bias(m: GraphBias, distances: Tensor, path: Tensor) -> Tensor:
    """Compute the (H, N + 1, N + 1) bias pair by pair and hop by hop."""
    nodes, heads = len(distances), m.num_heads
    bias = torch.zeros(heads, nodes + 1, nodes + 1, dtype=torch.float64)
    bias[:, 0, :] = bias[:, :, 0] = m.token_distance[:, None]
    for i in range(nodes):
        for j in range(nodes):
            d = int(distances[i, j])
            if m.max_distance is not None and (d < 0 or d >= m.max_distance):
                bias[:, i + 1, j + 1] = -torch.inf
                continue
            total = torch.zeros(heads, dtype=torch.float64)
            for hop in range(min(m.path_length, path.shape[2])):
                feature = m.edge.weight[path[i, j, hop]].mean(0)
                total = total + feature @ m.hop[hop]
            share = min(max(d, 1), m.path_length)
            row = len(m.distance.weight) - 1 if d < 0 else d + 1
            bias[:, i + 1, j + 1] = m.distance.weight[row] + total / share
    return bias


@pytest.mark.parametrize("most", [3, None])
def test_bias_equals_the_formula(most: int | None) -> None:
    bias = GraphBias(
        3, num_edge_tokens=7, num_distances=9, num_hops=4, path_length=3, max_distance=most
    ).double()
    g = graph()
    found = bias(g["distances"], g["path_edges"], None)
    for sample in range(2):
        expected = literal_bias(bias, g["distances"][sample], g["path_edges"][sample])
        torch.testing.assert_close(found[sample], expected)


@pytest.mark.parametrize("mixing", ["attention", "sort"])
def test_attention_equals_the_formula(mixing: str) -> None:
    layer = GraphAttention(6, 2, mixing=mixing).double()
    x, bias = torch.randn(2, 5, 6).double(), torch.randn(2, 2, 5, 5).double()
    maps = layer.maps(x)
    expected = torch.zeros(2, 5, 6, dtype=torch.float64)
    for head in range(2):
        cut = slice(3 * head, 3 * head + 3)
        if mixing == "attention":
            q, k, v = (part[:, :, cut] for part in maps.split(6, dim=-1))
            weights = (q @ k.mT / 3**0.5 + bias[:, head]).softmax(-1)
            expected[:, :, cut] = weights @ v
        else:
            v = maps[:, :, cut]
            expected[:, :, cut] = bias[:, head].softmax(-1) @ v + v.sort(dim=1).values
    torch.testing.assert_close(layer(x, bias), layer.proj(expected))


def literal_exchange(v: Tensor, mask: Tensor) -> Tensor:
    """Swap the first and the largest valid token in each channel."""
    out = v.clone()
    for sample in range(len(v)):
        valid = [position for position in range(v.shape[1]) if not mask[sample, position]]
        for channel in range(v.shape[2]):
            largest = max(valid, key=lambda at: v[sample, at, channel].item())
            out[sample, valid[0], channel] = v[sample, largest, channel]
            out[sample, largest, channel] = v[sample, valid[0], channel]
    return out


def test_max_exchange_equals_the_definition() -> None:
    layer = GraphAttention(6, 2, mixing="sort", variant="max_exchange").double()
    mask = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    x, bias = torch.randn(2, 5, 6).double(), torch.randn(2, 2, 5, 5).double()
    bias = bias.masked_fill(mask[:, None, None], -torch.inf)
    v = layer.maps(x)
    attended = torch.cat([bias[:, h].softmax(-1) @ v[:, :, 3 * h : 3 * h + 3] for h in (0, 1)], -1)
    expected = layer.proj(attended + literal_exchange(v, mask))
    torch.testing.assert_close(layer(x, bias, key_padding_mask=mask)[~mask], expected[~mask])


def literal_haar_columns(width: int, layer: int) -> list[int]:
    """Apply the released loop: runs of `interval` columns, then the rest of the head."""
    interval = max(1, width // 2**layer)
    listed: list[int] = []
    for k in range(width // (2 * interval)):
        listed += range((2 * k + 1) * interval, (2 * k + 2) * interval)
    if 2**layer > 1 and listed:
        listed += range(listed[-1] + interval, width)
    return listed


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8, 10, 12, 23, 24])
def test_haar_columns_equal_an_explicit_loop(width: int) -> None:
    for layer in range(12):
        assert haar_columns(width, layer) == literal_haar_columns(width, layer)


def test_remaining_haar_columns_of_a_head_are_descending() -> None:
    assert haar_columns(10, 2) == [2, 3, 6, 7, 9]
    assert haar_columns(7, 1) == [3, 4, 5]
    assert haar_columns(24, 3) == [3, 4, 5, 9, 10, 11, 15, 16, 17, 21, 22, 23]


@pytest.mark.parametrize("basis", [1, 2, 4])
def test_haar_columns_equal_the_released_code(golden: Any, basis: int) -> None:
    fixture = golden("sliceformer_haar_basis")
    for width in (8, 10, 64):
        if f"idx_{width}_{basis}" in fixture:
            expected = sorted(fixture[f"idx_{width}_{basis}"].tolist())
            assert haar_columns(width, basis.bit_length() - 1) == expected


def literal_interleave(v: Tensor, mask: Tensor, width: int, layer: int) -> Tensor:
    """Sort valid tokens per channel; the released columns of each head descend."""
    out = v.clone()
    for sample in range(len(v)):
        valid = [position for position in range(v.shape[1]) if not mask[sample, position]]
        for channel in range(v.shape[2]):
            is_down = channel % width in literal_haar_columns(width, layer)
            values = sorted((v[sample, at, channel].item() for at in valid), reverse=is_down)
            for position, value in zip(valid, values, strict=True):
                out[sample, position, channel] = value
    return out


@pytest.mark.parametrize("layer", range(4))
def test_interleave_equals_an_explicit_loop_in_every_layer(layer: int) -> None:
    options: dict[str, Any] = {"dim": 20, "num_heads": 2, "num_layers": 4}
    model = rm.create_model(NAMES[1], **{**SMALL, **options}, **INTERLEAVE).double().eval()
    attention = model.blocks[layer].attention
    mask = torch.tensor([[False] * 6, [False, True, False, False, True, True]])
    x, bias = torch.randn(2, 6, 20).double(), torch.randn(2, 2, 6, 6).double()
    bias = bias.masked_fill(mask[:, None, None], -torch.inf)
    v = attention.maps(x)
    heads = [v[:, :, :10], v[:, :, 10:]]
    attended = torch.cat([bias[:, h].softmax(-1) @ heads[h] for h in (0, 1)], -1)
    expected = attention.proj(attended + literal_interleave(v, mask, 10, layer))
    found = attention(x, bias, key_padding_mask=mask)
    torch.testing.assert_close(found[~mask], expected[~mask])


def test_interleaved_columns_exist_after_the_meta_device() -> None:
    """Checkpoints do not store the columns, so a model built on meta must recompute them."""
    options: dict[str, Any] = {**SMALL, **INTERLEAVE}
    with torch.device("meta"):
        empty = rm.create_model(NAMES[1], **options)
    model = rm.create_model(NAMES[1], **options).eval()
    filled = empty.to_empty(device="cpu")
    filled.load_state_dict(model.state_dict())
    g = graph()
    assert torch.equal(filled.eval()(**g), model(**g))


@pytest.mark.parametrize("name", NAMES)
def test_attention_does_not_depend_on_the_order_of_nodes(name: str) -> None:
    """Attention ignores the order of nodes. Sorting does not: it assigns values to positions."""
    model = rm.create_model(name, **SMALL).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    g = graph()
    order = torch.tensor([3, 0, 4, 1, 2])
    turned = {
        "inputs": g["inputs"][:, order],
        "distances": g["distances"][:, order][:, :, order],
        "path_edges": g["path_edges"][:, order][:, :, order],
    }
    same = torch.allclose(model(**turned), model(**g), atol=1e-10)
    assert same == (name == NAMES[0])


@pytest.mark.parametrize(("name", "options"), MODELS.values(), ids=MODELS)
def test_padding_and_the_batch_do_not_change_outputs(name: str, options: dict[str, Any]) -> None:
    model = rm.create_model(name, **SMALL, **options).double().eval()
    g = graph(nodes=5)
    g["inputs"][1, 3:] = 10  # values at padded positions are ignored
    mask = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    short = {
        "inputs": g["inputs"][1:, :3],
        "distances": g["distances"][1:, :3, :3],
        "path_edges": g["path_edges"][1:, :3, :3],
    }
    found = model(**g, key_padding_mask=mask)
    torch.testing.assert_close(found[1:], model(**short))
    torch.testing.assert_close(found[:1], model(**{name: part[:1] for name, part in g.items()}))
    gradient = torch.autograd.grad(model(**g, key_padding_mask=mask).sum(), model.node.weight)[0]
    assert torch.isfinite(gradient).all()
    assert torch.equal(gradient[0], torch.zeros(12, dtype=torch.float64))


def test_centrality_is_the_number_of_neighbours() -> None:
    model = rm.create_model(NAMES[0], **SMALL).eval()
    g = graph()
    x = model._embed(g["inputs"], g["distances"], None)
    degrees = [2, 3, 3, 2, 1]  # neighbors + 1: the chain, the isolated node
    expected = model.node(g["inputs"]).sum(2)
    expected = expected + (model.in_degree.weight + model.out_degree.weight)[degrees]
    torch.testing.assert_close(x[:, 1:], expected)


def test_distant_nodes_do_not_attend_to_each_other() -> None:
    model = rm.create_model(NAMES[0], **SMALL)
    g = graph(nodes=6)
    bias = model.bias(g["distances"], g["path_edges"], None)[0, 0, 1:, 1:]
    seen = torch.isfinite(bias)
    assert torch.equal(seen, (g["distances"][0] >= 0) & (g["distances"][0] < 4))
    assert torch.isfinite(model(**g)).all()


def test_all_nodes_attend_to_each_other_without_a_maximal_distance() -> None:
    """As published, a pair without a path has a learned bias if there is no maximum distance."""
    model = rm.create_model(NAMES[0], **{**SMALL, "max_distance": None}).eval()
    assert rm.models.model_settings(NAMES[0])["max_distance"] is None
    g = graph(nodes=6)
    padding = torch.zeros(2, 6, dtype=torch.bool)
    padding[1, 4:] = True
    bias = model.bias(g["distances"], g["path_edges"], padding)
    assert torch.equal(torch.isfinite(bias[:, 0, 1, 1:]), ~padding)
    before = model(**g)
    with torch.no_grad():
        model.bias.distance.weight[-1] += 1.0
    assert not torch.equal(model(**g), before)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "mixer": ({"mixer": "tssa"}, "mixer: .*softmax.*sliceformer.*got 'tssa'"),
    "heads": ({"num_heads": 5}, r"num_heads: .*dim = 12.*got 5\b"),
    "hops": ({"path_length": 5}, "num_hops"),
    "far": ({"max_distance": 8}, "max_distance"),
    "dropout": ({"attention_dropout": 1.0}, "^attention_dropout"),
    "option of the softmax": (EXCHANGE, "softmax .*got 'variant'"),
    "option": (
        {"mixer": "sliceformer", "mixer_options": {"reverse": True}},
        "mixer_options: .*sliceformer .variant.*got 'reverse'",
    ),
    "variant": (
        {"mixer": "sliceformer", "mixer_options": {"variant": "descending"}},
        "variant: expected one of ascending, interleave, max_exchange, got 'descending'",
    ),
    "no mapping": ({"mixer_options": 3}, "mixer_options: .*got 3"),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD)
def test_bad_settings_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(rm.InputError, match=message) as caught:
        rm.create_model(NAMES[0], **{**SMALL, **change})
    assert "\n" not in str(caught.value)


def test_attention_has_no_variant() -> None:
    with pytest.raises(rm.InputError, match=r"variant: .*'attention'"):
        GraphAttention(6, 2, variant="max_exchange")


IDS = torch.int64
UNFIT: dict[str, tuple[str, Any, str]] = {
    "nodes": ("inputs", torch.zeros(2, 4, 2, dtype=IDS), r"distances: .*\(2, 4, 4\).*\b2\b.*\b5\b"),
    "flat inputs": ("inputs", torch.zeros(2, 5, dtype=IDS), r"inputs: .*got \(2, 5\)"),
    "inputs of floats": ("inputs", torch.zeros(2, 5, 2), r"inputs: .*int64\b"),
    "an unknown id": ("inputs", torch.full((2, 5, 2), 99), r"inputs: .*\b0\b"),
    "distances": ("distances", torch.zeros(2, 5, 4, dtype=IDS), r"distances: .*got \(2, 5, 4\)"),
    "distances of floats": ("distances", torch.zeros(2, 5, 5), r"distances: .*got torch\.float32"),
    "no distances": ("distances", None, "distances: .*got None"),
    "path_edges": ("path_edges", torch.zeros(2, 5, 5, 2, dtype=IDS), r"path_edges: .*got \(2, 5, "),
    "paths of others": (
        "path_edges", torch.zeros(2, 4, 5, 2, 1, dtype=IDS), r"path_edges: .*got \(2, 4, 5, 2, 1\)"
    ),
    "an unknown edge": (
        "path_edges", torch.full((2, 5, 5, 2, 1), -1), r"path_edges: .*\b0\b"
    ),
    "a mask": ("key_padding_mask", torch.zeros(2, 5), r"key_padding_mask: expected"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "value", "message"), UNFIT.values(), ids=UNFIT)
def test_invalid_graphs_are_refused(name: str, value: Any, message: str) -> None:
    model = rm.create_model(NAMES[0], **SMALL)
    with pytest.raises(rm.InputError, match=message) as caught:
        model(**{**graph(), name: value})
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # warnings of the exporters
def test_attention_with_a_bias_exports_to_onnx() -> None:
    """With a learned bias, torch's exporters choose another attention operator than ONNX needs."""
    runtime = pytest.importorskip("onnxruntime")
    layer = GraphAttention(16, 2).eval()
    x, bias = torch.randn(3, 5, 16), torch.randn(3, 2, 5, 5, requires_grad=True)
    size = {0: torch.export.Dim("B", max=16)}
    made: Any = torch.onnx.export(
        layer, (x, bias), dynamic_shapes=(size, size), dynamo=True, optimize=False, verbose=False
    )
    session = runtime.InferenceSession(made.model_proto.SerializeToString())
    names = [given.name for given in session.get_inputs()]
    for batch in (1, 4):
        x, bias = torch.randn(batch, 5, 16), torch.randn(batch, 2, 5, 5)
        (found,) = session.run(None, dict(zip(names, (x.numpy(), bias.numpy()), strict=True)))
        torch.testing.assert_close(torch.from_numpy(found), layer(x, bias), atol=1e-5, rtol=1e-5)
