"""Third-party analyses: decorator, file, entry point and errors."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import rifflemix as rm
from rifflemix.errors import InputWarning
from rifflemix.lab.analysis import (
    Finding,
    analyze,
    get_analysis,
    list_analyses,
    registry,
    usable_analyses,
)
from rifflemix.lab.analysis.drawing import new_figure

pytestmark = pytest.mark.usefixtures("registries")

PLUGIN = """
import rifflemix as rm
from rifflemix.lab.analysis import Column, layer_finding
from rifflemix.lab.analysis.drawing import new_figure
from rifflemix.lab.analysis.trace import find_layers

class Size:
    def __init__(self, name, layer):
        self.name, self.count = name, sum(p.numel() for p in layer.parameters())

@rm.register_analysis(title="Sizes of the layers", source="a test")
def layer_sizes(subjects, on_progress):
    found = {s.label: [Size(*of) for of in find_layers(s.model).items()] for s in subjects}
    return layer_finding(
        found, [Column("Parameters", "count", ",")], caption="none", figure=new_figure(1.0),
        sentence=lambda label, layers: f"{label}: {len(layers)} layers",
    )
"""


def finding_of(subjects: Any, _: Any) -> Finding:
    names = tuple(subject.label for subject in subjects)
    return Finding(names, ("Model",), (names,), "", {"names": list(names)}, new_figure(1.0))


def model() -> tuple[Any, list[torch.Tensor]]:
    made = rm.create_model("encoder", vocab_size=9, max_length=8, dim=8, num_layers=1)
    return made, [torch.ones(1, 8, dtype=torch.int64)]


def test_a_decorated_function_becomes_a_kind() -> None:
    @rm.register_analysis
    def model_names(subjects: Any, on_progress: Any) -> Finding:
        return finding_of(subjects, on_progress)

    assert list_analyses()[-1] == "model-names"
    finding = analyze("model-names", *model())
    assert (finding.kind, finding.title) == ("model-names", "Model names")
    assert "model_names" in finding.source
    assert finding.data == {"names": ["Encoder"]}


def test_title_and_source_can_be_given() -> None:
    @rm.register_analysis(title="Mine", source="Figure 1")
    def other(subjects: Any, on_progress: Any) -> Finding:
        return finding_of(subjects, on_progress)

    assert other([], None).rows == ((),)
    assert get_analysis("other").title == "Mine"
    assert get_analysis("other").source == "Figure 1"


def test_a_new_definition_replaces_the_old_one() -> None:
    for number in (1, 2):

        @rm.register_analysis(title=f"Number {number}")
        def again(subjects: Any, on_progress: Any) -> Finding:
            return finding_of(subjects, on_progress)

    assert get_analysis("again").title == "Number 2"


def rate(subjects: Any, on_progress: Any) -> Finding:
    return finding_of(subjects, on_progress)


WRONG: dict[str, tuple[Any, str]] = {
    "no function": (3, "analysis: .*got 3"),
    "taken": (rate, r"analysis 'rate'.*lab\.analysis"),
    "lambda": (lambda subjects, on_progress: None, "analysis: .*lambda"),
}


@pytest.mark.parametrize(("wrong", "message"), WRONG.values(), ids=WRONG)
def test_wrong_analyses_are_refused(wrong: Any, message: str) -> None:
    with pytest.raises(rm.InputError, match=message):
        rm.register_analysis(wrong)


def test_an_analysis_without_a_finding_is_refused() -> None:
    @rm.register_analysis
    def nothing(subjects: Any, on_progress: Any) -> Any:
        return 3

    with pytest.raises(rm.InputError, match=r"analysis nothing: .*Finding.*got 3"):
        analyze("nothing", *model())


def test_an_unknown_kind_suggests_the_nearest() -> None:
    with pytest.raises(rm.InputError, match=r"'spectrun'.*spectrum"):
        analyze("spectrun", *model())


def test_a_plugin_file_adds_a_kind_to_the_commands(cli: Any, tmp_path: Path) -> None:
    plugin, out = tmp_path / "mine.py", tmp_path / "looks"
    plugin.write_text(PLUGIN, encoding="utf-8")
    code, text, _ = cli("list", "analyses", "--json", "--plugin", plugin)
    assert code == 0
    assert {"name": "layer-sizes", "title": "Sizes of the layers", "source": "a test"} in (
        json.loads(text)
    )
    target = ("encoder", "--mixers", "average,identity", "--set", "vocab_size=9", "--out", out)
    code, _, err = cli("analyze", "layer-sizes", *target, "--plugin", plugin)
    assert code == 0, err
    stored = json.loads((out / "layer-sizes.json").read_text(encoding="utf-8"))
    assert stored["headers"] == ["Model", "Layer", "Parameters"]
    count = stored["data"]["models"]["average"][0]["count"]
    assert stored["rows"][0][2] == f"{count:,}"
    assert (out / "layer-sizes.png").is_file()
    # A later analysis without the plugin keeps the section of the page.
    assert cli("analyze", "macs", *target)[0] == 0
    assert "Sizes of the layers" in (out / "analysis.html").read_text(encoding="utf-8")


def test_entry_points_are_listed_without_an_import(install: Any) -> None:
    install("looks", PLUGIN, {"analyses": "layer-sizes = looks:layer_sizes"})
    assert list_analyses()[-1] == "layer-sizes"
    assert "looks" not in sys.modules
    assert get_analysis("layer-sizes").title == "Sizes of the layers"
    install("broken", "import nothing_of_this_name", {"analyses": "gone = broken:gone"})
    registry._ENTRY_POINTS.forget()
    with pytest.warns(InputWarning, match=r"analysis 'gone'.*\bbroken\b"):
        assert "gone" not in usable_analyses()
