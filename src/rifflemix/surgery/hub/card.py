"""Model cards for the hub, and uploads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rifflemix.mixers import mixer_card
from rifflemix.models import model_card
from rifflemix.text import bullet_lines, code, markdown_text, table_lines
from rifflemix.version import VERSION

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
