"""Power and energy of workers' machines, and their metrics."""

import math

import pytest

from gateway.fleet.worker import WorkerPower
from gateway.hub.hub import worker_from_registration
from gateway.monitoring.metrics import FamilyCollector, worker_families
from synergai.errors import InvalidInput
from synergai.v1 import hub_pb2
from synergai.wire.agent_messages import (
    PowerDraw,
    ProtocolViolation,
    read_heartbeat,
    read_registration,
)
from synergai.wire.limits import HUB_VERSION


def draw(joules: float, watts: float = 10.0) -> PowerDraw:
    return PowerDraw(watts, joules)


def test_energy_that_decreases_is_a_violation() -> None:
    power = WorkerPower(meter="INA3221")
    power.update(draw(10.0))
    with pytest.raises(ProtocolViolation):
        power.update(draw(1.0))
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
    for joules in (10.0, 14.0):
        board.power.update(draw(joules))
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
    }
