"""That freed memory is retained for the next message, and returned on demand."""

import subprocess
import sys

# In a process of its own: the settings of the allocator are for the whole process.
SCRIPT = """
import os
from synergai.runtime.resources import retain_freed_memory, return_freed_memory

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

retain_freed_memory()
before = resident()
blocks = [bytes(60_000) + os.urandom(1) for _ in range(1_000)]
last = blocks[-1]
del blocks
retained = resident() - before
return_freed_memory()
print(retained, resident() - before)
"""


def test_pages_between_blocks_in_use_are_returned() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    retained, left = map(int, done.stdout.split())
    assert retained > 40 << 20
    assert left < 8 << 20
