"""The memory allocator of a service, in separate processes: its settings cannot be taken back."""

import subprocess
import sys

RESIDENT = """
import ctypes, os, threading
from synergai.runtime.resources import retain_freed_memory, return_freed_memory

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

retain_freed_memory()
library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
library.free.argtypes = [ctypes.c_void_p]
"""
LARGE_BLOCK = """
block = library.malloc(16 << 20)
ctypes.memset(block, 1, 16 << 20)
filled = resident()
library.free(block)
print(filled - resident())
"""
SMALL_BLOCKS = """
before = resident()
blocks = [bytes(60_000) + os.urandom(1) for _ in range(1_000)]
last = blocks[-1]
del blocks
retained = resident() - before
return_freed_memory()
print(retained, resident() - before)
"""
ARENAS = """
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


def run(script: str) -> str:
    command = [sys.executable, "-c", RESIDENT + script]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_threads_share_two_arenas() -> None:
    assert run(ARENAS).count("<heap nr=") == 2


def test_freed_memory_stays_with_the_process() -> None:
    assert int(run(LARGE_BLOCK)) < 1 << 20


def test_pages_between_blocks_in_use_are_returned_on_demand() -> None:
    retained, left = map(int, run(SMALL_BLOCKS).split())
    assert retained > 40 << 20
    assert left < 8 << 20
