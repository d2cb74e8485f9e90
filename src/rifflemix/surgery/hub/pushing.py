"""Models and their cards on the Hugging Face hub."""

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
    """Upload what `save_pretrained` writes, and a card where the repository has none.

    The arguments are those of `PreTrainedModel.push_to_hub`.

    Args:
        model: has `save_pretrained` of transformers.
        repo_id: "name" or "organisation/name"; made where it is not there yet.
        card: the model card, Markdown with its metadata in front.
        commit_message: first line of the commit.
        commit_description: the rest of it.
        private: whether a new repository is private; unset, as the organisation has it.
        token: of the hub; unset, the one that is stored.
        revision: branch.
        create_pr: open a pull request instead.
        max_shard_size: bytes, or as "5GB": files of weights are split above it.
        tags: further tags of a new card.

    Returns:
        The address of the commit.
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
    """The card, with these among its tags."""
    more = "".join(f"\n- {tag}" for tag in tags if f"\n- {tag}\n" not in card)
    return card.replace("\ntags:", f"\ntags:{more}", 1)
