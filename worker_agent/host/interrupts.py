"""Gives up a query, or a batch, that is computing, when nobody wants it any more.

While a query computes, the host's only thread is inside of the runtime and does not look at its
socket. The agent says on a pipe of its own which run is to be given up; a second thread listens.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from worker_agent.ipc import interrupts

if TYPE_CHECKING:
    from worker_agent.backends import Interruptible


class InterruptListener:
    """The agent's word on the runs that compute, if it is about these.

    Args:
        descriptor: end of the pipe to read from; closed when the agent closes the other one.
        backend: what computes.
    """

    def __init__(self, descriptor: int, backend: Interruptible) -> None:
        self._backend = backend
        # Between the look at which run computes and its interruption another one may begin.
        self._lock = threading.Lock()
        self._wanted: set[int] = set()
        self._interrupted = False
        threading.Thread(target=self._listen, args=(descriptor,), daemon=True).start()

    def begin(self, *runs: int) -> None:
        """From now on these compute, all together."""
        with self._lock:
            self._wanted.update(runs)

    def end(self) -> None:
        """They do not any more, and the next one is not interrupted for them."""
        with self._lock:
            self._wanted.clear()
            if self._interrupted:
                self._interrupted = False
                self._backend.resume()

    def interrupt(self, run: int) -> None:
        """Give up `run`, if it computes; others that compute with it go on."""
        with self._lock:
            if run not in self._wanted:
                return
            self._wanted.remove(run)
            if not self._wanted:
                self._interrupted = True
                self._backend.interrupt()

    def _listen(self, descriptor: int) -> None:
        with os.fdopen(descriptor, "rb") as pipe:
            while len(message := pipe.read(interrupts.SIZE)) == interrupts.SIZE:
                self.interrupt(interrupts.decode(message))
