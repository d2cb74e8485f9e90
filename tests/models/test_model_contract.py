"""Contract tests that every registered model must pass, in a tiny size (tiny_models.py)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import build, outputs_of, sample, tiny
from torch import Tensor, nn

import rifflemix as rm
from meta_device import ways_to_give_memory
from perturbed import perturb

NAMES = rm.list_models()
# Presets of one family differ in size only: `make test` checks one of each, CI checks all.
FIRST_OF_FAMILY = sorted({id(tiny(name)): name for name in reversed(NAMES)}.values())
FAMILIES = [
    pytest.param(name, marks=[] if name in FIRST_OF_FAMILY else [pytest.mark.slow])
    for name in NAMES
]

# Models that accept packed batches with their registered settings. test_packed_models.py tests
# other mixers and settings.
WITH_PACKING = {
    "encoder", "gpt", "gpt2_base", "imdb_classifier", "point_cloud", "tost_lm_base",
    "tost_lm_medium", "tost_lm_large",
}  # fmt: skip


def gradients(model: rm.models.Model, name: str) -> list[Tensor]:
    """Return the gradients of a loss that uses all outputs, with fixed dropout."""
    args, options = sample(name)
    torch.manual_seed(2)
    loss = sum(output.square().sum() for output in outputs_of(model(*args, **options)))
    parameters = [p for p in model.parameters() if p.requires_grad]
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return [torch.zeros(()) if g is None else g for g in found]


@pytest.mark.parametrize("name", FAMILIES)
def test_every_parameter_learns(name: str) -> None:
    model = build(name).train()
    found = gradients(model, name)
    named = [n for n, p in model.named_parameters() if p.requires_grad]
    dead = [n for n, g in zip(named, found, strict=True) if g.dim() == 0 and g == 0]
    assert not dead, f"parameters with no part in the output: {dead}"
    assert all(torch.isfinite(g).all() for g in found)


@pytest.mark.parametrize("name", FAMILIES)
def test_gradient_checkpointing_changes_no_gradient(name: str) -> None:
    expected = gradients(build(name).train(), name)
    model = build(name).train()
    model.gradient_checkpointing = True
    for found, wanted in zip(gradients(model, name), expected, strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("name", FAMILIES)
def test_saved_model_is_loaded_unchanged(name: str, tmp_path: Path) -> None:
    model = build(name).eval()
    perturb(model, 0.01)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    args, options = sample(name)
    for found, wanted in zip(
        outputs_of(again(*args, **options)), outputs_of(model(*args, **options)), strict=True
    ):
        assert torch.equal(found, wanted)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    assert json.loads((tmp_path / "config.json").read_text())["name"] == name


@ways_to_give_memory
@pytest.mark.parametrize("name", FAMILIES)
def test_model_is_built_on_the_meta_device(
    name: str, give_memory: Callable[[nn.Module, nn.Module], nn.Module]
) -> None:
    model = build(name).eval()
    with torch.device("meta"):
        outline = build(name).eval()
    args, options = sample(name)
    found = outputs_of(give_memory(outline, model)(*args, **options))
    for output, wanted in zip(found, outputs_of(model(*args, **options)), strict=True):
        torch.testing.assert_close(output, wanted, atol=0, rtol=0)


@pytest.mark.parametrize("name", FAMILIES)
def test_bfloat16(name: str) -> None:
    model = build(name).eval().bfloat16()
    args, options = sample(name)
    args = tuple(a.bfloat16() if a.is_floating_point() else a for a in args)
    for output in outputs_of(model(*args, **options)):
        assert output.dtype == torch.bfloat16
        assert torch.isfinite(output).all()


@pytest.mark.parametrize("name", FAMILIES)
def test_samples_do_not_affect_each_other(name: str) -> None:
    model = build(name).eval().double()
    args, options = sample(name, 3)
    args = tuple(a.double() if a.is_floating_point() else a for a in args)
    together = outputs_of(model(*args, **options))
    for index in range(3):
        one = slice(index, index + 1)
        alone = model(*(a[one] for a in args), **{k: v[one] for k, v in options.items()})
        for whole, part in zip(together, outputs_of(alone), strict=True):
            torch.testing.assert_close(whole[one], part, atol=1e-9, rtol=1e-9)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch loops over the batch
@pytest.mark.parametrize("name", ["encoder", "gpt", "seq2seq", "graphormer_pcqm4m"])
def test_samples_can_be_mapped(name: str) -> None:
    """Models work under vmap, as for per-sample gradients. Token IDs cannot be checked there."""
    model = build(name).eval()
    args, options = sample(name)

    def one(*tensors: Tensor) -> Tensor:
        rows = [tensor.unsqueeze(0) for tensor in tensors]
        named = dict(zip(options, rows[len(args) :], strict=True))
        return outputs_of(model(*rows[: len(args)], **named))[0][0]

    with torch.no_grad():
        mapped = torch.func.vmap(one)(*args, *options.values())
        torch.testing.assert_close(mapped, outputs_of(model(*args, **options))[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lra_retrieval", "graphormer_pcqm4m"])
def test_one_program_serves_every_batch(name: str) -> None:
    """One exported program also serves models that prepend a token."""
    model = build(name).eval()
    args, options = sample(name, 3)
    given = dict(zip(signature(model.forward).parameters, args, strict=False)) | options
    shapes = {key: {0: torch.export.Dim("B", max=16)} for key in given}
    program = torch.export.export(model, (), given, dynamic_shapes=shapes, strict=False).module()
    for batch in (1, 5):
        args, options = sample(name, batch)
        given = dict(zip(given, args, strict=False)) | options
        torch.testing.assert_close(program(**given), model(**given))


@pytest.mark.parametrize("name", FAMILIES)
def test_packed_sequences_are_taken_or_refused(name: str) -> None:
    model = build(name).eval()
    args, options = sample(name, 1)
    options.pop("key_padding_mask", None)
    model(*args, **options, cu_seqlens=None)
    packed = {**options, "cu_seqlens": torch.tensor([0, 3, 12])}
    if name in WITH_PACKING:
        for output in outputs_of(model(*args, **packed)):
            assert torch.isfinite(output).all()
    else:
        with pytest.raises(rm.InputError, match=r"^cu_seqlens: expected None"):
            model(*args, **packed)


@pytest.mark.parametrize("name", FAMILIES)
def test_same_seed_same_weights(name: str) -> None:
    pairs = zip(build(name).state_dict().items(), build(name).state_dict().items(), strict=True)
    for (key, first), (_, second) in pairs:
        assert torch.equal(first, second), key


# Tracing takes seconds per model.
COMPILED = {"encoder", "gpt"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in COMPILED else [pytest.mark.slow]) for n in FIRST_OF_FAMILY],
)
def test_compiles_to_one_graph(name: str) -> None:
    model = build(name).eval()
    args, options = sample(name)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        for found, wanted in zip(
            outputs_of(compiled(*args, **options)), outputs_of(model(*args, **options)), strict=True
        ):
            torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def test_unknown_names_and_settings_are_refused() -> None:
    with pytest.raises(ValueError, match=r"'encodr'.*encoder"):
        rm.create_model("encodr")
    with pytest.raises(ValueError, match=r"encoder.*got 'widht'"):
        rm.create_model("encoder", widht=3)


def damage(folder: Path, file: str, content: Any) -> None:
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(content)


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("config.json", None, "missing"),
        ("config.json", "{", "damaged"),
        ("config.json", "[]", "format, name, settings, dtype"),
        ("config.json", '{"format": "x", "name": "a", "settings": {}, "dtype": "y"}', "format"),
        ("model.safetensors", None, "missing"),
        ("model.safetensors", "short", "damaged"),
    ],
)
def test_damaged_folders_are_reported_in_one_line(
    file: str, content: str | None, words: str, tmp_path: Path
) -> None:
    build("encoder").save_pretrained(tmp_path)
    damage(tmp_path, file, content)
    with pytest.raises(rm.InputError) as caught:
        rm.models.from_pretrained(tmp_path)
    assert re.search(rf"{file}.*{words}", str(caught.value))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"dim": 200_000}, "encoder"),
        ({"dim": 10**15}, "encoder: "),
        ({"vocab_size": 2**63}, r"vocab_size: .*int64\b"),
        ({"max_length": 10**12}, "positions.table"),
        ({"num_layers": 10**9}, r"model\.safetensors.*\b1000000000\b"),
    ],
)
def test_sizes_of_a_configuration_need_no_memory(
    settings: dict[str, int], words: str, tmp_path: Path
) -> None:
    build("encoder").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["settings"] |= settings
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(rm.InputError, match=words) as caught:
        rm.models.from_pretrained(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"dim": 10**12}, "encoder: "),
        ({"vocab_size": 10**25}, r"vocab_size: .*int64\b"),
        ({"num_layers": 10**9}, r"num_layers.*encoder.*\b10,000\b.*got 1000000000\b"),
    ],
)
def test_sizes_that_no_machine_has(settings: dict[str, int], words: str) -> None:
    with pytest.raises(rm.InputError, match=words):
        rm.create_model("encoder", **{"vocab_size": 5, "num_classes": 2, **settings})


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    build("encoder").save_pretrained(tmp_path / "a")
    build("encoder", dim=32).save_pretrained(tmp_path / "b")
    (tmp_path / "b" / "model.safetensors").replace(tmp_path / "a" / "model.safetensors")
    with pytest.raises(rm.InputError, match="encoder"):
        rm.models.from_pretrained(tmp_path / "a")


def test_a_model_of_unknown_settings_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(rm.InputError, match="create_model"):
        rm.models.Encoder(vocab_size=3).save_pretrained(tmp_path / "new")
    assert not list(tmp_path.iterdir())


def test_settings_of_numpy_and_torch_are_saved(tmp_path: Path) -> None:
    options = {"shift": torch.zeros(16, dtype=torch.int64)}
    model = build("encoder", dim=np.int64(16), mixer="csp", mixer_options=options)
    model.save_pretrained(tmp_path)
    settings = rm.models.from_pretrained(tmp_path).settings
    assert (settings["dim"], settings["mixer_options"]) == (16, {"shift": [0] * 16})


def test_every_tensor_keeps_its_type(tmp_path: Path) -> None:
    model = build("encoder").bfloat16()
    kept = [module for module in model.modules() if isinstance(module, torch.nn.LayerNorm)]
    assert kept
    for module in kept:
        module.float()
        torch.nn.init.normal_(module.weight)
    model.save_pretrained(tmp_path)
    again, own = rm.models.from_pretrained(tmp_path).state_dict(), model.state_dict()
    assert {name: tensor.dtype for name, tensor in again.items()} == {
        name: tensor.dtype for name, tensor in own.items()
    }
    assert all(torch.equal(again[name], tensor) for name, tensor in own.items())


def test_a_model_that_was_changed_is_not_saved(tmp_path: Path) -> None:
    """A changed model does not fit its settings, so it could not be loaded."""
    folder = tmp_path / "new"
    changed = build("encoder")
    changed.head = torch.nn.Linear(changed.head.in_features, 7)
    with pytest.raises(rm.InputError, match=r"model: .*\(10, 16\).*head\.weight.*\(7, 16\)"):
        changed.save_pretrained(folder)
    narrow = build("encoder").to(torch.float8_e4m3fn)
    with pytest.raises(rm.InputError, match=r"torch.float8_e4m3fn"):
        narrow.save_pretrained(folder)
    assert not folder.exists()


def test_settings_are_copied() -> None:
    options = {"shift": "none"}
    model = build("encoder", mixer="csp", mixer_options=options)
    options["shift"] = "linear"
    assert model.settings["mixer_options"] == {"shift": "none"}
    rm.models.model_settings("sinkhorn_lm_base")["mixer_options"].clear()
    assert rm.models.model_settings("sinkhorn_lm_base")["mixer_options"]


def test_failed_save_leaves_no_folder(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    with torch.device("meta"):
        empty = build("encoder")
    with pytest.raises(rm.InputError, match=r"model: .*\bmeta\b"):
        empty.save_pretrained(folder)
    model = build("encoder")
    model.settings["dim"] = object()
    with pytest.raises(rm.InputError, match=r"dim: .*JSON"):
        model.save_pretrained(folder)
    no_path: Any = None
    with pytest.raises(rm.InputError, match=r"folder: .*got None"):
        model.save_pretrained(no_path)
    with pytest.raises(rm.InputError, match=r"folder: .*got None"):
        rm.models.from_pretrained(no_path)
    assert not folder.exists()


def test_every_entry_of_the_table_is_used() -> None:
    from tiny_models import TINY

    assert {id(tiny(name)) for name in NAMES} == {id(entry) for entry in TINY.values()}


def test_overwritten_folder_never_has_the_old_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights fit many settings, for example models with different numbers of heads."""

    def fail(*_: object) -> None:
        raise rm.InputError("cannot write: no space left")

    rm.create_model("encoder", vocab_size=9, num_heads=2).save_pretrained(tmp_path)
    monkeypatch.setattr("rifflemix.models.pretrained.write_json", fail)
    with pytest.raises(rm.InputError, match="no space left"):
        rm.create_model("encoder", vocab_size=9, num_heads=4).save_pretrained(tmp_path)
    with pytest.raises(rm.InputError, match=r"config.json"):
        rm.models.from_pretrained(tmp_path)
