import subprocess
import sys

PROGRAM = """
import os, signal, synergai
from synergai.errors import NotSupported

def refused(call):
    try:
        call()
    except NotSupported:
        return True

def use_another():
    with synergai.SyncClient("127.0.0.1:1") as client:
        client.ready()

with synergai.SyncClient("127.0.0.1:1", attempts=1) as client:
    assert not client.ready()
    child = os.fork()
    if not child:
        signal.alarm(20)  # the calls would never return
        assert refused(client.ready)
        assert refused(use_another)
    else:
        assert not client.ready()
os._exit(0 if not child else os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_calls_of_forked_processes_are_refused() -> None:
    # A separate process, as gRPC's fork handlers must not meet those of other tests.
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
