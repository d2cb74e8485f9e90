"""Checkpoints of transformers' Trainer: they resume their own swap and refuse any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_transformers import transformers

import rifflemix as rm
from rifflemix.surgery import SwappedAttention

pytest.importorskip("accelerate", reason="needs accelerate")
rm.register_hf()
SETTINGS = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "image_size": 8,
    "patch_size": 4,
}


def swapped(mixer: str, seed: int = 0, **arguments: Any) -> Any:
    torch.manual_seed(seed)
    model = transformers.ViTForImageClassification(transformers.ViTConfig(**SETTINGS))
    rm.replace_attention(model, mixer, init="fresh", **arguments)
    return model


def train(model: Any, folder: Path, resume: Path | None = None, **options: Any) -> None:
    """Train up to the second step, from scratch or from a checkpoint."""
    data = [{"pixel_values": torch.randn(3, 8, 8), "labels": i % 2} for i in range(4)]
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=2,
        save_steps=1,
        per_device_train_batch_size=2,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
        **options,
    )
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=data)
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """Train a softmax swap, and save a last checkpoint without an optimizer."""
    folder = tmp_path_factory.mktemp("trained")
    model = swapped("softmax")
    train(model, folder, save_only_model=True)
    return model, folder / "checkpoint-2"


@pytest.mark.parametrize("mixer", ["mega", "exp_smoothing"])
@pytest.mark.parametrize("save_only_model", [False, True])
def test_training_resumes_with_all_weights(
    mixer: str, save_only_model: bool, tmp_path: Path
) -> None:
    """Check that weights keep their values: transformers renames ViT and mixer weights."""
    model, other = swapped(mixer), swapped(mixer, seed=1)
    train(model, tmp_path, save_only_model=save_only_model)
    train(other, tmp_path, tmp_path / "checkpoint-2", save_only_model=save_only_model)
    state, again = model.state_dict(), other.state_dict()
    assert [name for name in state if not torch.equal(state[name], again[name])] == []
    loaded = type(model).from_pretrained(tmp_path / "checkpoint-2").state_dict()
    assert [name for name in state if not torch.equal(state[name], loaded[name])] == []


OTHERS: dict[str, dict[str, Any]] = {
    "another mixer with equal names": {"mixer": "linear"},
    "another mixer": {"mixer": "csp"},
    "other heads": {"mixer": "softmax", "num_heads": 4},
    "another option": {"mixer": "softmax", "mixer_options": {"padded_queries": "mean"}},
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_checkpoint_of_another_swap_is_refused(
    name: str, checkpoint: tuple[Any, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, folder = checkpoint
    arguments = dict(OTHERS[name])
    monkeypatch.setitem(SETTINGS, "num_attention_heads", arguments.pop("num_heads", 2))
    with pytest.raises(rm.InputError, match=r"weights at vit.layers.0.attention"):
        train(swapped(**arguments), tmp_path, folder, save_only_model=True)


def test_training_stops_if_weights_of_a_mixer_are_missing(
    checkpoint: tuple[Any, Path], tmp_path: Path
) -> None:
    _, folder = checkpoint
    weights = load_file(folder / "model.safetensors")
    del weights["vit.layers.1.attention.mixer.proj.weight"]
    for file in folder.iterdir():
        if file.suffix == ".json":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    model = swapped("softmax")
    model.load_state_dict(weights, strict=False)
    with pytest.raises(rm.InputError, match=r"weights at vit.layers.1.attention"):
        model(torch.randn(1, 3, 8, 8))
    with pytest.raises(rm.InputError, match="weights"):
        type(model).from_pretrained(tmp_path)


@pytest.mark.parametrize("step", [1, -1])
def test_files_of_a_sharded_checkpoint_are_loaded_in_any_order(step: int, tmp_path: Path) -> None:
    model, other = swapped("mega"), swapped("mega", seed=1)
    model.save_pretrained(tmp_path, max_shard_size="4KB")
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) > 3
    for file in files[::step]:
        other.load_state_dict(load_file(file), strict=False)
    pixels = torch.randn(1, 3, 8, 8)
    assert torch.equal(other.eval()(pixels).logits, model.eval()(pixels).logits)
    parts = [part for part in other.modules() if isinstance(part, SwappedAttention)]
    assert [len(part._forward_pre_hooks) for part in parts] == [1, 1], "a check at every call"
