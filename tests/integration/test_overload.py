"""A gateway under overload on a small scale."""

from pathlib import Path

from demo.local_fleet import LocalFleet
from tests.acceptance import overload
from tests.emulated_engines import write_emulated_engines

QUERY_S = 0.1
"""So long that also a busy machine sends, serves and answers twice the capacity."""
GOODPUT = 0.5 / QUERY_S
"""Half, for a busy machine; without any rejection it would be lower still."""


def test_overload_is_served_up_to_the_capacity_without_expired_dispatches(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    write_emulated_engines(tmp_path, {overload.ENGINE: QUERY_S})
    with LocalFleet(tmp_path / "run") as fleet:
        overload.start(fleet, tmp_path, log, workers=1, policy="malleable")
        for _ in range(overload.ATTEMPTS):  # the machine may pause during one
            load = ("--rate", str(2 / QUERY_S), "--duration", "4", "--deadline-ms", "2000")
            found = overload.load(fleet.address, *load)
            if found["goodput"] > GOODPUT:
                break
    assert overload.dispatched_expired(log) == []
    assert found["rejected"] > 0
    assert found["goodput"] > GOODPUT
