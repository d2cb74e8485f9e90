"""The Long Range Arena host models: sizes of every model, options, and published behavior."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

import rifflemix as rm
from rifflemix.models.sequence.config import pair_features
from rifflemix.nn.positions import interleaved_sinusoids, sinusoids

TASKS = ("listops", "text", "retrieval", "image", "pathfinder", "pathx")
SMALL: dict[str, Any] = {
    "vocab_size": 11,
    "dim": 16,
    "num_layers": 2,
    "num_heads": 2,
    "max_length": 12,
    "head_hidden": [8],
}
# Default padding, for tests that do not depend on the published code.
PLAIN = {"padding": "batch", "padding_id": None, "cls_mask": "valid", "host_options": {}}


def host(task: str = "listops", **changes: Any) -> rm.models.Model:
    return rm.create_model(f"lra_{task}", **{**SMALL, **PLAIN, "dropout": 0.0, **changes})


def on_meta(name: str, **changes: Any) -> rm.models.Model:
    with torch.device("meta"):
        return rm.create_model(name, **changes)


def transformer_count(
    dim: int,
    inner: int,
    mlp: int,
    layers: int,
    vocab: int,
    positions: int,
    head: list[int],
    vectors: int,
) -> int:
    """Count parameters of the JAX host model with bias-free softmax attention of width `inner`."""
    block = 4 * dim * inner + 2 * dim * mlp + mlp + dim + 4 * dim
    widths = [vectors * dim, *head]
    heads = sum(a * b + b for a, b in itertools.pairwise(widths))
    return vocab * dim + positions * dim + layers * block + 2 * dim + heads


# (layers, dim, inner, mlp, heads, pool, learned) per model: SPEC 7.1 and Sliceformer's table.
ROWS: dict[str, tuple[str, int, int, int, int, int, str]] = {
    "image transformer": ("image", 1, 128, 64, 128, 8, "cls"),
    "image local": ("image", 1, 128, 64, 128, 2, "mean"),
    "image reformer": ("image", 4, 64, 32, 64, 8, "cls"),
    "image longformer": ("image", 4, 128, 64, 128, 4, "mean"),
    "image sinkhorn": ("image", 1, 32, 32, 64, 1, "cls"),
    "image sliceformer": ("image", 6, 96, 48, 128, 8, "cls"),
    "pathfinder transformer": ("pathfinder", 4, 32, 16, 32, 4, "mean"),
    "pathfinder synthesizer": ("pathfinder", 2, 64, 32, 64, 4, "mean"),
    "pathfinder sinkhorn": ("pathfinder", 2, 32, 16, 64, 4, "mean"),
    "pathfinder sliceformer": ("pathfinder", 4, 320, 320, 320, 8, "cls"),
    "listops": ("listops", 4, 512, 512, 1024, 8, "cls"),
    "text": ("text", 4, 256, 256, 1024, 4, "cls"),
    "retrieval": ("retrieval", 4, 128, 128, 512, 4, "cls"),
}


@pytest.mark.parametrize("row", ROWS)
def test_sizes_of_every_row(row: str) -> None:
    task, layers, dim, inner, mlp, heads, pool = ROWS[row]
    options = {"inner_dim": inner}
    head = {"retrieval": [mlp, mlp // 2]}.get(task, [mlp])
    model = on_meta(
        f"lra_{task}",
        dim=dim,
        num_layers=layers,
        num_heads=heads,
        mlp_ratio=mlp / dim,
        pool=pool,
        head_hidden=head,
        mixer_options=options,
    )
    settings = model.settings
    learned = settings["positions"] == "learned"
    extra = dim if pool == "cls" else 0
    positions = (settings["max_length"] + (pool == "cls")) if learned else 0
    expected = extra + transformer_count(
        dim,
        inner,
        mlp,
        layers,
        settings["vocab_size"],
        positions,
        [*head, settings["num_classes"]],
        2 if task == "retrieval" else 1,
    )
    assert model.num_parameters() == expected


@pytest.mark.parametrize("layers", [2, 6])
def test_sliceformer_is_the_transformer_without_queries_and_keys(layers: int) -> None:
    options = {"bias": False, "out_bias": False}
    shared: dict[str, Any] = {"num_layers": layers, "mixer_options": options}
    full = on_meta("lra_text", **shared).num_parameters()
    sliced = on_meta("lra_text", mixer="sliceformer", **shared).num_parameters()
    assert full - sliced == layers * 2 * 256 * 256


@pytest.mark.parametrize("mixer", rm.list_mixers())
def test_every_mixer_is_supported(mixer: str) -> None:
    model = host(mixer=mixer).eval()
    ids = torch.randint(11, (3, 12))
    mask = torch.arange(12) >= torch.tensor([[12], [9], [1]])
    other = torch.where(mask, torch.randint(11, (3, 12)), ids)
    found = model(ids, key_padding_mask=mask)
    assert found.shape == (3, 10)
    torch.testing.assert_close(model(other, key_padding_mask=mask), found)


@pytest.mark.parametrize("task", TASKS)
def test_every_task_builds_at_its_size(task: str) -> None:
    model = on_meta(f"lra_{task}")
    shape = (1, 2, 20) if task == "retrieval" else (1, 20)
    scores = model(torch.zeros(shape, dtype=torch.int64, device="meta"))
    assert scores.shape == (1, 10 if task in ("listops", "image") else 2)


def test_class_token_is_first_and_is_used_for_the_output() -> None:
    model = host(pool="cls", mixer="identity").eval()
    ids = torch.randint(11, (2, 12))
    torch.testing.assert_close(model(ids), model(torch.zeros_like(ids)))
    assert torch.equal(model.cls, torch.zeros(1, 1, 16))
    assert model.blocks[0].mixer.max_length == 13


def test_pairs_share_the_encoder_and_keep_their_order() -> None:
    model = host("retrieval", num_sequences=2, pair_mix="concat_product_difference").eval()
    pairs = torch.randint(11, (3, 2, 12))
    mask = torch.arange(12) >= torch.randint(1, 13, (3, 2, 1))
    a = model.encode(pairs[:, 0], mask[:, 0])
    b = model.encode(pairs[:, 1], mask[:, 1])
    expected = model.head(torch.cat((a, b, a * b, a - b), dim=1))
    torch.testing.assert_close(model(pairs, key_padding_mask=mask), expected)
    swapped = model(pairs.flip(1), key_padding_mask=mask.flip(1))
    assert not torch.allclose(swapped, expected)


def test_pair_features() -> None:
    a, b = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 5.0]])
    assert pair_features(a, b, "concat").tolist() == [[1, 2, 3, 5]]
    assert pair_features(a, b, "concat_product_difference").tolist() == [
        [1, 2, 3, 5, 3, 10, -2, -3]
    ]
    with pytest.raises(rm.InputError, match="pair_features"):
        pair_features(a, b, "sum")


def test_length_mean_divides_by_the_longest_length() -> None:
    torch.manual_seed(0)
    by_length = host(pool="length_mean", positions="none", mixer="identity").eval()
    torch.manual_seed(0)
    by_count = host(pool="mean", positions="none", mixer="identity").eval()
    ids = torch.randint(11, (2, 8))
    mask = torch.arange(8) >= torch.tensor([[8], [5]])
    counted = by_count.encode(ids, mask) * torch.tensor([[8.0], [5.0]]) / 12
    torch.testing.assert_close(by_length.encode(ids, mask), counted)


def test_position_mean_includes_padding_positions() -> None:
    model = host(pool="position_mean", positions="none", mixer="identity", padding="max_length")
    ids = torch.randint(1, 11, (2, 8))
    mask = torch.arange(8) >= torch.tensor([[8], [5]])
    full = torch.nn.functional.pad(ids.masked_fill(mask, 0), (0, 4))
    x = model.embed(full)
    hidden = full == 0
    for block in model.eval().blocks:
        x = block(x, key_padding_mask=hidden)
    found = model.encode(ids.masked_fill(mask, 0), mask)
    torch.testing.assert_close(found, model.norm(x).mean(1))


def test_max_pooling_ignores_padding() -> None:
    model = host(pool="max").eval()
    ids, mask = torch.randint(11, (2, 12)), torch.arange(12) >= torch.tensor([[12], [5]])
    short = model.encode(ids[1:, :5])
    torch.testing.assert_close(model.encode(ids, mask)[1:], short)
    nothing = model.encode(ids, torch.ones(2, 12, dtype=torch.bool))
    assert torch.equal(nothing, torch.zeros(2, 16))


def test_unmasked_padding_equals_the_published_code() -> None:
    """As published, token 0 fills inputs up to max_length and is mixed like any other token."""
    model = host(mixer="sliceformer", padding="unmasked").eval()
    ids, mask = torch.randint(1, 11, (2, 9)), torch.arange(9) >= torch.tensor([[9], [5]])
    ids = ids.masked_fill(mask, 0)
    filled = torch.nn.functional.pad(ids, (0, 3))
    expected = host(mixer="sliceformer").eval()
    expected.load_state_dict(model.state_dict())
    torch.testing.assert_close(model(ids, key_padding_mask=mask), expected(filled))
    torch.testing.assert_close(model(ids[1:, :5]), model(ids, key_padding_mask=mask)[1:])


def test_a_padding_id_is_a_mask() -> None:
    """Padding IDs are padding at any position, in addition to the mask and filled positions."""
    ids, mask = torch.randint(1, 11, (2, 9)), torch.arange(9) >= torch.tensor([[9], [5]])
    ids[:, 2] = 0
    plain, by_id = host(pool="mean").eval(), host(pool="mean", padding_id=0).eval()
    by_id.load_state_dict(plain.state_dict())
    expected = plain(ids, key_padding_mask=ids == 0)
    torch.testing.assert_close(by_id(ids), expected)
    both = plain(ids, key_padding_mask=mask | (ids == 0))
    torch.testing.assert_close(by_id(ids, key_padding_mask=mask), both)
    assert not torch.allclose(plain(ids), expected)
    long = host(pool="mean", padding_id=0, padding="max_length").eval()
    long.load_state_dict(plain.state_dict())
    torch.testing.assert_close(long(ids), expected)
    torch.testing.assert_close(long(ids, key_padding_mask=mask), both)


@pytest.mark.parametrize("masked", [False, True])
def test_sequences_are_padded_to_the_longest_length(masked: bool) -> None:
    """Mixers get `max_length` positions for every batch, also with vectors."""
    model = rm.create_model(
        "encoder", mixer="butterfly", in_channels=3, max_length=16, padding="max_length"
    ).eval()
    x, mask = torch.randn(2, 9, 3), torch.arange(9) >= torch.tensor([[9], [5]])
    full = torch.nn.functional.pad(x, (0, 0, 0, 7))
    rest = torch.arange(16) >= torch.tensor([[9], [5 if masked else 9]])
    plain = rm.create_model("encoder", mixer="butterfly", in_channels=3, max_length=16).eval()
    plain.load_state_dict(model.state_dict())
    found = model(x, key_padding_mask=mask if masked else None)
    torch.testing.assert_close(found, plain(full, key_padding_mask=rest))
    with pytest.raises(rm.InputError, match=r"max_length = 16.*got 17\b"):
        model(torch.randn(1, 17, 3))


def test_tied_layers_are_one_layer_used_again() -> None:
    model = host(tie_layers=True, num_layers=3).eval()
    assert len(model.blocks) == 1
    x = torch.randn(2, 12, 16)
    block = model.blocks[0]
    ids = torch.randint(11, (2, 12))
    x = model.positions(torch.cat((model.cls.expand(2, -1, -1), model.embed(ids)), 1))
    expected = model.head(model.norm(block(block(block(x))))[:, 0])
    torch.testing.assert_close(model(ids), expected)


def test_interleaved_sinusoids() -> None:
    """Channels 2i and 2i + 1 are sin and cos of n / 10000^(2i / C), as in the JAX code."""
    for dim in (8, 7):
        table = interleaved_sinusoids(50, dim)
        assert table.shape == (50, dim)
        for position, channel in itertools.product((0, 1, 49), range(dim)):
            wave = math.cos if channel % 2 else math.sin
            angle = position / 10_000 ** (channel // 2 * 2 / dim)
            assert table[position, channel].item() == pytest.approx(wave(angle), abs=1e-5)


def test_sinusoids_equal_tensor2tensor() -> None:
    table = sinusoids(50, 8)
    for position in (0, 1, 49):
        for channel in range(4):
            angle = position / 10_000 ** (channel / 3)
            assert table[position, channel].item() == pytest.approx(math.sin(angle), abs=1e-5)
            assert table[position, channel + 4].item() == pytest.approx(math.cos(angle), abs=1e-5)
    assert torch.equal(sinusoids(5, 7)[:, -1], torch.zeros(5))


def test_xavier_uses_the_shape_of_each_linear_layer() -> None:
    model = host(dim=64, mlp_ratio=2.0)
    block = model.blocks[0]
    for weight, fan in ((block.mixer.qkv.weight, 128), (block.mlp.fc1.weight, 192)):
        bound = math.sqrt(6 / fan)
        assert 0.95 * bound < weight.abs().max().item() <= bound
    assert 0 < block.mlp.fc1.bias.abs().max().item() < 1e-5


@pytest.mark.parametrize(
    ("mixer", "options", "layer"),
    [
        ("synthesizer", {"mode": "factorized", "dot_product": False}, "qkv"),
        ("sinkhorn", {"tie_kv": True}, "qkv"),
        ("longformer", {"inner_dim": 32}, "global_qkv"),
    ],
    ids=["values alone", "keys as values", "global tokens"],
)
def test_xavier_counts_only_existing_projections(
    mixer: str, options: dict[str, Any], layer: str
) -> None:
    model = host(dim=64, mixer=mixer, mixer_options=options)
    weight = model.blocks[0].mixer.get_submodule(layer).weight
    bound = math.sqrt(6 / (64 + options.get("inner_dim", 64)))
    assert 0.95 * bound < weight.abs().max().item() <= bound


def test_level_embedding_reads_ids_as_numbers() -> None:
    model = host("image", vocab_size=256, level_scale=[0.5, 0.25], dim=4, num_heads=1)
    low, high = model.embed(torch.tensor([[0, 255]]))[0]
    weight, bias = model.embed.proj.weight[:, 0], model.embed.proj.bias
    torch.testing.assert_close(low, -2 * weight + bias)
    torch.testing.assert_close(high, 2 * weight + bias)


def test_each_dropout_is_set_independently() -> None:
    model = host(
        dropout=0.1, embedding_dropout=0.2, attention_dropout=0.3, hidden_dropout=0.4
    ).train()
    block = model.blocks[0]
    found = (model.drop.p, block.mixer.dropout, block.mlp.hidden_drop.p, block.mlp.drop.p)
    assert (*found, block.drop.p) == (0.2, 0.3, 0.4, 0.1, 0.1)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "pool": ({"pool": "men"}, "pool: .*mean.*got 'men'"),
    "positions": ({"positions": "rotary"}, "positions"),
    "class token": ({"cls_mask": "last"}, "cls_mask: .*got 'last'"),
    "host's options": ({"host_options": 3}, r"host_options: .*got 3\b"),
    "norm": ({"norm": "sandwich"}, "norm: .*got 'sandwich'"),
    "init": ({"init": "he"}, "init"),
    "pair": ({"pair_mix": "sum"}, "pair_mix"),
    "sequences": ({"num_sequences": 3}, r"num_sequences: .*\b1\b.*\b2\b.*got 3\b"),
    "hidden": ({"head_hidden": [0]}, "head_hidden"),
    "activation": ({"activation": "glu"}, "activation"),
    "deviation": ({"embedding_std": 0}, "embedding_std"),
    "scale": ({"level_scale": [0.5]}, r"level_scale: .*got \[0\.5\]"),
    "vectors": ({"level_scale": [0, 1], "vocab_size": None, "in_channels": 2}, "level_scale"),
    "dropout": ({"hidden_dropout": 1.5}, "hidden_dropout"),
    "padding": ({"padding": "longest"}, "padding: .*max_length.*got 'longest'"),
    "padding id": ({"padding_id": -1}, r"padding_id: .*\b0\b.*got -1\b"),
    "both": ({"padding_id": 0, "padding": "unmasked"}, "padding_id: .*None.*got 0"),
    "id of vectors": (
        {"padding_id": 0, "vocab_size": None, "in_channels": 2},
        r"padding_id: .*None.*got 0\b",
    ),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD)
def test_bad_settings_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(rm.InputError, match=message):
        host(**change)


def test_pair_models_refuse_single_inputs() -> None:
    model = host("retrieval")
    with pytest.raises(rm.InputError, match=r"\(B, 2, N\).*got \(3, 12\)"):
        model(torch.zeros(3, 12, dtype=torch.int64))
