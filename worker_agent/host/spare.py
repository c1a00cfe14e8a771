"""An engine host that starts before its engine is known.

It imports what takes most of the start of a host: NumPy, and the runtime that most engines have.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from importlib import import_module

from synergai.runtime.processes import begin_anew
from worker_agent.host.main import bind_to_agent, main, set_threads


def run(descriptor: int, agent: int) -> int:
    """Wait for the arguments of a host on its socket, and run it; return the exit code."""
    bind_to_agent(agent)
    set_threads(1)  # of NumPy; ONNX Runtime is told its own for each session
    for module in ("loading", "loop"):
        import_module(f"worker_agent.host.{module}")
    with suppress(ImportError):
        import_module("onnxruntime")
    line = b""
    while not line.endswith(b"\n"):
        data = os.read(descriptor, 1 << 16)
        if not data:  # the agent no longer needs a host
            return 0
        line += data
    begin_anew()
    return main(json.loads(line))


if __name__ == "__main__":
    sys.exit(run(int(sys.argv[1]), int(sys.argv[2])))
