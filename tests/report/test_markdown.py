from __future__ import annotations

from rifflemix.report.markdown import table_lines


def test_lines_of_a_table() -> None:
    assert table_lines(["Name", "ms"], [["a|b", "1"], ("c", "2")], range(1, 2)) == [
        "| Name | ms |",
        "| --- | ---: |",
        "| a\\|b | 1 |",
        "| c | 2 |",
    ]


def test_without_rows_the_head_stands_alone() -> None:
    assert table_lines(["Row", "Ours"], []) == ["| Row | Ours |", "| --- | --- |"]
