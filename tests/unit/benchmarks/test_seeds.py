"""The document of printed results; an acceptance test computes some of its figures again."""

from benchmarks.seeds.rows import PRINTED, Row, Seed, comparison, key_chart
from tests.printed_results import printed_cells


def test_document_has_a_row_for_every_printed_result_and_no_other() -> None:
    for name, seed in PRINTED.items():
        assert [(what, printed, why) for what, printed, _, why in printed_cells(name)] == [
            (row.what, row.printed, row.why) for row in seed.rows
        ]
        # What could not be computed says why.
        assert all(row.why for row in seed.rows if not row.key)
        letters = {letter for row in seed.rows for letter in row.why.split(", ") if letter}
        assert letters == seed.reasons.keys()
    assert sum(len(seed.rows) for seed in PRINTED.values()) >= 40


def test_comparison_puts_printed_beside_computed() -> None:
    seed = Seed(
        title="",
        label="",
        part=1,
        rows=[Row("late", "2", "late", "a", shown="of 24"), Row("faster", "7.28 x", why="b")],
        reasons={"a": "one run", "b": "not simulated"},
    )
    figures = {"late": "1.5, 3.0"}
    lines = comparison(seed, figures).splitlines()
    assert [line.split() for line in lines[2:4]] == [
        ["|", "late", "|", "2", "|", "1.5,", "3.0", "|", "a", "|"],
        ["|", "faster", "|", "7.28", "x", "|", "-", "|", "b", "|"],
    ]
    assert lines[-2:] == ["- a: one run", "- b: not simulated"]
    chart = key_chart(seed, figures)
    assert (chart.lengths, chart.printed) == ({"of 24": 3.0}, {"of 24": 2.0})
