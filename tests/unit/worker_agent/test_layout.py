"""Division of a machine into workers."""

from pathlib import Path

import pytest

from synergai.domain import Configuration
from synergai.errors import InvalidInput
from worker_agent.agent_settings import WorkerSettings
from worker_agent.machine import plan_workers
from worker_agent.power.controller import PowerMode
from worker_agent.providers import Offers, ProviderChoice, Refusal

CUDA = ProviderChoice(name="CUDA", kind="CUDA", device="0")
BESIDE = ProviderChoice(name="CUDA", kind="CUDA", device="1", parallel=True)
MODE = PowerMode(name="slow", cores=2)


def settings(**given: object) -> WorkerSettings:
    return WorkerSettings.load(
        {"worker_id": "w", "models": str(Path()), "threads": "2", "memory_mb": "600", **given}
    )


def test_machine_without_places_and_devices_is_one_worker() -> None:
    [plan] = plan_workers(settings(), 4, [], Offers())
    assert (plan.id, plan.suffix, plan.usable_cores) == ("w", "", 4)
    assert plan.configurations == (Configuration(2),)
    assert plan.memory_bytes == 600_000_000


def test_modes_of_the_same_speed_are_offered_in_the_order_given() -> None:
    modes = [PowerMode(name=name, cores=2) for name in ("fast", "slow")]
    [plan] = plan_workers(settings(), 4, modes, Offers())
    assert [each.power_mode for each in plan.configurations] == ["fast", "slow"]


def test_parallel_device_is_a_worker_that_shares_the_memory() -> None:
    machine, device = plan_workers(settings(), 4, [], Offers(choices=(CUDA, BESIDE)))
    assert [plan.id for plan in (machine, device)] == ["w", "w.cuda1"]
    assert [plan.memory_bytes for plan in (machine, device)] == [300_000_000] * 2
    assert [plan.providers for plan in (machine, device)] == [(CUDA,), (BESIDE,)]
    assert device.configurations == (Configuration(0, execution_provider="CUDA"),)


@pytest.mark.parametrize(
    ("given", "offers", "what"),
    [({"places": "2"}, Offers(), "a place"), ({}, Offers(choices=(BESIDE,)), "CUDA on device 1")],
)
def test_machine_with_power_modes_is_one_worker_only(
    given: dict[str, str], offers: Offers, what: str
) -> None:
    with pytest.raises(InvalidInput, match=f"{what} cannot run alongside others"):
        plan_workers(settings(**given), 4, [MODE], offers)


def test_machine_without_a_usable_provider_is_refused_with_the_reasons() -> None:
    offers = Offers(cpu=False, refusals=(Refusal(CUDA, "no driver"),))
    with pytest.raises(InvalidInput, match="CUDA on device 0: no driver"):
        plan_workers(settings(), 4, [], offers)
