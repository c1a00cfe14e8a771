"""Strategies that the profiler's own are compared with."""

from __future__ import annotations

from typing import Final

from profiler.measuring.search.state import Strategy
from synergai.runtime.plugins import Registry

STRATEGIES: Final = Registry[Strategy](
    "benchmarks.baselines",
    {
        "exhaustive": "benchmarks.baselines.exhaustive:Exhaustive",
        "gp": "profiler.measuring.search.expected_gain:SharedProcessSearch",
        "halving": "benchmarks.baselines.successive_halving:SuccessiveHalving",
        "hill-climbing": "benchmarks.baselines.hill_climbing:HillClimbing",
        "random": "benchmarks.baselines.random_points:RandomPoints",
    },
)
"""The profiler's strategies and the baselines, by name."""
