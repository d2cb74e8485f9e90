"""Compilers: one graph, the same numbers."""

from __future__ import annotations

import torch

from rifflemix.testing.forms import DIM, Form, require_close


def compiles_to_one_graph(form: Form, *, backend: str = "aot_eager") -> None:
    """torch.compile(fullgraph=True) gives eager's values and gradients, with and without a mask.

    Args:
        form: what to build.
        backend: of torch.compile.
    """
    torch.compiler.reset()
    mixer = form.build(dtype=torch.float32)
    compiled = torch.compile(mixer, fullgraph=True, backend=backend)
    used = [p for p in mixer.parameters() if p.requires_grad]
    mask = torch.zeros(2, 24, dtype=torch.bool)
    mask[0, 17:] = True
    for key_padding_mask in form.masks(mask):
        x = torch.randn(2, 24, DIM)
        results = []
        for run in (mixer, compiled):
            inputs = x.clone().requires_grad_()
            y = run(inputs, key_padding_mask=key_padding_mask)
            gradients = torch.autograd.grad(y.square().sum(), [inputs, *used], allow_unused=True)
            results.append((y.detach(), *gradients))
        require_close(results[1], results[0], "compiled", atol=1e-4, rtol=1e-4)


def exports(form: Form) -> None:
    """torch.export gives a program with eager's values."""
    mixer = form.build(dtype=torch.float32)
    x = torch.randn(2, 24, DIM)
    mask = torch.zeros(2, 24, dtype=torch.bool)
    mask[1, 20:] = True
    keywords = {"key_padding_mask": form.masks(mask)[-1]}
    program = torch.export.export(mixer, (x,), keywords, strict=False)
    y = program.module()(x, **keywords)
    require_close(y, mixer(x, **keywords), "exported", atol=1e-5, rtol=1e-5)
