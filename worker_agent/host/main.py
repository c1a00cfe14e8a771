"""Engine host: a child process that runs one engine in one configuration.

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
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from synergai.domain import Engine
from synergai.errors import BackendMissing, EngineUnusable, InvalidInput, SynergaiError
from synergai.models.directory import ModelDirectory
from synergai.models.formats.inspect import check
from synergai.runtime.processes import die_with_parent, limit_data, prefer_oom_kill
from worker_agent.cpu_affinity import parse_cores, restrict_to, thread_cores
from worker_agent.ipc.arena import Arena, slots_for
from worker_agent.ipc.frames import LoadFailed, Ready
from worker_agent.providers.choice import ProviderChoice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.models.samples import Samples
    from worker_agent.backends import Backend
    from worker_agent.host.processing import Processing

_THREAD_VARIABLES: Final = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
)
_QUIET: Final = {"TF_CPP_MIN_LOG_LEVEL": "3"}
"""Read by TensorFlow on import; it also raises what it would log."""

_log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Load the engine, report it as ready, and serve runs until the agent disconnects."""
    options = _parse(arguments)
    die_with_parent(options.parent)
    prefer_oom_kill()
    # The agent stops its hosts, also when a service manager signals all processes.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.INFO)
    if options.cores:
        restrict_to(options.cores)
    if options.data_bytes:
        limit_data(options.data_bytes)
    provider: ProviderChoice | None = options.provider
    threads = options.threads or len(os.sched_getaffinity(0))
    if provider is not None:
        threads = provider.threads(options.threads)
    for variable in _THREAD_VARIABLES:
        os.environ[variable] = str(threads)
    os.environ |= _QUIET
    with socket.socket(fileno=options.socket) as agent_socket:
        try:
            return _run(agent_socket, options, threads)
        except ConnectionError:  # the agent disconnected while the engine was loading
            return 0


def _run(agent_socket: socket.socket, options: argparse.Namespace, threads: int) -> int:
    """Load the engine and serve runs; return the exit code.

    Raises:
        ConnectionError: the agent disconnected before the engine was loaded.
    """
    try:
        engine, backend, samples, processing, ready = _load(
            *(options.models, options.engine, options.variant),
            *(threads, options.spawned_at, options.provider),
        )
    except SynergaiError as error:
        missing = isinstance(error, BackendMissing)
        agent_socket.sendall(LoadFailed(str(error), missing).encode())
        return 1
    except Exception:  # noqa: BLE001 - a model file may cause any error; report it to the agent
        _log.exception("cannot load %s", options.engine)
        reason = f"engine {options.engine!r} failed to load; see the worker's log"
        agent_socket.sendall(LoadFailed(reason).encode())
        return 1
    if cores := thread_cores(threads):
        os.sched_setaffinity(0, cores[:1])
    # Objects created so far live as long as the host; scanning them again costs latency.
    gc.freeze()
    # Imported here because NumPy reads the thread variables on import.
    from worker_agent.backends import Interruptible
    from worker_agent.host.interrupts import InterruptListener
    from worker_agent.host.loop import HostLoop

    arena = Arena(options.arena)
    arena.grow(slots_for(engine.max_batch))
    interrupts = (
        InterruptListener(options.interrupts, backend)
        if isinstance(backend, Interruptible)
        else None
    )
    loop = HostLoop(agent_socket, arena, engine, backend, samples, processing, interrupts)
    agent_socket.sendall(ready.encode())
    loop.serve()
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, required=True, help="the model directory")
    parser.add_argument("--engine", required=True, help="name of the engine")
    parser.add_argument("--variant", default="", help="its variant, if it has several")
    parser.add_argument("--threads", type=int, required=True, help="0: one per core")
    parser.add_argument("--cores", type=parse_cores, required=True, help="all if empty")
    parser.add_argument("--provider", type=ProviderChoice.decode, help="CPU if absent")
    parser.add_argument("--data-bytes", type=int, default=0, help="data segment; 0: no limit")
    parser.add_argument("--socket", type=int, required=True, help="inherited file descriptor")
    parser.add_argument("--arena", type=int, required=True, help="inherited file descriptor")
    parser.add_argument("--interrupts", type=int, required=True, help="inherited file descriptor")
    parser.add_argument("--parent", type=int, required=True, help="process id of the agent")
    parser.add_argument("--spawned-at", type=float, required=True, help="monotonic start time")
    return parser.parse_args(arguments)


def _load(
    models: Path,
    name: str,
    variant: str,
    threads: int,
    spawned_at: float,
    provider: ProviderChoice | None,
) -> tuple[Engine, Backend, Samples, Processing, Ready]:
    # Imported here because NumPy and the runtimes read the thread variables on import.
    from worker_agent.backends import BACKENDS, Placed
    from worker_agent.host.batches import check_batchable
    from worker_agent.host.processing import Processing
    from worker_agent.host.self_check import SelfCheck

    definition = ModelDirectory(models).get(name)
    if definition.fault:
        raise EngineUnusable(f"engine {name!r}: {definition.fault}")
    definition = definition.of_variant(variant)
    if provider is not None and definition.backend not in provider.details.backends:
        raise EngineUnusable(
            f"{provider} runs no engines of the backend {definition.backend!r}, such as {name!r}"
        )
    # Checked before the runtime is imported, which takes seconds and trusts the file.
    try:
        check(definition.file)
    except InvalidInput as error:
        raise EngineUnusable(str(error)) from None
    try:
        factory = BACKENDS.get(definition.backend)
    except ModuleNotFoundError as error:
        raise BackendMissing(
            f"engine {name!r} needs the backend {definition.backend!r}, which is not installed "
            f"here; install synergai[{definition.backend}]"
        ) from error
    except ImportError as error:
        raise BackendMissing(
            f"engine {name!r} needs the backend {definition.backend!r}, which cannot be imported "
            f"here: {' '.join(str(error).split())[:500]}"
        ) from error
    # Only frozen graphs name their tensors in the definition.
    named = {"inputs": definition.inputs, "outputs": definition.outputs}
    given: dict[str, Any] = {side: tensors for side, tensors in named.items() if tensors}
    if provider is not None:
        given["provider"] = provider
    started = time.monotonic()
    digest = definition.verified_digest()
    backend = factory(definition.file, threads, **given)
    loaded = time.monotonic()
    checked = SelfCheck(backend).run(definition)
    prepared = time.monotonic()
    if provider is not None and checked.unverified:
        # It may be the provider that computes nothing; the CPU has been tried already.
        raise EngineUnusable(f"{provider} does not compute engine {name!r}: {checked.unverified}")
    engine = Engine(
        name=definition.name,
        version=definition.version,
        backend=definition.backend,
        inputs=backend.inputs,
        outputs=backend.outputs,
        digest=digest,
        samples=len(checked.samples),
        unverified=checked.unverified,
        preprocess=definition.preprocess,
        postprocess=definition.postprocess,
        max_batch=definition.max_batch,
    )
    check_batchable(engine)
    processing = Processing(engine, backend, threads)
    ready = Ready(
        inputs=engine.inputs,
        outputs=engine.outputs,
        samples=engine.samples,
        max_batch=engine.max_batch,
        unverified=engine.unverified,
        elsewhere=backend.elsewhere if isinstance(backend, Placed) else None,
        backend_start_s=started - spawned_at,
        model_load_s=loaded - started + checked.run_s,
        data_preparation_s=prepared - loaded - checked.run_s,
    )
    return engine, backend, checked.samples, processing, ready


if __name__ == "__main__":
    sys.exit(main())
