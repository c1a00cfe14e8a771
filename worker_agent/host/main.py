"""The child process that holds one engine in one configuration: ``python -m …``.

A process of its own because runtimes fix their threads per process and hostile models crash;
started by exec, never forked. Its agent hands it a socket and an arena as inherited file
descriptors. It ends when the socket does, and the kernel kills it when its parent dies.
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
from typing import TYPE_CHECKING, Final

from synergai.domain import Engine
from synergai.errors import EngineUnusable, InvalidInput, SynergaiError
from synergai.models.directory import ModelDirectory
from synergai.models.formats.inspect import check
from synergai.runtime.processes import die_with_parent, prefer_oom_kill
from worker_agent.cpu_affinity import parse_cores, restrict_to, thread_cores
from worker_agent.ipc.arena import Arena, slots_for
from worker_agent.ipc.frames import LoadFailed, Ready

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
"""TensorFlow reads it when it is imported: what is wrong it also raises."""
_WARM_UP_RUNS: Final = 3
_WARM_UP_S: Final = 1.0

_log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Load the engine, say so, and run queries until the agent goes."""
    options = _parse(arguments)
    die_with_parent(options.parent)
    prefer_oom_kill()
    # The agent decides when a host ends; a terminal's Ctrl-C reaches the whole group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.INFO)
    if options.cores:
        restrict_to(options.cores)
    threads = options.threads or len(os.sched_getaffinity(0))
    for variable in _THREAD_VARIABLES:
        os.environ[variable] = str(threads)
    os.environ |= _QUIET
    with socket.socket(fileno=options.socket) as connection:
        try:
            engine, backend, samples, processing, ready = _load(
                options.models, options.engine, threads, options.spawned_at
            )
        except SynergaiError as error:
            connection.sendall(LoadFailed(str(error)).encode())
            return 1
        except Exception:  # noqa: BLE001 - whatever a model file provokes, the agent hears of it
            _log.exception("cannot load %s", options.engine)
            reason = f"engine {options.engine!r} failed to load; its worker's log has the detail"
            connection.sendall(LoadFailed(reason).encode())
            return 1
        if cores := thread_cores(threads):
            os.sched_setaffinity(0, cores[:1])
        # What loading left behind lives as long as the host; looking at it again costs latency.
        gc.freeze()
        # These bring NumPy, which reads the thread variables when it is imported.
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
        loop = HostLoop(connection, arena, engine, backend, samples, processing, interrupts)
        connection.sendall(ready.encode())
        loop.serve()
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, required=True, help="the model directory")
    parser.add_argument("--engine", required=True, help="name of the engine in it")
    parser.add_argument("--threads", type=int, required=True, help="0 means one per core")
    parser.add_argument("--cores", type=parse_cores, required=True, help="to keep to; all if empty")
    parser.add_argument("--socket", type=int, required=True, help="inherited descriptor")
    parser.add_argument("--arena", type=int, required=True, help="inherited descriptor")
    parser.add_argument("--interrupts", type=int, required=True, help="inherited descriptor")
    parser.add_argument("--parent", type=int, required=True, help="process id of the agent")
    parser.add_argument("--spawned-at", type=float, required=True, help="its monotonic clock")
    return parser.parse_args(arguments)


def _load(
    models: Path, name: str, threads: int, spawned_at: float
) -> tuple[Engine, Backend, Samples, Processing, Ready]:
    # These bring NumPy and the runtime, which read the thread variables when imported.
    from synergai.models.samples import load_samples
    from worker_agent.backends import BACKENDS
    from worker_agent.host.batches import check_batchable
    from worker_agent.host.processing import Processing

    definition = ModelDirectory(models).get(name)
    if definition.fault:
        raise EngineUnusable(f"engine {name!r}: {definition.fault}")
    # Runtimes trust what they read, and take seconds to import.
    try:
        check(definition.file)
    except InvalidInput as error:
        raise EngineUnusable(str(error)) from None
    try:
        factory = BACKENDS.get(definition.backend)
    except ModuleNotFoundError as error:
        raise EngineUnusable(
            f"engine {name!r} needs the backend {definition.backend!r}, which is not installed "
            f"here; install synergai[{definition.backend}]"
        ) from error
    except ImportError as error:
        raise EngineUnusable(
            f"engine {name!r} needs the backend {definition.backend!r}, which does not start "
            f"here: {' '.join(str(error).split())[:500]}"
        ) from error
    # Only a frozen graph has to be told.
    named = {"inputs": definition.inputs, "outputs": definition.outputs}
    named = {side: tensors for side, tensors in named.items() if tensors}
    started = time.monotonic()
    digest = definition.verified_digest()
    backend = factory(definition.file, threads, **named)
    loaded = time.monotonic()
    samples = load_samples(definition, backend.inputs)
    prepared = time.monotonic()
    _warm_up(backend, samples)
    warm = time.monotonic()
    engine = Engine(
        name=definition.name,
        version=definition.version,
        backend=definition.backend,
        inputs=backend.inputs,
        outputs=backend.outputs,
        digest=digest,
        samples=len(samples),
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
        backend_start_s=started - spawned_at,
        model_load_s=(loaded - started) + (warm - prepared),
        data_preparation_s=prepared - loaded,
    )
    return engine, backend, samples, processing, ready


def _warm_up(backend: Backend, samples: Samples) -> None:
    """The first queries allocate and tune, and are no measure of the others."""
    outputs = [spec.name for spec in backend.outputs]
    enough = time.monotonic() + _WARM_UP_S
    for _ in range(_WARM_UP_RUNS):
        backend.run(samples.inputs[0], outputs)
        if time.monotonic() > enough:
            return


if __name__ == "__main__":
    sys.exit(main())
