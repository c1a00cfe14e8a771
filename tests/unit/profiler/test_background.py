"""Background load during a measurement."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from profiler.background import DISTURBED_SHARE, BackgroundLoad

if TYPE_CHECKING:
    from pathlib import Path


def write(proc: Path, *, busy: int, idle: int, own: dict[int, int], steal: int = 0) -> None:
    """Write a ``/proc``: ticks of the machine and of processes, half of each in the kernel."""
    (proc / "stat").write_text(
        f"cpu  {busy - busy // 2} 0 {busy // 2} {idle} 0 0 0 {steal} 999 0\ncpu0 1 2 3 4\n"
    )
    for pid, ticks in own.items():
        (proc / str(pid)).mkdir(exist_ok=True)
        user = ticks // 2
        (proc / str(pid) / "stat").write_text(
            f"{pid} (a (name) 1) S 1 2 3 4 5 6 7 8 9 10 {user} {ticks - user} 0 0 20 0 3\n"
        )


@pytest.mark.parametrize(
    ("busy", "own", "steal", "share"),
    [
        (100, 100, 0, 0.0),  # the engine alone, on one of two cores
        (150, 100, 0, 0.25),  # and half a core of others
        (100, 100, 20, 0.1),  # and what the hypervisor took
        (90, 100, 0, 0.0),  # ticks are rounded per process
    ],
)
def test_share_is_what_others_took_of_the_machine(
    tmp_path: Path, busy: int, own: int, steal: int, share: float
) -> None:
    write(tmp_path, busy=1000, idle=5000, own={7: 300, 8: 40})
    with BackgroundLoad([7, 8], tmp_path) as load:
        idle = 5000 + 200 - busy - steal
        processes = {7: 300 + own - own // 4, 8: 40 + own // 4}
        write(tmp_path, busy=1000 + busy, idle=idle, own=processes, steal=steal)
    assert load.share == pytest.approx(share)


def test_short_pause_without_a_tick_and_a_missing_proc_are_not_a_disturbance(
    tmp_path: Path,
) -> None:
    with BackgroundLoad([7], tmp_path) as unreadable:
        pass
    write(tmp_path, busy=1000, idle=5000, own={7: 300})
    with BackgroundLoad([7], tmp_path) as instant:
        pass
    assert unreadable.share == instant.share == 0.0


def test_threshold_is_above_an_idle_machines_services() -> None:
    assert 0.01 < DISTURBED_SHARE <= 0.05
