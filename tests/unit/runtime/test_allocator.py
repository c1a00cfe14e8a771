"""Settings of the memory allocator, in a separate process."""

from __future__ import annotations

import subprocess
import sys

# In a process of its own: the settings are for the whole process, and cannot be taken back.
SCRIPT = """
import ctypes, os
from synergai.runtime.allocator import retain_freed_memory

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

retain_freed_memory()
library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
library.free.argtypes = [ctypes.c_void_p]
block = library.malloc(16 << 20)
ctypes.memset(block, 1, 16 << 20)
filled = resident()
library.free(block)
print(filled - resident())
"""


def test_freed_memory_stays_with_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 1 << 20
