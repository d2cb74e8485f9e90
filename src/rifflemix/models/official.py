"""Load weights that a paper's official code trained, under the key names of that code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from rifflemix.checks import check_bool
from rifflemix.errors import InputError, bad_argument

# Prefixes that distributed training and torch.compile add to every key.
_WRAPPERS = ("module.", "_orig_mod.")
_SHOWN = 4


@dataclass(frozen=True)
class OfficialTensor:
    """Map from a tensor of a paper's official code to a tensor of a rifflemix model.

    A model with official code has a method `official_tensors()`. The method returns a dict from the
    official keys to `OfficialTensor`s. It raises InputError if the official code does not support
    the settings of the model.

    Attributes:
        name: key of the rifflemix tensor in `state_dict()`, or None to ignore the official tensor.
            Two official keys may share a name (tied weights); their values must then agree.
        shape: shape in the official code if it differs from the rifflemix tensor.
        required: whether the official key must be present.
        part: function that selects the part of the rifflemix tensor that receives the official
            values, as a view. None selects the whole tensor. Fused projections and transposed
            matrices need such a part.

    Example:
        >>> import rifflemix as rm
        >>> model = rm.create_model("tost_tiny_16", dim=16, num_layers=1, image_size=32)
        >>> official = model.official_tensors()["blocks.0.attn.temp"]
        >>> official.name, official.shape
        ('blocks.0.mixer.temperature', (4, 1))
    """

    name: str | None
    shape: tuple[int, ...] | None = None
    required: bool = True
    part: Callable[[Tensor], Tensor] | None = None

    def position(self, tensor: Tensor) -> Tensor:
        """Select the part of a rifflemix tensor that receives the official values.

        Args:
            tensor: the rifflemix tensor.

        Returns:
            A view of the part, or the tensor itself if `part` is None.
        """
        return tensor if self.part is None else self.part(tensor)


M = TypeVar("M", bound=nn.Module)
_HEAD = "head."


def load_official(model: M, state_dict: Mapping[str, Tensor], *, head: bool = True) -> M:
    """Load weights from a paper's official code into `model`.

    Model and weights must have the same sizes. All checks run before any weight is written: an
    error leaves the model unchanged. Tensors are converted to the dtype and device of the model.

    Args:
        model: a model of a family that has official code (see `OfficialTensor`).
        state_dict: tensors under the keys of the official code. A prefix "module." (distributed
            training) or "_orig_mod." (torch.compile) of all keys is removed.
        head: load the classification head too. False keeps the model's current head, for example
            to fine-tune on another data set. The weights may then have any number of classes, or
            no head.

    Returns:
        The model.

    Raises:
        InputError: the model has no official code, `head` is False for a model without a head, or
            keys are missing, unexpected or of another shape.

    Source: the released code of Wu et al. 2024 (ToST), vision and language, and of Sapkota and
    Bhattarai 2025 (Dimension Mixer).

    Example:
        >>> import rifflemix as rm
        >>> model = rm.create_model("mlp_mixer_c1_l7", num_layers=1)
        >>> weights = model.state_dict()
        >>> official = {key: weights[ours.name] for key, ours in model.official_tensors().items()}
        >>> rm.models.load_official(model, official) is model
        True
    """
    layout = _layout(model)
    given = _without_wrappers(_checked(state_dict))
    if not check_bool("head", head):
        layout, given = _without_head(model, layout, given)
    own = model.state_dict()
    _check_keys(given, layout)
    _check_shapes(given, layout, own)
    _check_ties(given, layout)
    if any(tensor.is_meta for tensor in own.values()):
        raise bad_argument("model", "allocated weights", "a model on the meta device")
    with torch.no_grad():
        for key, tensor in given.items():
            entry = layout[key]
            if entry.name is not None:
                position = entry.position(own[entry.name])
                position.copy_(tensor.reshape(position.shape))
    return model


def _layout(model: nn.Module) -> dict[str, OfficialTensor]:
    describe = getattr(model, "official_tensors", None)
    if describe is None:
        raise bad_argument("model", "one of a family that has official code", type(model).__name__)
    return describe()


def _without_head(
    model: nn.Module, layout: Mapping[str, OfficialTensor], given: Mapping[str, Tensor]
) -> tuple[dict[str, OfficialTensor], dict[str, Tensor]]:
    """Remove the tensors of the classification head from both mappings."""
    dropped = {key for key, entry in layout.items() if (entry.name or "").startswith(_HEAD)}
    if not dropped:
        got = f"head=False for {type(model).__name__}, a model without a head"
        raise bad_argument("head", "True", got)
    return (
        {key: entry for key, entry in layout.items() if key not in dropped},
        {key: tensor for key, tensor in given.items() if key not in dropped},
    )


def _checked(state_dict: Any) -> dict[str, Tensor]:
    expected = "a mapping from names to tensors"
    if not isinstance(state_dict, Mapping):
        raise bad_argument("state_dict", expected, type(state_dict).__name__)
    for key, value in state_dict.items():
        if isinstance(value, Tensor) and isinstance(key, str):
            continue
        hint = f"pass state_dict[{key!r}]" if isinstance(value, Mapping) else ""
        raise bad_argument("state_dict", expected, f"{type(value).__name__} at {key!r}", hint)
    for key, tensor in state_dict.items():
        is_real = not (tensor.is_complex() or tensor.is_quantized)
        if tensor.is_meta or not is_real or tensor.layout is not torch.strided:
            got = f"{tensor.layout} {tensor.dtype} on {tensor.device} at {key!r}"
            raise bad_argument("state_dict", "dense tensors of real numbers in memory", got)
    return dict(state_dict)


def _without_wrappers(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    wrapper = next((w for w in _WRAPPERS if tensors and all(k.startswith(w) for k in tensors)), "")
    if not wrapper:
        return tensors
    return _without_wrappers({key.removeprefix(wrapper): t for key, t in tensors.items()})


def _check_keys(given: Mapping[str, Tensor], layout: Mapping[str, OfficialTensor]) -> None:
    missing = [key for key, entry in layout.items() if entry.required and key not in given]
    unexpected = [key for key in given if key not in layout]
    faults = []
    if missing:
        faults.append(f"{len(missing)} missing ({_some(missing)})")
    if unexpected:
        faults.append(f"{len(unexpected)} unexpected ({_some(unexpected)})")
    if faults:
        raise bad_argument(
            "state_dict",
            "the keys of this model in its official code",
            " and ".join(faults),
            "build the model with the sizes and options it was trained with",
        )


def _check_shapes(
    given: Mapping[str, Tensor], layout: Mapping[str, OfficialTensor], own: Mapping[str, Tensor]
) -> None:
    faults, only_head = [], True
    for key, tensor in given.items():
        entry = layout[key]
        if entry.name is None:
            continue
        expected = entry.shape or tuple(entry.position(own[entry.name]).shape)
        if tuple(tensor.shape) != expected:
            faults.append(f"{key} of shape {tuple(tensor.shape)} instead of {expected}")
            only_head = only_head and entry.name.startswith(_HEAD)
    if faults:
        hint = "build the model with the sizes and options it was trained with"
        if only_head:
            hint = "pass head=False for another number of classes: the model keeps its own head"
        raise bad_argument("state_dict", "tensors of this model's shapes", _some(faults), hint)


def _check_ties(given: Mapping[str, Tensor], layout: Mapping[str, OfficialTensor]) -> None:
    first_key: dict[str, str] = {}
    for key, tensor in given.items():
        name = layout[key].name
        if name is None or layout[key].part is not None:
            continue
        first = first_key.setdefault(name, key)
        if first != key and not torch.equal(given[first], tensor):
            raise InputError(
                f"state_dict: expected {first} and {key} to be equal, since this model ties them"
            )


def _some(names: Iterable[str]) -> str:
    names = list(names)
    shown = ", ".join(names[:_SHOWN])
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown
