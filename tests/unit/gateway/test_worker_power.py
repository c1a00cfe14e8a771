"""Attribution of a machine's energy to engines, and its metrics."""

import math

import pytest

from gateway.fleet.worker import WorkerPower
from gateway.hub.hub import worker_from_registration
from gateway.monitoring.metrics import FamilyCollector, worker_families
from synergai.domain import EngineName
from synergai.errors import InvalidInput
from synergai.v1 import hub_pb2
from synergai.wire.agent_messages import (
    PowerDraw,
    ProtocolViolation,
    read_heartbeat,
    read_registration,
)
from synergai.wire.limits import HUB_VERSION

DIGITS, PHOTOS = EngineName("digits"), EngineName("photos")


def draw(joules: float, watts: float = 10.0) -> PowerDraw:
    return PowerDraw(watts, joules)


def test_an_engine_is_charged_the_machines_power_while_it_computed() -> None:
    power = WorkerPower(meter="INA3221")
    power.update(draw(100.0), now=1.0)
    power.add_compute(DIGITS, 0.2)
    power.add_compute(DIGITS, 0.2)
    power.add_compute(PHOTOS, 0.1)
    power.update(draw(120.0), now=2.0)  # 20 W for a second, half of it idle
    assert power.engines == pytest.approx({DIGITS: 8.0, PHOTOS: 2.0})
    power.update(draw(130.0), now=3.0)
    assert sum(power.engines.values()) == pytest.approx(10.0)
    assert (power.watts, power.joules) == (10.0, 130.0)


def test_concurrent_engines_are_charged_no_more_than_the_machine_used() -> None:
    power = WorkerPower(meter="INA3221")
    power.update(draw(0.0), now=0.0)
    power.add_compute(DIGITS, 3.0)
    power.add_compute(PHOTOS, 1.0)
    power.update(draw(8.0), now=2.0)
    assert power.engines == pytest.approx({DIGITS: 6.0, PHOTOS: 2.0})


def test_energy_that_decreases_is_a_violation() -> None:
    power = WorkerPower(meter="INA3221")
    power.update(draw(10.0), now=1.0)
    with pytest.raises(ProtocolViolation):
        power.update(draw(1.0), now=2.0)
    assert power.joules == 10.0


@pytest.mark.parametrize(
    "impossible",
    [
        hub_pb2.Draw(watts=1.0, joules=math.nan),
        hub_pb2.Draw(watts=math.inf, joules=1.0),
        hub_pb2.Draw(watts=-1.0, joules=1.0),
    ],
)
def test_impossible_power_is_a_violation(impossible: hub_pb2.Draw) -> None:
    with pytest.raises(ProtocolViolation):
        read_heartbeat(hub_pb2.Heartbeat(draw=impossible))


@pytest.mark.parametrize(("power_mode", "meter"), [("a mode", ""), ("", "x\n"), ("", "x" * 300)])
def test_a_registration_with_an_impossible_mode_or_meter_is_refused(
    power_mode: str, meter: str
) -> None:
    message = hub_pb2.Register(
        protocol_version=HUB_VERSION,
        worker_id="w",
        worker_class="c",
        power_mode=power_mode,
        meter=meter,
    )
    with pytest.raises(InvalidInput):
        worker_from_registration(read_registration(message), None, 0.0)


def test_metrics_cover_only_measured_machines() -> None:
    registered = [
        hub_pb2.Register(
            protocol_version=HUB_VERSION, worker_id=name, worker_class="c", meter=meter
        )
        for name, meter in (("board", "INA3221"), ("cloud", ""))
    ]
    board, cloud = (
        worker_from_registration(read_registration(message), None, 0.0) for message in registered
    )
    board.power.update(draw(10.0), now=0.0)
    for worker in (board, cloud):
        worker.power.add_compute(DIGITS, 1.0)
    board.power.update(draw(14.0), now=2.0)
    collector = FamilyCollector()
    collector.add(*worker_families(lambda: [board, cloud], dict))
    collector.snapshot()
    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for metric in collector.collect()
        for sample in metric.samples
        if "watts" in sample.name or "joules" in sample.name
    }
    assert samples == {
        ("synergai_worker_power_watts", "board"): 10.0,
        ("synergai_worker_energy_joules_total", "board"): 14.0,
        ("synergai_worker_engine_energy_joules_total", "board", "digits"): pytest.approx(2.0),
    }
