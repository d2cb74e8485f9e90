"""Weight names of swapped models: transformers must not rename weights of mixers."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_transformers import transformers
from torch import nn
from transformers import conversion_mapping
from transformers.core_model_loading import WeightRenaming

import rifflemix as rm
from rifflemix.surgery import apply_swap
from rifflemix.surgery.settings import MixerSettings, class_of, default_options

rm.register_hf()
DIM, NUM_HEADS, MAX_LENGTH = 16, 2, 16
CHOICES: dict[str, list[dict[str, Any]]] = {
    "grouped": [{"inner": "softmax"}, {"inner": "mega"}, {"inner": "mlp_mixer"}],
    "mega": [{"mixing": "csp"}],
    "sinkhorn": [{"sort_net": "mlp"}, {"sort_net": "bilinear"}],
    "synthesizer": [{"mode": "dense"}, {"mode": "mixture"}, {"mode": "random", "rank": 4}],
}
"""Options that change the parameters and are neither numbers nor flags."""


def variants(mixer: str) -> Iterator[dict[str, Any]]:
    """Yield arguments of a mixer: the defaults, and each option changed alone."""
    changed = [{}, *CHOICES.get(mixer, [])]
    for name, default in default_options(class_of(mixer)).items():
        values = [not default] if isinstance(default, bool) else [True, 2]
        changed += [{name: value} for value in values if not isinstance(default, str)]
    for causal in (False, True)[: 1 + rm.mixer_card(mixer).causal]:
        yield from ({"causal": causal, "options": options} for options in changed)


@cache
def zoo() -> tuple[MixerSettings, ...]:
    """Return settings of every mixer that cover all sets of parameter names."""
    found: dict[tuple[str, ...], MixerSettings] = {}
    for mixer in rm.list_mixers():
        for arguments in variants(mixer):
            settings = MixerSettings(
                mixer, DIM, NUM_HEADS, MAX_LENGTH, 0, 1, dropout=0.0, **arguments
            )
            with suppress(rm.InputError, TypeError), torch.device("meta"):
                found.setdefault((mixer, *settings.build().state_dict()), settings)
    return tuple(found.values())


class ZooConfig(transformers.PretrainedConfig):  # type: ignore[misc]
    model_type = "zoo_of_mixers"


class Zoo(transformers.PreTrainedModel):  # type: ignore[misc]
    """One attention for each variant of each mixer."""

    config_class = ZooConfig

    def __init__(self, config: ZooConfig) -> None:
        super().__init__(config)
        self.layers = nn.ModuleList(
            nn.ModuleDict({"self_attn": nn.MultiheadAttention(DIM, NUM_HEADS, batch_first=True)})
            for _ in zoo()
        )
        self.post_init()

    @classmethod
    def is_custom_code(cls) -> bool:
        """Return False, as transformers classes do, so that their weights are renamed."""
        return False

    def _init_weights(self, module: nn.Module) -> None:
        pass


def whole_table() -> list[Any]:
    """List the transforms that the installed transformers has for any model."""
    conversion_mapping.get_checkpoint_conversion_mapping("bert")  # builds the table
    table = conversion_mapping._checkpoint_conversion_mapping_cache
    return [transform for name in table for transform in table[name]]


def test_no_pattern_of_transformers_matches_a_mixer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = Zoo(ZooConfig())
    layers = {
        f"layers.{index}.self_attn": {**asdict(settings), "adapter": "torch.nn"}
        for index, settings in enumerate(zoo())
    }
    apply_swap(model, {"format": "rifflemix.swap/1", "model": "Zoo", "layers": layers})
    names = {re.sub(r"\d+", "0", name, count=1) for name in model.state_dict() if ".mixer." in name}
    matching = [t for t in whole_table() if any(t.rename_source_key(name)[1] for name in names)]
    assert len(matching) > 10, "no pattern matches any mixer, so this test shows nothing"
    matching.append(WeightRenaming(r"\.proj\.", ".qkv."))  # from one name of a mixer to another
    table = {**conversion_mapping._checkpoint_conversion_mapping_cache, "zoo_of_mixers": matching}
    monkeypatch.setattr(conversion_mapping, "_checkpoint_conversion_mapping_cache", table)
    assert len(conversion_mapping.get_model_conversion_mapping(model)) > len(matching)
    expect_the_same(model, reloaded(model, tmp_path))


def reloaded(model: Any, folder: Path, **options: Any) -> Any:
    """Save and load a model without weights near their initial values."""
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.copy_(7.0 + number + torch.rand_like(parameter))
    model.save_pretrained(folder, **options)
    return type(model).from_pretrained(folder)


def expect_the_same(model: nn.Module, again: nn.Module) -> None:
    """Compare all tensors bit for bit, also constants that no file contains."""
    state, other = model.state_dict(), again.state_dict()
    assert list(other) == list(state)
    assert [name for name in state if not torch.equal(state[name], other[name])] == []
    buffers, others = dict(model.named_buffers()), dict(again.named_buffers())
    assert [name for name in buffers if not torch.equal(buffers[name], others[name])] == []


class NamedMixer(transformers.PreTrainedModel):  # type: ignore[misc]
    """Two layers that call their attention "mixer", as jina-embeddings-v3 does on the hub."""

    config_class = ZooConfig

    def __init__(self, config: ZooConfig) -> None:
        super().__init__(config)
        self.layers = nn.ModuleList(
            nn.ModuleDict({"mixer": nn.MultiheadAttention(DIM, NUM_HEADS, batch_first=True)})
            for _ in range(2)
        )
        self.post_init()


@pytest.mark.parametrize("layers", [[0], [1], "all"])
def test_attention_named_mixer_is_loaded(layers: Any, tmp_path: Path) -> None:
    model = NamedMixer(ZooConfig())
    rm.replace_attention(model, "mega", layers=layers, max_length=MAX_LENGTH)
    expect_the_same(model, reloaded(model, tmp_path))


IMAGES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "image_size": 8,
    "patch_size": 4,
}
TEXTS = {
    "vocab_size": 37,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 24,
}
SERIES = {
    "prediction_length": 3,
    "context_length": 6,
    "lags_sequence": [1, 2],
    "num_time_features": 1,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
}


def detector(kind: str) -> Any:
    backbone = transformers.RTDetrResNetConfig(
        embedding_size=8,
        hidden_sizes=[8] * 4,
        depths=[1] * 4,
        out_features=["stage2", "stage3", "stage4"],
        layer_type="basic",
    )
    config = getattr(transformers, f"{kind}Config")(
        backbone_config=backbone,
        encoder_hidden_dim=16,
        encoder_in_channels=[8] * 3,
        encoder_layers=1,
        encoder_ffn_dim=24,
        encoder_attention_heads=2,
        d_model=16,
        num_queries=5,
        decoder_in_channels=[16] * 3,
        decoder_layers=2,
        decoder_ffn_dim=24,
        decoder_attention_heads=2,
        num_denoising=0,
    )
    return getattr(transformers, f"{kind}ForObjectDetection")(config)


def captioner() -> Any:
    parts = transformers.ViTConfig(**IMAGES), transformers.BertConfig(**TEXTS)
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(*parts)
    return transformers.VisionEncoderDecoderModel(config)


def host(kind: str, **settings: Any) -> Any:
    """Build a model from a class name.

    Its config has the same name without the task.
    """
    name = kind.partition("For")[0]
    return getattr(transformers, kind)(getattr(transformers, f"{name}Config")(**settings))


HOSTS: dict[str, Any] = {
    "ViT": lambda: host("ViTForImageClassification", **IMAGES),
    "RT-DETR": lambda: detector("RTDetr"),
    "Nomic BERT": lambda: host("NomicBertForMaskedLM", **TEXTS),
    "jina-embeddings-v3": lambda: host("JinaEmbeddingsV3ForMaskedLM", **TEXTS),
    "DeiT": lambda: host("DeiTForImageClassification", **IMAGES),
    "ViT-MSN": lambda: host("ViTMSNForImageClassification", **IMAGES),
    "ViTMAE": lambda: host(
        "ViTMAEForPreTraining",
        **IMAGES,
        decoder_hidden_size=16,
        decoder_num_hidden_layers=1,
        decoder_num_attention_heads=2,
        decoder_intermediate_size=24,
    ),
    "I-JEPA": lambda: host("IJepaForImageClassification", **IMAGES),
    "AST": lambda: host(
        "ASTForAudioClassification",
        **{key: value for key, value in IMAGES.items() if key != "image_size"},
        max_length=16,
        num_mel_bins=8,
        frequency_stride=4,
        time_stride=4,
    ),
    "ViViT": lambda: host(
        "VivitForVideoClassification",
        **{key: value for key, value in IMAGES.items() if key != "patch_size"},
        num_frames=4,
        tubelet_size=[2, 4, 4],
    ),
    "VisionEncoderDecoder": captioner,
    "RT-DETR-v2": lambda: detector("RTDetrV2"),
    "D-FINE": lambda: detector("DFine"),
    "Informer": lambda: host("InformerForPrediction", **SERIES),
    "Autoformer": lambda: host("AutoformerForPrediction", **SERIES),
    "TimeSeriesTransformer": lambda: host("TimeSeriesTransformerForPrediction", **SERIES),
}
FAST = ("ViT", "RT-DETR", "Nomic BERT", "jina-embeddings-v3")
SOME_LAYERS = {"tssa": "all", "exp_smoothing": "all", "mega": [0], "mlp_mixer": [0]}


def cases() -> Iterator[object]:
    for name in HOSTS:
        for mixer in SOME_LAYERS:
            is_fast = name in FAST and mixer in ("exp_smoothing", "mega")
            yield pytest.param(name, mixer, marks=[] if is_fast else pytest.mark.slow)


@pytest.mark.parametrize(("name", "mixer"), list(cases()))
def test_model_with_renamed_weights_is_loaded(name: str, mixer: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = HOSTS[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about lost rotary positions
        limit = {"max_length": 24} if rm.mixer_card(mixer).needs_max_length else {}
        rm.replace_attention(model, mixer, layers=SOME_LAYERS[mixer], **limit)
    expect_the_same(model, reloaded(model, tmp_path, max_shard_size="8KB"))
