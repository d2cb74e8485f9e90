"""Swapped models on disk."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    checkpoint_wrapper,
    offload_wrapper,
)

import rifflemix as rm
from rifflemix.mixers.csp import CSP


class Tagger(nn.Module):
    """Embeddings, an encoder, and a head with tied embedding weights."""

    def __init__(self, dim: int = 16, layers: int = 2, words: int = 11) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(dim, words, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embed(ids)))


IDS = torch.arange(18).reshape(2, 9) % 11


def swapped(**overrides: Any) -> Tagger:
    torch.manual_seed(0)
    model = Tagger().eval()
    rm.replace_attention(model, **{"mixer": "tssa", **overrides})
    return model


CASES: dict[str, dict[str, Any]] = {
    "tssa": {},
    "csp with options": {"mixer": "csp", "mixer_options": {"shift": torch.arange(16)}},
    "causal": {"mixer": "linear", "causal": True, "max_length": 12},
    "hybrid": {"layers": [1]},
}


@pytest.mark.parametrize("case", CASES)
def test_saved_model_is_loaded_unchanged(case: str, tmp_path: Path) -> None:
    model = swapped(**CASES[case])
    rm.save_swapped(model, tmp_path / "saved")
    torch.manual_seed(1)
    other = Tagger().eval()
    loaded = rm.load_swapped(tmp_path / "saved", other)
    assert loaded is other
    assert torch.equal(loaded(IDS), model(IDS))
    assert loaded.head.weight is loaded.embed.weight
    rm.save_swapped(loaded, tmp_path / "again")
    for name in ("swap.json", "model.safetensors"):
        assert (tmp_path / "saved" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    assert rm.restore_attention(loaded)


class DistributedDataParallel(nn.Module):
    """Mimics torch's wrapper without other processes."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def compiled(model: nn.Module) -> Any:
    return torch.compile(model, backend="eager")


def with_compiled_parts(model: Any) -> Any:
    model.encoder = compiled(model.encoder)
    model.encoder._orig_mod.layers[0] = compiled(model.encoder._orig_mod.layers[0])
    return model


def with_checkpoints(model: Any) -> Any:
    layers = model.encoder.layers
    layers[0] = checkpoint_wrapper(layers[0])
    layers[1].self_attn = checkpoint_wrapper(offload_wrapper(layers[1].self_attn))
    return model


WRAPPERS = [compiled, with_compiled_parts, with_checkpoints, nn.DataParallel]


@pytest.mark.parametrize("wrap", [*WRAPPERS, DistributedDataParallel])
def test_names_do_not_depend_on_wrappers_when_saving(
    wrap: Callable[[nn.Module], Any], tmp_path: Path
) -> None:
    wrapped = wrap(swapped())
    before = list(wrapped.state_dict())
    rm.save_swapped(wrapped, tmp_path)
    assert torch.equal(rm.load_swapped(tmp_path, Tagger().eval())(IDS), swapped()(IDS))
    assert list(wrapped.state_dict()) == before


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_names_do_not_depend_on_wrappers_when_loading(
    wrap: Callable[[nn.Module], Any], tmp_path: Path
) -> None:
    rm.save_swapped(swapped(), tmp_path)
    loaded = rm.load_swapped(tmp_path, wrap(Tagger().eval()))
    with torch.no_grad():
        assert torch.equal(loaded(IDS), swapped()(IDS))
    assert len(rm.restore_attention(loaded)) == 2


def test_models_wrapped_for_several_processes_cannot_load(tmp_path: Path) -> None:
    rm.save_swapped(swapped(), tmp_path)
    with pytest.raises(rm.InputError, match=r"model: .*DistributedDataParallel"):
        rm.load_swapped(tmp_path, DistributedDataParallel(Tagger()))


def test_loading_keeps_mode_and_dtype_of_the_model(tmp_path: Path) -> None:
    rm.save_swapped(swapped(), tmp_path)
    loaded = rm.load_swapped(tmp_path, Tagger().double().train())
    assert {p.dtype for p in loaded.parameters()} == {torch.float64}
    assert {module.training for module in loaded.modules()} == {True}


OTHERS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "dim": (lambda: Tagger(dim=32), r"model: .*\b16\b"),
    "fewer layers": (lambda: Tagger(layers=1), r"encoder\.layers\.1\.self_attn"),
    "more layers": (lambda: Tagger(layers=3), "encoder.layers.2"),
    "words": (lambda: Tagger(words=12), "embed.weight|head.weight"),
    "no attention": (lambda: nn.Linear(2, 2), "model:"),
    "already swapped": (swapped, "model:"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_another_architecture_is_refused_and_unchanged(case: str, tmp_path: Path) -> None:
    rm.save_swapped(swapped(), tmp_path)
    build, says = OTHERS[case]
    model = build()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(rm.InputError, match=says) as caught:
        rm.load_swapped(tmp_path, model)
    assert "\n" not in str(caught.value)
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_a_missing_weight_is_refused(tmp_path: Path) -> None:
    rm.save_swapped(swapped(), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights.pop("encoder.layers.0.self_attn.mixer.temperature")
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(rm.InputError, match="temperature"):
        rm.load_swapped(tmp_path, Tagger())


def _drop(path: Path) -> None:
    path.unlink()


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:40])


def _rewrite(path: Path) -> None:
    content = json.loads(path.read_text())
    content["layers"]["encoder.layers.0.self_attn"]["num_heads"] = "4"
    path.write_text(json.dumps(content))


def _add(path: Path) -> None:
    content = json.loads(path.read_text())
    content["layers"]["encoder.layers.0.self_attn"]["mixer"] = "tsa"
    content["layers"]["encoder.layers.0.self_attn"]["extra"] = 1
    path.write_text(json.dumps(content))


def _format(path: Path) -> None:
    path.write_text(path.read_text().replace("rifflemix.swap/1", "rifflemix.swap/9"))


def _header(path: Path) -> None:
    path.write_bytes(struct.pack("<Q", 1 << 60) + b"{}")


def test_mixer_parametrised_after_the_swap_is_refused(tmp_path: Path) -> None:
    """Check the error when saving: the checkpoint could not be loaded."""
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 16, batch_first=True), 1)
    rm.replace_attention(model, "tssa")
    out = model.get_submodule("layers.0.self_attn").mixer.out_proj
    nn.utils.parametrizations.weight_norm(out)
    with pytest.raises(rm.InputError, match=r"layers.0.self_attn"):
        rm.save_swapped(model, tmp_path / "swap")
    assert not (tmp_path / "swap").exists()
    nn.utils.parametrize.remove_parametrizations(out, "weight")
    rm.save_swapped(model, tmp_path / "swap")


DAMAGE: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "no description": ("swap.json", _drop, "swap.json"),
    "no weights": ("model.safetensors", _drop, "model.safetensors"),
    "cut description": ("swap.json", _cut, "damaged"),
    "changed type": ("swap.json", _rewrite, "num_heads.*got '4'"),
    "unknown mixer": (
        "swap.json",
        _add,
        r"'tsa'",
    ),
    "other format": ("swap.json", _format, "swap/9"),
    "cut weights": ("model.safetensors", _cut, "damaged"),
    "endless header": ("model.safetensors", _header, "damaged"),
}


LAYER = "encoder.layers.0.self_attn"
HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "an option of the host": ({"options": {"num_heads": 2}}, "got 'num_heads'"),
    "weights larger than memory": ({"mixer": "linformer", "max_length": 10**12}, "key_projection"),
    "weights larger than numbers": ({"mixer": "synthesizer", "max_length": 10**12}, r"swap\.json"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_invalid_descriptions_are_refused(case: str, tmp_path: Path) -> None:
    rm.save_swapped(swapped(mixer="softmax", mixer_options={"bias": True}), tmp_path)
    changes, says = HOSTILE[case]
    content = json.loads((tmp_path / "swap.json").read_text())
    content["layers"][LAYER] |= {"options": {}} | changes
    (tmp_path / "swap.json").write_text(json.dumps(content))
    model = Tagger()
    before = [id(module) for module in model.modules()]
    with pytest.raises(rm.InputError, match=says):
        rm.load_swapped(tmp_path, model)
    assert [id(module) for module in model.modules()] == before


def test_invalid_weights_are_refused(tmp_path: Path) -> None:
    rm.save_swapped(swapped(), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    name = f"{LAYER}.mixer.temperature"
    as_integers = {**weights, name: weights[name].long()}
    without = {key: value for key, value in weights.items() if key != name}
    for tensors, header, says in (
        (as_integers, {}, r"I64\b"),
        (
            without,
            {name: "head.weight"},
            r"temperature.*got.*\(4,\)",
        ),  # looks like an alias but is not
    ):
        save_file(tensors, tmp_path / "model.safetensors", header)
        with pytest.raises(rm.InputError, match=says):
            rm.load_swapped(tmp_path, Tagger())


def test_invalid_folders_and_models_are_refused(tmp_path: Path) -> None:
    nothing: Any = None
    with pytest.raises(rm.InputError, match=r"got 'a\\x00b'"):
        rm.save_swapped(swapped(), "a\0b")
    with pytest.raises(rm.InputError, match="got NoneType"):
        rm.save_swapped(nothing, tmp_path)
    rm.save_swapped(swapped(), tmp_path)
    with torch.device("meta"):
        model = Tagger()
    with pytest.raises(rm.InputError, match=r"model: .*\bmeta\b"):
        rm.load_swapped(tmp_path, model)
    with pytest.raises(rm.InputError, match=r"mixer_options: .*got 'dim'"):
        rm.replace_attention(Tagger(), "tssa", mixer_options={"dim": 3})


@pytest.mark.parametrize("case", DAMAGE)
def test_damaged_files_are_reported_in_one_sentence(case: str, tmp_path: Path) -> None:
    rm.save_swapped(swapped(), tmp_path)
    name, damage, says = DAMAGE[case]
    damage(tmp_path / name)
    model = Tagger()
    before = [id(module) for module in model.modules()]
    with pytest.raises(rm.InputError, match=says):
        rm.load_swapped(tmp_path, model)
    assert [id(module) for module in model.modules()] == before


def test_models_that_cannot_be_saved_are_refused(tmp_path: Path) -> None:
    with pytest.raises(rm.InputError, match=r"model: .*replace_attention"):
        rm.save_swapped(Tagger(), tmp_path)

    class Nameless(CSP):
        pass

    with pytest.raises(rm.InputError, match="register_mixer"):
        rm.save_swapped(swapped(mixer=Nameless), tmp_path)
    with torch.device("meta"):
        model = Tagger()
    rm.replace_attention(model, "tssa")
    with pytest.raises(rm.InputError, match=r"model: .*\bmeta\b"):
        rm.save_swapped(model, tmp_path)
    assert not list(tmp_path.iterdir())


def test_overwritten_folder_never_has_the_old_description(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check the description after a failed save.

    The weights alone would fit several settings.
    """
    rm.save_swapped(swapped(), tmp_path)
    before = (tmp_path / "swap.json").read_bytes()

    def fail(*_: object) -> None:
        raise rm.InputError("cannot write: no space left")

    monkeypatch.setattr("rifflemix.models.pretrained.write_json", fail)
    with pytest.raises(rm.InputError, match="no space left"):
        rm.save_swapped(swapped(), tmp_path)
    assert (tmp_path / "swap.json").read_bytes() == before  # still fits the new weights
    with pytest.raises(rm.InputError, match="no space left"):
        rm.save_swapped(swapped(mixer="average"), tmp_path)
    with pytest.raises(rm.InputError, match=r"swap\.json"):
        rm.load_swapped(tmp_path, Tagger())
