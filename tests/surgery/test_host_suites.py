"""Checks from the test suites of transformers and timm, applied to swapped models.

Neither package ships its suite (`ModelTesterMixin`, tests/test_models.py). This file reimplements
the parts that apply to a model with replaced attention.
"""

from __future__ import annotations

import copy
import importlib.metadata
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_transformers import DIM, LENGTH, VOCABULARY, build, inputs_of, outputs_of, transformers
from torch import Tensor, nn

import rifflemix as rm

pytestmark = pytest.mark.slow
SWAPPED = [("bert", "csp"), ("gpt2", "tssa"), ("llama", "linear"), ("vit", "butterfly")]
CLOSE: dict[str, Any] = {"atol": 1e-5, "rtol": 1e-5}


def swap(name: str, mixer: str) -> Any:
    model = build(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about lost rotary positions
        rm.replace_attention(model, mixer)
    return model


@pytest.fixture(params=SWAPPED, ids=[name for name, _ in SWAPPED])
def host(request: pytest.FixtureRequest) -> tuple[Any, dict[str, Tensor]]:
    """Return a swapped model and inputs for it."""
    return swap(*request.param), inputs_of(request.param[0])


@pytest.mark.parametrize("library", ["transformers", "timm"])
def test_libraries_do_not_ship_their_test_suites(library: str) -> None:
    """Check for shipped suites: run them instead of the checks below."""
    files = [str(path) for path in importlib.metadata.files(library) or []]
    assert len(files) > 100
    suites = ("test_modeling_common.py", "test_models.py", "test_pipeline_mixin.py")
    assert not [name for name in files if name.endswith(suites)]


def test_deterministic_in_evaluation(host: Any) -> None:
    model, inputs = host
    assert torch.equal(outputs_of(model, inputs), outputs_of(model, inputs))


def test_batch_equals_its_single_samples(host: Any) -> None:
    """Compare a padded batch with each of its samples."""
    model, inputs = host
    together = outputs_of(model, inputs)
    for row in range(len(together)):
        alone = outputs_of(model, {key: value[row : row + 1] for key, value in inputs.items()})
        torch.testing.assert_close(alone[0], together[row], **CLOSE)


def test_hidden_states_are_returned(host: Any) -> None:
    """Check hidden states of all layers, by argument and config, with gradients."""
    model, inputs = host
    found = model(**inputs, output_hidden_states=True).hidden_states
    assert len(found) == 3
    assert {states.shape[-1] for states in found} == {DIM}
    for states in found:
        if states.requires_grad:
            states.retain_grad()
    model.config.output_hidden_states = True
    for again, states in zip(model(**inputs).hidden_states, found, strict=True):
        assert torch.equal(again, states)
    found[-1].sum().backward()
    assert all(states.grad is not None for states in found[:-1] if states.requires_grad)


def test_tuple_outputs_equal_dataclass_outputs(host: Any) -> None:
    model, inputs = host
    inputs = {**inputs, "output_hidden_states": True}
    whole, parts = model(**inputs).to_tuple(), model(**inputs, return_dict=False)
    assert len(whole) == len(parts)
    for ours, theirs in zip(_tensors(whole), _tensors(parts), strict=True):
        assert torch.equal(ours, theirs)


def _tensors(value: Any) -> list[Tensor]:
    """Return the tensors in nested tuples, without caches."""
    if isinstance(value, Tensor):
        return [value]
    return [t for inner in value for t in _tensors(inner)] if isinstance(value, tuple) else []


def test_checkpointing_gives_the_same_gradients(host: Any) -> None:
    """Check all gradients with checkpointing switched on and off again."""
    model, inputs = host
    found: list[dict[str, Tensor]] = []
    if hasattr(model.config, "use_cache"):
        model.config.use_cache = False
    kinds = (None, "activation_checkpointing_enable", "activation_checkpointing_disable")
    for switch in kinds:
        if switch is not None:
            getattr(model, switch)()
        model.train().zero_grad()
        torch.manual_seed(0)
        model(**inputs)[0].square().mean().backward()
        found.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
    assert any("mixer" in key for key in found[0])
    for again in found[1:]:
        torch.testing.assert_close(again, found[0])


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_token_embeddings_can_be_resized(name: str, tmp_path: Path) -> None:
    """Check that resize_token_embeddings keeps the old embeddings and can be undone."""
    model, inputs = swap(name, "tssa"), inputs_of(name)
    before = outputs_of(model, inputs)
    model.resize_token_embeddings(VOCABULARY + 5)
    assert model.config.vocab_size == VOCABULARY + 5
    assert model.get_input_embeddings().weight.shape[0] == VOCABULARY + 5
    wider = outputs_of(model, inputs)
    torch.testing.assert_close(wider[..., : before.shape[-1]], before, **CLOSE)
    new = {**inputs, "input_ids": inputs["input_ids"] + 5}
    assert outputs_of(model, new).isfinite().all()
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    assert torch.equal(outputs_of(again, inputs), wider)
    model.resize_token_embeddings(VOCABULARY)
    torch.testing.assert_close(outputs_of(model, inputs), before, **CLOSE)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_inputs_embeds_replace_input_ids(name: str) -> None:
    model, inputs = swap(name, "linear"), inputs_of(name)
    embedded = model.get_input_embeddings()(inputs["input_ids"])
    given = {"inputs_embeds": embedded, "attention_mask": inputs["attention_mask"]}
    torch.testing.assert_close(outputs_of(model, given), outputs_of(model, inputs), **CLOSE)


def test_a_state_dict_names_each_weight_once(host: Any) -> None:
    """Load the state dict strictly into zeros and compare the outputs."""
    model, inputs = host
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert not any(other.load_state_dict(model.state_dict()))
    assert torch.equal(outputs_of(other, inputs), outputs_of(model, inputs))


def test_model_saved_in_shards_is_loaded(host: Any, tmp_path: Path) -> None:
    """Check shards of a few kilobytes, and half precision if requested."""
    model, inputs = host
    model.save_pretrained(tmp_path, max_shard_size="8KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    again, said = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert not said["missing_keys"]
    assert not said["unexpected_keys"]
    assert torch.equal(outputs_of(again, inputs), outputs_of(model, inputs))
    half = type(model).from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_generation_keeps_the_prompt_and_gives_scores(name: str) -> None:
    model = swap(name, "tssa")
    ids = inputs_of(name, padding=False)["input_ids"]
    found = model.generate(
        ids, max_new_tokens=4, min_new_tokens=4, return_dict_in_generate=True, output_scores=True
    )
    assert torch.equal(found.sequences[:, : ids.shape[1]], ids)
    assert found.sequences.shape[1] == ids.shape[1] + 4 <= LENGTH
    assert len(found.scores) == 4


def test_labels_give_a_loss_that_falls() -> None:
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=DIM,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=LENGTH,
        num_labels=2,
    )
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(config)
    rm.replace_attention(model, "csp")
    inputs = {**inputs_of("bert", batch=3), "labels": torch.tensor([0, 1, 1])}
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(12):
        loss = model(**inputs).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]


@pytest.fixture
def vit() -> nn.Module:
    timm = pytest.importorskip("timm", reason="timm is not installed")
    torch.manual_seed(0)
    model: nn.Module = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=4,
        num_classes=5,
    ).eval()  # fmt: skip
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    rm.replace_attention(model, "csp")
    return model


def test_heads_of_timm(vit: Any) -> None:
    """Check features before the head, another number of classes, and no classes."""
    images = torch.randn(2, 3, 32, 32)
    tokens = vit.forward_features(images)
    assert tokens.shape == (2, 17, 32)
    assert torch.equal(vit.forward_head(tokens), vit(images))
    vit.reset_classifier(3)
    assert vit(images).shape == (2, 3)
    vit.reset_classifier(0)
    assert torch.equal(vit(images), vit.forward_head(tokens, pre_logits=True))


def test_middle_layers_of_timm(vit: Any) -> None:
    images = torch.randn(2, 3, 32, 32)
    last, middle = vit.forward_intermediates(images)
    assert [layer.shape for layer in middle] == [(2, 32, 4, 4)] * 2
    assert torch.equal(last, vit.forward_features(images))


def test_checkpointing_of_timm(vit: Any) -> None:
    images, found = torch.randn(2, 3, 32, 32), []
    for enable in (False, True):
        vit.set_grad_checkpointing(enable)
        vit.train().zero_grad()
        vit(images).square().mean().backward()
        found.append({name: p.grad.clone() for name, p in vit.named_parameters()})
        assert all(gradient.isfinite().all() for gradient in found[-1].values())
    torch.testing.assert_close(found[1], found[0])
