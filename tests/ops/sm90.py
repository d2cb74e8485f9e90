"""Compile the kernels of an operator for an H100 or H200, without a GPU.

As a script, it compiles the given cases and prints the resources of each kernel as JSON. The
environment variable CAPABILITY selects another type of GPU. With DISASSEMBLES, it also counts
instructions, which doubles the time.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

TYPES = {
    torch.float32: "fp32",
    torch.float64: "fp64", torch.bfloat16: "bf16", torch.float16: "fp16", torch.uint8: "u8",
    torch.int8: "i8", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64",
}  # fmt: skip

CAPABILITY = int(os.environ.get("CAPABILITY", "90"))
DISASSEMBLES = "DISASSEMBLES" in os.environ


def compiled(kernel: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Compile a kernel for these arguments on the selected GPU."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    options = dict(options)
    names = ("num_warps", "num_stages", "maxnreg", "enable_fp_fusion")
    backend = {name: options.pop(name) for name in names if name in options}
    given = dict(zip(kernel.arg_names, arguments, strict=False)) | options
    if set(given) != set(kernel.arg_names):
        raise TypeError(f"{kernel.__name__} takes {kernel.arg_names}, got {list(given)}")
    signature, constants, aligned = {}, {}, {}
    for parameter in kernel.params:
        name, value = parameter.name, given[parameter.name]
        position = (parameter.num,)
        if value is None or parameter.is_constexpr:
            signature[name], constants[position] = "constexpr", value
        elif isinstance(value, Tensor):
            signature[name] = "*" + TYPES[value.dtype]
            aligned[position] = [["tt.divisibility", 16]]
        elif isinstance(value, float):
            signature[name] = "fp32"
        elif value == 1 and not parameter.do_not_specialize:
            signature[name], constants[position] = "constexpr", value
        else:
            signature[name] = "i32" if abs(value) < 2**31 else "i64"
            if value % 16 == 0 and not parameter.do_not_specialize:
                aligned[position] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature=signature, constexprs=constants, attrs=aligned)
    return triton.compile(source, target=GPUTarget("cuda", CAPABILITY, 32), options=backend)


def usage(program: Any) -> dict[str, int]:
    """Return registers and stack bytes per thread, and shared memory per program."""
    text = _dumped(program, "-res-usage")
    found = re.search(r"REG:(\d+) STACK:(\d+)", text)
    if found is None:
        raise RuntimeError(text)
    registers, stack = map(int, found.groups())
    return {"registers": registers, "stack": stack, "shared": program.metadata.shared}


def instructions(program: Any) -> dict[str, int]:
    """Count instructions, shuffles and fused shuffles.

    A fused shuffle is the operand of a multiply-add, so its product is not rounded.
    """
    assembly = _dumped(program, "-sass")
    return {
        "shuffles": assembly.count("SHFL."),
        "instructions": len(re.findall(r"/\*[0-9a-f]{4,}\*/ +(?!NOP)", assembly)),
        "fused": _fused_shuffles(assembly),
    }


def _fused_shuffles(assembly: str) -> int:
    """Count multiply-adds with a shuffled operand, in lines like `FADD R1, R2, R3`."""
    brought: set[str] = set()
    fused = 0
    for name, operands in re.findall(r"\*/ +(?:@!?U?P\d+ )?([A-Z0-9.]+) +([^;]*);", assembly):
        target, *sources = re.findall(r"\bR\d+\b", operands) or [""]
        fused += name.startswith("FFMA") and not brought.isdisjoint(sources)
        brought.discard(target)
        if name.startswith("SHFL"):
            brought.add(target)
    return fused


def _dumped(program: Any, what: str) -> str:
    """Return the output of cuobjdump for a compiled program."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(program.asm["cubin"])
        command = [tool, what, file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def compile_all(call: Callable[[], object]) -> dict[str, dict[str, int]]:
    """Compile the kernels that `call` launches on empty tensors, without running them."""
    from rifflemix.ops import triton_support
    from rifflemix.ops.permutation import triton as permutation
    from rifflemix.ops.permutation import triton_windows as windows
    from rifflemix.ops.recurrence import triton as recurrence
    from rifflemix.ops.sinkhorn import triton as sinkhorn
    from rifflemix.ops.statistics import triton, triton_causal, triton_common

    used: dict[str, dict[str, int]] = {}

    def accept(_: Tensor) -> None:
        """Accept any device: compiled kernels do not run."""

    def compile_only(kernel: Any, programs: int, like: Tensor, *arguments: Any, **kw: Any) -> None:
        twice = kernel.__name__ in used
        name = f"{kernel.__name__} again" if twice else kernel.__name__
        program = compiled(kernel, arguments, kw)
        used[name] = usage(program) | (instructions(program) if DISASSEMBLES else {})

    statistics = (triton, triton_causal, triton_common)
    for module in (triton_support, permutation, windows, *statistics, sinkhorn, recurrence):
        module.launch = compile_only
    triton_support.check_device = accept  # accept tensors without data
    windows._compares_halves = lambda _: CAPABILITY >= 90
    call()
    return used


def permutation_case(
    length: int, num_groups: int, dtype: torch.dtype, order: str, channels: int = 768
) -> Callable[[], object]:
    """Run forward and backward for one order.

    `order` accepts the suffix "shift", "mask" or "values" (no indices).
    """
    order, _, extra = order.partition(" ")

    def call() -> None:
        from rifflemix.ops.permutation import SortSpec
        from rifflemix.ops.permutation import triton as fast

        trains = extra != "values"
        x = torch.empty(1, length, channels, dtype=dtype, requires_grad=trains)
        steps = torch.zeros(channels, dtype=torch.int64) if extra == "shift" else None
        mask = torch.zeros(1, length, dtype=torch.bool) if extra == "mask" else None
        down = torch.ones(channels, dtype=torch.bool) if order == "descending" else None
        spec = SortSpec(num_groups, order == "reference", 1, down)
        y, _ = fast.permute(x, steps, spec, mask, trains)
        if trains:
            y.backward(torch.empty_like(y))

    return call


def shift_case(dtype: torch.dtype) -> Callable[[], object]:
    def call() -> None:
        from rifflemix.ops.permutation import triton as fast

        steps = torch.zeros(768, dtype=torch.int64)
        fast.circular_shift(torch.empty(1, 64, 768, dtype=dtype), steps, None, False)

    return call


def statistics_case(
    heads: int, features: int, dtype: torch.dtype, options: str = ""
) -> Callable[[], object]:
    """Run forward and backward. Options: causal, plain (no normalization), mask."""

    def call() -> None:
        from rifflemix.ops.statistics import triton, triton_causal

        w = torch.empty(1, 256, heads, features, dtype=dtype).transpose(1, 2).requires_grad_()
        temperature = torch.ones(heads, requires_grad=True)
        mask = torch.zeros(1, 256, dtype=torch.bool) if "mask" in options else None
        if "causal" in options:
            y, pi, state = triton_causal.causal_token_statistics(
                w, temperature, None, initial_state=None, key_padding_mask=mask
            )
            outputs = (y, pi, *state[:3])
        else:
            outputs = triton.token_statistics(
                w, temperature, normalize="plain" not in options, key_padding_mask=mask
            )
        torch.autograd.backward(outputs, tuple(torch.empty_like(value) for value in outputs))

    return call


def balance_case(size: int, dtype: torch.dtype, options: str = "") -> Callable[[], object]:
    """Run forward and backward. Options: causal, mask."""

    def call() -> None:
        from rifflemix.ops.sinkhorn import triton

        scores = torch.empty(2, 3, size, size, dtype=dtype, requires_grad=True)
        mask = torch.zeros(2, size, dtype=torch.bool) if "mask" in options else None
        sort = triton.sinkhorn(scores, 8, "causal" in options, True, mask)
        sort.backward(torch.empty_like(sort))

    return call


def attention_case(
    block_size: int, blocks: int, width: int, dtype: torch.dtype, options: str = ""
) -> Callable[[], object]:
    """Run forward and backward. Options: causal, mask, dropout."""

    def call() -> None:
        from rifflemix.ops.sinkhorn import triton
        from rifflemix.ops.sinkhorn.kernel_attention import Visibility

        tokens = torch.empty(1, blocks * block_size, 3, 2, width, dtype=dtype, requires_grad=True)
        sort = torch.empty(1, 2, blocks, blocks, dtype=dtype, requires_grad=True)
        q, k, v = (part.transpose(1, 2) for part in tokens.unbind(2))
        unseen = padding = seed = None
        if "mask" in options:
            unseen = torch.zeros(1, 2, blocks, block_size, dtype=torch.bool)
            padding = torch.zeros(1, blocks * block_size, dtype=torch.bool)
        if "dropout" in options:
            seed = torch.zeros((), dtype=torch.int64)
        p = 0.0 if seed is None else 0.1
        terms = Visibility(unseen, padding, False, "causal" in options, seed, p)
        y = triton._attend(q, k, v, sort, block_size, *terms)[0]
        y.backward(torch.empty_like(y))
        if seed is not None:
            weights = torch.empty(1, 2, blocks, block_size, 2 * block_size, dtype=dtype)
            triton._drop(weights, terms)

    return call


def recurrence_case(
    keys: int, values: int, dtype: torch.dtype, options: str = ""
) -> Callable[[], object]:
    """Run forward and backward. Options: scalar, vector, delta, erase, packed, state."""

    def call() -> None:
        from rifflemix.ops.recurrence import triton

        def tokens(*features: int) -> Tensor:
            return torch.empty(1, 2, 70, *features, dtype=dtype, requires_grad=True)

        decay = tokens(keys) if "vector" in options else tokens() if "scalar" in options else None
        y, state = triton.linear_recurrence(
            tokens(keys),
            tokens(keys),
            tokens(values),
            decay,
            tokens() if "delta" in options else None,
            (tokens(keys), tokens(keys)) if "erase" in options else None,
            torch.empty(1, 2, keys, values) if "state" in options else None,
            [0, 70] if "packed" in options else None,
        )
        torch.autograd.backward((y, state), (torch.empty_like(y), torch.empty_like(state)))

    return call


CASES = {
    "permutation": permutation_case,
    "shift": shift_case,
    "statistics": statistics_case,
    "balance": balance_case,
    "attention": attention_case,
    "recurrence": recurrence_case,
}


def compile_elsewhere(
    *cases: str, folder: Path | None = None, capability: int = 90, disassemble: bool = False
) -> dict[str, dict[str, dict[str, int]]]:
    """Compile the cases in a process without Triton's interpreter and return their resources.

    A case is a kind and its arguments, for example "permutation:64:32:bfloat16:reference mask".
    `folder` contains another version of Triton. With `disassemble`, instructions are counted
    too.
    """
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["CAPABILITY"] = str(capability)
    if disassemble:
        environment["DISASSEMBLES"] = "1"
    if folder is not None:
        path = environment.get("PYTHONPATH", "")
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), path)))
    done = subprocess.run(
        [sys.executable, __file__, *cases],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout)


def case(text: str) -> Callable[[], object]:
    kind, *words = text.split(":")
    return CASES[kind](*(int(w) if w.isdigit() else getattr(torch, w, w) for w in words))


if __name__ == "__main__":
    print(json.dumps({text: compile_all(case(text)) for text in sys.argv[1:]}))
