"""Mixers that are exported, compiled, traced or differentiated twice.

The contract (rifflemix.testing) exports all mixers and runs them as ONNX. Cases that torch does not
support raise an error.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import rifflemix as rm
from rifflemix.mixers import HEADLINE, TokenMixer, mixer_class
from rifflemix.testing import Form, forms_of
from rifflemix.testing.forms import DIM, MAX_LENGTH

FORMS = [form for name in HEADLINE for form in forms_of(mixer_class(name))]
ALL_FORMS = [
    form
    for name in rm.list_mixers()
    for form in forms_of(mixer_class(name))
    if not form.card.one_length
]
slow = pytest.mark.slow
SIZES = ((3, 24), (2, 17), (5, 64), (2, 33), (1, 7), (4, 2), (1, 1))


def parameters(forms: list[Form], fast: set[str]) -> list[Any]:
    """Return the variants; all but a few are marked slow."""
    return [
        pytest.param(form, id=str(form), marks=[] if str(form) in fast else [slow])
        for form in forms
    ]


def batch(batch_size: int, length: int, *, masked: bool = True) -> tuple[Tensor, dict[str, Any]]:
    """Return tokens, and a mask that pads the first sequence's end."""
    generator = torch.Generator().manual_seed(length)
    x = torch.randn(batch_size, length, DIM, generator=generator)
    mask = torch.zeros(batch_size, length, dtype=torch.bool)
    if length > 3:
        mask[0, -3:] = True
    return x, {"key_padding_mask": mask} if masked else {}


def any_size(*, masked: bool = True) -> dict[str, Any]:
    """Return dynamic shapes with symbolic batch size and number of tokens."""
    axes = {0: torch.export.Dim("B", max=16), 1: torch.export.Dim("N", max=MAX_LENGTH)}
    return {"x": axes, **({"key_padding_mask": axes} if masked else {})}


def exported(mixer: TokenMixer, *, masked: bool) -> torch.export.ExportedProgram:
    x, keywords = batch(3, 24, masked=masked)
    shapes = any_size(masked=masked)
    return torch.export.export(mixer, (x,), keywords, dynamic_shapes=shapes, strict=False)


@pytest.mark.parametrize("form", parameters(FORMS, {"csp"}))
def test_one_program_without_a_mask_serves_all_lengths(form: Form) -> None:
    """Check one program for all lengths, with torch operators only.

    The contract checks the same with a mask.
    """
    mixer = form.build(dtype=torch.float32)
    program = exported(mixer, masked=False)
    assert not [n for n in program.graph.nodes if "rifflemix" in str(n.target)]
    for size in SIZES:
        x, _ = batch(*size)
        torch.testing.assert_close(program.module()(x), mixer(x), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("form", parameters(ALL_FORMS, {"csp"}))
def test_one_program_for_a_batch_of_one_serves_all_lengths(form: Form) -> None:
    mixer, masked = form.build(dtype=torch.float32), form.card.padding
    axes = {1: torch.export.Dim("N", max=MAX_LENGTH)}
    x, keywords = batch(1, 24, masked=masked)
    program = torch.export.export(
        mixer, (x,), keywords, dynamic_shapes=dict.fromkeys(("x", *keywords), axes), strict=False
    ).module()
    for length in (24, 17, 64, 33, 2, 1):
        x, keywords = batch(1, length, masked=masked)
        expected = mixer(x, **keywords)
        torch.testing.assert_close(program(x, **keywords), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"layer_index": 1, "num_layers": 2}, id="second_stride", marks=slow),
        pytest.param(
            {"block_size": 2, "layer_index": 4, "num_layers": 5}, id="many_strides", marks=slow
        ),
        pytest.param({"block_size": 3, "reverse": True}, id="reverse", marks=slow),
        pytest.param({"token_order": "random"}, id="random_order", marks=slow),
    ],
)
def test_butterfly_has_one_stride_for_all_lengths(options: dict[str, Any]) -> None:
    mixer = rm.create_mixer("butterfly", DIM, num_heads=4, max_length=MAX_LENGTH, **options).eval()
    program = exported(mixer, masked=True).module()
    for length in range(1, MAX_LENGTH + 1):
        x, keywords = batch(2, length)
        torch.testing.assert_close(
            program(x, **keywords), mixer(x, **keywords), atol=1e-5, rtol=1e-4
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "fewest"),
    [
        ({"group_size": 5, "pad": True, "shift": "code_linear"}, 1),
        ({"num_groups": 3, "pad": True, "shift": "code_linear"}, 1),
        ({"num_groups": 3, "pad": True, "shift": "code_linear", "layout": "length"}, 1),
        ({"num_groups": 4, "pad": True, "order": "ascending"}, 3),
        ({"num_groups": 1, "shift": "none"}, 1),
        ({"order": "ascending"}, 3),  # torch proves odd and even ranges in different ways
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [1, 3])
def test_groups_of_csp_are_filled_for_any_length(
    size: int, options: dict[str, Any], fewest: int
) -> None:
    mixer = rm.create_mixer("csp", DIM, max_length=MAX_LENGTH, **options).eval()
    x, keywords = batch(size, 24)
    axes = {1: torch.export.Dim("N", min=fewest, max=MAX_LENGTH)}
    shapes = {"x": axes, "key_padding_mask": axes}
    exported = torch.export.export(mixer, (x,), keywords, dynamic_shapes=shapes, strict=False)
    program = exported.module()
    for length in {fewest, 2 + fewest, 17, 24, 33, MAX_LENGTH}:
        x, keywords = batch(size, length)
        torch.testing.assert_close(
            program(x, **keywords), mixer(x, **keywords), atol=1e-5, rtol=1e-4
        )


@pytest.mark.slow
@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
def test_renormalized_statistics_of_one_length_export_for_any_batch(masked: bool) -> None:
    mixer = rm.create_mixer(
        "tssa", DIM, num_heads=4, max_length=MAX_LENGTH, causal=True, renormalize_every=7
    ).eval()
    x, keywords = batch(3, 24, masked=masked)
    axes = {0: torch.export.Dim("B", max=16)}
    shapes = {"x": axes, **dict.fromkeys(keywords, axes)}
    program = torch.export.export(mixer, (x,), keywords, dynamic_shapes=shapes, strict=False)
    x, keywords = batch(5, 24, masked=masked)
    torch.testing.assert_close(program.module()(x, **keywords), mixer(x, **keywords))


class Step(torch.nn.Module):
    """Wraps the step of a mixer as a forward method."""

    def __init__(self, mixer: TokenMixer) -> None:
        super().__init__()
        self.mixer = mixer

    def forward(self, x_t: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        return self.mixer.step(x_t, state)


STREAMS = [form for form in FORMS if form.causal and form.card.streaming]


@pytest.mark.parametrize("form", parameters(STREAMS, {"csp-causal"}))
@torch.no_grad()
def test_one_program_of_a_step_serves_every_batch(form: Form) -> None:
    mixer = form.build(dtype=torch.float32)
    axes, program = {0: torch.export.Dim("B", max=16)}, None
    for size in (3, 1, 7):
        x, _ = batch(size, 9)
        _, state = mixer.prefill(x[:, :8])
        if program is None:
            shapes = {"x_t": axes, "state": dict.fromkeys(state, axes)}
            exported = torch.export.export(
                Step(mixer), (x[:, 8], state), dynamic_shapes=shapes, strict=False
            )
            program = exported.module()
        torch.testing.assert_close(program(x[:, 8], state), mixer.step(x[:, 8], state))


class Prefill(torch.nn.Module):
    """Wraps the prefill of a mixer as a forward method."""

    def __init__(self, mixer: TokenMixer) -> None:
        super().__init__()
        self.mixer = mixer

    def forward(
        self, x: Tensor, key_padding_mask: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return self.mixer.prefill(x, key_padding_mask=key_padding_mask)


# The tokens that spade keeps have a fixed length.
PROMPTS = [
    Form(mixer_class(name), causal=True)
    for name in rm.list_mixers()
    if rm.mixer_card(name).streaming and not rm.mixer_card(name).one_length and name != "spade"
]


@pytest.mark.parametrize("form", parameters(PROMPTS, set()))
@torch.no_grad()
def test_one_program_of_a_prefill_serves_all_lengths(form: Form) -> None:
    mixer = form.build(dtype=torch.float32)
    x, keywords = batch(3, 24)
    shapes = any_size()
    program = torch.export.export(
        Prefill(mixer), (x,), keywords, dynamic_shapes=shapes, strict=False
    ).module()
    for size in SIZES:
        x, keywords = batch(*size)
        torch.testing.assert_close(
            program(x, **keywords), mixer.prefill(x, **keywords), atol=1e-5, rtol=1e-4
        )


@pytest.mark.slow
@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
def test_nystromformer_has_one_program_beyond_its_landmarks(masked: bool) -> None:
    mixer = rm.create_mixer(
        "nystromformer", DIM, num_heads=4, max_length=MAX_LENGTH, num_landmarks=8
    ).eval()
    x, keywords = batch(3, 24, masked=masked)
    axes = {1: torch.export.Dim("N", min=9, max=MAX_LENGTH)}
    shapes = {"x": axes, **dict.fromkeys(keywords, axes)}
    program = torch.export.export(mixer, (x,), keywords, dynamic_shapes=shapes, strict=False)
    for length in (9, 33, MAX_LENGTH):
        x, keywords = batch(3, length, masked=masked)
        torch.testing.assert_close(
            program.module()(x, **keywords), mixer(x, **keywords), atol=1e-4, rtol=1e-3
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["butterfly", "sinkhorn", "local", "mega_chunk"])
def test_blocks_cannot_be_exported_from_three_tokens(name: str) -> None:
    """Check a limit of torch that docs/export.md describes.

    If this test fails, remove the advice to omit `min` from the page.
    """
    mixer = rm.create_mixer(name, DIM, num_heads=4, max_length=MAX_LENGTH).eval()
    shapes = {"x": {1: torch.export.Dim("N", min=3, max=MAX_LENGTH)}}
    with pytest.raises(torch._dynamo.exc.UserError, match="Constraints violated"):
        torch.export.export(mixer, (batch(3, 24)[0],), dynamic_shapes=shapes, strict=False)


LOAD = """
import sys, torch

def check(name):
    x, expected = torch.load(f"{sys.argv[1]}/{name}.pt")
    program = torch.export.load(f"{sys.argv[1]}/{name}.pt2")
    torch.testing.assert_close(program.module()(x), expected)

check("tssa")
import rifflemix
try:
    check("s4")
except Exception as error:
    print(error)
else:
    raise AssertionError("s4 needs no rifflemix.mixers")
import rifflemix.mixers
check("s4")
check("csp")
"""


@pytest.mark.slow
def test_programs_are_loaded_by_other_processes(tmp_path: Path) -> None:
    """Check the import in docs/export.md.

    `import rifflemix` alone does not load the operators.
    """
    for name, options in {"tssa": {}, "s4": {}, "csp": {"shift": "power"}}.items():
        mixer = rm.create_mixer(name, DIM, num_heads=4, max_length=MAX_LENGTH, **options).eval()
        x, _ = batch(2, 17)
        shapes = any_size(masked=False)
        program = torch.export.export(mixer, (x,), dynamic_shapes=shapes, strict=False)
        torch.save((x, mixer(x).detach()), tmp_path / f"{name}.pt")
        torch.export.save(program, tmp_path / f"{name}.pt2")
    command = [sys.executable, "-c", LOAD, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "torch.ops.rifflemix.circular_convolve" in done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{"num_groups": 4, "layout": "length"}, {"group_size": 4}], ids=str
)
def test_full_groups_need_multiples_of_their_size(options: dict[str, Any]) -> None:
    mixer = rm.create_mixer("csp", DIM, max_length=MAX_LENGTH, **options).eval()
    x, _ = batch(2, 24)
    axes = {1: 4 * torch.export.Dim("groups", max=MAX_LENGTH // 4)}
    program = torch.export.export(mixer, (x,), dynamic_shapes={"x": axes}, strict=False).module()
    for length in (4, 8, 24, MAX_LENGTH):
        x, _ = batch(2, length)
        torch.testing.assert_close(program(x), mixer(x), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("form", parameters(FORMS, set()))
def test_compiles_twice_for_all_lengths(form: Form) -> None:
    """Check two compilations: one for the first length, one for others.

    There are no graph breaks.
    """
    counters = torch._dynamo.utils.counters
    torch.compiler.reset()
    counters.clear()
    mixer = form.build(dtype=torch.float32)
    compiled = torch.compile(mixer, backend="aot_eager")
    for length in (24, 17, 33, 64):
        x, keywords = batch(2, length)
        torch.testing.assert_close(
            compiled(x, **keywords), mixer(x, **keywords), atol=1e-5, rtol=1e-4
        )
    assert not counters["graph_break"]
    assert counters["stats"]["unique_graphs"] == 2
