"""Statistics and tables of the benchmarks."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.client import Figure, WrongResponse, unwrap
from benchmarks.interleaving import Measurements, Probe, measure_interleaved
from benchmarks.report import Comparison, DocumentBlock, Section, table
from synergai.errors import InvalidInput
from synergai.oip import inference_pb2 as oip

OURS, THEIRS = ("we", "median"), ("they", "median")


def measured(ours: list[float], theirs: list[float]) -> Measurements:
    return Measurements(
        {
            OURS: [Figure(value, 1.0) for value in ours],
            THEIRS: [Figure(value, 1.0) for value in theirs],
        }
    )


def test_a_ratio_is_taken_within_each_round_before_the_median() -> None:
    # The second round was slow for both; the ratio of the two medians would say 10.
    ratio = measured([2.0, 200.0, 20.0], [1.0, 100.0, 2.0]).ratio("median_ms", OURS, THEIRS)
    assert ratio == 2.0


def test_a_comparison_with_an_unmeasured_cell_has_no_value() -> None:
    assert measured([1.0], [1.0]).ratio("median_ms", OURS, ("they", "mean")) is None


async def test_each_round_runs_all_probes_and_starts_with_a_different_one() -> None:
    calls: list[tuple[str, float]] = []

    def probe(row: str) -> Probe:
        async def measure(seconds: float) -> Figure:
            calls.append((row, seconds))
            return Figure(float(len(calls)), 1.0)

        return Probe(row=row, column="c", measure=measure)

    result = await measure_interleaved([probe("a"), probe("b")], seconds=9.0, rounds=2)
    assert [row for row, seconds in calls if seconds == 9.0] == ["a", "b", "b", "a"]
    assert result.figure(("a", "c")) == Figure(4.5, 1.0)


@pytest.mark.parametrize(
    ("value", "shown"), [(0.9, "0.900"), (0.91, "**0.910**"), (None, "**not measured**")]
)
def test_a_figure_that_misses_its_target_is_bold(value: float | None, shown: str) -> None:
    assert Comparison(text="t", value=value, at_most=0.9).cells() == ["t", shown, "≤ 0.9"]


def test_an_unmeasured_cell_is_a_dash() -> None:
    section = Section(
        title="T",
        note="N",
        rows=["we", "they"],
        columns=["median", "mean"],
        measured=Measurements({OURS: [Figure(1.5, 2000.0)]}),
        comparisons=[],
    )
    assert section.markdown().splitlines()[-2:] == [
        "| we   | 1.500 ms, 2,000/s | -    |",
        "| they | -                 | -    |",
    ]


def test_a_summary_has_what_is_judged_or_else_the_figures() -> None:
    section = Section(
        title="T",
        note="N",
        rows=["we"],
        columns=["median"],
        measured=Measurements({OURS: [Figure(1.5, 2000.0)]}),
        comparisons=[Comparison(text="free", value=1.0)],
    )
    assert "1.500 ms" in section.summary()
    assert "free" not in section.summary()
    judged = replace(section, comparisons=[Comparison(text="fast", value=1.0, at_most=2.0)])
    assert "1.500 ms" not in judged.summary()
    assert "fast" in judged.summary()


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert len(set(map(len, table(["a", ""], [["1", "23456"], ["", "2"]]).splitlines()))) == 1


def test_writing_replaces_one_block_and_leaves_the_rest(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    document.write_text("above\n<!-- b: begin -->\nold\n<!-- b: end -->\nbelow\n")
    DocumentBlock(document, "b").write("new")
    assert document.read_text() == ("above\n<!-- b: begin -->\n\nnew\n\n<!-- b: end -->\nbelow\n")


def test_a_document_without_markers_is_refused_on_construction(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    with pytest.raises(InvalidInput, match="cannot read"):
        DocumentBlock(document, "b")
    document.write_text("<!-- b: begin -->\n")
    with pytest.raises(InvalidInput, match="markers"):
        DocumentBlock(document, "b")


def test_an_error_message_on_a_stream_raises() -> None:
    data = oip.ModelStreamInferResponse(error_message="no engine").SerializeToString()
    with pytest.raises(WrongResponse, match="no engine"):
        unwrap(data)
