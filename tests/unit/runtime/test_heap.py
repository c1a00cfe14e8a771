"""Settings of the memory allocator, in a separate process."""

import subprocess
import sys

# In a process of its own: the settings are for the whole process, and cannot be taken back.
SCRIPT = """
import ctypes, os
from synergai.runtime.resources import retain_freed_memory

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


ARENAS = """
import ctypes, os, re, threading
from synergai.runtime.resources import retain_freed_memory

retain_freed_memory()
library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
together = threading.Barrier(12)

def allocate():
    together.wait()
    library.malloc(1000)
    together.wait()

threads = [threading.Thread(target=allocate) for _ in range(12)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
library.fopen.restype = ctypes.c_void_p
stream = ctypes.c_void_p(library.fopen(b"/dev/stdout", b"w"))
library.malloc_info(0, stream)
library.fclose(stream)
"""


def test_threads_share_two_arenas() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ARENAS], capture_output=True, text=True, check=True
    )
    assert done.stdout.count("<heap nr=") == 2


def test_freed_memory_stays_with_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 1 << 20
