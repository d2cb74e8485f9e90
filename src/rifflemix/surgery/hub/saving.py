"""Save and upload models with replaced attention by transformers and huggingface_hub, with cards.

Both libraries build a model from its config alone and load weights by name. Weights that are
missing from the file get random values. rifflemix therefore wraps `save_pretrained` of
`PreTrainedModel` and `ModelHubMixin`. Models without replaced attention are saved as before.

For replaced attention, the weights file also contains one tensor of a wrong shape per replaced
module, so that programs without rifflemix fail. transformers also gets the swap as the
`quantization_config` of the model, because it reads this entry before it loads weights.
`rifflemix.surgery.hub.swapped` loads the file. Models with the mixin must replace attention in
their own `__init__`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from rifflemix.errors import bad_argument
from rifflemix.mixers import mixer_card
from rifflemix.models import model_card
from rifflemix.surgery.description import check_unchanged, describe_swap
from rifflemix.surgery.swapped import SwappedAttention
from rifflemix.surgery.wrappers import without_wrappers
from rifflemix.text import bullet_lines, code, markdown_text, table_lines
from rifflemix.version import VERSION

METHOD = "rifflemix"
_CONFIG = "quantization_config"


def save_swaps() -> None:
    """Make the imported libraries save replaced attention in any part of a model."""
    for library, cls, method, save in (
        ("transformers.modeling_utils", "PreTrainedModel", "save_pretrained", _save),
        ("transformers.modeling_utils", "PreTrainedModel", "push_to_hub", _push),
        ("huggingface_hub.hub_mixin", "ModelHubMixin", "save_pretrained", _save_of_mixin),
    ):
        owner: Any = getattr(sys.modules.get(library), cls, None)
        if owner is not None and not hasattr(getattr(owner, method), "plain"):
            setattr(owner, method, _wrapped(getattr(owner, method), save))


SwappedAttention.on_unpickling.append(save_swaps)


def _wrapped(plain: Callable[..., Any], save: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(plain)
    def method(model: Any, *args: Any, **options: Any) -> Any:
        if isinstance(model, nn.Module) and swapped_in(model):
            return save(plain, model, *args, **options)
        return plain(model, *args, **options)

    method.plain = plain  # type: ignore[attr-defined]
    return method


def _save(
    plain: Callable[..., Any],
    model: Any,
    save_directory: Any,
    is_main_process: bool = True,
    state_dict: Mapping[str, Tensor] | None = None,
    **options: Any,
) -> Any:
    """Save a model of transformers with `save_original_format=False`.

    transformers would rename weights by patterns of the model type, and these patterns also match
    names inside mixers.

    Raises:
        InputError: a mixer has no registry name or was changed after the swap, for example by a
            parametrization. The weights are also quantized. `save_original_format` is True.
    """
    with without_wrappers(model):
        swap = describe_swap(model)
        if options.pop("push_to_hub", False):
            raise bad_argument("push_to_hub", "False", True, "call model.push_to_hub(repo_id)")
        if options.get("distributed_checkpoint"):
            raise bad_argument(
                "distributed_checkpoint", "False: transformers cannot load the swap from it", True
            )
        if options.setdefault("save_original_format", False):
            raise bad_argument(
                "save_original_format", "False: mixers are not part of that format", True
            )
        if _is_quantized(model.config):
            raise bad_argument(
                "model", "weights that are not quantized", "a swap and a quantization_config"
            )
        weights = dict(model.state_dict() if state_dict is None else state_dict)
        check_unchanged(weights, swap)
        weights.update({name: torch.zeros(1) for name in replaced_weights(model)})
        setattr(model.config, _CONFIG, {"quant_method": METHOD, "swap": swap})
        try:
            return plain(model, save_directory, is_main_process, weights, **options)
        finally:
            delattr(model.config, _CONFIG)


def _is_quantized(config: Any) -> bool:
    """Return whether a config describes quantized weights.

    A swap in the config belongs to the model that the config comes from, and does not count.
    """
    found = getattr(config, _CONFIG, None)
    if isinstance(found, Mapping):
        return found.get("quant_method") != METHOD
    return getattr(found, "quant_method", METHOD) != METHOD


def _push(plain: Callable[..., Any], model: Any, repo_id: str, **options: Any) -> str:
    """Upload a model with a card that describes the replacement."""
    return push(model, repo_id, card_of_swap(model, describe_swap(model)), **options)


def _save_of_mixin(plain: Callable[..., Any], model: Any, *args: Any, **options: Any) -> Any:
    """Save a model with the mixin, and the tensors that mark the swap."""
    saved: nn.Module = getattr(model, "module", model)  # same as in the mixin
    with saved.register_state_dict_post_hook(_mark):
        return plain(model, *args, **options)


def _mark(model: nn.Module, state: dict[str, Tensor], prefix: str, _: Any) -> None:
    state.update({prefix + name: torch.zeros(1) for name in replaced_weights(model)})


def swapped_in(model: nn.Module) -> dict[str, SwappedAttention]:
    """Return the replaced attention modules of a model by name."""
    return {n: m for n, m in model.named_modules() if isinstance(m, SwappedAttention)}


def replaced_weights(model: nn.Module) -> list[str]:
    """Return one weight name per replaced attention, preferably of a matrix."""
    found = []
    for name, module in swapped_in(model).items():
        weights = [(n, p.dim()) for n, p in module.original.named_parameters() if p.numel() != 1]
        matrices = [n for n, dim in weights if dim == 2] or [n for n, _ in weights]
        found += [f"{name}.{n}" for n in matrices[:1]]
    return found


_FRONT = """---
library_name: transformers
tags:
- rifflemix
{tags}{base}---

"""
_LOAD = """
## Load

```python
import rifflemix as rm
from transformers import {cls}

rm.register_hf()
model = {cls}.from_pretrained("{place}")
```

Without `pip install "rifflemix[hf]"` and `register_hf` loading fails: no weights are drawn at
random.
Written by rifflemix {version}. This card says what the model is, not how good it is: write down
here what it was trained on and what was measured.
"""
_REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w.-]+", re.ASCII)  # "owner/name" on the hub
_PLACE = "<this repository>"
_HEADERS = ("Layer", "Mixer", "Heads", "Causal", "Options")


def card_of_swap(model: Any, swap: Mapping[str, Any]) -> str:
    """Return the model card of a transformers model with replaced attention.

    Args:
        model: a `PreTrainedModel`.
        swap: description from `rifflemix.surgery.describe_swap`.
    """
    layers = swap["layers"]
    names = list(dict.fromkeys(layer["mixer"] for layer in layers.values()))
    origin = str(getattr(model.config, "_name_or_path", "") or "")
    base = f"base_model: {origin}\n" if _REPOSITORY.fullmatch(origin) else ""
    cls = type(model).__name__
    lines = [
        f"# {cls} with {markdown_text(' and '.join(mixer_card(name).title for name in names))}",
        "",
        f"The self-attention of {len(layers)} layers was replaced by a token mixer; all else is as "
        "the model had it. Number of parameters: "
        f"{sum(p.numel() for p in model.parameters()):,}.",
        "",
        *table_lines(_HEADERS, [_row(name, layer) for name, layer in layers.items()], range(2, 3)),
        "",
        *_sources(names),
    ]
    return _FRONT.format(tags=_tags(names), base=base) + "\n".join(lines) + _load(cls)


def card_of_preset(model: Any) -> str:
    """Return the model card of a rifflemix model.

    Args:
        model: a `rifflemix.surgery.hub.models.RifflemixPreTrainedModel`.
    """
    card, config = model_card(model.config.preset), model.config
    mixer = config.settings.get("mixer")
    settings = ", ".join(f"{name} = {value!r}" for name, value in config.settings.items())
    lines = [
        f"# {card.name}",
        "",
        markdown_text(f"{card.title} ({card.paper}).")
        + f" Number of parameters: {model.model.num_parameters():,}.",
        "",
        f"Settings that were chosen: {markdown_text(settings or 'none')}.",
        "",
    ]
    names = [mixer] if isinstance(mixer, str) else []
    front = _FRONT.format(tags=_tags(names), base="")
    return front + "\n".join([*lines, *_sources(names)]) + _load(type(model).__name__, own=True)


def _row(name: str, layer: Mapping[str, Any]) -> tuple[object, ...]:
    options = ", ".join(f"{key}={value!r}" for key, value in layer["options"].items())
    causal = "yes" if layer["causal"] else "no"
    return code(name), layer["mixer"], layer["num_heads"], causal, options


def _sources(names: list[str]) -> list[str]:
    cards = [mixer_card(name) for name in names]
    return bullet_lines(f"{card.title}: {card.paper}. Cost: {card.complexity}." for card in cards)


def _tags(names: list[str]) -> str:
    return "".join(f"- {name}\n" for name in names)


def _load(cls: str, *, own: bool = False) -> str:
    name = cls.replace("Rifflemix", "AutoModel") if own else cls
    name = "AutoModel" if name == "AutoModelModel" else name
    return "\n" + _LOAD.format(cls=name, place=_PLACE, version=VERSION)


CARD = "README.md"


def push(
    model: Any,
    repo_id: str,
    card: str,
    *,
    commit_message: str = "Upload model",
    commit_description: str | None = None,
    private: bool | None = None,
    token: bool | str | None = None,
    revision: str | None = None,
    create_pr: bool = False,
    max_shard_size: int | str = "50GB",
    tags: list[str] | None = None,
) -> str:
    """Upload a model, and a model card if the repository has none.

    The arguments are the same as in `PreTrainedModel.push_to_hub`.

    Args:
        model: model with `save_pretrained` of transformers.
        repo_id: "name" or "organization/name". The repository is created if it does not exist.
        card: model card in Markdown, starting with the metadata.
        commit_message: first line of the commit message.
        commit_description: body of the commit message.
        private: whether a new repository is private. Default: the setting of the organization.
        token: token of the hub. Default: the stored token.
        revision: branch.
        create_pr: whether to open a pull request instead of a commit.
        max_shard_size: maximum size of a weights file, in bytes or as "5GB".
        tags: additional tags of a new card.

    Returns:
        URL of the commit.
    """
    from huggingface_hub import HfApi

    hub = HfApi(token=token)
    repository = hub.create_repo(repo_id, private=private, exist_ok=True).repo_id
    with TemporaryDirectory() as folder:
        model.save_pretrained(folder, max_shard_size=max_shard_size)
        if not hub.file_exists(repository, CARD, revision=revision):
            Path(folder, CARD).write_text(with_tags(card, tags or []), encoding="utf-8")
        found = hub.upload_folder(
            repo_id=repository,
            folder_path=folder,
            commit_message=commit_message,
            commit_description=commit_description,
            revision=revision,
            create_pr=create_pr,
        )
    return str(found)


def with_tags(card: str, tags: list[str]) -> str:
    """Add tags to a model card."""
    more = "".join(f"\n- {tag}" for tag in tags if f"\n- {tag}\n" not in card)
    return card.replace("\ntags:", f"\ntags:{more}", 1)
