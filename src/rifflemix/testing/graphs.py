"""Compilers and exporters: one graph, same values as eager."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rifflemix.mixers.base import TokenMixer
from rifflemix.testing.forms import DIM, MAX_LENGTH, Form, require, require_close

SIZE = (3, 24)
"""Number of sequences and tokens of the example inputs for export."""
OTHER_SIZES = ((2, 17), (1, 1), (5, 33), (2, MAX_LENGTH))


def compiles_to_one_graph(form: Form, *, backend: str = "aot_eager", masked: bool = True) -> None:
    """Check values and gradients of torch.compile(fullgraph=True) against eager.

    Args:
        form: variant of the mixer.
        backend: backend of torch.compile.
        masked: also check inputs with a mask.
    """
    torch.compiler.reset()
    mixer = form.build(dtype=torch.float32)
    compiled = torch.compile(mixer, fullgraph=True, backend=backend)
    used = [p for p in mixer.parameters() if p.requires_grad]
    mask = torch.zeros(2, 24, dtype=torch.bool)
    mask[0, 17:] = True
    for key_padding_mask in form.masks(mask) if masked else (None,):
        x = torch.randn(2, 24, DIM)
        results = []
        for run in (mixer, compiled):
            inputs = x.clone().requires_grad_()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # raised inside torch
                y = run(inputs, key_padding_mask=key_padding_mask)
            gradients = torch.autograd.grad(y.square().sum(), [inputs, *used], allow_unused=True)
            results.append((y.detach(), *gradients))
        require_close(results[1], results[0], "compiled", atol=1e-4, rtol=1e-4)


def exports(form: Form) -> None:
    """Check that one exported program supports every length, or `one_length` is set.

    If `card.one_length` is set, dynamic lengths must fail and one length must work.
    """
    mixer = form.build(dtype=torch.float32)
    why, found = form.card.one_length, _failure(lambda: _require_any_length(form, mixer))
    if why:
        require(found is not None, f"the card has {why!r}, but one program serves every length")
        _require_same(form, mixer, _program(form, mixer, any_length=False).module(), SIZE)
    elif found is not None:
        raise AssertionError(
            f"not for every length, for which card.one_length has no reason: {found}"
        )


def runs_as_onnx(form: Form) -> None:
    """Check onnxruntime against eager: equal values, or failure if `card.no_onnx` is set."""
    for package in ("onnxscript", "onnxruntime"):  # a missing package is not a failure of the mixer
        importlib.import_module(package)
    mixer = form.build(dtype=torch.float32)
    why, found = form.card.no_onnx, _failure(lambda: _require_onnx(form, mixer))
    if why:
        require(found is not None, f"the card has {why!r}, but onnxruntime gives eager's values")
    elif found is not None:
        raise AssertionError(f"not in onnxruntime, and card.no_onnx gives no reason: {found}")


def _failure(check: Callable[[], None]) -> str | None:
    """Return why a check failed, or None if it passed."""
    try:
        check()
    except Exception as error:
        cause: BaseException = error
        while cause.__cause__ is not None:  # exporters wrap the original error
            cause = cause.__cause__
        return str(cause).strip() or type(cause).__name__
    return None


def _require_any_length(form: Form, mixer: TokenMixer) -> None:
    program = _program(form, mixer, any_length=True).module()
    for size in (SIZE, *OTHER_SIZES):
        _require_same(form, mixer, program, size)


def _require_onnx(form: Form, mixer: TokenMixer) -> None:
    any_length = not form.card.one_length
    run = _in_onnxruntime(form, mixer, any_length=any_length)
    for size in (SIZE, *OTHER_SIZES) if any_length else (SIZE,):
        _require_same(form, mixer, run, size)


def _program(form: Form, mixer: TokenMixer, *, any_length: bool) -> torch.export.ExportedProgram:
    """Export a mixer with torch.export, with a mask if supported."""
    x, keywords = _batch(form, SIZE)
    shapes = _any_size("x", *keywords) if any_length else None
    return torch.export.export(mixer, (x,), keywords, dynamic_shapes=shapes, strict=False)


def _in_onnxruntime(form: Form, mixer: TokenMixer, *, any_length: bool) -> Callable[..., Tensor]:
    """Return a function that runs a mixer in onnxruntime."""
    runtime = importlib.import_module("onnxruntime")
    x, keywords = _batch(form, SIZE)
    shapes = _any_size("x", *keywords) if any_length else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from the exporters' own code
        made: Any = torch.onnx.export(
            mixer,
            (x,),
            kwargs=keywords,
            dynamic_shapes=shapes,
            dynamo=True,
            optimize=False,
            verbose=False,
        )
    session = runtime.InferenceSession(
        made.model_proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [given.name for given in session.get_inputs()]

    def run(x: Tensor, **keywords: Tensor) -> Tensor:
        arrays = (tensor.numpy() for tensor in (x, *keywords.values()))
        return torch.from_numpy(session.run(None, dict(zip(names, arrays, strict=True)))[0])

    return run


def _any_size(*names: str) -> dict[str, Any]:
    """Return dynamic shapes with a symbolic batch size and length."""
    axes = {0: torch.export.Dim("B", max=16), 1: torch.export.Dim("N", max=MAX_LENGTH)}
    return dict.fromkeys(names, axes)


def _require_same(
    form: Form, mixer: TokenMixer, run: Callable[..., Tensor], size: tuple[int, int]
) -> None:
    x, keywords = _batch(form, size)
    with torch.no_grad():
        found, wanted = run(x, **keywords), mixer(x, **keywords)
    require_close(found, wanted, f"{size[1]} tokens", atol=1e-4, rtol=1e-4)


def _batch(form: Form, size: tuple[int, int]) -> tuple[Tensor, dict[str, Tensor]]:
    """Return tokens and, if supported, a mask with right padding."""
    batch, length = size
    x = torch.randn(batch, length, DIM)
    if not form.card.padding:
        return x, {}
    mask = torch.zeros(batch, length, dtype=torch.bool)
    mask[0, length - length // 4 :] = True
    return x, {"key_padding_mask": mask}
