import pytest

from profiler.simulator.simulation import SimulationRun, _Simulation
from tests.simulation_audit import audit


@pytest.fixture(autouse=True)
def _audited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that each simulated run is one that machines could have had."""
    run = _Simulation.run

    def audited(simulation: _Simulation) -> SimulationRun:
        ran = run(simulation)
        audit(ran)
        return ran

    monkeypatch.setattr(_Simulation, "run", audited)
