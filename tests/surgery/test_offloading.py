"""Swapped models under accelerate: empty weights, dispatched checkpoints, offloading."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_transformers import build, inputs_of, outputs_of, transformers
from torch import nn

import rifflemix as rm

accelerate = pytest.importorskip("accelerate", reason="needs accelerate")
rm.register_hf()
CPU = torch.device("cpu")
# Constants that are in no file, weights read without a call, buffers, weights of the mixer itself.
MIXERS = [
    "csp",
    "mlp_mixer",
    "performer",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("sliceformer", "long_conv", "tssa")),
]


def swap(model: Any, mixer: str) -> Any:
    rm.replace_attention(model, mixer, max_length=24)
    return model


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    """Ignore accelerate's warnings.

    They concern decoys in files and weights that stay on one device.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


@pytest.mark.parametrize("mixer", rm.list_mixers())
def test_an_offloaded_model_computes_the_same(mixer: str) -> None:
    model, inputs = swap(build("bert"), mixer), inputs_of("bert")
    if not rm.mixer_card(mixer).padding:
        del inputs["attention_mask"]
    expected = outputs_of(model, inputs)
    accelerate.cpu_offload(model, execution_device=CPU)
    for _ in range(2):
        assert torch.equal(outputs_of(model, inputs), expected)
        assert all(parameter.is_meta for parameter in model.parameters())
    accelerate.hooks.remove_hook_from_submodules(model)
    assert torch.equal(outputs_of(model, inputs), expected)


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("offload_buffers", [False, True])
def test_a_model_offloaded_to_disk_computes_the_same(
    offload_buffers: bool, mixer: str, tmp_path: Path
) -> None:
    model, inputs = swap(build("bert"), mixer), inputs_of("bert")
    expected = outputs_of(model, inputs)
    accelerate.disk_offload(
        model, str(tmp_path), execution_device=CPU, offload_buffers=offload_buffers
    )
    assert torch.equal(outputs_of(model, inputs), expected)


@pytest.mark.parametrize("mixer", ["tssa", "csp", "linear"])
def test_an_offloaded_model_generates_the_same(mixer: str) -> None:
    model, ids = swap(build("gpt2"), mixer), inputs_of("gpt2", padding=False)["input_ids"]
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(ids, **options)
    accelerate.cpu_offload(model, execution_device=CPU)
    assert torch.equal(model.generate(ids, **options), expected)


@pytest.mark.parametrize("mixer", MIXERS)
def test_a_checkpoint_is_dispatched_into_empty_weights(mixer: str, tmp_path: Path) -> None:
    model, inputs = swap(build("bert"), mixer), inputs_of("bert")
    expected = outputs_of(model, inputs)
    model.save_pretrained(tmp_path, max_shard_size="8KB")
    for device_map in ({"": "cpu"}, {"embeddings": "cpu", "encoder": "disk", "pooler": "cpu"}):
        with accelerate.init_empty_weights():
            empty = swap(transformers.BertModel(model.config), mixer)
        # Without offload_buffers accelerate loads no buffer of a file into modules on disk.
        loaded = accelerate.load_checkpoint_and_dispatch(
            empty,
            str(tmp_path),
            device_map=device_map,
            offload_folder=str(tmp_path / "disk"),
            offload_buffers=mixer == "performer",
        ).eval()
        assert torch.equal(outputs_of(loaded, inputs), expected)


@pytest.mark.parametrize("mixer", ["performer", "reformer"])
def test_buffers_that_accelerate_does_not_load_are_reported(mixer: str, tmp_path: Path) -> None:
    model, inputs = swap(build("bert"), mixer), inputs_of("bert")
    model.save_pretrained(tmp_path)
    with accelerate.init_empty_weights():
        empty = swap(transformers.BertModel(model.config), mixer)
    loaded = accelerate.load_checkpoint_and_dispatch(
        empty,
        str(tmp_path),
        device_map={"embeddings": "cpu", "encoder": "disk", "pooler": "cpu"},
        offload_folder=str(tmp_path / "disk"),
    ).eval()
    with pytest.raises(rm.InputError, match="offload_buffers=True"):
        outputs_of(loaded, inputs)


def test_a_checkpoint_of_another_swap_is_refused(tmp_path: Path) -> None:
    """Check swaps with equal tensor names and shapes; accelerate compares nothing else."""
    model = build("bert")
    rm.replace_attention(model, "sinkformer", mixer_options={"num_iterations": 4})
    accelerate.Accelerator(cpu=True).save_model(model, str(tmp_path))
    weights = str(tmp_path / "model.safetensors")
    for iterations in (4, 5):
        with accelerate.init_empty_weights():
            empty = transformers.BertModel(model.config)
            options = {"num_iterations": iterations}
            rm.replace_attention(empty, "sinkformer", mixer_options=options)
        loaded = accelerate.load_checkpoint_and_dispatch(empty, weights, device_map={"": "cpu"})
        if iterations == 4:
            outputs_of(loaded.eval(), inputs_of("bert"))
        else:
            with pytest.raises(rm.InputError, match=r"weights at encoder.layer.0.attention.self"):
                outputs_of(loaded.eval(), inputs_of("bert"))


@pytest.mark.parametrize("mixer", MIXERS)
def test_a_saved_model_is_loaded_to_disk(mixer: str, tmp_path: Path) -> None:
    model, inputs = swap(build("bert"), mixer), inputs_of("bert")
    expected = outputs_of(model, inputs)
    model.save_pretrained(tmp_path / "model")
    for device_map in ({"": "disk"}, {"embeddings": "cpu", "encoder": "disk", "pooler": "cpu"}):
        loaded = transformers.BertModel.from_pretrained(
            tmp_path / "model", device_map=device_map, offload_folder=tmp_path / "disk"
        )
        assert torch.equal(outputs_of(loaded, inputs), expected)
        loaded.save_pretrained(tmp_path / "again")
        again = transformers.BertModel.from_pretrained(tmp_path / "again")
        assert torch.equal(outputs_of(again, inputs), expected)


@pytest.mark.parametrize("mixer", MIXERS)
def test_a_preset_is_loaded_to_disk(mixer: str, tmp_path: Path) -> None:
    settings = {"image_size": 8, "patch_size": 4, "dim": 16, "num_layers": 2, "num_heads": 2}
    config = transformers.AutoConfig.for_model(
        "rifflemix", preset="vit_cifar10", settings={**settings, "mixer": mixer}
    )
    auto, pixels = transformers.AutoModelForImageClassification, torch.randn(2, 3, 8, 8)
    model = auto.from_config(config).eval()
    model.save_pretrained(tmp_path)
    loaded = auto.from_pretrained(
        tmp_path, device_map={"": "disk"}, offload_folder=tmp_path / "disk"
    )
    for _ in range(2):
        assert torch.equal(loaded(pixels).logits, model(pixels).logits)


class WithBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x)[0] * self.scale


@pytest.mark.parametrize("mixer", MIXERS)
def test_a_model_on_the_meta_device_gets_weights_and_constants(mixer: str) -> None:
    model = swap(WithBuffer(), mixer).eval()
    with torch.device("meta"):
        empty = WithBuffer().eval()
    swap(empty, mixer)
    assert empty(torch.empty(2, 9, 16, device="meta")).shape == (2, 9, 16)
    empty.to_empty(device="cpu").load_state_dict(model.state_dict())
    x = torch.randn(2, 9, 16)
    assert torch.equal(empty(x), model(x))
