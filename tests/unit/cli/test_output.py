"""Tables and facts printed for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from synergai.cli.output import print_facts, print_table

if TYPE_CHECKING:
    import pytest


def test_narrow_terminal_keeps_names_whole_and_folds_other_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # makes rich assume a terminal
    monkeypatch.setenv("COLUMNS", "60")
    name = "01J9ZT5N4C3X8Q7W6V5B4N3M2K"

    print_table(("job", "reason"), [(name, "no worker would have been done in time " * 2)])

    out = capsys.readouterr().out
    assert name in out
    assert max(map(len, out.splitlines())) < 100


def test_control_characters_are_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("engine",), [("a\x1b[2Jb\nc",), (Text("d\x9be", "red"),)])
    print_facts([("file", "f\udcffg")])

    out = capsys.readouterr().out
    assert all(each in out for each in ("a?[2Jb", "c", "d?e", "f?g"))


def test_narrow_terminal_does_not_break_short_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")

    print_table(
        ("job", "engine", "state"),
        [("01J9ZT5N4C", "a_very_long_name_of_an_engine" * 2, "succeeded, met")],
    )

    assert "succeeded," in capsys.readouterr().out
