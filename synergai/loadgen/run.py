"""One LoadGen run in a process of its own: ``python -m synergai.loadgen.run``.

LoadGen keeps its state per process and cannot be stopped, so every run gets a process, and ending
a run early is ending its process. The test has a thread to itself; the main thread reports, and
gives up on a query that is never answered.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

import mlperf_loadgen

from synergai.client.client import Client
from synergai.errors import SynergaiError, Unavailable
from synergai.loadgen.accuracy_log import ACCURACY_FILE
from synergai.loadgen.async_system import AsyncSystem
from synergai.loadgen.completion import Completion
from synergai.loadgen.dataset_library import dataset_library
from synergai.loadgen.messages import MESSAGES, Message, RunCounts, RunFailed, RunProgress
from synergai.loadgen.query_counter import QueryCounter
from synergai.loadgen.sample_set import SampleSet, samples_for
from synergai.loadgen.scenarios import scenario_settings
from synergai.loadgen.settings import LoadgenSettings
from synergai.loadgen.single_stream import log_settings
from synergai.loadgen.sync_client import SyncClient
from synergai.loadgen.sync_system import SyncSystem
from synergai.models.postprocess import CLASSES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from synergai.domain import Engine
    from synergai.loadgen.library import SampleLibrary

REPORT_INTERVAL_S: Final = 0.1


class System(Protocol):
    """The gateway in LoadGen's hands. All calls come on LoadGen's own thread."""

    def load(self, indices: Sequence[int], /) -> None:
        """These samples are going to be issued."""

    def unload(self, indices: Sequence[int], /) -> None:
        """These samples are issued no more."""

    def issue(self, samples: list[mlperf_loadgen.QuerySample], /) -> None:
        """Ask the gateway, and complete every sample some time, whatever became of it."""


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

    settings = LoadgenSettings.unpacked(options.settings)
    board = QueryCounter(None if settings.qos_ms is None else settings.qos_ms / 1e3)
    try:
        report(_run(settings, board, report))
    except SynergaiError as error:
        report(RunFailed(str(error)))
        return 1
    return 0


def _run(
    settings: LoadgenSettings, board: QueryCounter, report: Callable[[Message], None]
) -> RunCounts:
    """Run the test, and return our count of it.

    Raises:
        SynergaiError: the gateway could not be asked, or the samples are no good.
    """
    with ExitStack() as stack:
        line = stack.enter_context(SyncClient(settings.target, settings.tls_ca))
        library = _library(settings, line.engine(settings.engine))
        completion = Completion(library if settings.mode == "accuracy" else None)
        deadline_s = settings.qos_ms / 1e3 if settings.qos_ms and settings.enforce else None
        waiting = SyncSystem(
            line,
            settings.engine,
            library,
            deadline_s=deadline_s,
            completion=completion,
            board=board,
        )
        system: System = waiting
        if settings.scenario in ("Server", "Offline"):
            client = Client(
                settings.target, attempts=1, in_flight=sys.maxsize, tls_ca=settings.tls_ca
            )
            flowing = AsyncSystem(
                client,
                settings.engine,
                library,
                deadline_s=deadline_s,
                window=settings.window if settings.scenario == "Offline" else None,
                completion=completion,
                board=board,
            )
            system = stack.enter_context(flowing)

        def prepare() -> mlperf_loadgen.TestSettings:
            requested = scenario_settings(settings, waiting.warm_up())
            board.begin()
            return requested

        logs = log_settings(settings.output)
        test = threading.Thread(target=_test, args=(system, library, prepare, logs, board))
        test.start()
        _attend(board, test, settings.query_timeout, report)
    return _evaluated(board.counted(library.origin), library, settings)


def _library(settings: LoadgenSettings, engine: Engine) -> SampleLibrary:
    """What is sent.

    Raises:
        InvalidInput: they are not samples, or not for this engine.
        NotFound: the data set is not where it should be.
    """
    if settings.dataset is not None and settings.data is not None:
        return dataset_library(settings.dataset, settings.data, engine)
    samples, origin = samples_for(engine, settings.models, settings.samples)
    has_classes = engine.postprocess == CLASSES
    return SampleSet(samples, origin, engine.outputs[0].name, has_classes=has_classes)


def _evaluated(counted: RunCounts, library: SampleLibrary, settings: LoadgenSettings) -> RunCounts:
    """The count, with the accuracy of the answers if they were kept and somebody knows better."""
    if settings.mode != "accuracy":
        return counted
    accuracy = library.evaluate(settings.output / ACCURACY_FILE)
    if accuracy is None:
        return counted
    return replace(
        counted,
        measure=accuracy.measure,
        accuracy=accuracy.value,
        evaluated=accuracy.samples,
    )


def _attend(
    board: QueryCounter,
    test: threading.Thread,
    query_timeout: float,
    report: Callable[[Message], None],
) -> None:
    """Report progress until the test is over, or end the process with it."""
    while test.is_alive():
        test.join(REPORT_INTERVAL_S)
        fault = board.fault
        if fault is None and board.silent_s() > query_timeout:
            fault = Unavailable(f"no answer for {query_timeout:g} s")
        if fault is not None:
            report(
                RunFailed(f"{fault} (after {board.done:,} queries)" if board.done else str(fault))
            )
            os._exit(1)  # there is no way out of a running test but the process's end
        report(RunProgress(board.done, board.elapsed_s()))


def _test(
    system: System,
    library: SampleLibrary,
    prepare: Callable[[], mlperf_loadgen.TestSettings],
    logs: mlperf_loadgen.LogSettings,
    board: QueryCounter,
) -> None:
    """The warm-up, and the whole of LoadGen's run."""
    try:
        requested = prepare()
    except SynergaiError as fault:
        board.fault = fault
        return

    def flush() -> None:
        """Nothing is held back."""

    under_test = mlperf_loadgen.ConstructSUT(system.issue, flush)
    samples = mlperf_loadgen.ConstructQSL(
        library.count, library.performance_count, system.load, system.unload
    )
    try:
        mlperf_loadgen.StartTestWithLogSettings(under_test, samples, requested, logs)
    except SynergaiError as fault:  # a sample cannot be read
        board.fault = fault
    finally:
        mlperf_loadgen.DestroyQSL(samples)
        mlperf_loadgen.DestroySUT(under_test)


if __name__ == "__main__":
    sys.exit(main())
