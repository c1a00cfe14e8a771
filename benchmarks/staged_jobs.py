"""Jobs over an engine in two stages: ``python -m benchmarks.staged_jobs [ENGINE] [QUERIES] [MB]``.

Two agents have a stage each, and another fleet has the whole engine. Jobs over samples run on both
in turns. Before, the engine and its stages are measured one at a time: a chain is predicted to be
as fast as its slowest stage. With a budget of memory, each stage has to fit in it, and the largest
memory that an engine host has taken is printed.
"""

from __future__ import annotations

import math
import operator
import re
import shutil
import sys
import tempfile
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import psutil

import synergai
from demo.local_fleet import LocalFleet
from profiler.cutting.stages import cut_engine, split_engine
from profiler.measuring.stages import StageSetting, measure_split
from profiler.zoo.recipes import build
from synergai.core.routes.problem import HOST_BYTES, SESSION_PER_WEIGHT
from synergai.domain import Configuration, WorkerClass

if TYPE_CHECKING:
    from profiler.cutting.cuts import Cut

ROUNDS = 3
SHARE = 0.57
"""Estimated share of the work before the cut; the operators behind it are faster."""


def main() -> None:
    """Measure the engine that the command line names."""
    arguments = sys.argv[1:]
    name = arguments[0] if arguments else "onnx_resnet50_op11"
    queries = int(arguments[1]) if len(arguments) > 1 else 150
    budget_mb = float(arguments[2]) if len(arguments) > 2 else math.inf
    with tempfile.TemporaryDirectory(prefix="synergai-") as temporary, ExitStack() as context:
        folder = Path(temporary)
        build(name, folder / "whole", lambda _: None)
        engine = cut_engine(folder / "whole", name)
        seams = [cut for cut in engine.cuts if cut.seam and needed_mb(cut) <= budget_mb]
        half = min(seams, key=lambda cut: abs(cut.work - SHARE))
        setting = StageSetting(
            models=folder / "whole",
            worker_class=WorkerClass("here"),
            configuration=Configuration(1),
        )
        whole, *entries = measure_split(engine, [half.tensor], setting)
        predicted = min(each.qps for each in entries)
        for each in (whole, *entries):
            print(f"{each.engine:32} {1e3 / each.qps:7.2f} ms alone, {each.label}")
        folders = {"single": folder / "single"}
        shutil.copytree(folder / "whole" / name, folders["single"] / name)
        for stage in split_engine(engine, folder / "whole", [half.tensor], lambda *_: None):
            folders[stage.name] = folder / "stages" / stage.name
            shutil.copytree(folder / "whole" / stage.name, folders[stage.name] / stage.name)
        alone = {"single": folders.pop("single")}
        single = context.enter_context(start(folder / "one", alone, math.inf))
        chain = context.enter_context(start(folder / "two", folders, budget_mb))
        rates: dict[LocalFleet, list[float]] = {single: [], chain: []}
        gateway_s = 0.0
        busy: list[float] = []
        for fleet in (single, chain):
            run(fleet, name, 20)
        for _ in range(ROUNDS):
            for fleet, found in rates.items():
                before_s, computed_s = cpu_s(fleet), busy_s(fleet)
                found.append(run(fleet, name, queries))
                if fleet is chain:
                    gateway_s += cpu_s(fleet) - before_s
                    slowest_s = max(map(operator.sub, busy_s(fleet), computed_s))
                    busy.append(slowest_s * found[-1] / queries)
        whole_rate, rate = median(rates[single]), median(rates[chain])
        size = half.size_bytes
        per_query_s = gateway_s / ROUNDS / queries
        print(f"tensor at the cut: {size:,} bytes; {queries} queries, median of {ROUNDS} jobs")
        print(f"single engine: {whole_rate:.2f} queries/s")
        print(f"two stages:    {rate:.2f} queries/s, {rate / whole_rate:.2f} of the single engine")
        print(f"predicted:     {predicted:.2f} queries/s; reached {rate / predicted:.1%}")
        print(f"the slower stage computed in {median(busy):.1%} of the time")
        print(f"gateway: {per_query_s * 1e3:.2f} ms of CPU per query of two stages")
        hosts = ", ".join(f"{mb:.0f} MB" for mb in host_mb(chain))
        print(f"engine hosts have taken {hosts} of memory at most; the budget is {budget_mb:g} MB")


def needed_mb(cut: Cut) -> float:
    """Return the memory that the host of the larger stage is expected to take."""
    weights = max(cut.weights_before, cut.weights_after)
    return (HOST_BYTES + SESSION_PER_WEIGHT * weights) / 1e6


def host_mb(fleet: LocalFleet) -> list[float]:
    """Return the largest memory that each engine host has taken so far."""
    found: list[float] = []
    for agent in fleet.agents.values():
        for host in psutil.Process(agent.pid).children():
            status = Path(f"/proc/{host.pid}/status").read_text()
            found += (int(kib) * 1024 / 1e6 for kib in re.findall(r"VmHWM:\s+(\d+)", status))
    return found


def start(folder: Path, agents: dict[str, Path], budget_mb: float) -> LocalFleet:
    """Start a fleet with an agent for each model directory."""
    fleet = LocalFleet(folder)
    fleet.start_gateway()
    for number, models in enumerate(agents.values()):
        options = ["--threads", "1"]
        if budget_mb < math.inf:
            options += ["--memory-mb", f"{budget_mb:g}"]
        fleet.start_agent(f"worker-{number}", models=models, options=options)
    fleet.wait_for_workers(len(agents))
    return fleet


def run(fleet: LocalFleet, engine: str, queries: int) -> float:
    """Run a job; return its rate from the first dispatch."""
    with synergai.SyncClient(fleet.address) as client:
        status = client.submit(engine, queries=queries).wait()
    status.raise_unless_succeeded()
    return queries / (status.actual_s or 0.0)


def cpu_s(fleet: LocalFleet) -> float:
    """Return the CPU seconds of a gateway so far."""
    times = psutil.Process(fleet.gateway.pid).cpu_times() if fleet.gateway else None
    return 0.0 if times is None else times.user + times.system


def busy_s(fleet: LocalFleet) -> list[float]:
    """Return the seconds that each worker has computed."""
    with urllib.request.urlopen(f"http://{fleet.http_address}/metrics") as response:
        text = response.read().decode()
    found = re.findall(r"^synergai_worker_busy_seconds_total\{(.*)\} (.*)$", text, re.MULTILINE)
    return [float(seconds) for _, seconds in sorted(found)]


if __name__ == "__main__":
    main()
