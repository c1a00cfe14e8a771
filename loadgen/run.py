"""One LoadGen run in a process of its own: ``python -m loadgen.run``.

LoadGen keeps its state per process and cannot be stopped, so every run gets a process, and ending
a run early is ending its process. The test has a thread to itself, which asks the gateway; the
main thread reports, and gives up on a query that is never answered.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Final

import mlperf_loadgen
import numpy as np

from loadgen.gateway_line import GatewayLine
from loadgen.messages import MESSAGES, Counted, Failed, Message, Progressed
from loadgen.queries import Queries, queries_for
from loadgen.settings import LoadgenSettings
from synergai.errors import DeadlineExceeded, Overloaded, SynergaiError, Unavailable
from synergai.single_stream import log_settings, run_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

REPORT_INTERVAL_S: Final = 0.1
WARM_UP_QUERIES: Final = 5


class SystemUnderTest:
    """The gateway in LoadGen's hands: issues each query, completes it, and keeps count."""

    def __init__(self, line: GatewayLine, queries: Queries, qos_s: float | None) -> None:
        self.fault: SynergaiError | None = None
        self.done = 0
        self.started_at = self.last_at = time.monotonic()
        self._line = line
        self._queries = queries
        self._qos_s = qos_s
        self._failed = 0
        self._late = 0
        self._first_failure = ""
        # LoadGen keeps an answer's bytes for accuracy runs only; these stand for all of them.
        self._answer = np.zeros(1, np.float32)

    def warm_up(self) -> float:
        """Ask a few queries before the run; returns what the fastest took.

        Raises:
            SynergaiError: the gateway cannot answer them, so that a run would say nothing.
        """
        fastest = math.inf
        for index in range(WARM_UP_QUERIES):
            asked_at = time.monotonic()
            failure = self._line.ask(self._request(index))
            # Loading the engine may take longer than an enforced QoS allows.
            if failure is not None and not isinstance(failure, (DeadlineExceeded, Overloaded)):
                raise failure
            self.last_at = time.monotonic()
            fastest = min(fastest, self.last_at - asked_at)
        self.started_at = self.last_at
        return fastest

    def issue(self, samples: list[mlperf_loadgen.QuerySample]) -> None:
        """Called by LoadGen with its next query, on the thread of the test."""
        for sample in samples:
            if self.fault is None:
                self._ask(sample.index)
            # A query that failed is complete as well: LoadGen would wait for it for ever.
            response = mlperf_loadgen.QuerySampleResponse(
                sample.id, self._answer.ctypes.data, self._answer.nbytes
            )
            mlperf_loadgen.QuerySamplesComplete([response])

    def _ask(self, index: int) -> None:
        asked_at = time.monotonic()
        try:
            failure = self._line.ask(self._request(index))
        except SynergaiError as fault:
            self.fault = fault
            return
        self.last_at = time.monotonic()
        self.done += 1
        if failure is not None:
            self._failed += 1
            self._first_failure = self._first_failure or str(failure)
        elif self._qos_s is not None and self.last_at - asked_at > self._qos_s:
            self._late += 1

    def _request(self, index: int) -> bytes:
        requests = self._queries.requests
        return requests[index % len(requests)]

    def counted(self) -> Counted:
        """Our own count of the run."""
        return Counted(
            inputs=self._queries.origin,
            queries=self.done,
            failed=self._failed,
            late=self._late,
            seconds=self.last_at - self.started_at,
            first_failure=self._first_failure,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and report on the pipe."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("settings", help="of the run, as JSON")
    parser.add_argument("--report", type=int, required=True, help="inherited descriptor")
    options = parser.parse_args(arguments)
    # The parent decides when this ends; a terminal's Ctrl-C reaches the whole group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def report(message: Message) -> None:
        try:
            os.write(options.report, MESSAGES.encode(message))
        except BrokenPipeError:
            os._exit(1)  # nobody waits for the result any more

    settings = LoadgenSettings.model_validate_json(options.settings)
    try:
        with GatewayLine(settings.target) as line:
            queries = queries_for(settings, line.metadata(settings.engine))
            qos_s = None if settings.qos_ms is None else settings.qos_ms / 1e3
            sut = SystemUnderTest(line, queries, qos_s)
            test = threading.Thread(target=_test, args=(sut, queries, settings))
            test.start()
            _attend(sut, test, settings.query_timeout, report)
    except SynergaiError as error:
        report(Failed(str(error)))
        return 1
    report(sut.counted())
    return 0


def _attend(
    sut: SystemUnderTest,
    test: threading.Thread,
    query_timeout: float,
    report: Callable[[Message], None],
) -> None:
    """Report progress until the test is over, or end the process with it."""
    while test.is_alive():
        test.join(REPORT_INTERVAL_S)
        now = time.monotonic()
        fault = sut.fault
        if fault is None and test.is_alive() and now - sut.last_at > query_timeout:
            fault = Unavailable(f"no answer for {query_timeout:g} s")
        if fault is not None:
            report(Failed(f"{fault} (after {sut.done:,} queries)" if sut.done else str(fault)))
            os._exit(1)  # there is no way out of a running test but the process's end
        report(Progressed(sut.done, now - sut.started_at))


def _test(sut: SystemUnderTest, queries: Queries, settings: LoadgenSettings) -> None:
    """The warm-up, and the whole of LoadGen's run."""
    try:
        fastest = sut.warm_up()
    except SynergaiError as fault:
        sut.fault = fault
        return

    def nothing(*_: object) -> None:
        """The samples are in memory already, and nothing is held back."""

    count = len(queries.requests)
    under_test = mlperf_loadgen.ConstructSUT(sut.issue, nothing)
    library = mlperf_loadgen.ConstructQSL(count, count, nothing, nothing)
    try:
        mlperf_loadgen.StartTestWithLogSettings(
            under_test,
            library,
            run_settings(settings.queries, settings.min_duration, fastest),
            log_settings(settings.output),
        )
    finally:
        mlperf_loadgen.DestroyQSL(library)
        mlperf_loadgen.DestroySUT(under_test)


if __name__ == "__main__":
    sys.exit(main())
