"""When an idle process returns freed memory, and that it does."""

import subprocess
import sys
from typing import cast

from synergai.runtime.resources import GlibcHeap
from synergai.runtime.service import RETAINED_BYTES, IdleTrimmer

# In a process of its own: the settings of the allocator are for the whole process.
SCRIPT = """
import os
from synergai.runtime.resources import GlibcHeap, retain_freed_memory

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

retain_freed_memory()
heap = GlibcHeap.find()
before = resident()
blocks = [bytes(60_000) + os.urandom(1) for _ in range(1_000)]
last = blocks[-1]
del blocks
retained, free = resident() - before, heap.free_bytes()
heap.trim()
print(retained, free, resident() - before)
"""


class Process:
    def __init__(self) -> None:
        self.now = self.used_s = 0.0
        self.free = 0
        self.resident = 100 << 20
        self.trims = 0
        self.trimmer = IdleTrimmer(
            cast("GlibcHeap", self), lambda: self.now, lambda: self.used_s, lambda: self.resident
        )

    def free_bytes(self) -> int:
        return self.free

    def trim(self) -> None:
        self.trims += 1
        self.resident -= self.free

    def after(self, seconds: float, used_s: float) -> None:
        self.now += seconds
        self.used_s += used_s
        self.trimmer.look()


def test_an_idle_process_returns_what_it_has_freed() -> None:
    process = Process()
    process.free = RETAINED_BYTES + 1
    process.after(15.0, used_s=4.0)
    assert process.trims == 1
    process.after(15.0, used_s=4.0)
    assert process.trims == 1


def test_a_busy_process_keeps_what_it_has_freed_until_it_is_idle() -> None:
    process = Process()
    process.free = RETAINED_BYTES + 1
    process.after(15.0, used_s=5.0)
    assert process.trims == 0
    process.after(15.0, used_s=0.0)
    assert process.trims == 1


def test_pages_that_were_returned_are_not_returned_again() -> None:
    process = Process()
    process.free = RETAINED_BYTES + 1
    for _ in range(3):
        process.after(15.0, used_s=0.0)
    assert process.trims == 1
    process.resident += RETAINED_BYTES + 1
    process.after(15.0, used_s=0.0)
    assert process.trims == 2


def test_little_memory_is_kept() -> None:
    process = Process()
    process.free = RETAINED_BYTES
    process.after(15.0, used_s=0.0)
    assert process.trims == 0


def test_trimming_returns_pages_between_blocks_in_use() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    retained, free, left = map(int, done.stdout.split())
    assert retained > 40 << 20
    assert free > 40 << 20
    assert left < 8 << 20
