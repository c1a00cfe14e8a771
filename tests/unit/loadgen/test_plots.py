"""Figures of load runs and goodput searches: labels, scales, and what they mark."""

from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from synergai.loadgen.traces.plot import draw_run, draw_search
from synergai.loadgen.traces.request_log import RequestLog
from synergai.loadgen.traces.search import RateTrial, SearchResult


def a_trial(rate: float, p50: float | None, p99: float, attainment: float) -> RateTrial:
    return RateTrial(
        rate=rate,
        attainment=attainment,
        goodput=rate * attainment,
        latency_s={} if p50 is None else {50.0: p50, 99.0: p99},
        is_valid=True,
        requests=100,
        failed=0,
        first_failure="",
    )


SEARCH = SearchResult(
    rate=800.0,
    above=1600.0,
    trials=(
        a_trial(50, 0.0021, 0.004, 1.0),
        a_trial(800, 0.0025, 0.031, 0.995),
        a_trial(1600, 0.04, 0.49, 0.6),
        a_trial(1600, None, 0.0, 0.0),
    ),
    limited_by_generator=False,
)


def tick_labels(figure: Figure) -> list[str]:
    """Return all labels of ticks within the axes, as they are drawn."""
    figure.draw_without_rendering()
    found = []
    for axes in figure.axes:
        for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
            found += [t.label1.get_text() for t in ticks if low <= t.get_loc() <= high]
            assert not axis.get_offset_text().get_text()
    return [label for label in found if label]


def legend_texts(axes: Axes) -> list[str]:
    legend = axes.get_legend()
    assert legend is not None
    return [text.get_text() for text in legend.get_texts()]


def test_search_shows_latency_by_rate_with_deadline_and_goodput() -> None:
    figure = draw_search(SEARCH, "digits", deadline_s=0.05, attainment=0.99)
    above, below = figure.axes
    assert above.get_ylabel() == "latency (ms)"
    assert above.get_yscale() == "log"
    assert below.get_ylabel() == "requests in time (%)"
    assert below.get_xlabel() == "offered rate (requests/s)"
    assert below.get_xscale() == "log", "from 50 to 1600"
    assert legend_texts(above) == [
        "p50 of the completed requests",
        "p99 of the completed requests",
        "deadline, 50 ms",
        "goodput, 800 requests/s",
    ]
    assert "goal, 99 %" in legend_texts(below)


@pytest.mark.parametrize("rate", [0.0, 800.0])
def test_goodput_is_marked_only_if_there_is_one(rate: float) -> None:
    found = SearchResult(rate=rate, above=1600.0, trials=SEARCH.trials, limited_by_generator=False)
    figure = draw_search(found, "digits", deadline_s=0.05, attainment=0.99)
    marked = any("goodput" in text for text in legend_texts(figure.axes[0]))
    assert marked is (rate > 0)


def test_tick_labels_are_plain_numbers() -> None:
    figures = [
        draw_search(SEARCH, "digits", deadline_s=0.05, attainment=0.99),
        draw_run(a_log(offered=1000, met=10), "digits"),
        draw_run(a_log(offered=100, met=100), "digits"),
    ]
    for figure in figures:
        labels = tick_labels(figure)
        assert labels
        for label in labels:
            float(label.replace(",", ""))
            assert "e" not in label


def a_log(*, offered: int, met: int) -> RequestLog:
    log = RequestLog()
    for number in range(offered):
        log.record(
            due=number / offered,
            sent=number / offered,
            ended=number / offered + (0.01 if number < met else 2.0),
            deadline_s=0.1,
            error=None,
        )
    return log


@pytest.mark.parametrize(("met", "scale"), [(10, "symlog"), (900, "linear"), (0, "linear")])
def test_run_has_a_log_axis_only_where_one_series_dwarfs_the_other(met: int, scale: str) -> None:
    figure = draw_run(a_log(offered=1000, met=met), "digits")
    above, below = figure.axes
    assert above.get_yscale() == scale
    assert above.get_ylim()[0] == 0.0
    assert (above.get_ylabel(), below.get_ylabel()) == ("requests/s", "latency (ms)")
    assert below.get_xlabel() == "due time (s)"
    assert legend_texts(above) == ["offered", "met deadline"]


def test_search_without_a_completed_request_is_drawn(tmp_path: Path) -> None:
    found = SearchResult(
        rate=0.0, above=1.0, trials=(a_trial(1, None, 0.0, 0.0),), limited_by_generator=True
    )
    draw_search(found, "digits", deadline_s=0.05, attainment=0.99).savefig(tmp_path / "x.png")
