"""What the command line prints for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from synergai.output import print_table

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
