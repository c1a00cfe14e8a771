"""The planner in a process of its own."""

from typing import Any, cast

import pytest

from gateway.deployment import planning_process
from gateway.deployment.planning_process import PlanFailed, PlanningProcesses
from synergai.core.routes.deployment import PlanOrder
from synergai.core.routes.fleet import FleetFile, FleetWorker


def an_order() -> PlanOrder:
    fleet = FleetFile(workers=(FleetWorker(id="a", worker_class=cast("Any", "local")),))
    return PlanOrder(models="", dictionary="", fleet=fleet, engines=(), planner="own")


@pytest.mark.parametrize(
    ("program", "fault"),
    [
        ("import sys; sys.exit('ValueError: there is no way')", "ValueError: there is no way"),
        ("import os; os._exit(3)", "its process ended with exit code 3"),
        ("print('nonsense')", "JSON is malformed"),
        ("import time; time.sleep(60)", "there was no answer within 0.5 s"),
    ],
)
async def test_planner_that_fails_hangs_or_answers_nonsense_is_told(
    monkeypatch: pytest.MonkeyPatch, program: str, fault: str
) -> None:
    monkeypatch.setattr(planning_process, "_COMMAND", ("-c", program))
    monkeypatch.setattr(planning_process, "_PLAN_WITHIN_S", 0.5 if "sleep" in program else 60.0)
    with pytest.raises(PlanFailed, match=f"the planner 'own' has failed: .*{fault}"):
        await PlanningProcesses().plan(an_order())


async def test_planner_does_not_get_the_secrets_of_the_gateway(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PGPASSWORD", "secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    program = "import os, sys; sys.exit('gets ' + ' '.join(sorted(os.environ)))"
    monkeypatch.setattr(planning_process, "_COMMAND", ("-c", program))
    with pytest.raises(PlanFailed, match="PYTHONHASHSEED") as caught:
        await PlanningProcesses().plan(an_order())
    assert "PGPASSWORD" not in str(caught.value)
    assert "AWS_SECRET_ACCESS_KEY" not in str(caught.value)
