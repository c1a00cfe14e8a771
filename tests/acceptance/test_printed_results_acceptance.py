"""The documents' figures against what the commands print.

Only what takes a few seconds is computed again; the rest of a table is of the same run.
"""

import re

import pytest

from benchmarks.seeds import thesis
from benchmarks.seeds.__main__ import SEEDS
from benchmarks.seeds.rows import PRINTED, SEPARATOR
from profiler.dictionary.files import load_dictionary
from profiler.simulator.cli import METRICS, rows
from profiler.simulator.simulator_settings import RECONSTRUCTED_PROFILE, SimulatorSettings
from profiler.simulator.sweep import sweep
from profiler.simulator.workload import Profile
from tests.printed_results import EXPERIMENTS, printed_cells

QUICK = [
    ("thesis", "profile"),
    ("variants", "static.3"),
    ("pipelines", "shisha"),
    ("pipelines", "places"),
    ("splitting", "10x3"),
    ("splitting", "22x4"),
]


@pytest.mark.parametrize(("seed", "group"), QUICK)
def test_document_has_what_the_command_computes(seed: str, group: str) -> None:
    figures = SEEDS[seed][group]()
    ours = {
        row.key: cells[2]
        for row, cells in zip(PRINTED[seed].rows, printed_cells(seed), strict=True)
        if row.key in figures
    }
    assert ours
    assert ours == {key: figures[key] for key in ours}


def test_document_has_the_violations_of_a_policy_under_a_reading() -> None:
    figures = thesis.of_policy("be", ["none"])
    [ours] = [cells[2] for cells in printed_cells("thesis") if cells[0] == "`be`: violations of 96"]
    assert ours.split(SEPARATOR)[0] == figures["be.violations"]


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
    line, *_ = re.findall(rf"(?m)^\| {re.escape(title)} \|(.*)\|$", EXPERIMENTS.read_text())
    assert line.split("|")[3].strip() == mean
