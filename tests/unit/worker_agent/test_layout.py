"""Configurations of a machine, by its power modes and execution providers."""

import pytest

from synergai.errors import InvalidInput
from worker_agent.agent_settings import WorkerSettings
from worker_agent.machine import usable_configurations
from worker_agent.power.controller import PowerMode
from worker_agent.providers import Offers, ProviderChoice, Refusal


def test_modes_of_the_same_speed_are_offered_in_the_order_given() -> None:
    modes = [PowerMode(name=name, cores=2) for name in ("fast", "slow")]
    found = usable_configurations(WorkerSettings(threads=(2,)), modes, Offers())
    assert [each.power_mode for each in found] == ["fast", "slow"]


def test_machine_without_a_usable_provider_is_refused_with_the_reasons() -> None:
    cuda = ProviderChoice(name="CUDA", kind="CUDA", device="0")
    offers = Offers(cpu=False, refusals=(Refusal(cuda, "no driver"),))
    with pytest.raises(InvalidInput, match="CUDA on device 0: no driver"):
        usable_configurations(WorkerSettings(), [], offers)
