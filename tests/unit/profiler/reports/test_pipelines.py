"""Figures of the experiments with pipelines."""

from profiler.reports.charts import Boxes, Dots
from profiler.reports.evaluation.pipelines import draw_burst, draw_interference, draw_streams
from profiler.simulator.pipelines.burst import BurstResult
from profiler.simulator.pipelines.comparison import NAMES, StreamResult
from profiler.simulator.pipelines.interference import InterferenceResult


def test_rates_under_interference_are_shares_of_the_clairvoyants_in_the_same_scenario() -> None:
    rates = {"fixed": (5.0, 9.0), "clairvoyant": (10.0, 12.0)}
    results = [
        InterferenceResult(balancer=name, seed=seed, rate=rate, latency_s=0.1)
        for name, each in rates.items()
        for seed, rate in enumerate(each)
    ]
    figure = draw_interference({"workers": results, "links": results[1::2]})
    workers, links = figure.panels
    assert isinstance(workers, Boxes)
    assert isinstance(links, Boxes)
    ends = {name: box and (box.low, box.high) for name, box in workers.boxes.items()}
    assert ends == {"fixed": (0.5, 0.75), "clairvoyant": (1.0, 1.0)}
    assert len(figure.data) == 6


def test_burst_has_one_box_per_placement() -> None:
    results = [
        BurstResult(placement=placement, engine=engine, seed=0, rate=rate + engine)
        for placement, rate in (("whole", 20.0), ("stages", 50.0))
        for engine in range(2)
    ]
    figure = draw_burst(results)
    (panel,) = figure.panels
    assert isinstance(panel, Boxes)
    assert [box.mean for box in panel.boxes.values() if box] == [20.5, 50.5]


def test_streams_have_one_series_per_slo() -> None:
    results = [
        StreamResult(
            stream="small light",
            slo=slo,
            seed=0,
            scheduler=scheduler,
            queries=100,
            violations=violations,
            mean_s=0.2,
            rate=5.0,
            full=None,
        )
        for slo, violations in (("strict", 30), ("moderate", 20), ("relaxed", 10))
        for scheduler in NAMES
    ]
    figure = draw_streams(results)
    violations = figure.panels[0]
    assert isinstance(violations, Dots)
    assert violations.series == {
        "strict": [30.0] * len(NAMES),
        "moderate": [20.0] * len(NAMES),
        "relaxed": [10.0] * len(NAMES),
    }
