"""The documents' figures against what the commands print.

Only what takes a second or two is computed again; the rest of a table is of the same run.
"""

import re
from pathlib import Path

import pytest

from benchmarks.seeds import thesis
from benchmarks.seeds.__main__ import SEEDS
from benchmarks.seeds.rows import PRINTED, SEPARATOR, Row, Seed, comparison, key_chart
from profiler.dictionary.files import load_dictionary
from profiler.simulator.cli import METRICS, rows
from profiler.simulator.simulator_settings import RECONSTRUCTED_PROFILE, SimulatorSettings
from profiler.simulator.sweep import sweep
from profiler.simulator.workload import Profile

DOCS = Path(__file__).parents[3] / "docs"
QUICK = [
    ("thesis", "profile"),
    ("variants", "static.3"),
    ("pipelines", "shisha"),
    ("pipelines", "places"),
    ("splitting", "10x3"),
    ("splitting", "22x4"),
]


def shown(seed: str) -> list[list[str]]:
    """The cells of a seed's first table in the document, by row."""
    text = (DOCS / "experiments" / "printed.md").read_text()
    block = text.partition(f"<!-- {seed}: begin -->")[2].partition("\n- ")[0]
    lines = [line for line in block.split("\n") if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.mark.parametrize(("seed", "group"), QUICK)
def test_document_has_what_the_command_computes(seed: str, group: str) -> None:
    figures = SEEDS[seed][group]()
    ours = {
        row.key: cells[2]
        for row, cells in zip(PRINTED[seed].rows, shown(seed), strict=True)
        if row.key in figures
    }
    assert ours
    assert ours == {key: figures[key] for key in ours}


def test_document_has_the_violations_of_a_policy_under_a_reading() -> None:
    figures = thesis.of_policy("be", ["none"])
    [ours] = [cells[2] for cells in shown("thesis") if cells[0] == "`be`: violations of 96"]
    assert ours.split(SEPARATOR)[0] == figures["be.violations"]


def test_document_has_a_row_for_every_printed_result_and_no_other() -> None:
    for name, seed in PRINTED.items():
        assert [(what, printed, why) for what, printed, _, why in shown(name)] == [
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


@pytest.mark.parametrize(
    ("title", "sessions"),
    [("`malleable`", "cold"), ("`malleable`, loaded beforehand", "prewarmed")],
)
def test_experiments_have_the_violations_of_the_default_policy(title: str, sessions: str) -> None:
    settings = SimulatorSettings.load(
        {
            "seeds": "1000-1029",
            "policies": "malleable",
            "experiments": "DH-FH",
            "sessions": sessions,
        }
    )
    results = list(sweep(settings, Profile(load_dictionary(RECONSTRUCTED_PROFILE))))
    [[_, _, mean]] = rows(results, METRICS[0], settings.policies, settings.simulated)
    line, *_ = re.findall(
        rf"(?m)^\| {re.escape(title)} \|(.*)\|$", (DOCS / "experiments.md").read_text()
    )
    assert line.split("|")[3].strip() == mean
