from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.client import Figure, WrongAnswer, unwrapped
from benchmarks.interleaving import Measured, Probe, in_turns
from benchmarks.report import Comparison, Place, Section, table
from synergai.errors import InvalidInput
from synergai.oip import inference_pb2 as oip

if TYPE_CHECKING:
    from pathlib import Path

OURS, THEIRS = ("we", "median"), ("they", "median")


def measured(ours: list[float], theirs: list[float]) -> Measured:
    return Measured(
        {
            OURS: [Figure(value, 1.0) for value in ours],
            THEIRS: [Figure(value, 1.0) for value in theirs],
        }
    )


def test_a_ratio_is_taken_within_each_round_before_the_median() -> None:
    # The second round was slow for both; the ratio of the two medians would say 10.
    ratio = measured([2.0, 200.0, 20.0], [1.0, 100.0, 2.0]).ratio("median_ms", OURS, THEIRS)
    assert ratio == 2.0


def test_a_comparison_with_something_unmeasured_has_no_value() -> None:
    assert measured([1.0], [1.0]).ratio("median_ms", OURS, ("they", "mean")) is None


async def test_every_round_measures_everybody_and_begins_with_another_one() -> None:
    asked: list[tuple[str, float]] = []

    def probe(row: str) -> Probe:
        async def measure(seconds: float) -> Figure:
            asked.append((row, seconds))
            return Figure(float(len(asked)), 1.0)

        return Probe(row=row, column="c", measure=measure)

    result = await in_turns([probe("a"), probe("b")], seconds=9.0, rounds=2)
    assert [row for row, seconds in asked if seconds == 9.0] == ["a", "b", "b", "a"]
    assert result.figure(("a", "c")) == Figure(4.5, 1.0)


@pytest.mark.parametrize(("value", "reached"), [(0.9, "yes"), (0.91, "**no**"), (None, "**no**")])
def test_a_limit_is_reached_only_by_a_figure_within_it(value: float | None, reached: str) -> None:
    assert Comparison(text="t", value=value, at_most=0.9).cells()[-1] == reached


def test_what_was_not_measured_is_a_dash_in_the_table() -> None:
    section = Section(
        title="T",
        note="N",
        rows=["we", "they"],
        columns=["median", "mean"],
        measured=Measured({OURS: [Figure(1.5, 2000.0)]}),
        comparisons=[],
    )
    assert section.markdown().splitlines()[-2:] == [
        "| we   | 1.500 ms, 2,000/s | -    |",
        "| they | -                 | -    |",
    ]


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert len(set(map(len, table(["a", ""], [["1", "23456"], ["", "2"]]).splitlines()))) == 1


def test_writing_replaces_one_block_and_leaves_the_rest(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    document.write_text("above\n<!-- b: begin -->\nold\n<!-- b: end -->\nbelow\n")
    Place(document, "b").write("new")
    assert document.read_text() == ("above\n<!-- b: begin -->\n\nnew\n\n<!-- b: end -->\nbelow\n")


def test_a_document_without_marks_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    with pytest.raises(InvalidInput, match="cannot be read"):
        Place(document, "b")
    document.write_text("<!-- b: begin -->\n")
    with pytest.raises(InvalidInput, match="marks"):
        Place(document, "b")


def test_an_error_on_a_stream_is_told_and_not_counted_as_an_answer() -> None:
    data = oip.ModelStreamInferResponse(error_message="no engine").SerializeToString()
    with pytest.raises(WrongAnswer, match="no engine"):
        unwrapped(data)
