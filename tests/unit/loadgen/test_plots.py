"""Figures of load runs and goodput searches: labels, scales, and what they mark."""

from pathlib import Path

from matplotlib.axes import Axes

from synergai.loadgen.traces.plot import draw_search
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


def test_search_without_a_completed_request_is_drawn(tmp_path: Path) -> None:
    found = SearchResult(
        rate=0.0, above=1.0, trials=(a_trial(1, None, 0.0, 0.0),), limited_by_generator=True
    )
    draw_search(found, "digits", deadline_s=0.05, attainment=0.99).savefig(tmp_path / "x.png")
