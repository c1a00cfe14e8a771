"""Cells that many workers and requests need, by simulation of a cell's scheduling core.

    python -m benchmarks.cells --workers 10000 --requests-per-s 1000000 --gateway-us 395

A gateway's loop passes on one request after the other. What one costs apart from its scheduler is
about the inverse of the gateway's throughput (``make bench``, pinned, 16 in flight). The
scheduler's share is measured here: requests of one query begin and end while half of a cell's
workers are busy.
"""

from __future__ import annotations

import argparse
import math
from statistics import fmean
from typing import Final

from benchmarks.scheduling import CLASSES, ENGINES, Traffic
from benchmarks.timed_core import CONFIGURATION, make_core
from synergai.profiles.dictionary import ProfileEntry

SIZES: Final = (4, 16, 64, 256, 1024)
"""Workers of a cell."""
ROUNDS: Final = 2000
_DEADLINE_S: Final = 60.0
USED: Final = 0.7
"""Share of its time for which a gateway's loop may be busy: beyond it, requests wait for long."""


def core_us(workers: int) -> float:
    """Return the mean time of a request in the scheduling core, from its arrival to its end."""
    entries = [
        ProfileEntry(engine=engine, worker_class=name, configuration=CONFIGURATION, qps=qps)
        for engine in ENGINES
        for name, qps in CLASSES.items()
    ]
    core = make_core("malleable", entries, list(CLASSES), workers, ENGINES)
    traffic = Traffic(core)
    for _ in range(workers // 2):
        traffic.submit(1, _DEADLINE_S)
    traffic.costs_s.clear()
    for _ in range(ROUNDS):
        traffic.now += 1e-4
        traffic.submit(1, _DEADLINE_S)
        traffic.end()
    return 2e6 * fmean(traffic.costs_s)


def main() -> None:
    """Print a row for each size of a cell."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workers", type=int, default=10_000)
    parser.add_argument("--requests-per-s", type=float, default=1e6)
    parser.add_argument("--gateway-us", type=float, required=True)
    options = parser.parse_args()
    print(
        f"{'workers of a cell':>18}{'core, µs':>10}{'requests/s':>12}"
        f"{'cells by workers':>18}{'by requests':>13}"
    )
    for size in SIZES:
        scheduler_us = core_us(size)
        rate = USED * 1e6 / (options.gateway_us + scheduler_us)
        print(
            f"{size:>18,}{scheduler_us:>10.0f}{rate:>12,.0f}"
            f"{math.ceil(options.workers / size):>18,}"
            f"{math.ceil(options.requests_per_s / rate):>13,}"
        )


if __name__ == "__main__":
    main()
