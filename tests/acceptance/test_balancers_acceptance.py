"""Pipelines whose workers and links are slowed down, under all balancers."""

from profiler.simulator.pipelines.interference import BALANCERS, compare, tables


def test_planning_serves_nearly_what_a_clairvoyant_does() -> None:
    [(_, rows)] = tables(list(compare([0, 1])))
    shares = {name: float(worst.rstrip("%")) for name, _, _, worst, _ in rows}
    assert list(shares) == list(BALANCERS)
    assert shares["planning"] >= 95
    assert shares["fixed"] < min(shares["lls"], shares["odin, alpha 10"])
    assert max(shares.values()) == shares["clairvoyant"] == 100
