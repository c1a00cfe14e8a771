"""The front of Fashion-MNIST's variants: trained, measured, and answered alike through a gateway.

Needs the Debian package ``dataset-fashion-mnist``, installed or for apt to download. Building takes
some minutes of CPU time.

The accuracy of each variant is the profiler's. Throughputs are compared by the CPU time of engine
hosts that take turns, of which the least per query counts: other processes can only add to it, and
what slows down one variant slows down the others as well.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
from msgspec.structs import replace

from examples.training import families
from profiler.cli import choose_timer
from profiler.measurement import measure
from synergai.client.sync import SyncClient
from synergai.domain import Configuration, Session, WorkerClass
from synergai.errors import NotFound
from synergai.models.directory import ModelDirectory
from synergai.profiles.dictionary import ProfileEntry
from synergai.profiles.fronts import FrontPoint, variant_fronts
from synergai.testing import LocalFleet
from worker_agent.hosts.sync_client import HostClient

ENGINE: Final = families.engine_name("fashion")
FULL: Final = "p100"
SAMPLES: Final = 10_000
ROUNDS: Final = 20
QUERIES: Final = 500


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = tmp_path_factory.mktemp("models")
    try:
        families.build("fashion", models)
    except NotFound as error:
        pytest.skip(str(error))
    return models


@pytest.fixture(scope="module")
def profiled(models: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, ProfileEntry]:
    """Entries of the profiler, by variant."""
    output = tmp_path_factory.mktemp("logs")
    return {
        variant.name: measure(
            models,
            Session(ENGINE, Configuration(1, variant=variant.name)),
            WorkerClass("here"),
            queries=10,
            min_duration=0.1,
            output=output / variant.name,
            timer=choose_timer(),
        ).entry
        for variant in ModelDirectory(models).get(ENGINE).variants
    }


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process's main thread, in which a host with one thread computes."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def least_cpu_s(models: Path, variants: Mapping[str, ProfileEntry]) -> dict[str, float]:
    """Return the least CPU time per query of each variant, in hosts that take turns."""
    least = dict.fromkeys(variants, float("inf"))
    with ExitStack() as stack:
        hosts = {
            name: stack.enter_context(HostClient(models, Session(ENGINE, entry.configuration)))
            for name, entry in variants.items()
        }
        for number in range(ROUNDS):
            for name, host in hosts.items():
                before = cpu_s(host.pid)
                host.run_samples(number * QUERIES, QUERIES)
                least[name] = min(least[name], (cpu_s(host.pid) - before) / QUERIES)
    return least


def fastest_within(points: Mapping[str, FrontPoint], loss: float) -> FrontPoint:
    """Return the fastest variant that loses at most this much accuracy against the full one."""
    best = points[FULL].accuracy or 0.0
    near = [each for each in points.values() if best - (each.accuracy or 0.0) <= loss]
    return max(near, key=lambda point: point.qps)


def test_front_has_four_variants_and_four_times_the_throughput_for_a_point(
    models: Path, profiled: dict[str, ProfileEntry]
) -> None:
    least = least_cpu_s(models, profiled)
    entries = [replace(entry, qps=1 / least[name], error=0.0) for name, entry in profiled.items()]
    [front] = variant_fronts(entries, {})
    points = {point.variant: point for point in front.points}
    for point in front.points:
        print(f"{1e6 / point.qps:6.1f} us  {point.accuracy:.2%}  {point.variant}", point.on_front)

    assert len(front.front) >= 4
    fastest = fastest_within(points, 0.01)
    ratio = fastest.qps / points[FULL].qps
    print(f"{fastest.variant}: {ratio:.2f} times the throughput")
    assert ratio >= 4


def test_accuracy_through_the_gateway_is_the_profilers_to_the_sample(
    models: Path, profiled: dict[str, ProfileEntry], tmp_path: Path
) -> None:
    with LocalFleet(tmp_path / "fleet") as fleet:
        fleet.start_gateway()
        fleet.start_agent("w", models=models)
        fleet.wait_for_workers(1)
        with SyncClient(fleet.address) as client:
            for name, entry in profiled.items():
                done = client.submit(ENGINE, queries=SAMPLES, version=f"1.{name}").wait()
                right = round(entry.accuracy * entry.accuracy_samples)
                assert (entry.accuracy_samples, done.labelled) == (SAMPLES, SAMPLES)
                assert (name, done.correct) == (name, right)
