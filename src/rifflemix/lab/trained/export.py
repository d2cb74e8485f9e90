"""Export trained models to ONNX, and save them for the Auto classes of transformers."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rifflemix.errors import InputError, bad_argument, require_packages
from rifflemix.files import make_folder, reported, write_bytes
from rifflemix.lab.tasks.core.card import Shapes, TaskRecord
from rifflemix.lab.tasks.core.kinds import TOKEN_OUTPUTS
from rifflemix.lab.tasks.graphs.graphs import GraphShapes
from rifflemix.lab.train.evaluate import run_model
from rifflemix.lab.trained.predict import Batch
from rifflemix.mixers import TokenMixer
from rifflemix.models import Model
from rifflemix.models.language.gpt import GPT, GPTState
from rifflemix.models.pretrained import as_json
from rifflemix.surgery import SwappedAttention, apply_swap, describe_swap
from rifflemix.version import VERSION

_PROMPT = 4  # tokens before the traced step


class StreamStep(nn.Module):
    """`GPT.step` with one named input and output for each tensor of the state.

    Args:
        model: a model that streams.

    Attributes:
        inputs: names of the inputs: "tokens" (B,), "position" (B,), then the state of each layer.
        outputs: names of the outputs: "logits" (B, V), then the next state.
        state: for each tensor of the state its input, output, dtype, initial shape and initial
            value. Axis 0 is the batch. Axes of size 0 grow by one with each step.

    Raises:
        InputError: a layer starts with a state that is not constant.
    """

    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.model = model
        first = model.init_state(1)
        named = [
            ("position", first.position),
            *(
                (f"layer{index}.{name}", part)
                for index, layer in enumerate(first.layers)
                for name, part in layer.items()
            ),
        ]
        self.inputs = ["tokens", *(name for name, _ in named)]
        self.outputs = ["logits", *(f"next.{name}" for name, _ in named)]
        self.state = [_description(name, part) for name, part in named]
        self._layers = [list(layer) for layer in first.layers]

    def forward(self, tokens: Tensor, state: list[Tensor]) -> list[Tensor]:
        """Return the logits and the next state, in the order of `outputs`."""
        position, *rest = state
        parts = iter(rest)
        layers = tuple({name: next(parts) for name in names} for names in self._layers)
        logits, after = self.model.step(tokens, GPTState(position, layers))
        flat = [layer[name] for layer, names in zip(after.layers, self._layers, strict=True)
                for name in names]  # fmt: skip
        return [logits, after.position, *flat]

    def example(self, size: int) -> dict[str, Any]:
        """Return the arguments of `forward` after a short prompt, for `size` sequences."""
        prompt = torch.zeros(size, min(_PROMPT, self.model.max_length - 1), dtype=torch.int64)
        _, state = self.model.prefill(prompt)
        flat = [layer[name] for layer, names in zip(state.layers, self._layers, strict=True)
                for name in names]  # fmt: skip
        return {"tokens": prompt[:, 0], "state": [state.position, *flat]}

    def axes(self) -> dict[str, Any]:
        """Return the dynamic axes of `example`: layers keep different numbers of past tokens."""
        batch, most = torch.export.Dim("batch"), self.model.max_length
        parts = []
        for part in self.state:
            past = torch.export.Dim(f"past_{part['input'].partition('.')[0]}", max=most)
            growing = [axis for axis, size in enumerate(part["shape"]) if size == 0]
            parts.append({0: batch, **dict.fromkeys(growing, past)})
        return {"tokens": {0: batch}, "state": parts}


def _description(name: str, first: Tensor) -> dict[str, Any]:
    values = first.unique().tolist()
    if len(values) > 1:
        raise InputError(f"export_onnx: the state {name} starts with different values")
    return {
        "input": name,
        "output": f"next.{name}",
        "dtype": str(first.dtype).removeprefix("torch."),
        "shape": list(first.shape),
        "initial": values[0] if values else 0,
    }


OUTPUT = "logits"
_BATCH = "batch"
STEP_SUFFIX = ".step.onnx"
_EXAMPLES, _TOKENS = 3, 24  # sizes of the traced batch
_LEAST = 3  # torch.export fixes sizes 0 and 1, so a range needs more

Axes = dict[int, Any]


def export_model(model: Model, record: TaskRecord, file: Path) -> list[Path]:
    """Export a model; see `TrainedRun.export_onnx`."""
    require_packages("export_onnx", "onnx", "onnx", "onnxscript")
    if file.is_dir():
        raise bad_argument("file", "the path of a file", f"the folder {file}")
    is_stream = isinstance(model, GPT) and model.streams
    limit = sequence_limit(model, record)
    if limit and not is_stream:
        raise InputError(f"export_onnx: {limit}")
    model = copy.deepcopy(model).cpu().eval()
    written = {}
    if not limit:
        batch, axes = _example(record)
        names = (list(batch), [OUTPUT])
        written[file] = _to_bytes(_Named(model), {"batch": batch}, {"batch": axes}, names, record)
    if isinstance(model, GPT) and is_stream:
        try:
            written[file.with_suffix(STEP_SUFFIX)] = _step_to_bytes(StreamStep(model), record)
        except InputError as error:
            if not limit:
                raise
            raise InputError(f"export_onnx: {limit}") from error
    make_folder(file.parent)
    for path, content in written.items():
        write_bytes(path, content)
    for path in {file, file.with_suffix(STEP_SUFFIX)} - set(written):
        with reported("remove", path):  # it belongs to an earlier model
            path.unlink(missing_ok=True)
    return list(written)


def _step_to_bytes(step: StreamStep, record: TaskRecord) -> bytes:
    names = (step.inputs, step.outputs)
    return _to_bytes(step, step.example(_EXAMPLES), step.axes(), names, record, step.state)


class _Named(nn.Module):
    """Model that takes a batch by name, as in training."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> Tensor:
        return run_model(self.model, batch)


def _to_bytes(
    module: nn.Module,
    arguments: dict[str, Any],
    axes: dict[str, Any],
    names: tuple[Sequence[str], Sequence[str]],
    record: TaskRecord,
    state: Sequence[Mapping[str, Any]] = (),
) -> bytes:
    """Export a module with names of its inputs and outputs, and metadata."""
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # from the exporters' own code
            program: Any = torch.onnx.export(
                module,
                kwargs=arguments,
                dynamic_shapes=axes,
                input_names=names[0],
                output_names=names[1],
                dynamo=True,
                optimize=False,
                verbose=False,
            )
        _check_sizes(program.exported_program, list(_leaves(axes)))
        program.model.metadata_props.update(_metadata(record, state))
        content: bytes = program.model_proto.SerializeToString()
    except InputError:
        raise
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        raise InputError(f"export_onnx: the model cannot be exported: {_reason(error)}") from error
    return content


def _leaves(axes: Any) -> Iterator[Axes]:
    """Yield the dynamic axes of each tensor, in the order of the inputs."""
    if isinstance(axes, dict) and all(isinstance(axis, int) for axis in axes):
        yield axes
    else:
        for part in axes.values() if isinstance(axes, dict) else axes:
            yield from _leaves(part)


def _check_sizes(program: torch.export.ExportedProgram, axes: Sequence[Axes]) -> None:
    """Raise if the graph supports fewer sizes than asked: the exporter does not report it."""
    shapes = {n.name: n.meta["val"].shape for n in program.graph.nodes if n.op == "placeholder"}
    for name, dynamic in zip(program.graph_signature.user_inputs, axes, strict=True):
        for axis, asked in dynamic.items():
            size = shapes[name][axis]
            symbol = None if isinstance(size, int) else size.node.expr
            most = size if symbol is None else program.range_constraints[symbol].upper
            if symbol is None or (asked.__name__ != _BATCH and most < asked.max):
                raise InputError(
                    f"export_onnx: the model supports {asked.__name__} up to {most} in one graph, "
                    f"but expected {asked.max}; choose another mixer or other options"
                )


def _reason(error: BaseException) -> str:
    """Return the first line of the original error. Exporters wrap it in others."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _metadata(record: TaskRecord, state: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    found = {
        "rifflemix_version": VERSION,
        "task": record.name,
        "kind": record.kind,
        "output": record.output,
        "max_length": str(record.shapes.max_length),
    }
    if record.classes:
        found["classes"] = json.dumps(record.classes)
    elif record.output == "number":
        found |= {
            "target_mean": json.dumps(record.target_mean),
            "target_std": json.dumps(record.target_std),
            "target_shape": json.dumps(record.target_shape),
        }
    return {**found, "state": json.dumps(state)} if state else found


def _has_lengths(record: TaskRecord) -> bool:
    """Check whether inputs may differ in length."""
    return record.shapes.padding or record.output in TOKEN_OUTPUTS


def sequence_limit(model: Model, record: TaskRecord) -> str:
    """Return why no ONNX graph reads whole sequences of any length, or an empty string."""
    for module in model.modules():
        if not isinstance(module, TokenMixer):
            continue
        card = module.card
        if card.no_onnx:
            return f"mixer {card.name} has no ONNX form: {card.no_onnx}"
        if _has_lengths(record) and card.one_length:
            return (
                f"mixer {card.name} can be exported for one length only, but the inputs differ in "
                f"length: {card.one_length}"
            )
    return ""


def _example(record: TaskRecord) -> tuple[Batch, dict[str, Axes]]:
    """Return a batch of zeros with the names of `TrainedRun.encode`, and its dynamic axes."""
    shapes = record.shapes
    size = torch.export.Dim(_BATCH)
    has_lengths = _has_lengths(record) and shapes.max_length >= _LEAST
    tokens = min(shapes.max_length, _TOKENS) if has_lengths else shapes.max_length
    example = _zeros(record, tokens)
    axes: dict[str, Axes] = {name: {0: size} for name in example}
    if has_lengths:
        length = torch.export.Dim("length", max=shapes.max_length)
        first = 2 if shapes.num_sequences > 1 else 1
        for name, positions in (
            ("inputs", (first,)),
            ("key_padding_mask", (first,)),
            ("distances", (1, 2)),
            ("path_edges", (1, 2)),
        ):
            if name in axes:
                axes[name].update(dict.fromkeys(positions, length))
        if "decoder_inputs" in axes:
            axes["decoder_inputs"][1] = torch.export.Dim("written", max=shapes.max_length)
    return example, axes


def _zeros(record: TaskRecord, tokens: int) -> Batch:
    fields = {**vars(record.shapes), "longest": tokens}
    if record.shapes.input_kind == "graphs":
        hops = (record.inputs or {})["path_length"]
        example = GraphShapes(**fields, path_length=hops).zeros(_EXAMPLES, record.output)
    else:
        example = Shapes(**fields).zeros(_EXAMPLES, record.output)
    del example["labels"]
    return example


_ADVICE = "call .model.save_pretrained, and rifflemix.models.from_pretrained to load the model"


def save_for_transformers(model: Model, record: TaskRecord, folder: Path) -> None:
    """Write a model and the names of its classes; see `TrainedRun.save_pretrained`."""
    try:
        from rifflemix.surgery.hub import models as hub
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise InputError(
            "save_pretrained needs transformers, which is not installed; "
            f"pip install 'rifflemix[hf]', or {_ADVICE}"
        ) from None
    shapes = record.shapes
    images, tokens = hub.RifflemixForImageClassification, hub.RifflemixForSequenceClassification
    classes: dict[tuple[str, str], Any] = {
        ("images", "classes"): images,
        ("images", "number"): images,
        ("tokens", "classes"): tokens,
        ("tokens", "number"): tokens,
        ("tokens", "next_token"): hub.RifflemixForCausalLM,
    }
    cls = classes.get((shapes.input_kind, record.output))
    if cls is None or shapes.num_sequences > 1 or not model.name:
        what = "pairs" if shapes.num_sequences > 1 else shapes.input_kind
        raise bad_argument(
            "save_pretrained",
            "a classifier of images or token ids, or a language model",
            f"task {record.name} ({what}, output {record.output})",
            _ADVICE,
        )
    labels: dict[str, Any] = {}
    if record.classes:
        labels["id2label"] = dict(enumerate(record.classes))
        labels["label2id"] = {name: index for index, name in labels["id2label"].items()}
    elif record.output == "number":
        labels = {"num_labels": 1, "problem_type": "regression"}
        labels |= {"target_mean": record.target_mean, "target_std": record.target_std}
    config = hub.RifflemixConfig(preset=model.name, settings=as_json(model.settings), **labels)
    saved = cls(config)
    if any(isinstance(module, SwappedAttention) for module in model.modules()):
        apply_swap(saved.model, describe_swap(model))
    saved.model.load_state_dict(model.state_dict())
    make_folder(folder)
    saved.save_pretrained(folder)
