"""Tables and facts printed for people."""

from datetime import UTC, datetime

import pytest
from rich.text import Text

from synergai.cli.output import (
    count_progress,
    cut_text,
    format_age,
    format_seconds,
    print_facts,
    print_table,
)


def assume_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # which rich takes for a terminal
    monkeypatch.setenv("COLUMNS", str(columns))


def test_narrow_terminal_keeps_names_whole_and_folds_other_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assume_terminal(monkeypatch, 60)
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
    assume_terminal(monkeypatch, 40)

    print_table(
        ("job", "engine", "state"),
        [("01J9ZT5N4C", "a_very_long_name_of_an_engine" * 2, "succeeded, met")],
    )

    assert "succeeded," in capsys.readouterr().out


def test_narrow_terminal_leaves_columns_out_instead_of_breaking_names_and_figures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assume_terminal(monkeypatch, 50)
    columns = ("worker", "engine", "p50", "queries", "age")
    row = ("cloud-1", "onnx_mobilenet_op11_2024", "0.119 ms", "1,234,567", "12 min")

    print_table(columns, [row], optional=("age", "queries", "worker"))

    out = capsys.readouterr().out
    assert all(each in out for each in row[:3])
    assert "12 min" not in out
    assert "not shown, as the terminal is narrow: age, queries (see --json)" in out


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, ""),
        (float("inf"), ""),
        (0.0123, "12.3 ms"),
        (20.0, "20 s"),
        (999.0, "999 s"),
        (999.9, "16.7 min"),
        (1690.0, "28.2 min"),
        (3600.0 * 3, "3 h"),
        (86_400.0 * 2.5, "2.5 d"),
        (86_400.0 * 36_500, "36,500 d"),
    ],
)
def test_durations_have_a_unit_that_people_read(seconds: float | None, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("instant", "age"),
    [
        ("2026-01-10T11:59:18+00:00", "42 s"),
        ("2026-01-10T11:58:00+00:00", "2 min"),
        ("2026-01-10T09:00:00+00:00", "3 h"),
        ("2025-12-29T11:00:00", "12 d"),
        ("2026-01-10T12:00:05+00:00", "0 s"),
        ("", ""),
        ("last week", ""),
    ],
)
def test_age_is_in_the_largest_unit_that_fits(instant: str, age: str) -> None:
    assert format_age(instant, datetime(2026, 1, 10, 12, tzinfo=UTC)) == age


def test_fault_is_cut_at_the_terminals_width_and_whole_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fault = "the model fails on synthetic inputs " * 5
    print_table(("engine", "fault"), [("e", cut_text(fault, "red"))])
    assert fault.strip() in capsys.readouterr().out

    assume_terminal(monkeypatch, 60)
    print_table(("engine", "fault"), [("e", cut_text(fault, "red"))])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert "…" in lines[2]


def test_without_a_bar_nothing_is_printed_to_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    with count_progress() as progress:
        progress.remove_task(progress.add_task("listing"))
    assert capsys.readouterr().err == ""


def test_bar_in_a_file_has_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    with count_progress() as progress:
        progress.add_task("uploading", total=1, completed=1)
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("uploading ")
