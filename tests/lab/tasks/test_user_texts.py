"""Tokenizers and truncation of user texts."""

import numpy as np
import pytest

import rifflemix as rm
from rifflemix.errors import InputError, InputWarning
from rifflemix.lab.tasks.core.arrays import cut

pytest.importorskip("tokenizers", reason="needs tokenizers")

# Rare words are unknown, and then some texts are equal.
pytestmark = pytest.mark.filterwarnings("ignore:.*an earlier split:rifflemix.errors.InputWarning")

TEXTS = [f"{word} film, number {n}!" for n in range(20) for word in ("great", "dull")]
LABELS = ["good", "bad"] * 20
SPLIT = {"train": range(24), "validation": range(24, 32), "test": range(32, 40)}


def from_texts(texts=TEXTS, **options):
    return rm.Task.from_arrays(texts, LABELS, split=SPLIT, **options)


def encoder_of(task):
    return task.inputs.encoder


def test_words_are_learned_from_the_training_split_only():
    texts = [*TEXTS[:24], *(f"unseen {text}" for text in TEXTS[24:])]
    words = encoder_of(from_texts(texts, tokenizer="words")).words
    assert "great" in words
    assert "unseen" not in words
    task = from_texts(texts, tokenizer="words")
    ids, _ = task.split("test")[0]
    assert ids[0] == 1  # unknown
    assert task.vocab_size == len(words) + 2


def test_words_can_be_limited_to_the_most_frequent_ones():
    assert from_texts(tokenizer="words:8").vocab_size == 8


def test_byte_pairs_shorten_texts_and_encode_every_text():
    pairs, plain = from_texts(tokenizer="bpe:300"), from_texts()
    assert pairs.vocab_size <= 300
    assert pairs.max_length < plain.max_length
    encoder = encoder_of(pairs)
    assert len(encoder.ids("never seen: \N{SNOWMAN}")) > 3


def test_tokenizer_files_of_all_kinds_are_used_unchanged(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {"[UNK]": 0, "great": 1, "dull": 2, "film": 3, "fi": 4, "##lm": 5}
    own = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    own.pre_tokenizer = pre_tokenizers.Whitespace()
    own.enable_truncation(2)
    own.save(str(tmp_path / "own.json"))
    task = from_texts(tokenizer=str(tmp_path / "own.json"))
    assert encoder_of(task).ids("dull film x").tolist() == [3, 4, 1]  # 0 is padding
    assert task.vocab_size == 7
    assert task.options["tokenizer"] == "own.json"


@pytest.mark.parametrize(
    "tokenizer", ["letters", "bpe", "bpe:100", "words:2", "", 7, "no/such/file.json"]
)
def test_unusable_tokenizers_are_refused(tokenizer):
    with pytest.raises(InputError, match=r"^tokenizer: "):
        from_texts(tokenizer=tokenizer)


def test_files_that_are_not_tokenizers_are_refused(tmp_path):
    (tmp_path / "table.json").write_text('{"a": 1}')
    with pytest.raises(InputError, match=r"^tokenizer: "):
        from_texts(tokenizer=str(tmp_path / "table.json"))


def test_a_tokenizer_needs_texts():
    with pytest.raises(InputError, match=r"^tokenizer: "):
        rm.Task.from_arrays(np.ones((40, 3), dtype=int), LABELS, tokenizer="words")


@pytest.mark.parametrize(
    ("truncate", "kept"), [("head", "0123"), ("tail", "6789"), ("both", "0189")]
)
def test_the_chosen_part_of_a_long_text_is_kept(truncate, kept):
    texts = [f"0123456789{n:02}"[:10] if n else "ab" for n in range(40)]
    with pytest.warns(InputWarning, match="39 of 40 texts"):
        task = from_texts(texts, max_length=4, truncate=truncate)
    ids, _ = task.split("train")[1]
    assert bytes((ids - 1).tolist()).decode() == kept
    assert "39 of 40 texts" in task.split_note
    (encoded,) = task.inputs.encode(["0123456789"])
    assert encoded.equal(ids)


def test_odd_length_keeps_one_more_token_of_the_start():
    assert cut(np.arange(9), 5, "both").tolist() == [0, 1, 2, 7, 8]
    assert cut(np.arange(9), 1, "both").tolist() == [0]


def test_truncation_of_sequences_is_equal_for_rows_and_lists():
    rows = np.arange(400).reshape(40, 10)
    with pytest.warns(InputWarning, match="40 of 40 samples"):
        one = rm.Task.from_arrays(rows, LABELS, split=SPLIT, max_length=4, truncate="tail")
    with pytest.warns(InputWarning, match="40 of 40 samples"):
        other = rm.Task.from_arrays(
            [*rows[:-1], rows[-1, :9]], LABELS, split=SPLIT, max_length=4, truncate="tail"
        )
    assert one.split("train")[3][0].tolist() == [36, 37, 38, 39]
    assert one.split("train")[3][0].equal(other.split("train")[3][0])


def test_a_run_keeps_its_tokenizer(tmp_path):
    task = from_texts(tokenizer="bpe:280")
    rm.compare(task, ["tssa"], out=tmp_path / "run", max_steps=2, dim=8, num_layers=1, threads=1)
    run = rm.load_run(tmp_path / "run")
    assert run.inputs == task.inputs
    assert run.predict(["a great film", "\N{SNOWMAN}"]).shape == (2,)


TOKENIZERS = ("bytes", "words", "words:12", "bpe:300")


@pytest.mark.parametrize(
    ("tokenizer", "text", "token"),
    [
        ("bytes", "great fi[MASK]m, number", "l"),
        ("words", "great [MASK] number", "film,"),
        ("words:12", "great [MASK] number", "film,"),
        ("bpe:300", "great [MASK], number", " film"),
    ],
)
def test_masked_texts_are_filled_in_with_tokens(tokenizer, text, token):
    task = rm.Task.from_arrays(TEXTS, kind="masked_token", split=SPLIT, tokenizer=tokenizer)
    spec = task.inputs
    (ids,), (new,) = spec.encode([text]), spec.encode([token])
    assert ids.tolist().count(task.mask_id) == len(new) == 1
    assert spec.fill(ids.tolist(), [int(new[0])] * len(ids)) == "great film, number"
    assert task.num_classes == task.mask_id == task.vocab_size - 1


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_pairs_of_texts_have_one_vocabulary_of_the_training_split(tokenizer):
    targets = [text.upper() for text in TEXTS]
    targets[-1] = "UNSEEN TEXT"  # in the test split
    task = rm.Task.from_arrays(TEXTS, targets, kind="seq2seq", split=SPLIT, tokenizer=tokenizer)
    inputs, labels = task.split("train")[1]
    assert (inputs[-1], labels[-1]) == (1, 1)  # the end
    assert (task.inputs.encode(TEXTS[1:2])[0] == inputs).all()
    assert max(labels.max(), inputs.max()) < task.vocab_size
    assert task.max_length <= 1 + max(map(len, targets))
    if tokenizer != "words:12":
        assert task.inputs.decode(labels.tolist()) == targets[1]
    unseen = task.inputs.decode(task.split("test")[-1][1].tolist())
    assert unseen == ("<unk> <unk>" if tokenizer.startswith("words") else "UNSEEN TEXT")


WORDS = [text.split() for text in TEXTS]
TAGS = [["A", "N", "N", "D"]] * 40


@pytest.mark.parametrize("tokenizer", ["words", "words:7", "bpe:280", "file"])
def test_labels_of_words_are_labels_of_their_first_token(tokenizer, tmp_path):
    if tokenizer == "file":
        tokenizer = save_byte_pairs(tmp_path / "own.json")
    task = rm.Task.from_arrays(WORDS, TAGS, kind="tokens", split=SPLIT, tokenizer=tokenizer)
    ids, labels = task.split("train")[0]
    assert labels[labels != -100].tolist() == [0, 2, 2, 1]
    assert task.inputs.picked(ids).equal(labels != -100)
    assert task.inputs.encode([TEXTS[0]])[0].equal(ids)
    assert (len(ids) > 4) == (not tokenizer.startswith("words"))
    if tokenizer == "words:7":
        assert task.vocab_size == 7


def save_byte_pairs(path):
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

    own = Tokenizer(models.BPE())
    own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    names = ["<s>", "</s>"]
    own.train_from_iterator(
        TEXTS,
        trainers.BpeTrainer(vocab_size=290, initial_alphabet=alphabet, special_tokens=names),
    )
    own.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    own.save(str(path))
    return str(path)


def test_texts_that_a_model_writes_have_no_special_tokens(tmp_path):
    file = save_byte_pairs(tmp_path / "own.json")
    task = rm.Task.from_arrays(TEXTS, kind="next_token", split=SPLIT, tokenizer=file)
    inputs, labels = task.split("train")[0]
    assert min(inputs.min(), labels.min()) > 1
    assert task.inputs.decode([*inputs.tolist(), int(labels[-1])]) == TEXTS[0]


@pytest.mark.parametrize("kind", ["tokens", "next_token", "masked_token", "seq2seq"])
def test_kinds_that_decode_need_byte_pairs_in_a_file(kind, tmp_path):
    from tokenizers import Tokenizer, models

    Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]")).save(str(tmp_path / "own.json"))
    y = {"tokens": TAGS, "seq2seq": TEXTS}.get(kind)
    with pytest.raises(InputError, match=r"^tokenizer: .*WordPiece"):
        rm.Task.from_arrays(TEXTS, y, kind=kind, tokenizer=str(tmp_path / "own.json"))


@pytest.mark.parametrize("kind", ["tokens", "next_token", "masked_token", "seq2seq"])
def test_integers_have_no_tokenizer(kind):
    rows = np.arange(160).reshape(40, 4) % 5
    y = {"tokens": rows, "seq2seq": rows}.get(kind)
    with pytest.raises(InputError, match=r"^tokenizer: "):
        rm.Task.from_arrays(rows, y, kind=kind, tokenizer="words")


def test_long_texts_of_words_are_refused_instead_of_cut():
    with pytest.raises(InputError, match=r"^max_length: .*40 longer than 3"):
        rm.Task.from_arrays(WORDS, TAGS, kind="tokens", split=SPLIT, max_length=3)
    with pytest.raises(InputError, match=r"^truncate: "):
        rm.Task.from_arrays(WORDS, TAGS, kind="tokens", split=SPLIT, truncate="tail")


@pytest.mark.parametrize("truncate", ["head", "tail", "both"])
def test_long_pairs_are_cut_and_reported(truncate):
    sources = [f"{n:02} {'x' * (n % 4)}" for n in range(40)]
    targets = [text[:2] + "y" * (text == sources[7]) * 9 for text in sources]
    with pytest.warns(InputWarning, match=r"20 of 40.* 1 of 40"):
        task = rm.Task.from_arrays(
            sources, targets, kind="seq2seq", split=SPLIT, max_length=4, truncate=truncate
        )
    assert "longer than max_length (4)" in task.split_note
    kept = {"head": "03 x", "tail": " xxx", "both": "03xx"}[truncate]
    source, _ = task.split("train")[3]
    assert task.inputs.decode(source.tolist()) == kept
    assert task.inputs.encode([sources[3]])[0].equal(source)


@pytest.mark.parametrize("kind", ["next_token", "masked_token", "seq2seq"])
def test_texts_in_two_splits_are_reported(kind):
    texts = [*TEXTS[:-1], TEXTS[0]]
    y = texts if kind == "seq2seq" else None
    with pytest.warns(InputWarning, match="1 of test"):
        task = rm.Task.from_arrays(texts, y, kind=kind, split=SPLIT)
    assert "1 of test" in task.split_note


def test_words_of_lists_contain_no_spaces():
    with pytest.raises(InputError, match=r"^x: .*sample 1"):
        rm.Task.from_arrays([["a", "b"], ["New York", "b"]] * 20, [["A", "B"]] * 40, kind="tokens")


def test_predictions_of_subwords_have_one_class_per_word(tmp_path):
    task = rm.Task.from_arrays(WORDS, TAGS, kind="tokens", split=SPLIT, tokenizer="bpe:270")
    rm.compare(task, ["tssa"], out=tmp_path / "run", max_steps=2, dim=8, num_layers=1, threads=1)
    run = rm.load_run(tmp_path / "run")
    assert [len(row) for row in run.predict(["a great film", "unheard"])] == [3, 1]
    assert [row.shape for row in run.predict_proba(["a great film"])] == [(3, 3)]
