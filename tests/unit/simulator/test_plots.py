"""Figures of simulated policies: scales, labels and legends."""

import pytest
from matplotlib.figure import Figure

from synergai.simulator.plots import draw_comparison
from synergai.simulator.results import SimulationResult


def a_result(policy: str, *, wait_s: float) -> SimulationResult:
    return SimulationResult(
        experiment="DL-FL",
        policy=policy,
        seed=1,
        jobs=24,
        violations=2,
        mean_wait_s=wait_s,
        mean_excess_s=0.0,
        excess_p99_s=0.0,
        e2e_mean_s=100.0,
        e2e_p99_s=200.0,
        decisions=10,
        decision_p99_us=10.0,
    )


def draw(slowest_wait_s: float) -> Figure:
    results = [a_result("malleable", wait_s=1.0), a_result("srr", wait_s=slowest_wait_s)]
    figure = draw_comparison(results, ["malleable", "srr"], ["DL-FL"])
    figure.draw_without_rendering()
    return figure


@pytest.mark.parametrize(("slowest_s", "scale"), [(10.0, "linear"), (400.0, "symlog")])
def test_axis_is_logarithmic_where_one_policy_dwarfs_another(slowest_s: float, scale: str) -> None:
    scales = {axes.get_ylabel(): axes.get_yscale() for axes in draw(slowest_s).axes}
    assert scales == {
        "violations (of 24)": "linear",
        "mean wait (s)": scale,
        "mean end-to-end (s)": "linear",
        "p99 end-to-end (s)": "linear",
        "mean excess (s)": "linear",
        "p99 excess (s)": "linear",
    }


def test_ticks_are_plain_and_the_colours_explained() -> None:
    figure = draw(40_000.0)
    for axes in figure.axes:
        assert axes.get_ylim()[0] == 0.0
        for label in axes.get_yticklabels():
            float(label.get_text().replace(",", ""))
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "malleable",
        "other policies",
        "standard deviation over seeds",
    ]
