"""Tests of `bench decode`: states for long contexts without reading them, and measurements."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import torch

from command_line import Cli
from rifflemix.errors import InputError
from rifflemix.lab.bench import decode
from rifflemix.lab.bench.decode import IN_PLACE, InPlaceAttention, state_after
from rifflemix.lab.bench.runner import Settings
from rifflemix.lab.bench.tables import bench_tables
from rifflemix.mixers import TokenMixer, create_mixer, list_mixers, mixer_card
from rifflemix.mixers.baselines.softmax import SoftmaxAttention

STREAMING = [name for name in list_mixers() if mixer_card(name).streaming]
QUICK = Settings(repeats=1, max_seconds=20.0)


def built(name: str) -> TokenMixer:
    return create_mixer(name, 8, num_heads=2, max_length=600, causal=True).eval()


@pytest.mark.parametrize("name", STREAMING)
def test_state_sizes_equal_those_after_a_prompt(name: str) -> None:
    mixer = built(name)
    x = torch.randn(2, 517, 8)
    with torch.no_grad():
        read = mixer.prefill(x)[1]
        made = state_after(mixer, 517, x[:, :256])
        mixer.step(x[:, 0], made)
    assert {key: part.shape for key, part in made.items()} == {
        key: part.shape for key, part in read.items()
    }
    assert torch.equal(made["position"], read["position"])


def test_attention_with_a_preallocated_cache_equals_softmax() -> None:
    mixer = SoftmaxAttention(8, num_heads=2, causal=True).double().eval()
    x = torch.randn(2, 30, 8, dtype=torch.float64)
    with torch.no_grad():
        step = InPlaceAttention(mixer, mixer.prefill(x[:, :-1])[1])
        torch.testing.assert_close(step(x[:, -1]), mixer(x)[:, -1])


def test_rows_and_tables() -> None:
    settings: dict[str, Any] = {"dim": 8, "heads": 2, "batch": 2, "settings": QUICK}
    result = decode.run((8, 300), mixers=["tssa", "csp"], **settings)
    json.dumps(result, allow_nan=False)
    names = ["two linear maps", IN_PLACE, "softmax", "tssa", "csp"]
    assert [row["name"] for row in result["rows"]] == 2 * names
    for row in result["rows"]:
        assert row["status"] == "measured", row["note"]
        timed = row["passes"]["step"]
        assert row["extra"]["tokens_per_second"] == 2 / timed["p50"]
        assert timed["ratios"].keys() == {"two linear maps", IN_PLACE}
    sizes = {(row["name"], row["shape"]["tokens"]): row["extra"] for row in result["rows"]}
    assert sizes["softmax", 300]["state_bytes"] == 2 * 300 * 8 * 2 * 4 + 2 * 8
    assert sizes["tssa", 8] == sizes["tssa", 8] | {"state_bytes": sizes["tssa", 300]["state_bytes"]}
    times, states = bench_tables(result)
    assert times.headers == states.headers == ["Name", "N=8", "N=300"]
    assert [row[0] for row in times.rows] == names


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"contexts": [4, 4]}, r"contexts: .*got \[4, 4\]"),
        ({"mixers": ["fnet"]}, "mixers: .*got fnet"),
        ({"contexts": [0]}, r"tokens: .*\b1\b.*got 0\b"),
    ],
)
def test_bad_settings_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        decode.run(**options, settings=QUICK)


def test_on_the_command_line(cli: Cli) -> None:
    done = cli("bench", "decode", "--contexts", "4,20", "--dim", "8", "--heads", "2", "--mixers",
               "tssa", "--repeats", "1")  # fmt: skip
    assert done.code == 0, done.err
    assert re.search(r"ms \(x softmax\b", done.out)
    wrong = cli("bench", "decode", "--contexts", "4,x")
    assert wrong.code == 2
    assert re.search(r"--contexts: .*N,N,\.\.\., got '4,x'", wrong.err)
