"""Models with sharded sequences, and their training, on two and four processes."""

from __future__ import annotations

from typing import Any

import cases
import pytest

from processes import Processes

pytestmark = pytest.mark.slow

VECTORS: dict[str, Any] = {
    "in_channels": 5,
    "num_layers": 2,
    "pool": "cls",
    "positions": "sinusoid",
    "scale_embeddings": True,
    "norm_embedding": True,
}
IDS: dict[str, Any] = {"vocab_size": 9, "num_layers": 2}
TIED = {"mixer": "tssa", "pool": "cls", "padding_id": 0, "cls_mask": "first", "tie_layers": True}


@pytest.mark.parametrize(
    ("pool", "kind"),
    [
        ("mean", "none"),
        ("mean", "any"),
        ("max", "none"),
        ("max", "any"),
        ("cls", "any"),
        ("length_mean", "any"),
        ("position_mean", "any"),
    ],
)
def test_pooling_equals_one_process(four: Processes, pool: str, kind: str) -> None:
    settings = {"mixer": "tssa", "pool": pool, "norm": "post" if pool == "max" else "pre", **IDS}
    four.run(cases.encoder_is_the_same, 4, kind, settings)


@pytest.mark.parametrize("mixer", ["linear", "sliceformer", "softmax", "csp"])
def test_a_class_token_before_vectors(four: Processes, mixer: str) -> None:
    four.run(cases.encoder_is_the_same, 4, "any", {"mixer": mixer, **VECTORS})


def test_a_class_token_that_may_be_padding(four: Processes) -> None:
    four.run(cases.encoder_is_the_same, 2, "any", {**IDS, **TIED})


@pytest.mark.parametrize(
    ("mixer", "kind"),
    [("tssa", "none"), ("tssa", "any"), ("linear", "any"), ("csp", "any"), ("softmax", "any")],
)
def test_language_models_equal_one_process(four: Processes, mixer: str, kind: str) -> None:
    positions = "sinusoid" if mixer == "linear" else "learned"
    settings = {"mixer": mixer, "num_layers": 2, "layer_scale": 0.5, "positions": positions}
    four.run(cases.gpt_is_the_same, 4, kind, settings)


@pytest.mark.parametrize(
    ("mixer", "pool"), [("tssa", "cls"), ("sliceformer", "mean"), ("csp", "mean")]
)
def test_vision_transformers_equal_one_process(four: Processes, mixer: str, pool: str) -> None:
    four.run(cases.vit_is_the_same, 4, {"mixer": mixer, "pool": pool})


@pytest.mark.parametrize("wrap", ["ddp", "ddp over all", "fsdp", "fsdp around", "checkpointing"])
def test_training_on_the_other_axis(four: Processes, wrap: str) -> None:
    four.run(cases.training_is_the_same, wrap, "csp" if wrap == "ddp" else "tssa")


def test_fsdp_over_too_small_a_mesh(four: Processes) -> None:
    four.run(cases.meshes_of_fsdp_that_leave_processes_out)


@pytest.mark.parametrize("keeps_parameters", [False, True])
@pytest.mark.parametrize("where", ["around", "block", "block and around"])
def test_the_first_fsdp(four: Processes, where: str, keeps_parameters: bool) -> None:
    four.run(cases.first_fsdp_is_refused, where, keeps_parameters=keeps_parameters)


def test_models_that_fsdp_has_sharded(four: Processes) -> None:
    four.run(cases.what_fsdp_has_sharded_is_refused)


def test_copies_average_their_gradients(four: Processes) -> None:
    four.run(cases.copies_average_their_gradients)


def test_dropout_of_whole_sequences_is_shared(four: Processes) -> None:
    four.run(cases.draws_are_shared)


def test_weights_of_the_first_process(four: Processes) -> None:
    four.run(cases.weights_become_those_of_the_first)


def test_shards_of_other_shapes(four: Processes) -> None:
    four.run(cases.other_shapes_are_refused)


def test_sequences_that_do_not_fit(four: Processes) -> None:
    four.run(cases.uneven_sequences_are_refused)
