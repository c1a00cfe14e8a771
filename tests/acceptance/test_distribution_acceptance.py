"""Transfers of the gateway's store, in a moderate size; the figures are those of the script."""

import pytest

from tests.acceptance.distribution import run


@pytest.mark.timeout(600)
def test_engines_arrive_beside_requests_and_over_a_slow_link() -> None:
    figures = run(megabytes=64, link_megabytes=5, agents=2, mbits=20.0)
    print(figures)
    assert figures["requests"] > 0
    assert 0 < figures["used"] <= 1.05  # no faster than the link
