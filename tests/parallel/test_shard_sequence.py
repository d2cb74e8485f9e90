"""Sharded sequences on two and four processes give the results of one device."""

from __future__ import annotations

from typing import Any

import cases
import pytest
import traffic

from processes import Processes

pytestmark = pytest.mark.slow

MIXERS: dict[str, tuple[str, dict[str, Any]]] = {
    "identity": ("identity", {}),
    "average": ("average", {}),
    "average, causal": ("average", {"causal": True}),
    "tssa": ("tssa", {}),
    "tssa, not normalised": ("tssa", {"normalize": False}),
    "tssa, causal": ("tssa", {"causal": True}),
    "linear": ("linear", {}),
    "linear, not normalised": ("linear", {"normalize": False}),
    "linear, causal": ("linear", {"causal": True}),
    "softmax": ("softmax", {}),
    "softmax, causal": ("softmax", {"causal": True}),
    "sinkhorn": ("sinkhorn", {"block_size": 5}),
    "sinkhorn, causal": ("sinkhorn", {"causal": True, "block_size": 2}),
    "sinkhorn, three heads": ("sinkhorn", {"num_heads": 3, "sort_net": "mlp", "block_size": 4}),
    "sinkhorn, sortcut": ("sinkhorn", {"sortcut": 2, "tie_kv": True, "block_size": 2}),
    "sinkhorn, top k": (
        "sinkhorn",
        {"causal": True, "top_k": 2, "null_kv": True, "block_size": 2},
    ),
    "sliceformer": ("sliceformer", {}),
    "sliceformer, exchange": ("sliceformer", {"variant": "max_exchange"}),
    "sliceformer, interleaved": ("sliceformer", {"variant": "interleave", "heads": 2}),
    "sliceformer, causal": ("sliceformer", {"causal": True, "window_size": 5}),
    "butterfly": ("butterfly", {}),
    "butterfly, larger than half": ("butterfly", {"block_size": 7, "layer_index": 0}),
    "butterfly of the length": ("butterfly", {"block_size": 2, "layout": "length"}),
    "grouped": ("grouped", {"block_size": 3}),
    "csp": ("csp", {}),
    "csp, causal": ("csp", {"causal": True}),
    "csp, causal, no shift": ("csp", {"causal": True, "shift": "none", "group_size": 3}),
    "csp, one group": ("csp", {"num_groups": 1, "heads": 3}),
    "csp, more processes than channels": ("csp", {"dim": 3, "num_heads": 1}),
    "csp, ascending": ("csp", {"order": "ascending", "group_size": 4, "pad": True}),
    "csp, list of shifts": ("csp", {"shift": [1, 2, 3, 0, 7, 5], "heads": 2}),
    "csp, groups alone": ("csp", {"shift": "none"}),
    "csp, short shifts": ("csp", {"shift": [0, 1, -1, 12, 0, 1], "layout": "length"}),
    "csp, short, ascending": (
        "csp",
        {"shift": [1, 0, 0, 1, 0, 1], "order": "ascending", "group_size": 2, "pad": True},
    ),
}


# Without a mask some mixers use another code path: one mixer of each kind.
WITHOUT_MASK = (
    "average",
    "tssa",
    "tssa, causal",
    "linear, not normalised",
    "softmax",
    "softmax, causal",
    "butterfly, larger than half",
    "grouped",
    "sinkhorn",
    "sinkhorn, causal",
    "sliceformer, exchange",
    "sliceformer, causal",
    "csp",
    "csp, causal",
    "csp, groups alone",
    "csp, short shifts",
    "csp, short, ascending",
)


@pytest.mark.parametrize("name", MIXERS)
def test_sharded_mixers_equal_one_process(four: Processes, name: str) -> None:
    four.run(cases.mixer_is_the_same, 4, *MIXERS[name], "any")


@pytest.mark.parametrize("name", WITHOUT_MASK)
def test_sharded_mixers_without_a_mask_equal_one_process(four: Processes, name: str) -> None:
    four.run(cases.mixer_is_the_same, 4, *MIXERS[name], "none")


@pytest.mark.parametrize("name", ["tssa", "tssa, causal", "linear, causal", "csp", "csp, causal"])
def test_mixers_on_two_processes_equal_one_process(four: Processes, name: str) -> None:
    four.run(cases.mixer_is_the_same, 2, *MIXERS[name], "any")


@pytest.mark.parametrize("kind", ["none", "any"])
@pytest.mark.parametrize(
    "name", ["sliceformer", "csp, one group", "csp, groups alone", "csp, causal, no shift"]
)
def test_equal_values_keep_their_order(four: Processes, name: str, kind: str) -> None:
    mixer, options = MIXERS[name]
    plain = {"value_proj": False} if mixer == "csp" else {}
    four.run(cases.mixer_is_the_same, 4, mixer, options | plain, kind, ties=True)


@pytest.mark.parametrize(
    "name",
    ["sliceformer", "csp", "csp, groups alone", "csp, short shifts", "csp, short, ascending"],
)
def test_sort_indices_refer_to_the_whole_sequence(four: Processes, name: str) -> None:
    four.run(cases.index_is_of_the_whole_sequence, *MIXERS[name])


def test_communication_equals_the_formulas(four: Processes) -> None:
    four.run(_formulas_hold)


def _formulas_hold() -> None:
    traffic.formulas_hold(cases.meshes()[4])
