"""Engine host: a child process that runs one engine, and its variants, with one thread count.

Engines run in processes of their own because runtimes set their thread count per process and models
may crash. A host is started by exec, never by fork, and inherits a socket and the arena as file
descriptors. It exits when the agent closes the socket; the kernel kills it when the agent dies.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from synergai.runtime.resources import die_with_parent, limit_data, prefer_oom_kill, usable_cores
from worker_agent.cpu_affinity import restrict_to
from worker_agent.ipc import Arena, slots_for
from worker_agent.power.files import parse_cpus
from worker_agent.providers import ProviderChoice

if TYPE_CHECKING:
    from collections.abc import Sequence

_THREAD_VARIABLES: Final = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
)
_SWITCH_S: Final = 0.0005
"""Time after which a thread lets another one run Python code."""
_QUIET: Final = {"TF_CPP_MIN_LOG_LEVEL": "3"}
"""Read by TensorFlow on import; it also raises what it would log."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Load the engine, report it as ready, and serve runs until the agent disconnects.

    Returns the exit code.
    """
    options = _parse(arguments)
    _bind_to_agent(options.parent)
    arena = Arena(options.arena)
    arena.bound = True
    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.INFO)
    if options.cores:
        restrict_to(options.cores)
    if options.data_bytes:
        limit_data(options.data_bytes)
    provider: ProviderChoice | None = options.provider
    threads = options.threads or usable_cores()
    if provider is not None:
        threads = provider.threads(options.threads)
    os.environ |= dict.fromkeys(_THREAD_VARIABLES, str(threads)) | _QUIET
    with socket.socket(fileno=options.socket) as agent_socket:
        try:
            return _run(agent_socket, arena, options, threads)
        except ConnectionError:  # the agent disconnected while the engine was loading
            return 0


def _bind_to_agent(agent: int) -> None:
    """Let this process end when its agent does, and no earlier."""
    die_with_parent(agent)
    prefer_oom_kill()
    # The agent stops its hosts, also when a service manager signals all processes.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _run(
    agent_socket: socket.socket, arena: Arena, options: argparse.Namespace, threads: int
) -> int:
    """Load the engine and serve runs; return the exit code."""
    # A thread that loads a variant yields to the queries of others, if they hold the same lock.
    sys.setswitchinterval(_SWITCH_S)
    # Imported here because NumPy and the runtimes read the thread variables on import.
    from worker_agent.host.loading import ModelLoader
    from worker_agent.host.loop import HostLoop, InterruptListener

    loader = ModelLoader(options.models, options.engine, threads, options.provider, arena)
    model, report = loader.load(options.variant, options.spawned_at)
    if model is None:
        agent_socket.sendall(report.encode())
        return 1
    # Objects created so far live as long as the host; scanning them again costs latency.
    gc.freeze()
    arena.grow(slots_for(model.engine.max_batch))
    interrupts = InterruptListener(options.interrupts)
    loop = HostLoop(agent_socket, model, options.variant, loader, interrupts, arena)
    agent_socket.sendall(report.encode())
    loop.serve()
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, required=True, help="the model directory")
    parser.add_argument("--engine", required=True, help="name of the engine")
    parser.add_argument("--variant", default="", help="its first variant, if it has variants")
    parser.add_argument("--threads", type=int, required=True, help="0: one per core")
    parser.add_argument("--cores", type=parse_cpus, required=True, help="all if empty")
    parser.add_argument("--provider", type=ProviderChoice.decode, help="CPU if absent")
    parser.add_argument("--data-bytes", type=int, default=0, help="data segment; 0: no limit")
    parser.add_argument("--socket", type=int, required=True, help="inherited file descriptor")
    parser.add_argument("--arena", type=int, required=True, help="inherited file descriptor")
    parser.add_argument("--interrupts", type=int, required=True, help="inherited file descriptor")
    parser.add_argument("--parent", type=int, required=True, help="process id of the agent")
    parser.add_argument("--spawned-at", type=float, required=True, help="monotonic start time")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
