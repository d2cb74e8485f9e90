"""Weights with the official keys of ToST's vision code give equal logits or one clear error."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import rifflemix as rm
from rifflemix.models import OfficialTensor, ToST, load_official

State = dict[str, Tensor]

DIM, LAYERS, HEADS, CLASSES = 24, 2, 3, 5
SMALL: dict[str, Any] = {
    "dim": DIM,
    "num_layers": LAYERS,
    "num_heads": HEADS,
    "num_classes": CLASSES,
    "image_size": 32,
}
MIXERS = ("tssa", "xca", "softmax")


def official_shapes(mixer: str, patch_size: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all keys of the released vision code."""
    shapes: dict[str, tuple[int, ...]] = {"cls_token": (1, 1, DIM)}

    def affine(key: str, *shape: int) -> None:
        shapes[f"{key}.weight"], shapes[f"{key}.bias"] = shape, shape[:1]

    widths = {8: [3, 6, 12, 24], 16: [3, 3, 6, 12, 24]}[patch_size]
    for stage in range(len(widths) - 1):
        position, out = f"patch_embed.proj.{2 * stage}", widths[stage + 1]
        shapes[f"{position}.0.weight"] = (out, widths[stage], 3, 3)
        affine(f"{position}.1", out)
        shapes[f"{position}.1.running_mean"] = shapes[f"{position}.1.running_var"] = (out,)
        shapes[f"{position}.1.num_batches_tracked"] = ()
    affine("pos_embeder.token_projection", DIM, 64, 1, 1)
    for kind, count in (("blocks", LAYERS), ("cls_attn_blocks", 2)):
        for index in range(count):
            block = f"{kind}.{index}"
            shapes[f"{block}.gamma1"] = shapes[f"{block}.gamma2"] = (DIM,)
            affine(f"{block}.norm1", DIM)
            affine(f"{block}.norm2", DIM)
            affine(f"{block}.mlp.fc1", 4 * DIM, DIM)
            affine(f"{block}.mlp.fc2", DIM, 4 * DIM)
            if kind == "blocks" and mixer == "tssa":
                affine(f"{block}.attn.qkv", DIM, DIM)
                affine(f"{block}.attn.to_out.0", DIM, DIM)
                shapes[f"{block}.attn.temp"] = (HEADS, 1)
                continue
            affine(f"{block}.attn.qkv", 3 * DIM, DIM)
            affine(f"{block}.attn.proj", DIM, DIM)
            if kind == "blocks" and mixer == "xca":
                shapes[f"{block}.attn.temperature"] = (HEADS, 1, 1)
    affine("norm", DIM)
    affine("head", CLASSES, DIM)
    return shapes


def official_state(mixer: str, patch_size: int = 16) -> State:
    state = {}
    for key, shape in official_shapes(mixer, patch_size).items():
        values = 0.3 * torch.randn(shape, dtype=torch.float64)
        state[key] = values.abs() + 0.5 if key.endswith("running_var") else values
        if key.endswith("num_batches_tracked"):
            state[key] = torch.tensor(7)
    return state


def heads_of(x: Tensor) -> Tensor:
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


def official_mixing(mixer: str, x: Tensor, p: Callable[[str], Tensor]) -> Tensor:
    """Apply the literal operators to (B, N, C), with the keys of one block's attention."""
    projected = F.linear(x, p("qkv.weight"), p("qkv.bias"))
    if mixer == "tssa":
        w = heads_of(projected)
        unit = w / w.norm(dim=2, keepdim=True)
        membership = (p("temp") * unit.square().sum(dim=-1)).softmax(dim=1)[..., None]
        moment = (membership * w.square()).sum(2, keepdim=True) / (
            membership.sum(2, keepdim=True) + 1e-8
        )
        y = (-w * membership / (1 + moment)).transpose(1, 2).flatten(2)
        return F.linear(y, p("to_out.0.weight"), p("to_out.0.bias"))
    q, k, v = (heads_of(part) for part in projected.chunk(3, dim=-1))
    if mixer == "xca":
        q, k = q / q.norm(dim=2, keepdim=True), k / k.norm(dim=2, keepdim=True)
        y = ((q.mT @ k) * p("temperature")).softmax(dim=-1) @ v.mT
        y = y.mT
    else:
        y = (q @ k.mT / (DIM / HEADS) ** 0.5).softmax(dim=-1) @ v
    return F.linear(y.transpose(1, 2).flatten(2), p("proj.weight"), p("proj.bias"))


def official_logits(state: Mapping[str, Tensor], mixer: str, images: Tensor) -> Tensor:
    """Compute the model in evaluation mode from the official keys alone."""

    def norm(x: Tensor, key: str) -> Tensor:
        return F.layer_norm(x, (DIM,), state[f"{key}.weight"], state[f"{key}.bias"], 1e-6)

    def mlp(x: Tensor, key: str) -> Tensor:
        hidden = F.gelu(F.linear(x, state[f"{key}.fc1.weight"], state[f"{key}.fc1.bias"]))
        return F.linear(hidden, state[f"{key}.fc2.weight"], state[f"{key}.fc2.bias"])

    x, stage = images, 0
    while f"patch_embed.proj.{stage}.0.weight" in state:
        position = f"patch_embed.proj.{stage}"
        x = F.gelu(x) if stage else x
        x = F.conv2d(x, state[f"{position}.0.weight"], stride=2, padding=1)
        names = ("running_mean", "running_var", "weight", "bias")
        x = F.batch_norm(x, *(state[f"{position}.1.{name}"] for name in names))
        stage += 2
    rows, columns = x.shape[2:]
    features = torch.zeros(64, rows, columns, dtype=torch.float64)
    for k in range(16):
        slow = 10000 ** (2 * k / 32)
        for axis, length in ((0, rows), (1, columns)):
            positions = torch.arange(1, length + 1, dtype=torch.float64)
            angles = positions / (length + 1e-6) * 2 * torch.pi / slow
            angles = angles[:, None] if axis == 0 else angles[None]
            features[32 * axis + 2 * k] = angles.sin()
            features[32 * axis + 2 * k + 1] = angles.cos()
    position = "pos_embeder.token_projection"
    x = x + F.conv2d(features[None], state[f"{position}.weight"], state[f"{position}.bias"])
    x = x.flatten(2).mT
    for index in range(LAYERS):
        b = f"blocks.{index}"
        attention = official_mixing(
            mixer, norm(x, f"{b}.norm1"), lambda n, b=b: state[f"{b}.attn.{n}"]
        )
        x = x + state[f"{b}.gamma1"] * attention
        x = x + state[f"{b}.gamma2"] * mlp(norm(x, f"{b}.norm2"), f"{b}.mlp")
    x = torch.cat((state["cls_token"].expand(len(x), 1, DIM), x), dim=1)
    for index in range(2):
        b = f"cls_attn_blocks.{index}"
        normed = norm(x, f"{b}.norm1")
        gathered = official_mixing("softmax", normed, lambda n, b=b: state[f"{b}.attn.{n}"])[:, :1]
        x = x + state[f"{b}.gamma1"] * torch.cat((gathered, normed[:, 1:]), dim=1)
        x = norm(x, f"{b}.norm2")
        cls_part = state[f"{b}.gamma2"] * mlp(x[:, :1], f"{b}.mlp")
        x = x + torch.cat((cls_part, x[:, 1:]), dim=1)
    return F.linear(norm(x, "norm")[:, 0], state["head.weight"], state["head.bias"])


def tiny(mixer: str = "tssa", patch_size: int = 16) -> rm.models.Model:
    model = rm.create_model("tost_tiny_16", mixer=mixer, patch_size=patch_size, **SMALL)
    return model.double().eval()


@pytest.mark.parametrize("patch_size", [16, 8])
@pytest.mark.parametrize("mixer", MIXERS)
def test_logits_agree(mixer: str, patch_size: int) -> None:
    model, state = tiny(mixer, patch_size), official_state(mixer, patch_size)
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    assert load_official(model, state) is model
    # The model computes the positions in float32, like the released code.
    torch.testing.assert_close(
        model(images), official_logits(state, mixer, images), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("mixer", MIXERS)
def test_every_tensor_is_filled(mixer: str) -> None:
    model = tiny(mixer)
    state = official_state(mixer)
    load_official(model, state)
    loaded = sum(tensor.double().sum() for tensor in model.state_dict().values())
    torch.testing.assert_close(loaded, sum(tensor.double().sum() for tensor in state.values()))
    assert sorted(model.official_tensors()) == sorted(state)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
def test_prefixes_of_wrappers_are_removed(prefix: str) -> None:
    state = official_state("tssa")
    plain = load_official(tiny(), state).state_dict()
    wrapped = load_official(tiny(), {f"{prefix}{key}": value for key, value in state.items()})
    assert all(torch.equal(value, plain[key]) for key, value in wrapped.state_dict().items())


def test_weights_get_the_dtype_of_the_model() -> None:
    state = official_state("tssa")
    model = load_official(tiny().bfloat16(), state)
    assert model.head.weight.dtype == torch.bfloat16
    torch.testing.assert_close(model.head.weight, state["head.weight"].bfloat16())


def test_batch_counts_may_be_absent() -> None:
    state = {k: v for k, v in official_state("tssa").items() if "num_batches" not in k}
    model = load_official(tiny(), state)
    assert model.patch_embed.proj[0][1].num_batches_tracked == 0


def without(key: str) -> Callable[[State], State]:
    return lambda state: {k: v for k, v in state.items() if k != key}


def also(key: str, value: Any) -> Callable[[State], Any]:
    return lambda state: state | {key: value}


FAULTS: dict[str, tuple[Callable[[State], Any], str]] = {
    "missing": (without("norm.bias"), r"state_dict: .*\b1 .*\(norm\.bias\)"),
    "unexpected": (
        also("blocks.0.gamma3", torch.ones(DIM)),
        r"state_dict: .*\b1 .*\(blocks\.0\.gamma3\)",
    ),
    "deeper": (also("blocks.2.gamma1", torch.ones(DIM)), r"unexpected.*\(blocks\.2\.gamma1\)"),
    "shape": (
        also("head.weight", torch.ones(7, DIM)),
        r"head\.weight.*\(7, 24\).*\(5, 24\).*head=False",
    ),
    "temperature": (
        also("blocks.1.attn.temp", torch.ones(HEADS)),
        r"blocks\.1\.attn\.temp.*\(3,\).*\(3, 1\)",
    ),
    "half prefixed": (also("module.norm.bias", torch.ones(DIM)), r"unexpected \(module\.norm"),
    "checkpoint": (lambda state: {"model": state}, "state_dict.*'model'"),
    "no tensors": (
        also("epoch", 3),
        "state_dict: .*int at 'epoch'",
    ),
    "no memory": (
        also("head.bias", torch.ones(CLASSES, device="meta")),
        "state_dict: .*meta at 'head.bias'",
    ),
    "complex": (also("head.bias", torch.ones(CLASSES) + 1j), "got torch.strided torch.complex64"),
    "sparse": (also("head.bias", torch.ones(CLASSES).to_sparse()), "got torch.sparse_coo"),
    "no mapping": (lambda state: list(state), "state_dict: .*got list"),
    "empty": (lambda state: {}, r"state_dict: .*missing.*\b\d+ more\)"),
}


@pytest.mark.parametrize(("change", "message"), FAULTS.values(), ids=FAULTS)
def test_failed_loading_does_not_change_the_model(
    change: Callable[[State], Any], message: str
) -> None:
    model = tiny()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(rm.InputError, match=message) as caught:
        load_official(model, change(official_state("tssa")))
    assert "\n" not in str(caught.value)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def thousand_classes(state: State) -> State:
    return state | {"head.weight": torch.randn(1000, DIM), "head.bias": torch.randn(1000)}


@pytest.mark.parametrize("theirs", [thousand_classes, without("head.bias"), lambda state: state])
def test_without_the_head_all_other_weights_are_loaded(theirs: Callable[[State], State]) -> None:
    state, model = official_state("tssa"), tiny()
    own = {key: value.clone() for key, value in model.head.state_dict().items()}
    whole = load_official(tiny(), state).state_dict()
    load_official(model, theirs(state), head=False)
    for key, value in model.state_dict().items():
        expected = own[key.removeprefix("head.")] if key.startswith("head.") else whole[key]
        assert torch.equal(value, expected), key


def test_without_the_head_other_weights_are_checked_strictly() -> None:
    state = thousand_classes(official_state("tssa"))
    for change, message in (
        (without("norm.bias"), r"state_dict: .*\b1 .*\(norm\.bias\)"),
        (also("heads.weight", torch.ones(3)), r"state_dict: .*\b1 .*\(heads\.weight\)"),
        (also("norm.bias", torch.ones(3)), r"norm\.bias.*\(3,\)"),
    ):
        model = tiny()
        before = {key: value.clone() for key, value in model.state_dict().items()}
        with pytest.raises(rm.InputError, match=message):
            load_official(model, change(state), head=False)
        assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_error_names_both_sizes_and_the_option() -> None:
    with pytest.raises(rm.InputError) as caught:
        load_official(tiny(), thousand_classes(official_state("tssa")))
    message = str(caught.value)
    assert re.search(r"head\.weight\b.*\(1000, 24\).*\(5, 24\)", message)
    assert re.search(r"head\.bias\b.*\(1000,\).*\(5,\).*head=False", message)


def test_head_that_cannot_be_omitted() -> None:
    with pytest.raises(rm.InputError, match=r"head: .*True.*got head=False"):
        load_official(Tied(), {"wte": torch.randn(3, 2)}, head=False)
    with pytest.raises(rm.InputError, match=r"head: .*True.*False.*got 'no'"):
        load_official(tiny(), official_state("tssa"), head="no")  # type: ignore[arg-type]


@pytest.mark.parametrize("change", [{"mixer": "csp"}, {"feed_forward": "ista"}])
def test_variants_without_official_code_are_refused(change: dict[str, Any]) -> None:
    model = rm.create_model("tost_tiny_16", **{**SMALL, **change})
    with pytest.raises(rm.InputError, match=r"^model: .*tssa.*got mixer "):
        load_official(model, official_state("tssa"))


def test_models_without_official_code_are_refused() -> None:
    with pytest.raises(rm.InputError, match=r"model: .*got ViT"):
        load_official(rm.create_model("vit_cifar10"), {})


def test_a_model_without_memory_is_refused() -> None:
    with torch.device("meta"):
        model = rm.create_model("tost_tiny_16", **SMALL)
    with pytest.raises(rm.InputError, match=r"model: .*\bmeta\b"):
        load_official(model, official_state("tssa"))


class Tied(torch.nn.Module):
    """A layout with tied and unneeded tensors, as in nanoGPT."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(3, 2)

    def official_tensors(self) -> dict[str, OfficialTensor]:
        return {
            "wte": OfficialTensor("embed.weight"),
            "head": OfficialTensor("embed.weight", required=False),
            "mask": OfficialTensor(None, required=False),
        }


def test_tied_tensors_must_agree() -> None:
    weight = torch.randn(3, 2)
    model = load_official(Tied(), {"wte": weight, "head": weight.clone(), "mask": torch.ones(9)})
    assert torch.equal(model.embed.weight, weight)
    with pytest.raises(rm.InputError, match=r"state_dict: .*wte.*head"):
        load_official(Tied(), {"wte": weight, "head": weight + 1})
    assert isinstance(load_official(Tied(), {"wte": weight}), Tied)


def test_function_is_public() -> None:
    assert rm.models.load_official is load_official
    assert isinstance(tiny(), ToST)
