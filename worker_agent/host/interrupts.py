"""Interruption of a query, or a batch, while it computes.

While a query computes, the host's main thread is inside the runtime and does not read its socket.
The agent writes the id of the run to interrupt to a separate pipe, which a second thread reads.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from worker_agent.ipc.frames import INTERRUPT

if TYPE_CHECKING:
    from worker_agent.backends import Interruptible


class InterruptListener:
    """Reads interrupts from a pipe and applies those that concern the computing runs."""

    def __init__(self, descriptor: int) -> None:
        self._backend: Interruptible | None = None
        # Held so that no other run begins between the check of the active runs and the interrupt.
        self._lock = threading.Lock()
        self._active: set[int] = set()
        self._interrupted = False
        threading.Thread(target=self._listen, args=(descriptor,), daemon=True).start()

    def begin_runs(self, backend: Interruptible, *run_ids: int) -> None:
        """Mark `run_ids` as computing, as one batch, on `backend`."""
        with self._lock:
            self._backend = backend
            self._active.update(run_ids)

    def end(self) -> None:
        """Mark the computing runs as ended; late interrupts of them are ignored."""
        with self._lock:
            self._active.clear()
            if self._interrupted and self._backend is not None:
                self._interrupted = False
                self._backend.resume()

    def interrupt(self, run_id: int) -> None:
        """Interrupt the backend once all runs of the computing batch have been interrupted."""
        with self._lock:
            if run_id not in self._active:
                return
            self._active.remove(run_id)
            if not self._active and self._backend is not None:
                self._interrupted = True
                self._backend.interrupt()

    def _listen(self, descriptor: int) -> None:
        with os.fdopen(descriptor, "rb") as pipe:
            while len(message := pipe.read(INTERRUPT.size)) == INTERRUPT.size:
                self.interrupt(*INTERRUPT.unpack(message))
