"""Upload models and model cards to the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

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
