"""Check that a refactoring changed no number.

    python tests/same_numbers.py COMMIT

The command builds COMMIT in a temporary worktree and records the same facts there and here, in
separate processes with one thread: outputs and gradients of every mixer and model (checksums),
state-dict keys, operator schemas, resolved recipes, weights after three short trainings, and
microseconds per forward pass of every mixer. It prints each difference and exits with 1 if a
number changed. Bits differ between processors, so both sides run on this machine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
SLOWER = 1.15
"""Relative time per forward pass above which a mixer counts as slower."""
TRAININGS = {
    "train": "train --task digits --task-option patch_size=2 --mixer csp --max-steps 12",
    "compare": "compare --task digits --task-option patch_size=4 --mixers tssa,softmax --seeds 1 "
    "--lr 0.001,0.003 --max-steps 6",
    "seq2seq": "train --task sort --mixer sinkhorn --max-steps 3 --batch-size 4 --dim 16 "
    "--layers 1 --task-option num_train=40 --task-option num_validation=8 --task-option num_test=8",
}

Facts = dict[str, str]


def checksum(tensors: Any) -> str:
    """Hash the shapes, dtypes and bytes of tensors."""
    import torch

    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        flat = tensor.detach().contiguous().flatten()
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def layout(module: Any) -> str:
    """Hash the names, shapes and dtypes of a state dict."""
    lines = [f"{k} {tuple(t.shape)} {t.dtype}" for k, t in module.state_dict().items()]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def mixer_facts() -> Iterator[tuple[str, str]]:
    """Run every mixer, with and without a mask, in each supported direction."""
    import torch

    import rifflemix as rm

    for name in rm.list_mixers():
        card = rm.mixer_card(name)
        directions = [d for d in (False, True) if card.causal or not d]
        for causal in directions:
            torch.manual_seed(0)
            try:
                mixer = rm.create_mixer(
                    name, 32, num_heads=4, max_length=64, causal=causal, layer_index=1, num_layers=2
                )
            except rm.InputError as error:
                yield f"mixer {name} causal={causal}", type(error).__name__
                continue
            yield f"mixer {name} causal={causal} layout", layout(mixer)
            for length, masked in ((64, False), (37, False), (37, True)):
                torch.manual_seed(1)
                x = torch.randn(3, length, 32, requires_grad=True)
                mask = torch.arange(length) >= length - 5 * torch.arange(3).unsqueeze(1)
                y = mixer(x, key_padding_mask=mask if masked else None)
                mixer.zero_grad()
                y.pow(2).sum().backward()
                found = [y, x.grad, *(p.grad for p in mixer.parameters() if p.grad is not None)]
                yield f"mixer {name} causal={causal} N={length} mask={masked}", checksum(found)


def model_facts() -> Iterator[tuple[str, str]]:
    """Run every registered model in a tiny size."""
    sys.path.insert(0, str(TESTS / "models"))
    from tiny_models import build, outputs_of, sample

    import rifflemix as rm

    for name in rm.list_models():
        model = build(name).eval()
        yield f"model {name} layout", layout(model)
        inputs, options = sample(name)
        outputs = outputs_of(model(*inputs, **options))
        loss = sum(y.float().pow(2).sum() for y in outputs if y.is_floating_point())
        loss.backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        yield f"model {name}", checksum([*outputs, *grads])


def schema_facts() -> Iterator[tuple[str, str]]:
    """Read the schema of every registered operator."""
    import torch

    import rifflemix as rm

    rm.create_mixer("csp", 8)(torch.randn(1, 4, 8))
    for schema in torch._C._jit_get_all_schemas():
        if schema.name.startswith("rifflemix::"):
            yield f"operator {schema.name}", str(schema)


def recipe_facts() -> Iterator[tuple[str, str]]:
    """Resolve every recipe."""
    recipes = json.loads(_command("list recipes --json"))
    for recipe in recipes:
        text = json.dumps(recipe, sort_keys=True)
        yield f"recipe {recipe['name']}", hashlib.sha256(text.encode()).hexdigest()[:16]


def training_facts() -> Iterator[tuple[str, str]]:
    """Train three short runs in any folder and hash their weights."""
    with tempfile.TemporaryDirectory() as folder:
        for name, command in TRAININGS.items():
            _command(f"{command} --threads 1 --device cpu --out {folder}/{name}")
            files = Path(folder, name).rglob("best.safetensors")
            yield f"training {name}", " ".join(sorted(set(map(_weights_checksum, files))))


def _weights_checksum(file: Path) -> str:
    from safetensors.torch import load_file

    return checksum([tensor for _, tensor in sorted(load_file(file).items())])


def forward_times() -> dict[str, float]:
    """Measure every mixer's least time per forward pass, in microseconds."""
    import torch

    import rifflemix as rm

    times = {}
    x = torch.randn(1, 64, 64)
    for name in rm.list_mixers():
        mixer = rm.create_mixer(name, 64, num_heads=4, max_length=64).eval()
        with torch.inference_mode():
            least = float("inf")
            for _ in range(60):
                start = time.perf_counter()
                mixer(x)
                least = min(least, time.perf_counter() - start)
        times[name] = least * 1e6
    return times


def _command(line: str) -> str:
    """Run one rifflemix command of this process's package; return its output."""
    done = subprocess.run(
        [sys.executable, "-m", "rifflemix", *line.split()],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"rifflemix {line} failed:\n{done.stderr}")
    return done.stdout


def record() -> Facts:
    """Collect all facts of the package that this process imports."""
    import torch

    torch.set_num_threads(1)
    facts: Facts = {}
    for source in (mixer_facts, model_facts, schema_facts, recipe_facts, training_facts):
        facts.update(source())
    return facts


def _in_tree(tree: Path, what: str) -> Any:
    """Run this script on the package of a tree; return its JSON."""
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, __file__, "--print", what],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
    )
    if done.returncode:
        raise SystemExit(f"{what} failed in {tree}:\n{done.stderr}")
    return json.loads(done.stdout)


def compare_facts(before: Facts, after: Facts) -> list[str]:
    """Name each fact that changed, appeared or disappeared."""
    lines = []
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name, "(absent)"), after.get(name, "(absent)")
        if old != new:
            lines.append(f"{name}: {old} -> {new}")
    return lines


def compare_times(before: Path, after: Path, rounds: int = 5) -> list[str]:
    """Measure both trees in turn and name the mixers that became slower."""
    old: dict[str, float] = {}
    new: dict[str, float] = {}
    for _ in range(rounds):
        for tree, least in ((before, old), (after, new)):
            for name, value in _in_tree(tree, "times").items():
                least[name] = min(least.get(name, value), value)
    for name in sorted(old):
        print(f"{name:28} {old[name]:8.0f} us -> {new[name]:8.0f} us  {new[name] / old[name]:.2f}")
    return [
        f"{name}: {new[name] / old[name]:.2f} times the time per forward pass"
        for name in old
        if new[name] > SLOWER * old[name]
    ]


def main() -> int:
    """Compare this tree with a commit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commit", nargs="?", help="commit to compare with")
    parser.add_argument("--no-times", action="store_true", help="compare numbers only")
    parser.add_argument("--print", choices=("facts", "times"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.print:
        print(json.dumps(record() if options.print == "facts" else forward_times()))
        return 0
    if options.commit is None:
        parser.error("COMMIT: expected the commit to compare with, got nothing")
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "before")
        subprocess.run(
            ["git", "worktree", "add", "-q", "--detach", tree, options.commit],
            check=True,
            cwd=ROOT,
        )
        try:
            build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
            subprocess.run(build, check=True, cwd=tree, capture_output=True)
            changed = compare_facts(_in_tree(tree, "facts"), _in_tree(ROOT, "facts"))
            slower = [] if options.no_times else compare_times(tree, ROOT)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], check=True, cwd=ROOT)
    print("\n".join([*changed, *slower]) or "no number changed")
    return 1 if changed or slower else 0


if __name__ == "__main__":
    sys.exit(main())
