"""rifflemix models for the Auto classes of transformers: ToST, CSP, butterfly and all presets.

`AutoConfig.for_model("rifflemix", preset="tost_tiny_16")` selects a name of
`rifflemix.list_models()`. `AutoModelForImageClassification.from_config(config)` and similar classes
build the model. The attribute `model` contains the preset itself. To load official weights, call
`rm.models.load_official(built.model, state_dict)`.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import (
    BaseModelOutputWithPooling,
    CausalLMOutput,
    ImageClassifierOutput,
    SequenceClassifierOutput,
)
from transformers.utils import can_return_tuple

from rifflemix.errors import InputError, bad_argument
from rifflemix.mixers import TokenMixer
from rifflemix.models import Model, create_model, model_card, model_settings
from rifflemix.models.language.gpt import GPT
from rifflemix.models.sequence.classifier import SequenceClassifier
from rifflemix.surgery.hub.saving import card_of_preset, push
from rifflemix.surgery.masks import key_padding_mask
from rifflemix.surgery.wrappers import load_at_once

MODEL_TYPE = "rifflemix"


class RifflemixConfig(PreTrainedConfig):
    """Preset with changed settings.

    `num_labels` and `num_classes` are the same number. An explicit `num_labels` takes precedence.

    Args:
        preset: name in `rifflemix.list_models()`.
        settings: arguments of `rifflemix.create_model` as JSON values.

    Raises:
        InputError: the preset or a setting is unknown.
    """

    model_type = MODEL_TYPE
    preset: str = "encoder"
    settings: dict[str, Any] | None = None

    def __post_init__(self, **others: Any) -> None:
        known = model_settings(self.preset)
        self.settings = dict(self.settings or {})
        for name in self.settings:
            if name not in known:
                raise bad_argument(f"settings of {self.preset}", ", ".join(known), repr(name))
        if "num_classes" in known and self.id2label is None:
            others.setdefault("num_labels", self.settings.get("num_classes", known["num_classes"]))
        super().__post_init__(**others)


class RifflemixPreTrainedModel(PreTrainedModel):
    """Preset with the interface of a transformers model.

    Args:
        config: preset and settings.

    Raises:
        InputError: a setting is out of range, or the preset does not suit the task of the class.
    """

    config_class = RifflemixConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    kind: ClassVar[type[Model]] = Model
    inputs: ClassVar[str] = ""
    """Required input type, as in the card of the preset; empty for any type."""

    def __init__(self, config: RifflemixConfig) -> None:
        super().__init__(config)
        if "num_classes" in model_settings(config.preset):
            config.settings = {**(config.settings or {}), "num_classes": config.num_labels}
        self.model = self._build()
        if not isinstance(self.model, self.kind) or self.inputs not in _inputs(config):
            raise bad_argument(
                "preset",
                f"a {self.kind.__name__} of {self.inputs or 'images or tokens'} for "
                f"{type(self).__name__}",
                f"{config.preset}, a {type(self.model).__name__} of {_inputs(config)}",
            )
        self.post_init()
        self.register_forward_pre_hook(_load_offloaded_mixers)

    def _build(self) -> Model:
        return create_model(self.config.preset, **self.config.settings)

    def init_weights(self) -> None:
        """Do nothing: `create_model` already initialized the weights."""

    @torch.no_grad()
    def initialize_weights(self) -> None:
        """Initialize tensors that were missing in the file.

        Examples are a new head and constants.
        """
        tensors = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        missing = [n for n, t in tensors.items() if not getattr(t, "_is_hf_initialized", False)]
        if not missing:
            return
        fresh = self._build()
        drawn = {**dict(fresh.named_parameters()), **dict(fresh.named_buffers())}
        for name in missing:
            tensors[name].copy_(drawn[name])

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Upload the model and a card; see `rifflemix.surgery.hub.saving.push`."""
        return push(self, repo_id, card_of_preset(self), **options)


class RifflemixModel(RifflemixPreTrainedModel):
    """Model without a head: it returns the features before the classifier."""

    _keys_to_ignore_on_load_unexpected = (r"^model\.head\.",)

    def _build(self) -> Model:
        model = super()._build()
        if not isinstance(getattr(model, "head", None), nn.Module):
            raise InputError(
                f"preset: expected a model with a head for {type(self).__name__}, got "
                f"{self.config.preset}"
            )
        model.head = nn.Identity()
        return model

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        pixel_values: Tensor | None = None,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> BaseModelOutputWithPooling:
        """Compute features of images or token ids.

        `token_type_ids` are ignored, since the models have no segments.

        Args:
            pixel_values: (B, channels, height, width) images.
            input_ids: (B, N) token ids. Pass either images or ids.
            attention_mask: (B, N), 1 = token, 0 = padding.
            token_type_ids: ignored.

        Returns:
            Features (B, C) as `pooler_output`.
        """
        if (pixel_values is None) == (input_ids is None):
            raise bad_argument("pixel_values and input_ids", "one of them", "both or none")
        if input_ids is None:
            return BaseModelOutputWithPooling(pooler_output=self.model(pixel_values))
        vectors = self.model(input_ids, **_padding(input_ids, attention_mask))
        return BaseModelOutputWithPooling(pooler_output=vectors)


class RifflemixForImageClassification(RifflemixPreTrainedModel):
    """Image classification or regression: ViTs with any mixer, ToST, Dimension Mixer."""

    main_input_name = "pixel_values"
    inputs = "images"

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> ImageClassifierOutput:
        """Compute logits (B, num_labels), and the loss if labels are given.

        Args:
            pixel_values: (B, channels, height, width) images.
            labels: targets, or None.
        """
        logits = self.model(pixel_values)
        loss = None if labels is None else self.loss_function(labels, logits, self.config)
        return ImageClassifierOutput(loss=loss, logits=logits)


class RifflemixForSequenceClassification(RifflemixPreTrainedModel):
    """Sequence classification or regression: encoders with any mixer."""

    main_input_name = "input_ids"
    inputs = "tokens"
    kind = SequenceClassifier

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> SequenceClassifierOutput:
        """Compute logits (B, num_labels), and the loss if labels are given.

        Args:
            input_ids: (B, N) token ids.
            attention_mask: (B, N), 1 = token, 0 = padding.
            token_type_ids: ignored, since the models have no segments.
            labels: targets, or None.
        """
        logits = self.model(input_ids, **_padding(input_ids, attention_mask))
        loss = None if labels is None else self.loss_function(labels, logits, self.config)
        return SequenceClassifierOutput(loss=loss, logits=logits)


class RifflemixForCausalLM(RifflemixPreTrainedModel):
    """Causal language model. To generate text, call `model.generate` of the preset in `model`."""

    main_input_name = "input_ids"
    inputs = "tokens"
    kind = GPT

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> CausalLMOutput:
        """Compute logits (B, N, V), and the loss if labels are given.

        Args:
            input_ids: (B, N) token ids.
            attention_mask: (B, N), 1 = token, 0 = padding.
            labels: (B, N) targets, or None. The loss is the mean over labels other than -100.
        """
        logits = self.model(input_ids, **_padding(input_ids, attention_mask))
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, vocab_size=logits.shape[-1])
        return CausalLMOutput(loss=loss, logits=logits)


def register_models() -> None:
    """Register `model_type="rifflemix"` in the Auto classes."""
    AutoConfig.register(MODEL_TYPE, RifflemixConfig, exist_ok=True)
    for auto, cls in (
        (AutoModel, RifflemixModel),
        (AutoModelForCausalLM, RifflemixForCausalLM),
        (AutoModelForImageClassification, RifflemixForImageClassification),
        (AutoModelForSequenceClassification, RifflemixForSequenceClassification),
    ):
        auto.register(RifflemixConfig, cls, exist_ok=True)


def _load_offloaded_mixers(model: RifflemixPreTrainedModel, _: Any) -> None:
    if "_hf_hook" in vars(model):  # accelerate also hooks the whole model
        for module in model.modules():
            if isinstance(module, TokenMixer):
                load_at_once(module)


def _inputs(config: RifflemixConfig) -> str:
    return model_card(config.preset).inputs


def _padding(ids: Tensor, mask: Tensor | None) -> dict[str, Tensor | None]:
    batch, length = ids.shape
    return {"key_padding_mask": key_padding_mask(mask, batch=batch, length=length)}
