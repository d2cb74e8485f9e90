"""Trained text models of transformers for `rifflemix convert`, and batches of texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from rifflemix.checks import check_integer
from rifflemix.errors import InputError, bad_argument, require_packages
from rifflemix.files import CONFIG_FILE, read_json, read_text
from rifflemix.lab.conversion.report import ConversionReport
from rifflemix.lab.conversion.source import Source

_LEAST_VALIDATION, _MOST_VALIDATION = 1, 8  # batches
_IGNORED = -100


def is_of_transformers(folder: Path) -> bool:
    """Return whether a folder has the configuration of a model of transformers."""
    config = folder / CONFIG_FILE
    stored = read_json(config) if config.is_file() else None
    return isinstance(stored, dict) and "model_type" in stored


def text_source(
    folder: Path, data: Path, length: int, batch_size: int, lengths: Sequence[int], seed: int
) -> Source:
    """Load a model and its tokenizer from a folder that `save_pretrained` wrote, and its batches.

    Causal language models also learn the next token.

    Args:
        folder: the folder.
        data: text file; each line is a sample.
        length: number of tokens that longer texts are cut to.
        batch_size: texts per batch.
        lengths: numbers of tokens to measure time and memory at.
        seed: seed of the order of the texts.

    Raises:
        InputError: transformers is not installed, the folder has no such model, or a value is out
            of range.
    """
    check_integer("length", length, 2)
    check_integer("batch_size", batch_size, 1)
    texts = _read_texts(data)
    model, tokenizer, is_causal = _load(folder)
    order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(seed)).tolist()
    batches: list[Any] = []
    for start in range(0, len(order), batch_size):
        part = [texts[i] for i in order[start : start + batch_size]]
        encoded = tokenizer(
            part, truncation=True, max_length=length, padding=True, return_tensors="pt"
        )
        inputs = dict(encoded)
        ids, keep = inputs["input_ids"], inputs["attention_mask"].bool()
        batches.append((inputs, ids.masked_fill(~keep, _IGNORED)) if is_causal else inputs)
    train, validation = _held_out(batches)

    def write(report: ConversionReport, to: Path) -> None:
        report.model.save_pretrained(to)  # type: ignore[operator]
        tokenizer.save_pretrained(to)

    return Source(
        model,
        train,
        validation,
        write,
        loss=next_token_loss if is_causal else None,
        make_inputs=_random_inputs(int(model.config.vocab_size)),  # type: ignore[union-attr, arg-type]
        lengths=lengths,
    )


def _load(folder: Path) -> tuple[nn.Module, Any, bool]:
    """Return the model, its tokenizer, and whether it is a causal language model."""
    require_packages("a conversion", "hf", "transformers")
    import transformers

    for name in ("config.json", "tokenizer_config.json"):
        if not (folder / name).is_file():
            raise bad_argument(
                "MODEL",
                f"a run of softmax attention, or a folder of transformers with {name}",
                str(folder),
                "write the folder with save_pretrained of the model and of its tokenizer",
            )
    try:
        config = transformers.AutoConfig.from_pretrained(folder)
        names = getattr(config, "architectures", None) or ["AutoModel"]
        cls: Any = getattr(transformers, names[0], transformers.AutoModel)
        model = cls.from_pretrained(folder).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(f"MODEL: expected a model that transformers loads, got {reason}") from None
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model, tokenizer, names[0].endswith(("ForCausalLM", "LMHeadModel"))


def _random_inputs(size: int) -> Callable[[int], dict[str, Tensor]]:
    """Return a function: number of tokens -> one sequence of random tokens below `size`."""

    def make(length: int) -> dict[str, Tensor]:
        ids = torch.randint(size, (1, length), generator=torch.Generator().manual_seed(0))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    return make


def next_token_loss(outputs: Any, ids: Tensor) -> Tensor:
    """Return the cross-entropy of each token given the earlier tokens; -100 marks padding."""
    return functional.cross_entropy(
        outputs.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), ignore_index=_IGNORED
    )


def _read_texts(path: Path) -> list[str]:
    """Read the lines of a text file that are not empty.

    Raises:
        InputError: the file cannot be read, or has fewer than two texts.
    """
    texts = [line.strip() for line in read_text(path).splitlines() if line.strip()]
    if len(texts) < 2:
        raise bad_argument("--data", "a text file with at least two lines of text", str(path))
    return texts


def _held_out(batches: list[Any]) -> tuple[list[Any], list[Any]]:
    """Split batches into training and validation: a tenth, from 1 to 8 batches."""
    count = min(max(len(batches) // 10, _LEAST_VALIDATION), _MOST_VALIDATION)
    if len(batches) <= count:
        raise bad_argument("--data", "texts for at least two batches", "one batch",
                           "Lower --batch-size.")  # fmt: skip
    return batches[count:], batches[:count]
