"""CPU shares, measured; needs permission to create cgroups."""

import os
import subprocess
import sys

import pytest

from worker_agent.power.cpu_shares import CpuShareController
from worker_agent.power.files import MachineFiles

BURN = """
import time
begin, cpu = time.monotonic(), time.process_time()
while time.monotonic() - begin < 2.0:
    pass
print((time.process_time() - cpu) / (time.monotonic() - begin))
"""


def leftovers() -> list[str]:
    return MachineFiles().find("/sys/fs/cgroup", "**/synergai-*")


@pytest.mark.parametrize("share", [0.1, 0.3, 0.7])
def test_modes_limit_the_process_and_its_children(share: float) -> None:
    power = CpuShareController(MachineFiles(), ["1cpu", f"{share}cpu"])
    try:
        power.switch(f"{share}cpu")
        done = subprocess.run(
            [sys.executable, "-c", BURN], capture_output=True, text=True, check=True
        )
    finally:
        power.close()
    print(f"\n{share}: {float(done.stdout):.3f}")
    # It may get less on a busy machine, but never more.
    assert 0.5 * share < float(done.stdout) < 1.05 * share
    assert not any(f"-{os.getpid()}-" in path for path in leftovers())
