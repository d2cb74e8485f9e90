"""The picture of the rooms (docs/house.svg) shows them as they are."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from document_scripts import load_script

DOCS = Path(__file__).resolve().parents[1] / "docs"


@pytest.fixture(scope="module")
def house() -> ModuleType:
    return load_script("docs/write_house.py")


def test_the_picture_is_up_to_date(house: ModuleType) -> None:
    picture = (DOCS / "house.svg").read_text(encoding="utf-8")
    assert house.drawing() == picture, "run: python docs/write_house.py"


def test_every_room_is_in_the_picture(house: ModuleType) -> None:
    found = {path.name for path in house.SOURCE.iterdir() if (path / "__init__.py").exists()}
    files = {path.stem for path in house.SOURCE.glob("*.py") if not path.stem.startswith("__")}
    assert found - set(house.GROUND) == set(house.ROOMS)
    assert files | (found - set(house.ROOMS)) == set(house.GROUND)


def test_every_arrow_goes_down(house: ModuleType) -> None:
    rooms = house.ROOMS
    up = [
        (room, target)
        for room, targets in house.imports().items()
        for target in targets
        if rooms[target].row <= rooms[room].row
    ]
    assert not up


def test_the_picture_is_well_formed_and_names_every_room(house: ModuleType) -> None:
    texts = {node.text for node in ElementTree.fromstring(house.drawing()).iter()}
    assert texts >= {*house.ROOMS, ", ".join(house.GROUND)}


def test_arrows_that_others_imply_are_left_out(house: ModuleType) -> None:
    assert house.essential({"a": {"b", "c", "d"}, "b": {"c"}, "c": set()}) == [
        ("a", "b"),
        ("a", "d"),
        ("b", "c"),
    ]
