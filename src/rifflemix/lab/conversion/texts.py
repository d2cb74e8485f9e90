"""Trained text models of transformers, and batches of a text file."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from rifflemix.checks import check_integer
from rifflemix.errors import InputError, bad_argument, require_packages
from rifflemix.files import read_text, write_json
from rifflemix.lab.conversion.outputs import TaskLoss
from rifflemix.lab.conversion.report import ConversionReport

_LEAST_VALIDATION, _MOST_VALIDATION = 1, 8  # batches
_IGNORED = -100


@dataclass(frozen=True)
class TextModel:
    """Trained model and its tokenizer.

    Attributes:
        model: model of transformers, in evaluation mode.
        tokenizer: its tokenizer.
        loss: next-token loss of causal language models; None for other models.
    """

    model: nn.Module
    tokenizer: Any
    loss: TaskLoss | None

    def batches(self, texts: list[str], length: int, size: int, seed: int) -> list[Any]:
        """Return shuffled batches of at most `length` tokens, as `convert` expects them."""
        check_integer("length", length, 2)
        check_integer("batch_size", size, 1)
        order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(seed)).tolist()
        found: list[Any] = []
        for start in range(0, len(order), size):
            part = [texts[i] for i in order[start : start + size]]
            encoded = self.tokenizer(
                part, truncation=True, max_length=length, padding=True, return_tensors="pt"
            )
            inputs = dict(encoded)
            if self.loss is None:
                found.append(inputs)
            else:
                ids, keep = inputs["input_ids"], inputs["attention_mask"].bool()
                found.append((inputs, ids.masked_fill(~keep, _IGNORED)))
        return found

    def random_inputs(self) -> Callable[[int], dict[str, Tensor]]:
        """Return a function: number of tokens -> one sequence of random tokens."""
        size = int(self.model.config.vocab_size)  # type: ignore[union-attr, arg-type]

        def make(length: int) -> dict[str, Tensor]:
            ids = torch.randint(size, (1, length), generator=torch.Generator().manual_seed(0))
            return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

        return make

    def save(self, report: ConversionReport, out: Path) -> Path:
        """Write report.json and the converted model to the folder `model`, all files at once."""
        write_json(out / "report.json", report.to_dict())
        written, folder = out / ".model", out / "model"
        shutil.rmtree(written, ignore_errors=True)
        report.model.save_pretrained(written)  # type: ignore[operator]
        self.tokenizer.save_pretrained(written)
        shutil.rmtree(folder, ignore_errors=True)
        written.rename(folder)
        return folder


def load_text_model(folder: Path) -> TextModel:
    """Load a model and its tokenizer from a folder that `save_pretrained` wrote.

    Raises:
        InputError: transformers is not installed, or the folder has no such model.
    """
    require_packages("a conversion", "hf", "transformers")
    import transformers

    for name in ("config.json", "tokenizer_config.json"):
        if not (folder / name).is_file():
            raise bad_argument(
                "MODEL", f"a folder of transformers with {name}", str(folder),
                "Write it with save_pretrained of the model and of its tokenizer.",
            )  # fmt: skip
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
    is_causal = names[0].endswith(("ForCausalLM", "LMHeadModel"))
    return TextModel(model, tokenizer, next_token_loss if is_causal else None)


def next_token_loss(outputs: Any, ids: Tensor) -> Tensor:
    """Return the cross-entropy of each token given the earlier tokens; -100 marks padding."""
    return functional.cross_entropy(
        outputs.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), ignore_index=_IGNORED
    )


def read_texts(path: Path) -> list[str]:
    """Read the lines of a text file that are not empty.

    Raises:
        InputError: the file cannot be read, or has fewer than two texts.
    """
    texts = [line.strip() for line in read_text(path).splitlines() if line.strip()]
    if len(texts) < 2:
        raise bad_argument("--data", "a text file with at least two lines of text", str(path))
    return texts


def held_out(batches: list[Any]) -> tuple[list[Any], list[Any]]:
    """Split batches into training and validation: a tenth, from 1 to 8 batches."""
    count = min(max(len(batches) // 10, _LEAST_VALIDATION), _MOST_VALIDATION)
    if len(batches) <= count:
        raise bad_argument("--data", "texts for at least two batches", "one batch",
                           "Lower --batch-size.")  # fmt: skip
    return batches[count:], batches[:count]
