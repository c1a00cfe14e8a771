"""Compare the profiler's built-in timer with MLPerf LoadGen on the same queries.

LoadGen issues the queries of a Single Stream run, and each is timed by both. So the noise of the
machine is in both figures, and their ratio is LoadGen's overhead alone.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from profiler.measuring.host_client import HostClient
from profiler.measuring.single_stream import SingleStreamResult, run_loadgen, summarise
from profiler.zoo import recipes as zoo
from synergai.domain import Configuration, EngineName, Session


def time_with_both(
    host: HostClient, queries: int, seconds: float, output: Path
) -> tuple[SingleStreamResult, SingleStreamResult]:
    """Return LoadGen's figures and the built-in timer's of the same queries."""
    latencies_ns = []

    def issue(index: int) -> None:
        began = time.perf_counter_ns()
        host.run_samples(index)
        latencies_ns.append(time.perf_counter_ns() - began)

    for index in range(20):  # warm-up, of which the last ones say what LoadGen has to prepare
        issue(index)
    fastest_s = min(latencies_ns) / 1e9
    latencies_ns.clear()
    loadgen = run_loadgen(
        issue,
        samples=host.ready.samples,
        queries=queries,
        min_duration_s=seconds,
        fastest_s=fastest_s,
        output=output,
    )
    return loadgen, summarise(latencies_ns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", default="onnx_mobilenet_op11", help="engine of the zoo")
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder) / "models"
        zoo.build(options.engine, models)
        session = Session(EngineName(options.engine), Configuration(1))
        with HostClient(models, session) as host:
            results = time_with_both(host, options.queries, options.seconds, Path(folder))
    loadgen, built_in = results
    print(f"{options.engine}, {loadgen.queries:,} queries, LoadGen says {loadgen.validity}")
    for name in ("latency_p50_s", "latency_p90_s", "latency_p99_s", "qps"):
        one, other = getattr(loadgen, name), getattr(built_in, name)
        unit, scale = ("1/s", 1.0) if name == "qps" else ("µs", 1e6)
        print(
            f"{name}: LoadGen {scale * one:,.1f} {unit}, built-in {scale * other:,.1f} {unit}, "
            f"ratio {other / one:.4f}"
        )


if __name__ == "__main__":
    main()
