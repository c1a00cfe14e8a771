"""A gRPC server loses no memory for calls whose clients leave."""

import subprocess
import sys

# In a process of its own: memory in use is that of the whole process.
SCRIPT = """
import asyncio
from benchmarks.abandoned_calls import measure
from synergai.protocol.grpcio.abandoned_calls import free_abandoned_operations

if __name__ == "__main__":
    free_abandoned_operations()
    print(asyncio.run(measure("abandoned", 1600)))
"""


def test_abandoned_calls_leave_no_memory_behind() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 50  # 110 without
