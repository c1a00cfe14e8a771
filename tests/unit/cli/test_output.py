"""What the command line prints for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from synergai.cli.output import print_facts, print_table

if TYPE_CHECKING:
    import pytest


def test_on_a_narrow_terminal_names_stay_whole_and_other_columns_are_folded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes it for a terminal
    monkeypatch.setenv("COLUMNS", "60")
    name = "01J9ZT5N4C3X8Q7W6V5B4N3M2K"

    print_table(("job", "reason"), [(name, "no worker would have been done in time " * 2)])

    out = capsys.readouterr().out
    assert name in out
    assert max(map(len, out.splitlines())) < 100


def test_no_text_of_others_commands_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("engine",), [("a\x1b[2Jb\nc",), (Text("d\x9be", "red"),)])
    print_facts([("file", "f\udcffg")])

    out = capsys.readouterr().out
    assert all(each in out for each in ("a?[2Jb", "c", "d?e", "f?g"))


def test_on_a_narrow_terminal_short_words_are_not_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")

    print_table(
        ("job", "engine", "state"),
        [("01J9ZT5N4C", "a_very_long_name_of_an_engine" * 2, "succeeded, met")],
    )

    assert "succeeded," in capsys.readouterr().out
