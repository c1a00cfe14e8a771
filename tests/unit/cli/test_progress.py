"""Progress bars of commands."""

import pytest

from synergai.cli.output import count_progress


def test_without_a_bar_nothing_is_printed_to_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    with count_progress() as progress:
        progress.remove_task(progress.add_task("listing"))
    assert capsys.readouterr().err == ""


def test_bar_in_a_file_has_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    with count_progress() as progress:
        progress.add_task("uploading", total=1, completed=1)
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("uploading ")
