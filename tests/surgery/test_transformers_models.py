"""rifflemix models in transformers: Auto classes, folders, pipelines, Trainer, the hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_transformers import build, transformers
from torch import Tensor

import rifflemix as rm

rm.register_hf()
_IMAGE = {"image_size": 8, "dim": 16, "num_layers": 2, "num_heads": 2}
IMAGES: dict[str, tuple[str, dict[str, Any]]] = {
    "csp": ("vit_cifar10", {**_IMAGE, "patch_size": 4, "mixer": "csp"}),
    "performer": ("vit_cifar10", {**_IMAGE, "patch_size": 4, "mixer": "performer"}),
    "tost": ("tost_tiny_16", {**_IMAGE, "patch_size": 4, "num_classes": 10}),
    "butterfly": ("dimmixer_vit_cifar10_p4_l4", {**_IMAGE, "patch_size": 2}),
}
TOKENS = {"vocab_size": 11, "dim": 16, "num_layers": 2, "num_heads": 2, "max_length": 12}


def config_of(preset: str, settings: dict[str, Any], **others: Any) -> Any:
    return transformers.AutoConfig.for_model(
        "rifflemix", preset=preset, settings=settings, **others
    )


def image_model(name: str, **others: Any) -> Any:
    torch.manual_seed(3)
    auto = transformers.AutoModelForImageClassification
    return auto.from_config(config_of(*IMAGES[name], **others)).eval()


def text_model(mixer: str = "tssa", positions: str = "learned", **others: Any) -> Any:
    torch.manual_seed(3)
    settings = {**TOKENS, "mixer": mixer, "num_classes": 3, "positions": positions}
    config = config_of("encoder", settings, **others)
    return transformers.AutoModelForSequenceClassification.from_config(config).eval()


def pixels(seed: int = 0, batch: int = 2) -> Tensor:
    return torch.randn(batch, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


IDS = torch.tensor([[3, 4, 5, 6], [7, 8, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])


@pytest.mark.parametrize("name", IMAGES)
def test_image_models_are_loaded_from_a_folder(name: str, tmp_path: Path) -> None:
    model = image_model(name)
    expected = model(pixels()).logits
    assert expected.shape == (2, 10)
    assert torch.equal(expected, model.model(pixels()))
    model.save_pretrained(tmp_path)
    again = transformers.AutoModelForImageClassification.from_pretrained(tmp_path)
    assert type(again) is type(model)
    assert not again.training
    assert torch.equal(again(pixels()).logits, expected)
    vectors = transformers.AutoModel.from_pretrained(tmp_path)(pixel_values=pixels()).pooler_output
    torch.testing.assert_close(model.model.head(vectors), expected)


@pytest.mark.parametrize(
    ("mixer", "positions"),
    [("tssa", "learned"), ("csp", "sinusoid"), ("softmax", "none"), ("cosformer", "learned")],
)
def test_text_models_are_loaded_from_a_folder(mixer: str, positions: str, tmp_path: Path) -> None:
    model = text_model(mixer, positions)
    found = model(IDS, attention_mask=MASK).logits
    torch.testing.assert_close(found, model.model(IDS, key_padding_mask=MASK == 0))
    torch.testing.assert_close(found[1:], model(IDS[1:, :2]).logits)
    model.save_pretrained(tmp_path)
    again = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert torch.equal(again(IDS, attention_mask=MASK).logits, found)
    vectors = transformers.AutoModel.from_pretrained(tmp_path)(input_ids=IDS, attention_mask=MASK)
    torch.testing.assert_close(model.model.head(vectors.pooler_output), found)


def test_language_model_is_loaded_from_a_folder(tmp_path: Path) -> None:
    torch.manual_seed(3)
    config = config_of("gpt", {**TOKENS, "mixer": "tssa"})
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    out = model(IDS, attention_mask=MASK, labels=torch.where(MASK == 1, IDS, -100))
    assert out.logits.shape == (2, 4, 11)
    logits = model.model(IDS, key_padding_mask=MASK == 0)
    kept = torch.cat((logits[0, :3], logits[1, :1])), torch.cat((IDS[0, 1:], IDS[1, 1:2]))
    torch.testing.assert_close(out.loss, torch.nn.functional.cross_entropy(*kept))
    model.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(again.model.generate(IDS[:1], 6, temperature=0)[:, :4], IDS[:1])
    assert torch.equal(again(IDS).logits, model(IDS).logits)


def test_dtype_and_checkpointing_follow_transformers(tmp_path: Path) -> None:
    model = image_model("tost").train()
    model.save_pretrained(tmp_path)
    auto = transformers.AutoModelForImageClassification
    half = auto.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}
    assert half(pixels().bfloat16()).logits.dtype == torch.bfloat16
    model(pixels()).logits.square().sum().backward()
    grads = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    model.activation_checkpointing_enable()
    assert model.model.gradient_checkpointing
    model(pixels()).logits.square().sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, grads[name])


@pytest.mark.parametrize("labels", [2, 4])
def test_changed_number_of_labels_gives_a_new_head(labels: int, tmp_path: Path) -> None:
    model = image_model("csp")
    assert model.config.num_labels == 10
    model.save_pretrained(tmp_path / "ten")
    auto = transformers.AutoModelForImageClassification
    other = auto.from_pretrained(tmp_path / "ten", num_labels=labels, ignore_mismatched_sizes=True)
    assert other.model.head.weight.shape == (labels, 16)
    assert other.model.head.weight.isfinite().all()
    assert 0 < other.model.head.weight.abs().max() < 1
    for name, value in model.model.state_dict().items():
        assert name.startswith("head.") or torch.equal(other.model.state_dict()[name], value)
    other.save_pretrained(tmp_path / "other")
    again = auto.from_pretrained(tmp_path / "other")
    assert torch.equal(again(pixels()).logits, other(pixels()).logits)


def test_labels_by_name_and_one_number() -> None:
    names = {0: "a cat", 1: "a dog", 2: "neither"}
    model = image_model("tost", id2label=names)
    assert model.model.head.weight.shape[0] == 3
    model = text_model("tssa", num_labels=1)
    out = model(IDS, labels=torch.tensor([0.5, 2.0]))
    torch.testing.assert_close(
        out.loss, (out.logits[:, 0] - torch.tensor([0.5, 2.0])).square().mean()
    )


def test_released_weights_go_into_the_preset() -> None:
    plain = rm.create_model(IMAGES["tost"][0], **IMAGES["tost"][1])
    model = image_model("tost")
    model.model.load_state_dict(plain.state_dict())
    assert torch.equal(model(pixels()).logits, plain.eval()(pixels()))


def test_image_pipeline(tmp_path: Path) -> None:
    from PIL import Image

    model = image_model("tost", id2label=dict(enumerate("abcdefghij")))
    processor = transformers.ViTImageProcessorPil(size={"height": 8, "width": 8})
    for part in (model, processor):
        part.save_pretrained(tmp_path)
    auto = transformers.AutoModelForImageClassification
    pipe = transformers.pipeline(
        "image-classification", auto.from_pretrained(tmp_path), image_processor=processor
    )
    image = Image.new("RGB", (20, 30), (200, 30, 90))
    found = pipe(image, top_k=3)
    values = processor(image, return_tensors="pt")["pixel_values"]
    scores = model(values).logits.softmax(-1)[0]
    assert [one["label"] for one in found] == ["abcdefghij"[i] for i in scores.topk(3).indices]
    assert found[0]["score"] == pytest.approx(scores.max().item(), rel=1e-4)


def tokenizer_of(words: list[str]) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", *words])}
    plain = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="[PAD]", unk_token="[UNK]"
    )


def test_text_pipeline() -> None:
    model = text_model(id2label={0: "good", 1: "bad", 2: "neither"})
    tokenizer = tokenizer_of(["so", "it", "goes", "and", "ends", "here"])
    pipe = transformers.pipeline("text-classification", model, tokenizer=tokenizer)
    texts = ["so it goes", "and so it ends here"]
    found = pipe(texts, batch_size=2)
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    scores = model(inputs["input_ids"], inputs["attention_mask"]).logits.softmax(-1)
    for one, row in zip(found, scores, strict=True):
        assert one["label"] == model.config.id2label[int(row.argmax())]
        assert one["score"] == pytest.approx(row.max().item(), rel=1e-4)


@pytest.mark.parametrize("kind", [pytest.param("images", marks=pytest.mark.slow), "texts"])
def test_trainer_learns(kind: str, tmp_path: Path) -> None:
    """Check a few training steps on a learnable rule."""
    torch.manual_seed(0)
    if kind == "images":
        model = image_model("csp", num_labels=2)
        x = pixels(batch=64)
        y = (x.mean((1, 2, 3)) > 0).long()
        x = x + 4 * (y - 0.5)[:, None, None, None]
        data = [{"pixel_values": a, "labels": b} for a, b in zip(x, y, strict=True)]
    else:
        model = text_model(num_labels=2)
        ids = torch.randint(2, 11, (64, 6))
        y = (ids == 4).any(1).long()
        data = [{"input_ids": a, "labels": b} for a, b in zip(ids, y, strict=True)]
    settings = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=40,
        per_device_train_batch_size=16,
        learning_rate=1e-2,
        report_to=[],
        logging_strategy="no",
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
    )
    trainer = transformers.Trainer(model=model, args=settings, train_dataset=data)
    before = trainer.evaluate(data)["eval_loss"]
    trainer.train()
    assert trainer.evaluate(data)["eval_loss"] < 0.7 * before
    trainer.save_model(str(tmp_path / "end"))
    again = type(model).from_pretrained(tmp_path / "end")
    inputs = {k: v[None] for k, v in data[0].items() if k != "labels"}
    assert torch.equal(again(**inputs).logits, model.eval()(**inputs).logits)


REFUSED: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "unknown preset": ("AutoModel", "tost_huge", {}, "'tost_huge'"),
    "unknown setting": ("AutoModel", "vit_cifar10", {"depht": 3}, r"vit_cifar10\b"),
    "text as images": (
        "AutoModelForImageClassification",
        "encoder",
        {"vocab_size": 5},
        "preset:",
    ),
    "images as text": (
        "AutoModelForSequenceClassification",
        "vit_cifar10",
        {},
        "SequenceClassifier.*got vit_cifar10",
    ),
    "no head": ("AutoModel", "gpt", TOKENS, "preset:"),
    "no language": ("AutoModelForCausalLM", "encoder", {"vocab_size": 5}, "GPT"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_configs_are_refused(case: str) -> None:
    auto, preset, settings, says = REFUSED[case]
    with pytest.raises(rm.InputError, match=says) as caught:
        getattr(transformers, auto).from_config(config_of(preset, settings))
    assert "\n" not in str(caught.value)


def test_missing_input_is_reported() -> None:
    model = transformers.AutoModel.from_config(config_of(*IMAGES["tost"]))
    with pytest.raises(rm.InputError, match=r"pixel_values.*input_ids"):
        model()


class Hub:
    """Stores the files of a push instead of sending them."""

    files: dict[str, str | None]
    has_card = False

    def __init__(self, token: Any = None) -> None:
        assert token is None

    def create_repo(self, repo_id: str, **_: Any) -> Any:
        return type("Repo", (), {"repo_id": f"someone/{repo_id}"})

    def file_exists(self, repo_id: str, name: str, revision: Any = None) -> bool:
        assert (repo_id, name) == ("someone/mine", "README.md")
        return Hub.has_card

    def upload_folder(self, repo_id: str, folder_path: str, **_: Any) -> str:
        Hub.files = {
            path.name: None if path.suffix == ".safetensors" else path.read_text()
            for path in Path(folder_path).iterdir()
        }
        Hub.weights = (Path(folder_path) / "model.safetensors").read_bytes()
        return f"https://hub/{repo_id}"

    weights = b""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> type[Hub]:
    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    monkeypatch.setattr(Hub, "has_card", False)
    return Hub


def front_of(card: str) -> list[str]:
    start, front, _ = card.split("---\n", 2)
    assert not start
    return front.splitlines()


def test_a_swapped_model_is_pushed_with_its_card(hub: type[Hub], tmp_path: Path) -> None:
    model = build("gpt2")
    model.config._name_or_path = "openai-community/gpt2"
    rm.replace_attention(model, "tssa", layers=[1])
    assert model.push_to_hub("mine", tags=["short"]) == "https://hub/someone/mine"
    assert set(hub.files) >= {"config.json", "model.safetensors", "README.md"}
    card = hub.files["README.md"] or ""
    assert front_of(card) == [
        "library_name: transformers",
        "tags:",
        "- short",
        "- rifflemix",
        "- tssa",
        "base_model: openai-community/gpt2",
    ]
    assert "| `transformer.h.1.attn` | tssa | 2 | yes |" in card
    assert "`transformer.h.0.attn`" not in card
    assert "rm.register_hf()" in card
    assert json.loads(hub.files["config.json"] or "")["quantization_config"]["swap"]
    (tmp_path / "config.json").write_text(hub.files["config.json"] or "")
    (tmp_path / "model.safetensors").write_bytes(hub.weights)
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path)
    assert torch.equal(again(IDS).logits, model(IDS).logits)


def test_rifflemix_models_are_pushed_with_their_card(hub: type[Hub]) -> None:
    model = image_model("csp")
    model.push_to_hub("mine")
    card = hub.files["README.md"] or ""
    assert front_of(card) == ["library_name: transformers", "tags:", "- rifflemix", "- csp"]
    assert "AutoModelForImageClassification.from_pretrained" in card
    assert f"{model.num_parameters():,}" in card


def test_existing_card_is_kept(hub: type[Hub], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "has_card", True)
    image_model("tost").push_to_hub("mine")
    assert "README.md" not in hub.files


def test_saved_folder_is_pushed_with_its_card(tmp_path: Path) -> None:
    model = build("gpt2")
    rm.replace_attention(model, "tssa")
    with pytest.raises(rm.InputError, match=r"push_to_hub: .*got True"):
        model.save_pretrained(tmp_path, push_to_hub=True)
