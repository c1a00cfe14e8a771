"""Background load during a measurement."""

import os
from pathlib import Path
from typing import Final

import pytest

from profiler.measuring.conditions import DISTURBED_SHARE, BackgroundLoad

CPUS: Final = 2
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


def write(proc: Path, *, idle_s: float, own_s: dict[int, float], busy_s: float = 0.0) -> None:
    """Write a ``/proc`` with CPU seconds of the machine and of processes."""
    busy, idle = (round(seconds * TICKS_PER_S) for seconds in (busy_s, idle_s))
    fields = f"{busy} 0 0 {idle - idle // 4} {idle // 4} 0 0 0 999 0"
    cpus = "".join(f"cpu{n} 1 2 3 4\n" for n in range(CPUS))
    (proc / "stat").write_text(f"cpu  {fields}\n{cpus}intr 5 6\nctxt 7\n")
    for pid, seconds in own_s.items():
        (proc / str(pid)).mkdir(exist_ok=True)
        ticks = round(seconds * TICKS_PER_S)
        user = ticks // 2
        (proc / str(pid) / "stat").write_text(
            f"{pid} (a (name) 1) S 1 2 3 4 5 6 7 8 9 10 {user} {ticks - user} 0 0 20 0 3\n"
        )


def measured_share(
    proc: Path, *, seconds: float, idle_s: float, own_s: float, busy_s: float
) -> float:
    """Return the share of others in `seconds` on `CPUS` CPUs."""
    now = 1000.0
    write(proc, idle_s=50.0, own_s={7: 3.0, 8: 0.4}, busy_s=10.0)
    with BackgroundLoad([7, 8], proc, lambda: now) as load:
        now += seconds
        own = {7: 3.0 + 0.75 * own_s, 8: 0.4 + 0.25 * own_s}
        write(proc, idle_s=50.0 + idle_s, own_s=own, busy_s=10.0 + busy_s)
    return load.share


@pytest.mark.parametrize(
    ("idle_s", "own_s", "share"),
    [
        (4.0, 4.0, 0.0),  # the engine alone, on one of two cores
        (2.0, 4.0, 0.25),  # and half a core of others, or of the hypervisor
        (4.2, 4.0, 0.0),  # ticks are rounded per process
    ],
)
def test_share_is_what_others_took_of_the_machine(
    tmp_path: Path, idle_s: float, own_s: float, share: float
) -> None:
    measured = measured_share(
        tmp_path, seconds=4.0, idle_s=idle_s, own_s=own_s, busy_s=8.0 - idle_s
    )
    assert measured == pytest.approx(share)


def test_time_of_a_process_under_a_quota_does_not_count_as_that_of_others(tmp_path: Path) -> None:
    # As read on a machine where a process used 30 % of one CPU: sampled as twice as much.
    measured = measured_share(tmp_path, seconds=3.0, idle_s=5.1, own_s=0.9, busy_s=1.92)
    assert measured == pytest.approx(0.0, abs=0.01)


def test_short_pause_without_a_tick_and_a_missing_proc_are_not_a_disturbance(
    tmp_path: Path,
) -> None:
    with BackgroundLoad([7], tmp_path) as unreadable:
        pass
    write(tmp_path, idle_s=50.0, own_s={7: 3.0})
    with BackgroundLoad([7], tmp_path, lambda: 1000.0) as instant:
        pass
    assert unreadable.share == instant.share == 0.0


def test_threshold_is_above_an_idle_machines_services() -> None:
    assert 0.01 < DISTURBED_SHARE <= 0.05
